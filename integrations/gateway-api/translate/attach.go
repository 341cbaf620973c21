package translate

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// A route is an HTTPRoute or a GRPCRoute, in one form.
type route struct {
	kind      gw.Kind
	meta      *metav1.ObjectMeta
	parents   []gw.ParentReference
	hostnames []gw.Hostname
	rules     []rule
}

// routes returns all routes, the oldest first.
func (t *translation) routes() []*route {
	var all []*route
	for i := range t.in.HTTPRoutes {
		r := &t.in.HTTPRoutes[i]
		all = append(all, &route{kind: "HTTPRoute", meta: &r.ObjectMeta, parents: r.Spec.ParentRefs, hostnames: r.Spec.Hostnames})
		if concerns(t.gateways, r.Spec.ParentRefs, r.Namespace) {
			all[len(all)-1].rules = t.httpRules(r)
		}
	}
	for i := range t.in.GRPCRoutes {
		r := &t.in.GRPCRoutes[i]
		all = append(all, &route{kind: "GRPCRoute", meta: &r.ObjectMeta, parents: r.Spec.ParentRefs, hostnames: r.Spec.Hostnames})
		if concerns(t.gateways, r.Spec.ParentRefs, r.Namespace) {
			all[len(all)-1].rules = t.grpcRules(r)
		}
	}
	slices.SortFunc(all, func(a, b *route) int {
		if c := older(a.meta, b.meta); c != 0 {
			return c
		}
		return strings.Compare(string(a.kind), string(b.kind))
	})
	return all
}

// concerns reports whether any of parents is a gateway of this controller.
func concerns(gateways []*gateway, parents []gw.ParentReference, namespace string) bool {
	return slices.ContainsFunc(parents, func(p gw.ParentReference) bool { return parentOf(gateways, p, namespace) != nil })
}

// parentOf returns the gateway that p names, or nil if it is not this controller's.
func parentOf(gateways []*gateway, p gw.ParentReference, namespace string) *gateway {
	if or(p.Group, gw.GroupName) != gw.GroupName || or(p.Kind, "Gateway") != "Gateway" {
		return nil
	}
	i := slices.IndexFunc(gateways, func(g *gateway) bool {
		return g.object.Name == string(p.Name) && g.object.Namespace == string(or(p.Namespace, gw.Namespace(namespace)))
	})
	if i < 0 {
		return nil
	}
	return gateways[i]
}

// attach attaches r to the listeners of its parents, sets its status and returns what the
// table of routes gets of it.
func (t *translation) attach(r *route) []entry {
	for _, h := range r.hostnames {
		for i := range r.rules {
			if !validHost(string(h)) {
				r.rules[i].refuse(gw.RouteReasonUnsupportedValue, "hostname %q: write a name such as example.com or *.example.com", h)
			}
		}
	}
	var statuses []gw.RouteParentStatus
	hosts := map[string]bool{}
	counted := map[*listener]bool{}
	for _, p := range r.parents {
		g := parentOf(t.gateways, p, r.meta.Namespace)
		if g == nil {
			continue
		}
		accepted, listeners := t.attachTo(r, p, g, hosts)
		partial := problem{}
		if accepted.none() {
			accepted, partial = r.verdict()
		}
		if accepted.none() {
			for _, l := range listeners {
				if !counted[l] {
					counted[l] = true
					l.attached++
				}
			}
		}
		statuses = append(statuses, gw.RouteParentStatus{ParentRef: p, ControllerName: t.Controller, Conditions: r.conditions(accepted, partial)})
	}
	if len(statuses) == 0 {
		return nil
	}
	name := nameOf(r.meta)
	if r.kind == "HTTPRoute" {
		t.status.HTTPRoutes[name] = statuses
	} else {
		t.status.GRPCRoutes[name] = statuses
	}
	if len(counted) == 0 {
		return nil
	}
	return r.entries(sortedKeys(hosts))
}

// attachTo finds the listeners of g that p means and that take r, and adds the hosts that r
// has there.
func (t *translation) attachTo(r *route, p gw.ParentReference, g *gateway, hosts map[string]bool) (refused problem, attached []*listener) {
	refused = problem{string(gw.RouteReasonNoMatchingParent), "the Gateway has no listener of this sectionName and port"}
	worse := func(rank int, reason gw.RouteConditionReason, message string) {
		if order := []gw.RouteConditionReason{gw.RouteReasonNoMatchingParent, gw.RouteReasonNotAllowedByListeners, gw.RouteReasonNoMatchingListenerHostname, gw.RouteReasonPending}; rank >= slices.Index(order, gw.RouteConditionReason(refused.reason)) {
			refused = problem{string(reason), message}
		}
	}
	for _, l := range g.listeners {
		if p.SectionName != nil && *p.SectionName != l.spec.Name || p.Port != nil && *p.Port != l.spec.Port {
			continue
		}
		if !t.allows(l, r.kind, r.meta.Namespace) {
			worse(1, gw.RouteReasonNotAllowedByListeners, "no listener lets routes of this kind and namespace attach: see its allowedRoutes")
			continue
		}
		found := intersect(r.hostnames, l.hostname())
		if len(found) == 0 {
			worse(2, gw.RouteReasonNoMatchingListenerHostname, "no hostname of the route is one of the listener's")
			continue
		}
		if !l.usable() {
			worse(3, gw.RouteReasonPending, fmt.Sprintf("listener %s cannot be programmed: see its conditions", l.spec.Name))
			continue
		}
		attached = append(attached, l)
		for _, h := range found {
			hosts[h] = true
		}
	}
	if len(attached) > 0 {
		return problem{}, attached
	}
	return refused, nil
}

// intersect returns the hosts that a route has on a listener: the narrower of each pair that
// overlaps. "" is any host.
func intersect(route []gw.Hostname, listener string) []string {
	listener = strings.ToLower(listener)
	if len(route) == 0 {
		return []string{listener}
	}
	var hosts []string
	for _, h := range route {
		switch h := strings.ToLower(string(h)); {
		case listener == "" || covers(listener, h):
			hosts = append(hosts, h)
		case covers(h, listener):
			hosts = append(hosts, listener)
		}
	}
	return hosts
}

// covers reports whether every name that host matches is one of wide's.
func covers(wide, host string) bool {
	suffix, wild := strings.CutPrefix(wide, "*")
	return wide == host || wild && strings.HasSuffix(host, suffix) && len(host) > len(suffix)
}

// verdict reports what is wrong with the rules: refused if none can be programmed, partial if
// some cannot.
func (r *route) verdict() (refused, partial problem) {
	var messages []string
	for i := range r.rules {
		if u := &r.rules[i].unsupported; !u.none() {
			messages = append(messages, fmt.Sprintf("rules[%d]: %s", i, u.message))
		}
	}
	switch n := len(messages); {
	case n == 0:
		return problem{}, problem{}
	case n == len(r.rules):
		return problem{string(r.firstReason()), clip(strings.Join(messages, "; "))}, problem{}
	default:
		return problem{}, problem{string(r.firstReason()), clip("Dropped Rule: " + strings.Join(messages, "; "))}
	}
}

func (r *route) firstReason() gw.RouteConditionReason {
	for i := range r.rules {
		if u := r.rules[i].unsupported; !u.none() {
			return gw.RouteConditionReason(u.reason)
		}
	}
	return gw.RouteReasonAccepted
}

func (r *route) conditions(accepted, partial problem) []metav1.Condition {
	resolved := problem{}
	for i := range r.rules {
		if u := r.rules[i].unresolved; !u.none() {
			resolved = problem{u.reason, fmt.Sprintf("rules[%d]: %s", i, u.message)}
			break
		}
	}
	g := r.meta.Generation
	list := []metav1.Condition{
		condition(gw.RouteConditionAccepted, gw.RouteReasonAccepted, accepted, g),
		condition(gw.RouteConditionResolvedRefs, gw.RouteReasonResolvedRefs, resolved, g),
	}
	if !partial.none() {
		list = append(list, metav1.Condition{Type: string(gw.RouteConditionPartiallyInvalid), Status: metav1.ConditionTrue, Reason: partial.reason, Message: partial.message, ObservedGeneration: g})
	}
	return list
}

// condition is true if there is no problem.
func condition[T, R ~string](kind T, fine R, p problem, generation int64) metav1.Condition {
	c := metav1.Condition{Type: string(kind), Status: metav1.ConditionTrue, Reason: string(fine), ObservedGeneration: generation}
	if !p.none() {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, p.reason, clip(p.message)
	}
	return c
}

// clip bounds a message to what a condition may have.
func clip(s string) string {
	const most = 32 << 10
	return s[:min(len(s), most)]
}
