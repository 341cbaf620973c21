package translate

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// Features are what a GatewayClass of this controller supports.
func Features() []gw.SupportedFeature {
	names := []features.FeatureName{
		features.SupportBackendTLSPolicy, features.SupportGRPCRoute, features.SupportGateway, features.SupportHTTPRoute, features.SupportReferenceGrant,
		features.SupportHTTPRouteBackendProtocolH2C, features.SupportHTTPRouteBackendProtocolWebSocket, features.SupportHTTPRouteBackendTimeout,
		features.SupportHTTPRouteHostRewrite, features.SupportHTTPRouteMethodMatching, features.SupportHTTPRouteNamedRouteRule,
		features.SupportHTTPRouteParentRefPort, features.SupportHTTPRoutePathRedirect, features.SupportHTTPRoutePathRewrite,
		features.SupportHTTPRoutePortRedirect, features.SupportHTTPRouteQueryParamMatching, features.SupportHTTPRouteRequestMirror,
		features.SupportHTTPRouteRequestPercentageMirror, features.SupportHTTPRouteRequestTimeout,
		features.SupportHTTPRouteResponseHeaderModification, features.SupportHTTPRouteSchemeRedirect,
	}
	slices.Sort(names)
	var list []gw.SupportedFeature
	for _, n := range names {
		list = append(list, gw.SupportedFeature{Name: gw.FeatureName(n)})
	}
	return list
}

// report sets the status of classes, gateways and policies, after routes are attached.
func (t *translation) report() {
	for i := range t.in.Classes {
		c := &t.in.Classes[i]
		if c.Spec.ControllerName != t.Controller {
			continue
		}
		p := problem{}
		if c.Spec.ParametersRef != nil {
			p = problem{string(gw.GatewayClassReasonInvalidParameters), "spec.parametersRef is not supported: omit it"}
		}
		t.status.Classes[c.Name] = gw.GatewayClassStatus{
			Conditions:        []metav1.Condition{condition(gw.GatewayClassConditionStatusAccepted, gw.GatewayClassReasonAccepted, p, c.Generation)},
			SupportedFeatures: Features(),
		}
	}
	for _, g := range t.gateways {
		t.status.Gateways[nameOf(&g.object.ObjectMeta)] = t.gatewayStatus(g)
	}
	for i := range t.in.Policies {
		t.reportPolicy(&t.in.Policies[i])
	}
}

func (t *translation) gatewayStatus(g *gateway) gw.GatewayStatus {
	s := gw.GatewayStatus{Addresses: slices.Clone(t.Addresses)}
	usable := 0
	var invalid []string
	for _, l := range g.listeners {
		if l.usable() {
			usable++
		}
		if !l.usable() || !l.unresolved.none() {
			invalid = append(invalid, string(l.spec.Name))
		}
		s.Listeners = append(s.Listeners, l.status(g.object.Generation))
	}
	accepted := condition(gw.GatewayConditionAccepted, gw.GatewayReasonAccepted, problem{g.refusal, g.message}, g.object.Generation)
	programmed := problem{}
	message := "listeners that are not valid: " + strings.Join(invalid, ", ")
	switch {
	case g.refusal != "":
		programmed = problem{string(gw.GatewayReasonInvalid), g.message}
	case usable == 0:
		programmed = problem{string(gw.GatewayReasonInvalid), message}
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, string(gw.GatewayReasonListenersNotValid), message
	case len(invalid) > 0:
		accepted.Reason, accepted.Message = string(gw.GatewayReasonListenersNotValid), message
	}
	if programmed.none() && len(t.Addresses) == 0 {
		programmed = problem{string(gw.GatewayReasonAddressNotAssigned), "the Service before Weir has no address yet"}
	}
	s.Conditions = []metav1.Condition{accepted, condition(gw.GatewayConditionProgrammed, gw.GatewayReasonProgrammed, programmed, g.object.Generation)}
	return s
}

func (l *listener) status(generation int64) gw.ListenerStatus {
	s := gw.ListenerStatus{Name: l.spec.Name, AttachedRoutes: l.attached, SupportedKinds: []gw.RouteGroupKind{}}
	group := gw.Group(gw.GroupName)
	for _, k := range l.kinds {
		s.SupportedKinds = append(s.SupportedKinds, gw.RouteGroupKind{Group: &group, Kind: k})
	}
	refused := l.refused
	if refused.none() && !l.conflict.none() {
		refused = l.conflict
	}
	programmed := problem{}
	if !l.usable() {
		programmed = problem{string(gw.ListenerReasonInvalid), "see the other conditions"}
		if l.gateway.refusal != "" {
			programmed.message = l.gateway.message
		}
	}
	conflicted := metav1.Condition{Type: string(gw.ListenerConditionConflicted), Status: metav1.ConditionFalse, Reason: string(gw.ListenerReasonNoConflicts), ObservedGeneration: generation}
	if !l.conflict.none() {
		conflicted.Status, conflicted.Reason, conflicted.Message = metav1.ConditionTrue, l.conflict.reason, l.conflict.message
	}
	s.Conditions = []metav1.Condition{
		condition(gw.ListenerConditionAccepted, gw.ListenerReasonAccepted, refused, generation),
		condition(gw.ListenerConditionProgrammed, gw.ListenerReasonProgrammed, programmed, generation),
		condition(gw.ListenerConditionResolvedRefs, gw.ListenerReasonResolvedRefs, l.unresolved, generation),
		conflicted,
	}
	return s
}

// reportPolicy sets the status of a policy that a route of this controller uses: per gateway,
// which is the same for all, since they share their backends.
func (t *translation) reportPolicy(object *gw.BackendTLSPolicy) {
	p := t.policies[nameOf(&object.ObjectMeta)]
	if p == nil {
		return
	}
	refused := p.refused
	if p.conflicts && !p.validated {
		refused = problem{string(gw.PolicyReasonConflicted), "an older BackendTLSPolicy has the same target"}
	}
	group, kind := gw.Group(gw.GroupName), gw.Kind("Gateway")
	for _, g := range t.gateways {
		if len(t.status.Policies[nameOf(&object.ObjectMeta)]) == 16 {
			break // what the status may have
		}
		namespace := gw.Namespace(g.object.Namespace)
		t.status.Policies[nameOf(&object.ObjectMeta)] = append(t.status.Policies[nameOf(&object.ObjectMeta)], gw.PolicyAncestorStatus{
			AncestorRef:    gw.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gw.ObjectName(g.object.Name)},
			ControllerName: t.Controller,
			Conditions: []metav1.Condition{
				condition(gw.PolicyConditionAccepted, gw.PolicyReasonAccepted, refused, object.Generation),
				condition(gw.BackendTLSPolicyConditionResolvedRefs, gw.BackendTLSPolicyReasonResolvedRefs, p.unresolved, object.Generation),
			},
		})
	}
}
