package translate

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/internal/net/tlsterm"
)

// A gateway is one of a class of this controller.
type gateway struct {
	object    *gw.Gateway
	listeners []*listener
	// refusal is why the whole gateway is not accepted; empty: it is.
	refusal, message string
}

// A listener is one of a gateway, with what is wrong with it.
type listener struct {
	spec    *gw.Listener
	gateway *gateway
	kinds   []gw.Kind // of routes that may attach

	// Conditions, by reason. Empty: nothing is wrong.
	refused, unresolved, conflict problem
	attached                      int32
}

// A problem is the reason and message of a condition.
type problem struct{ reason, message string }

func (p problem) none() bool { return p.reason == "" }

// usable reports whether l can be programmed.
func (l *listener) usable() bool {
	return l.gateway.refusal == "" && l.refused.none() && l.conflict.none() && (l.unresolved.none() || l.unresolved.reason == string(gw.ListenerReasonInvalidRouteKinds) && len(l.kinds) > 0)
}

func (l *listener) hostname() string { return string(or(l.spec.Hostname, "")) }

// listen finds the gateways of this controller and validates their listeners.
func (t *translation) listen() {
	classes := map[gw.ObjectName]bool{}
	for i := range t.in.Classes {
		c := &t.in.Classes[i]
		if c.Spec.ControllerName == t.Controller && c.Spec.ParametersRef == nil {
			classes[gw.ObjectName(c.Name)] = true
		}
	}
	for i := range t.in.Gateways {
		g := &t.in.Gateways[i]
		if classes[g.Spec.GatewayClassName] && g.DeletionTimestamp.IsZero() {
			t.gateways = append(t.gateways, t.newGateway(g))
		}
	}
	slices.SortFunc(t.gateways, func(a, b *gateway) int { return older(&a.object.ObjectMeta, &b.object.ObjectMeta) })
	for _, g := range t.gateways {
		for _, l := range g.listeners {
			t.certify(l)
		}
	}
}

func (t *translation) newGateway(object *gw.Gateway) *gateway {
	g := &gateway{object: object}
	switch s := &object.Spec; {
	case len(s.Addresses) > 0 && !hasAddresses(t.Addresses, s.Addresses):
		g.refusal, g.message = string(gw.GatewayReasonUnsupportedAddress), "spec.addresses: Weir has the addresses of the Service before it: omit them, or set them there"
	case s.TLS != nil && (s.TLS.Frontend != nil || s.TLS.Backend != nil):
		g.refusal, g.message = string(gw.GatewayReasonInvalid), "spec.tls: client certificates are not supported here: set tls.client_auth and clusters[].tls.cert_file in Weir's own configuration"
	case s.Infrastructure != nil && s.Infrastructure.ParametersRef != nil:
		g.refusal, g.message = string(gw.GatewayReasonInvalidParameters), "spec.infrastructure.parametersRef is not supported: omit it"
	}
	hosts := map[string]int{}
	for i := range object.Spec.Listeners {
		l := &listener{spec: &object.Spec.Listeners[i], gateway: g}
		validate(l, t.Options)
		if l.refused.none() {
			hosts[l.hostname()]++
		}
		g.listeners = append(g.listeners, l)
	}
	for _, l := range g.listeners {
		if l.refused.none() && hosts[l.hostname()] > 1 {
			l.conflict = problem{string(gw.ListenerReasonHostnameConflict), fmt.Sprintf("another listener of this port has the hostname %q, too", l.hostname())}
		}
	}
	return g
}

// hasAddresses reports whether all of want are among have. An empty value wants any.
func hasAddresses(have []gw.GatewayStatusAddress, want []gw.GatewaySpecAddress) bool {
	for _, w := range want {
		if !slices.ContainsFunc(have, func(a gw.GatewayStatusAddress) bool {
			return (w.Value == "" || a.Value == w.Value) && or(a.Type, gw.IPAddressType) == or(w.Type, gw.IPAddressType)
		}) {
			return false
		}
	}
	return true
}

// validate finds out what l is for, and what is wrong with it.
func validate(l *listener, t Options) {
	protocol := gw.HTTPProtocolType
	if t.HTTPS {
		protocol = gw.HTTPSProtocolType
	}
	switch s := l.spec; {
	case s.Protocol != gw.HTTPProtocolType && s.Protocol != gw.HTTPSProtocolType:
		l.refused = problem{string(gw.ListenerReasonUnsupportedProtocol), fmt.Sprintf("protocol %s: write HTTP or HTTPS", s.Protocol)}
	case s.Port != t.Port:
		l.refused = problem{string(gw.ListenerReasonPortUnavailable), fmt.Sprintf("port %d: this Weir serves port %d; another release of the chart with a GatewayClass of its own serves another port", s.Port, t.Port)}
	case s.Protocol != protocol:
		l.refused = problem{string(gw.ListenerReasonUnsupportedProtocol), fmt.Sprintf("protocol %s: port %d of this Weir speaks %s", s.Protocol, t.Port, protocol)}
	case s.Protocol == gw.HTTPSProtocolType && s.TLS != nil && or(s.TLS.Mode, gw.TLSModeTerminate) != gw.TLSModeTerminate:
		l.refused = problem{string(gw.ListenerReasonUnsupportedValue), "tls.mode: Weir terminates TLS: write Terminate"}
	case !validHost(l.hostname()):
		l.refused = problem{string(gw.ListenerReasonUnsupportedValue), fmt.Sprintf("hostname %q: write a name such as example.com or *.example.com", l.hostname())}
	case s.TLS != nil && len(s.TLS.Options) > 0:
		l.refused = problem{string(gw.ListenerReasonUnsupportedValue), "tls.options are not supported: set tls in Weir's own configuration"}
	}
	supported := []gw.Kind{"HTTPRoute", "GRPCRoute"}
	if a := l.spec.AllowedRoutes; a == nil || len(a.Kinds) == 0 {
		l.kinds = supported
		return
	}
	for _, k := range l.spec.AllowedRoutes.Kinds {
		if or(k.Group, gw.GroupName) != gw.GroupName || !slices.Contains(supported, k.Kind) {
			l.unresolved = problem{string(gw.ListenerReasonInvalidRouteKinds), fmt.Sprintf("allowedRoutes.kinds: %s: write HTTPRoute or GRPCRoute", k.Kind)}
			continue
		}
		if !slices.Contains(l.kinds, k.Kind) {
			l.kinds = append(l.kinds, k.Kind)
		}
	}
}

// certify adds the certificates of an HTTPS listener to the configuration.
func (t *translation) certify(l *listener) {
	if l.spec.Protocol != gw.HTTPSProtocolType || !l.refused.none() || l.gateway.refusal != "" {
		return
	}
	if l.spec.TLS == nil || len(l.spec.TLS.CertificateRefs) == 0 {
		l.unresolved = problem{string(gw.ListenerReasonInvalidCertificateRef), "tls.certificateRefs is empty: name a Secret of type kubernetes.io/tls"}
		return
	}
	for _, ref := range l.spec.TLS.CertificateRefs {
		c, p := t.certificate(l.gateway.object.Namespace, ref)
		if !p.none() {
			l.unresolved = p
			continue
		}
		if l.conflict.none() && !slices.Contains(t.certificates, c) {
			t.certificates = append(t.certificates, c)
		}
	}
}

// certificate makes the files of the Secret that ref names.
func (t *translation) certificate(from string, ref gw.SecretObjectReference) (tlsterm.Certificate, problem) {
	name := types.NamespacedName{Namespace: string(or(ref.Namespace, gw.Namespace(from))), Name: string(ref.Name)}
	bad := func(format string, args ...any) (tlsterm.Certificate, problem) {
		return tlsterm.Certificate{}, problem{string(gw.ListenerReasonInvalidCertificateRef), "tls.certificateRefs: Secret " + name.String() + ": " + fmt.Sprintf(format, args...)}
	}
	if or(ref.Group, "") != "" || or(ref.Kind, "Secret") != "Secret" {
		return bad("kind %s: write Secret", or(ref.Kind, "Secret"))
	}
	if name.Namespace != from && !t.granted(reference{gw.GroupName, "Gateway", from}, "", "Secret", name) {
		return tlsterm.Certificate{}, problem{string(gw.ListenerReasonRefNotPermitted), "tls.certificateRefs: no ReferenceGrant of namespace " + name.Namespace + " lets Gateways of " + from + " refer to Secret " + name.Name}
	}
	secret := t.secrets[name]
	if secret == nil {
		return bad("does not exist, or is not of type kubernetes.io/tls")
	}
	cert, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return bad("tls.crt and tls.key are not a certificate and its key")
	}
	base := fileName("tls", name.String())
	t.files[base+".crt"], t.files[base+".key"] = cert, key
	return tlsterm.Certificate{CertFile: t.Dir + "/" + base + ".crt", KeyFile: t.Dir + "/" + base + ".key"}, problem{}
}

// fileName is a name without characters that mean something in a path, stable and unique for
// what it is made from.
func fileName(kind, what string) string {
	sum := sha256.Sum256([]byte(what))
	return kind + "-" + hex.EncodeToString(sum[:10])
}

// A reference is what a ReferenceGrant lets refer to something.
type reference struct {
	group     gw.Group
	kind      gw.Kind
	namespace string
}

// granted reports whether a ReferenceGrant lets from refer to the object to.
func (t *lookup) granted(from reference, group gw.Group, kind gw.Kind, to types.NamespacedName) bool {
	return slices.ContainsFunc(t.in.Grants, func(g gw.ReferenceGrant) bool {
		return g.Namespace == to.Namespace &&
			slices.ContainsFunc(g.Spec.From, func(f gw.ReferenceGrantFrom) bool {
				return f.Group == from.group && f.Kind == from.kind && string(f.Namespace) == from.namespace
			}) &&
			slices.ContainsFunc(g.Spec.To, func(o gw.ReferenceGrantTo) bool {
				return o.Group == group && o.Kind == kind && (or(o.Name, "") == "" || string(*o.Name) == to.Name)
			})
	})
}

// allows reports whether l lets routes of that kind and namespace attach.
func (t *lookup) allows(l *listener, kind gw.Kind, namespace string) bool {
	if !slices.Contains(l.kinds, kind) {
		return false
	}
	from, own := gw.NamespacesFromSame, l.gateway.object.Namespace
	var selector *metav1.LabelSelector
	if a := l.spec.AllowedRoutes; a != nil && a.Namespaces != nil {
		from, selector = or(a.Namespaces.From, from), a.Namespaces.Selector
	}
	switch from {
	case gw.NamespacesFromAll:
		return true
	case gw.NamespacesFromSame:
		return namespace == own
	case gw.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && s.Matches(labels.Set(t.namespaces[namespace]))
	}
	return false
}
