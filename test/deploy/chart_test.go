// Package deploy checks the Helm chart and the compose files with the libraries that read
// them: Helm's own engine and linter, Kubernetes's types, and compose's reference loader.
// It is a module of its own, so that Weir depends on none of them:
//
//	cd test/deploy && go test ./...
package deploy

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const dir = "../../deploy/helm/weir"

// kubernetes is the version that the chart is rendered for.
var kubernetes = chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}

var update = flag.Bool("update", false, "write the golden renders of testdata")

// cases are values with which the chart is rendered, by the name of their golden file.
var cases = map[string]map[string]any{
	"embedded": {"existingSecret": "weir-secrets"},
	"single":   {"existingSecret": "weir-secrets", "replicas": 1, "persistence": map[string]any{"enabled": false}},
	"memory":   {"existingSecret": "weir-secrets", "broker": "memory", "replicas": 1, "networkPolicy": map[string]any{"enabled": false}},
	"nats":     {"existingSecret": "weir-secrets", "broker": "nats", "autoscaling": map[string]any{"enabled": true}, "nats": map[string]any{"storageClass": "fast"}},
	"http3": {
		"existingSecret": "weir-secrets", "tlsSecret": "weir-tls", "service": map[string]any{"type": "LoadBalancer", "port": 443},
		"config": map[string]any{"downstream": map[string]any{"http3": true}},
	},
	"gatewayapi": {
		"existingSecret": "weir-secrets", "service": map[string]any{"type": "LoadBalancer", "port": 443},
		"gatewayApi": map[string]any{"enabled": true, "https": true, "className": "weir-https"},
	},
	"external": {
		"broker": "external", "nats": map[string]any{"url": "nats://nats-0.nats:4222,nats://nats-1.nats:4222"},
		"externalSecret": map[string]any{"enabled": true, "key": "weir", "storeRef": map[string]any{"name": "vault"}},
		"autoscaling":    map[string]any{"enabled": true},
		"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
		"service":        map[string]any{"type": "LoadBalancer", "annotations": map[string]any{"example.com/lb": "public"}},
		"image":          map[string]any{"digest": "sha256:" + strings.Repeat("0", 64)},
		"podLabels":      map[string]any{"team": "edge"}, "podAnnotations": map[string]any{"a": "b"},
		"networkPolicy": map[string]any{"clients": []any{map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.0/8"}}}},
		"nodeSelector":  map[string]any{"pool": "edge"},
		"tolerations":   []any{map[string]any{"key": "edge", "operator": "Exists"}},
		"sysctls":       []any{map[string]any{"name": "net.core.somaxconn", "value": "16384"}},
		"config":        map[string]any{"admin": map[string]any{"live_rate": 1}, "log": map[string]any{"format": "json"}},
	},
}

// allCases are the cases and the values of deploy/argocd.
func allCases(t *testing.T) map[string]map[string]any {
	t.Helper()
	all := maps.Clone(cases)
	all["argocd"] = application(t)
	return all
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render is what helm template does; the values are checked against the chart's schema.
func render(c *chart.Chart, values map[string]any) (string, error) {
	caps := *chartutil.DefaultCapabilities
	caps.KubeVersion = kubernetes
	v, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "weir", Namespace: "realtime"}, &caps)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, v)
	if err != nil {
		return "", err
	}
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		for doc := range strings.SplitSeq(files[name], "\n---\n") {
			if doc = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(doc), "---")); doc != "" {
				fmt.Fprintf(&b, "---\n%s\n", doc)
			}
		}
	}
	return b.String(), nil
}

// objects decodes every document strictly into Kubernetes's own type: an unknown or
// repeated field is an error. Kinds of operators come back as they are.
func objects(t *testing.T, text string) (list []runtime.Object, others []string) {
	t.Helper()
	for doc := range strings.SplitSeq(strings.TrimPrefix(text, "---\n"), "\n---\n") {
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		object, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(head.APIVersion, head.Kind))
		if runtime.IsNotRegisteredError(err) {
			others = append(others, head.APIVersion+" "+head.Kind)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
			t.Errorf("%s %s: %v\n%s", head.APIVersion, head.Kind, err, doc)
		}
		list = append(list, object)
	}
	return list, others
}

func TestTheChartIsLinted(t *testing.T) {
	for name, values := range allCases(t) {
		l := lint.AllWithKubeVersion(dir, values, "realtime", &kubernetes)
		for _, m := range l.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

func TestRendersAreGoldenAndOfKubernetesTypes(t *testing.T) {
	c := load(t)
	for name, values := range allCases(t) {
		text, err := render(c, values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		golden := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != text {
			t.Errorf("%s is not current (%v); run: go test -run %s -update", golden, err, t.Name())
		}
		list, others := objects(t, text)
		if len(list) < 4 {
			t.Errorf("%s: %d objects", name, len(list))
		}
		if name == "external" && !slices.Equal(others, []string{"external-secrets.io/v1 ExternalSecret", "monitoring.coreos.com/v1 ServiceMonitor"}) {
			t.Errorf("kinds of operators: %q", others)
		}
	}
}

// TestAnUnknownFieldIsFound keeps the strict decoding honest.
func TestAnUnknownFieldIsFound(t *testing.T) {
	if err := yaml.UnmarshalStrict([]byte("spec: {restartPolicies: Always}"), &corev1.Pod{}); err == nil {
		t.Error("an unknown field is accepted")
	}
	if err := yaml.UnmarshalStrict([]byte("spec: {minReplicas: 1, minReplicas: 2}"), &autoscalingv2.HorizontalPodAutoscaler{}); err == nil {
		t.Error("a repeated field is accepted")
	}
}

// TestValuesThatCannotWorkAreRefused: each error names the value and what to set.
func TestValuesThatCannotWorkAreRefused(t *testing.T) {
	c := load(t)
	f := func(want string, values map[string]any) {
		t.Helper()
		if _, ok := values["existingSecret"]; !ok {
			values["existingSecret"] = "weir-secrets"
		}
		if _, err := render(c, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("existingSecret is empty", map[string]any{"existingSecret": ""})
	f("without storeRef.name or key", map[string]any{"externalSecret": map[string]any{"enabled": true}})
	f("nats.url is empty", map[string]any{"broker": "external"})
	f("autoscaling needs broker: external or nats", map[string]any{"autoscaling": map[string]any{"enabled": true}})
	f("nats.replicas is 2", map[string]any{"broker": "nats", "nats": map[string]any{"replicas": 2}})
	f("replicas is 2", map[string]any{"replicas": 2})
	f("broker is memory and replicas is more than 1", map[string]any{"broker": "memory"})
	f("broker", map[string]any{"broker": "kafka"})
	f("replica", map[string]any{"replica": 3})
	f("config", map[string]any{"config": map[string]any{"listen": ":80"}})
	f("http3 needs TLS", map[string]any{"config": map[string]any{"downstream": map[string]any{"http3": true}}})
	f("both set", map[string]any{"tlsSecret": "tls", "config": map[string]any{"tls": map[string]any{"certificates": []any{map[string]any{"cert_file": "a"}}}}})
}

// TestEveryValueIsDocumentedAndHasAType: values.yaml and its schema name the same keys, and
// each has a comment above it or above the group that it starts.
func TestEveryValueIsDocumentedAndHasAType(t *testing.T) {
	c := load(t)
	var s struct {
		Properties map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"properties"`
	}
	if err := yaml.Unmarshal(c.Schema, &s); err != nil {
		t.Fatal(err)
	}
	for key, value := range c.Values {
		p, ok := s.Properties[key]
		if !ok {
			t.Errorf("%s is not in values.schema.json", key)
		}
		if m, ok := value.(map[string]any); ok && p.Properties != nil {
			for sub := range m {
				if _, ok := p.Properties[sub]; !ok {
					t.Errorf("%s.%s is not in values.schema.json", key, sub)
				}
			}
		}
	}
	for key := range s.Properties {
		if _, ok := c.Values[key]; !ok && key != "global" {
			t.Errorf("%s of values.schema.json is not in values.yaml", key)
		}
	}
}

// TestTheConfigurationOfPodsIsValid has Weir read what the chart renders, with the variables
// that the Secret and the pod bring.
func TestTheConfigurationOfPodsIsValid(t *testing.T) {
	weir := binary(t)
	c := load(t)
	for name, values := range allCases(t) {
		text, err := render(c, values)
		if err != nil {
			t.Fatal(err)
		}
		list, _ := objects(t, text)
		for _, o := range list {
			m, ok := o.(*corev1.ConfigMap)
			if !ok {
				continue
			}
			secret := t.TempDir() // where the certificate is, for Weir reads it
			file := filepath.Join(secret, "weir.yaml")
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(m.Data["weir.yaml"], "/etc/weir-tls", secret)), 0o600); err != nil {
				t.Fatal(err)
			}
			certificate(t, secret)
			cmd := exec.Command(weir, "config", "check", "--config", file)
			cmd.Env = append(os.Environ(), "WEIR_ADMIN_TOKEN=0123456789abcdef", "WEIR_ADMIN_READ_TOKEN=fedcba9876543210",
				`WEIR_AUTH_API_KEYS=[{"name":"backend","key":"0123456789abcdef"}]`)
			if bytes.Contains([]byte(text), []byte("WEIR_BROKER_NATS_CLUSTER_NODE")) {
				cmd.Env = append(cmd.Env, "WEIR_BROKER_NATS_CLUSTER_NODE=weir-0", "WEIR_BROKER_NATS_CLUSTER_LISTEN=10.0.0.1:6222", "WEIR_BROKER_NATS_CLUSTER_PASSWORD=0123456789abcdef")
			}
			if name == "nats" {
				cmd.Env = append(cmd.Env, "WEIR_BROKER_NATS_PASSWORD=0123456789abcdef")
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s\n%s", name, err, out, m.Data["weir.yaml"])
			}
		}
	}
}

// certificate writes tls.crt and tls.key, as a Secret of type kubernetes.io/tls has them.
func certificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"weir.example"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// binary is the one that WEIR names, else one built here.
func binary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("WEIR"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "weir")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/weir")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}
