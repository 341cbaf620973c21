// Package translate turns objects of the Gateway API into Weir's configuration and the status
// of these objects. It is a pure function: it reads no cluster, no file and no clock.
//
//	in  ──  gateways → listeners ─┐
//	        routes ───────────────┴─ attach → rules → table of routes ─ Output.Config
//	        services, endpoints, grants, policies ─── clusters, splits ┘ Output.Files
//
// What Weir cannot express is refused with a condition that names the field; nothing is
// ignored silently.
package translate

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// Objects are what there is in the cluster, in any order. They are not changed.
type Objects struct {
	Classes        []gw.GatewayClass
	Gateways       []gw.Gateway
	HTTPRoutes     []gw.HTTPRoute
	GRPCRoutes     []gw.GRPCRoute
	Policies       []gw.BackendTLSPolicy
	Grants         []gw.ReferenceGrant
	Services       []corev1.Service
	EndpointSlices []discoveryv1.EndpointSlice
	// Secrets need those of type kubernetes.io/tls only.
	Secrets    []corev1.Secret
	ConfigMaps []corev1.ConfigMap
	Namespaces []corev1.Namespace
}

// Options are the facts about the Weir that is configured.
type Options struct {
	// Controller is the controllerName of the GatewayClasses that are served.
	Controller gw.GatewayController
	// Port is the port of the only listeners that can be programmed: a Weir has one public
	// listener.
	Port gw.PortNumber
	// HTTPS reports that this port speaks TLS. False: plain HTTP.
	HTTPS bool
	// Addresses are those of the Service before Weir.
	Addresses []gw.GatewayStatusAddress
	// Dir is the folder of Output.Files, as Weir sees it.
	Dir string
}

// Output is what the objects amount to.
type Output struct {
	Config Config
	// Files are certificates, keys and authorities by their name in Options.Dir. They are
	// secret.
	Files  map[string][]byte
	Status Status
}

// Config are the sections of Weir's configuration that the objects determine.
type Config struct {
	Routes       []policy.RouteConfig
	Clusters     []upstream.Config
	Splits       []upstream.SplitConfig
	Certificates []tlsterm.Certificate
}

// Status is the wanted status of each object that is this controller's. Transition times
// are zero. Routes and policies have only the entries of this controller.
type Status struct {
	Classes    map[string]gw.GatewayClassStatus
	Gateways   map[types.NamespacedName]gw.GatewayStatus
	HTTPRoutes map[types.NamespacedName][]gw.RouteParentStatus
	GRPCRoutes map[types.NamespacedName][]gw.RouteParentStatus
	Policies   map[types.NamespacedName][]gw.PolicyAncestorStatus
}

// Translate returns what in amounts to. Equal objects give equal output, whatever their order.
func Translate(in Objects, opt Options) Output {
	t := &translation{Options: opt, lookup: lookup{in: in}, files: map[string][]byte{}, clusters: map[string]upstream.Config{}, policies: map[types.NamespacedName]*policyUse{}, status: Status{
		Classes: map[string]gw.GatewayClassStatus{}, Gateways: map[types.NamespacedName]gw.GatewayStatus{},
		HTTPRoutes: map[types.NamespacedName][]gw.RouteParentStatus{}, GRPCRoutes: map[types.NamespacedName][]gw.RouteParentStatus{},
		Policies: map[types.NamespacedName][]gw.PolicyAncestorStatus{},
	}}
	t.index()
	t.listen()
	var entries []entry
	for _, r := range t.routes() {
		entries = append(entries, t.attach(r)...)
	}
	out := Output{Files: t.files}
	out.Config.Routes = tabulate(entries)
	for _, name := range sortedKeys(t.clusters) {
		out.Config.Clusters = append(out.Config.Clusters, t.clusters[name])
	}
	slices.SortFunc(t.splits, func(a, b upstream.SplitConfig) int { return cmp.Compare(a.Name, b.Name) })
	out.Config.Splits = t.splits
	out.Config.Certificates = t.certificates
	t.report()
	out.Status = t.status
	return out
}

// A translation is one call of Translate.
type translation struct {
	Options
	lookup

	// Made on the way.
	gateways     []*gateway
	clusters     map[string]upstream.Config
	splits       []upstream.SplitConfig
	certificates []tlsterm.Certificate
	files        map[string][]byte
	policies     map[types.NamespacedName]*policyUse
	status       Status
}

// A lookup finds objects by name.
type lookup struct {
	in Objects

	services   map[types.NamespacedName]*corev1.Service
	secrets    map[types.NamespacedName]*corev1.Secret
	configMaps map[types.NamespacedName]*corev1.ConfigMap
	namespaces map[string]map[string]string // labels
	endpoints  map[types.NamespacedName][]*discoveryv1.EndpointSlice
}

func (t *lookup) index() {
	t.services = byName(t.in.Services, func(s *corev1.Service) *metav1.ObjectMeta { return &s.ObjectMeta })
	t.secrets = byName(t.in.Secrets, func(s *corev1.Secret) *metav1.ObjectMeta { return &s.ObjectMeta })
	t.configMaps = byName(t.in.ConfigMaps, func(m *corev1.ConfigMap) *metav1.ObjectMeta { return &m.ObjectMeta })
	t.namespaces = map[string]map[string]string{}
	for i := range t.in.Namespaces {
		t.namespaces[t.in.Namespaces[i].Name] = t.in.Namespaces[i].Labels
	}
	t.endpoints = map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	for i := range t.in.EndpointSlices {
		s := &t.in.EndpointSlices[i]
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		t.endpoints[name] = append(t.endpoints[name], s)
	}
}

func byName[T any](list []T, meta func(*T) *metav1.ObjectMeta) map[types.NamespacedName]*T {
	m := map[types.NamespacedName]*T{}
	for i := range list {
		m[nameOf(meta(&list[i]))] = &list[i]
	}
	return m
}

func nameOf(m *metav1.ObjectMeta) types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}

// older orders objects as the specification breaks ties: the oldest first, then by namespace
// and name.
func older(a, b *metav1.ObjectMeta) int {
	return cmp.Or(a.CreationTimestamp.Time.Truncate(time.Second).Compare(b.CreationTimestamp.Time.Truncate(time.Second)),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// or returns *p, or def where p is nil.
func or[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}
