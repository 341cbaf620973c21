{{- define "weir.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.natsSelector" -}}
app.kubernetes.io/name: nats
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.natsLabels" -}}
{{ include "weir.natsSelector" . }}
app.kubernetes.io/version: {{ .Values.nats.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "weir.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "weir.serviceAccount" -}}
{{ if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "weir.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "weir.secret" -}}
{{ .Values.existingSecret | default (include "weir.name" .) }}
{{- end }}

{{- define "weir.http3" -}}
{{- if dig "downstream" "http3" false .Values.config }}true{{ end }}
{{- end }}

{{- define "weir.clustered" -}}
{{- if and (eq .Values.broker "embedded") (gt (int .Values.replicas) 1) }}true{{ end }}
{{- end }}

{{- /* check fails for what cannot work, with what to set. */ -}}
{{- define "weir.check" -}}
{{- if and (not .Values.existingSecret) (not .Values.externalSecret.enabled) }}
{{- fail "existingSecret is empty: name a Secret with WEIR_ADMIN_TOKEN, WEIR_ADMIN_READ_TOKEN and keys for clients (WEIR_AUTH_API_KEYS or WEIR_AUTH_HMAC_SECRET), or enable externalSecret" }}
{{- end }}
{{- if and .Values.externalSecret.enabled (or (not .Values.externalSecret.storeRef.name) (not .Values.externalSecret.key)) }}
{{- fail "externalSecret is enabled without storeRef.name or key: name the store and its entry" }}
{{- end }}
{{- if and (eq .Values.broker "external") (not .Values.nats.url) }}
{{- fail "broker is external and nats.url is empty: set it to the servers, such as nats://nats.nats:4222" }}
{{- end }}
{{- if and (eq .Values.broker "nats") (eq (int .Values.nats.replicas) 2) }}
{{- fail "nats.replicas is 2: two servers have no majority when one is gone; use 1, or 3 and more" }}
{{- end }}
{{- if and (has .Values.broker (list "embedded" "memory")) .Values.autoscaling.enabled }}
{{- fail (printf "autoscaling needs broker: external or nats, not %s: pods of an embedded broker hold messages" .Values.broker) }}
{{- end }}
{{- if and (eq .Values.broker "embedded") (eq (int .Values.replicas) 2) }}
{{- fail "replicas is 2: two embedded servers have no majority when one is gone; use 1, or 3 and more" }}
{{- end }}
{{- if and (eq .Values.broker "memory") (gt (int .Values.replicas) 1) }}
{{- fail "broker is memory and replicas is more than 1: pods would not see each other's messages; use 1, or another broker" }}
{{- end }}
{{- if and (include "weir.http3" .) (not .Values.tlsSecret) (not (dig "tls" "certificates" false .Values.config)) }}
{{- fail "config.downstream.http3 needs TLS: set tlsSecret to a Secret of type kubernetes.io/tls" }}
{{- end }}
{{- if and .Values.tlsSecret (dig "tls" "certificates" false .Values.config) }}
{{- fail "tlsSecret and config.tls.certificates are both set: omit one" }}
{{- end }}
{{- end }}

{{- /* config is weir.yaml. */ -}}
{{- define "weir.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $_ := set $config "listen" ":8000" }}
{{- $_ := set $config "admin" (mergeOverwrite (deepCopy ($config.admin | default dict)) (dict "listen" ":8001")) }}
{{- if .Values.tlsSecret }}
{{- $files := dict "cert_file" "/etc/weir-tls/tls.crt" "key_file" "/etc/weir-tls/tls.key" }}
{{- $_ := set $config "tls" (mergeOverwrite (deepCopy ($config.tls | default dict)) (dict "certificates" (list $files))) }}
{{- end }}
{{- if and (include "weir.http3" .) (not $config.downstream.alt_svc) }}
{{- /* Clients see the Service's port, not the pod's. */}}
{{- $_ := set $config.downstream "alt_svc" (printf "h3=\":%d\"; ma=86400" (int .Values.service.port)) }}
{{- end }}
{{- if .Values.gatewayApi.enabled }}
{{- /* Paths are for routes of Gateways: Weir's own are below a prefix. */}}
{{- $down := deepCopy ($config.downstream | default dict) }}
{{- if not (or $down.builtin_prefix $down.builtin_hosts) }}
{{- $_ := set $down "builtin_prefix" "/weir" }}
{{- end }}
{{- $_ := set $config "downstream" $down }}
{{- end }}
{{- if eq .Values.broker "external" }}
{{- $_ := set $config "broker" (dict "kind" "nats" "nats" (dict "url" .Values.nats.url)) }}
{{- else if eq .Values.broker "nats" }}
{{- $servers := list }}
{{- range $i := until (int .Values.nats.replicas) }}
{{- $servers = append $servers (printf "nats://%[1]s-%[2]d.%[1]s:4222" (printf "%s-nats" (include "weir.name" $)) $i) }}
{{- end }}
{{- /* The password comes from the Secret. */}}
{{- $_ := set $config "broker" (dict "kind" "nats" "nats" (dict "url" (join "," $servers) "user" "weir")) }}
{{- else if eq .Values.broker "memory" }}
{{- $_ := set $config "broker" (dict "kind" "memory") }}
{{- else }}
{{- $nats := dict "dir" "/var/lib/weir/data" }}
{{- if include "weir.clustered" . }}
{{- $name := include "weir.name" . }}
{{- $routes := list }}
{{- range $i := until (int .Values.replicas) }}
{{- $routes = append $routes (printf "%s-%d.%s-cluster:6222" $name $i $name) }}
{{- end }}
{{- /* node, listen and password come from the environment of each pod. */}}
{{- $_ := set $nats "cluster" (dict "name" $name "routes" $routes "user" "weir") }}
{{- end }}
{{- $_ := set $config "broker" (dict "kind" "nats" "nats" $nats) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- define "weir.env" -}}
{{- if include "weir.clustered" . -}}
env:
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - name: WEIR_BROKER_NATS_CLUSTER_NODE
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: WEIR_BROKER_NATS_CLUSTER_LISTEN
    value: "$(POD_IP):6222"
{{- end }}
{{- end }}

{{- define "weir.gatewayImage" -}}
{{ .Values.gatewayApi.image.repository }}:{{ .Values.gatewayApi.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "weir.controller" -}}
weir-gateway.io/{{ .Release.Namespace }}-{{ include "weir.name" . }}
{{- end }}

{{- define "weir.pod" -}}
metadata:
  labels:
    {{- include "weir.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "weir.serviceAccount" . }}
  automountServiceAccountToken: {{ .Values.gatewayApi.enabled }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.drain.gracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
    {{- with .Values.sysctls }}
    sysctls: {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- with .Values.topologySpread }}
  topologySpreadConstraints:
    {{- range . }}
    - maxSkew: {{ .maxSkew | default 1 }}
      topologyKey: {{ .topologyKey }}
      whenUnsatisfiable: {{ .whenUnsatisfiable }}
      labelSelector:
        matchLabels: {{- include "weir.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- if .Values.gatewayApi.enabled }}
  initContainers:
    # A sidecar: it writes the configuration before Weir starts, and runs on beside it.
    - name: gateway-api
      image: {{ include "weir.gatewayImage" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      restartPolicy: Always
      args:
        - -controller={{ include "weir.controller" . }}
        - -port={{ .Values.service.port }}
        - -https={{ .Values.gatewayApi.https }}
        - -service={{ .Release.Namespace }}/{{ include "weir.name" . }}
        - -lease={{ .Release.Namespace }}/{{ include "weir.name" . }}-gateway-api
      envFrom:
        - secretRef: {name: {{ include "weir.secret" . }}}
      {{- with include "weir.env" . }}{{ . | nindent 6 }}{{ end }}
      startupProbe: {httpGet: {path: /readyz, port: 8002}, periodSeconds: 1, failureThreshold: 60}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: {{- toYaml .Values.gatewayApi.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/weir, readOnly: true}
        - {name: gateway-api, mountPath: /run/weir}
        - {name: tmp, mountPath: /tmp}
        {{- if .Values.tlsSecret }}
        - {name: tls, mountPath: /etc/weir-tls, readOnly: true}
        {{- end }}
  {{- end }}
  containers:
    - name: weir
      image: {{ include "weir.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, {{ ternary "/run/weir/weir.yaml" "/etc/weir/weir.yaml" .Values.gatewayApi.enabled }}]
      envFrom:
        - secretRef: {name: {{ include "weir.secret" . }}}
      {{- with include "weir.env" . }}{{ . | nindent 6 }}{{ end }}
      ports:
        - {name: http, containerPort: 8000}
        {{- if include "weir.http3" . }}
        - {name: http3, containerPort: 8000, protocol: UDP}
        {{- end }}
        - {name: admin, containerPort: 8001}
        {{- if include "weir.clustered" . }}
        - {name: cluster, containerPort: 6222}
        {{- end }}
      # Alive while it waits for NATS too: only the readiness says that it waits.
      startupProbe: {httpGet: {path: /healthz, port: admin}, periodSeconds: 1, failureThreshold: 60}
      livenessProbe: {httpGet: {path: /healthz, port: admin}, periodSeconds: 5, failureThreshold: 6}
      readinessProbe: {httpGet: {path: /readyz, port: admin}, periodSeconds: 1, failureThreshold: 1}
      # The service routes elsewhere before the clients are asked to reconnect.
      lifecycle: {preStop: {sleep: {seconds: {{ .Values.drain.preStopSeconds }}}}}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        # A folder, not a file of it: changes of a ConfigMap reach a folder.
        - {name: config, mountPath: /etc/weir, readOnly: true}
        - {name: data, mountPath: /var/lib/weir}
        - {name: tmp, mountPath: /tmp}
        {{- if .Values.tlsSecret }}
        - {name: tls, mountPath: /etc/weir-tls, readOnly: true}
        {{- end }}
        {{- if .Values.gatewayApi.enabled }}
        - {name: gateway-api, mountPath: /run/weir, readOnly: true}
        {{- end }}
  volumes:
    {{- if .Values.gatewayApi.enabled }}
    - name: gateway-api
      emptyDir: {medium: Memory, sizeLimit: 64Mi}
    {{- end }}
    - name: config
      configMap: {name: {{ include "weir.name" . }}}
    - name: tmp
      emptyDir: {}
    {{- with .Values.tlsSecret }}
    - name: tls
      secret: {secretName: {{ . }}}
    {{- end }}
    {{- if not (and (eq .Values.broker "embedded") .Values.persistence.enabled) }}
    - name: data
      emptyDir: {}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
