package translate

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A backend is one reference of a rule.
type backend struct {
	ref    gw.BackendObjectReference
	weight int32
}

// none is the cluster of requests whose backend is missing: it has no usable peer, which
// answers 503.
const none = "gateway-api/none"

// lead has r lead to backends, or redirect.
func (t *translation) lead(r *rule, kind gw.Kind, namespace string, f filters, backends []backend) {
	if f.redirect != nil {
		if len(backends) > 0 {
			r.refuse(gw.RouteReasonIncompatibleFilters, "filters: RequestRedirect cannot be together with backendRefs")
		}
		r.redirects(f.redirect, t.Port, t.HTTPS)
		return
	}
	split := upstream.SplitConfig{Name: "gateway-api/" + r.name}
	resolved := 0
	for _, b := range backends {
		name := t.cluster(r, kind, namespace, b.ref)
		if name == "" {
			name = none
		} else if b.weight > 0 {
			resolved++
		}
		if b.weight == 0 {
			continue
		}
		if i := slices.IndexFunc(split.Arms, func(a upstream.ArmConfig) bool { return a.Cluster == name }); i >= 0 {
			split.Arms[i].Weight += float64(b.weight)
			continue
		}
		split.Arms = append(split.Arms, upstream.ArmConfig{Cluster: name, Weight: float64(b.weight)})
	}
	if resolved == 0 {
		r.to = policy.RouteConfig{Reply: policy.Reply{Status: 500, Body: "no backend of this route can be resolved\n"}}
		r.rewritePrefix = ""
		return
	}
	r.to.Limits.MaxBody = -1 // the specification has no bound
	if f.mirror != nil {
		t.mirror(r, kind, namespace, f.mirror, &split)
	}
	if slices.ContainsFunc(split.Arms, func(a upstream.ArmConfig) bool { return a.Cluster == none }) {
		t.clusters[none] = upstream.Config{Name: none, Peers: []upstream.PeerConfig{{Address: "127.0.0.1:9", Drain: true}}, Health: upstream.HealthConfig{PanicBelow: -1}}
	}
	if len(split.Arms) == 1 && split.Mirror.Cluster == "" {
		r.to.Cluster = split.Arms[0].Cluster
		return
	}
	r.to.Cluster = split.Name
	t.splits = append(t.splits, split)
}

func (t *translation) mirror(r *rule, kind gw.Kind, namespace string, in *gw.HTTPRequestMirrorFilter, split *upstream.SplitConfig) {
	share := 1.0
	switch {
	case in.Percent != nil:
		share = float64(*in.Percent) / 100
	case in.Fraction != nil:
		share = float64(in.Fraction.Numerator) / float64(max(1, or(in.Fraction.Denominator, 100)))
	}
	if name := t.cluster(r, kind, namespace, in.BackendRef); name != "" && share > 0 {
		split.Mirror = upstream.MirrorConfig{Cluster: name, Share: min(share, 1)}
	}
}

// cluster returns the cluster of a reference, or notes in r why there is none. A Service
// without endpoints has a cluster that answers 503.
func (t *translation) cluster(r *rule, kind gw.Kind, from string, ref gw.BackendObjectReference) string {
	name := types.NamespacedName{Namespace: string(or(ref.Namespace, gw.Namespace(from))), Name: string(ref.Name)}
	if or(ref.Group, "") != "" || or(ref.Kind, "Service") != "Service" {
		r.fail(gw.RouteReasonInvalidKind, "backend %s: kind %s: write Service", name, or(ref.Kind, "Service"))
		return ""
	}
	if name.Namespace != from && !t.granted(reference{gw.GroupName, kind, from}, "", "Service", name) {
		r.fail(gw.RouteReasonRefNotPermitted, "no ReferenceGrant of namespace %s lets a %s of %s refer to Service %s", name.Namespace, kind, from, name.Name)
		return ""
	}
	s := t.services[name]
	if s == nil || ref.Port == nil {
		r.fail(gw.RouteReasonBackendNotFound, "Service %s does not exist, or no port is named", name)
		return ""
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		r.fail(gw.RouteReasonBackendNotFound, "Service %s is of type ExternalName, which is not supported", name)
		return ""
	}
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == *ref.Port })
	if i < 0 {
		r.fail(gw.RouteReasonBackendNotFound, "Service %s has no port %d", name, *ref.Port)
		return ""
	}
	port := &s.Spec.Ports[i]
	c := upstream.Config{Name: fmt.Sprintf("gateway-api/%s/%s/%d", name.Namespace, name.Name, port.Port)}
	switch app := or(port.AppProtocol, ""); {
	case app == "kubernetes.io/h2c" || kind == "GRPCRoute":
		c.Protocol, c.Name = upstream.HTTP2, c.Name+"/http2"
	case app == "kubernetes.io/wss" && t.policyOf(name, port.Name) == nil:
		r.fail(gw.RouteReasonUnsupportedProtocol, "Service %s: appProtocol %s needs a BackendTLSPolicy", name, app)
		return ""
	}
	if p := t.policyOf(name, port.Name); p != nil {
		if !t.secure(p, &c) {
			r.fail(gw.RouteReasonBackendNotFound, "BackendTLSPolicy %s of Service %s is not valid: see its conditions", p.object.Name, name)
			return ""
		}
	}
	if _, made := t.clusters[c.Name]; !made {
		c.Peers = t.peers(name, port)
		if len(c.Peers) == 0 {
			c.Peers, c.Health.PanicBelow = []upstream.PeerConfig{{Address: "127.0.0.1:9", Drain: true}}, -1
		}
		t.clusters[c.Name] = c
	}
	return c.Name
}

// peers are the ready endpoints of a port of a Service.
func (t *lookup) peers(name types.NamespacedName, port *corev1.ServicePort) []upstream.PeerConfig {
	var peers []upstream.PeerConfig
	for _, s := range t.endpoints[name] {
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, p := range s.Ports {
			if or(p.Name, "") != port.Name || p.Port == nil {
				continue
			}
			for _, e := range s.Endpoints {
				if !or(e.Conditions.Ready, true) {
					continue
				}
				for _, a := range e.Addresses[:min(1, len(e.Addresses))] {
					if net.ParseIP(a) != nil {
						peers = append(peers, upstream.PeerConfig{Address: net.JoinHostPort(a, strconv.Itoa(int(*p.Port)))})
					}
				}
			}
		}
	}
	slices.SortFunc(peers, func(a, b upstream.PeerConfig) int { return cmp.Compare(a.Address, b.Address) })
	return slices.Compact(peers)
}

// A policyUse is a BackendTLSPolicy that applies to a Service of a route.
type policyUse struct {
	object               *gw.BackendTLSPolicy
	refused, unresolved  problem
	caFiles              []string
	validated, conflicts bool
}

// policyOf returns the policy of a port of a Service, or nil. One that names the port goes
// before one that does not; then the oldest wins, and the others are in conflict.
func (t *translation) policyOf(service types.NamespacedName, port string) *policyUse {
	var found []*gw.BackendTLSPolicy
	section := func(p *gw.BackendTLSPolicy) int {
		best := -1
		for _, ref := range p.Spec.TargetRefs {
			if p.Namespace != service.Namespace || ref.Group != "" || ref.Kind != "Service" || string(ref.Name) != service.Name {
				continue
			}
			switch s := string(or(ref.SectionName, "")); s {
			case "":
				best = max(best, 0)
			case port:
				best = 1
			}
		}
		return best
	}
	for i := range t.in.Policies {
		if p := &t.in.Policies[i]; section(p) >= 0 {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b *gw.BackendTLSPolicy) int {
		return cmp.Or(cmp.Compare(section(b), section(a)), older(&a.ObjectMeta, &b.ObjectMeta))
	})
	for _, p := range found[1:] {
		if section(p) == section(found[0]) {
			t.use(p).conflicts = true
		}
	}
	return t.use(found[0])
}

func (t *translation) use(p *gw.BackendTLSPolicy) *policyUse {
	name := nameOf(&p.ObjectMeta)
	if t.policies[name] == nil {
		t.policies[name] = &policyUse{object: p}
	}
	return t.policies[name]
}

// secure adds the policy to a cluster. It reports false if the policy is not valid: then
// nothing may be sent.
func (t *translation) secure(p *policyUse, c *upstream.Config) bool {
	if !p.validated {
		p.validated = true
		t.authorities(p)
	}
	if !p.refused.none() {
		return false
	}
	c.TLS = upstream.TLSConfig{Enabled: true, ServerName: string(p.object.Spec.Validation.Hostname), CAFiles: p.caFiles}
	if c.Protocol == "" {
		c.Protocol = upstream.AutoProtocol
	}
	return true
}

// authorities makes the files of a policy's certificates.
func (t *translation) authorities(p *policyUse) {
	v := &p.object.Spec.Validation
	switch {
	case len(v.SubjectAltNames) > 0:
		p.refused = problem{string(gw.PolicyReasonInvalid), "validation.subjectAltNames are not supported: Weir compares the certificate with validation.hostname"}
		return
	case len(p.object.Spec.Options) > 0:
		p.refused = problem{string(gw.PolicyReasonInvalid), "options are not supported: omit them"}
		return
	case v.WellKnownCACertificates != nil && *v.WellKnownCACertificates != gw.WellKnownCACertificatesSystem:
		p.refused = problem{string(gw.PolicyReasonInvalid), fmt.Sprintf("validation.wellKnownCACertificates %s: write System", *v.WellKnownCACertificates)}
		return
	case v.WellKnownCACertificates != nil:
		return
	}
	for _, ref := range v.CACertificateRefs {
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			p.unresolved = problem{string(gw.BackendTLSPolicyReasonInvalidKind), fmt.Sprintf("validation.caCertificateRefs: kind %s: write ConfigMap", ref.Kind)}
			continue
		}
		name := types.NamespacedName{Namespace: p.object.Namespace, Name: string(ref.Name)}
		m := t.configMaps[name]
		if m == nil || !x509.NewCertPool().AppendCertsFromPEM(bytes.TrimSpace([]byte(m.Data["ca.crt"]))) {
			p.unresolved = problem{string(gw.BackendTLSPolicyReasonInvalidCACertificateRef), fmt.Sprintf("validation.caCertificateRefs: ConfigMap %s has no certificate under ca.crt", name)}
			continue
		}
		file := fileName("ca", name.String()) + ".pem"
		t.files[file] = []byte(m.Data["ca.crt"])
		p.caFiles = append(p.caFiles, t.Dir+"/"+file)
	}
	if len(p.caFiles) == 0 {
		p.refused = problem{string(gw.BackendTLSPolicyReasonNoValidCACertificate), "no reference of validation.caCertificateRefs leads to a certificate"}
	}
}
