package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/integrations/gateway-api/translate"
)

func optionsFor(needsLeader bool) controller.Options {
	return controller.Options{NeedLeaderElection: &needsLeader, MaxConcurrentReconciles: 1}
}

// A Reconciler translates all objects and applies the result.
type Reconciler struct {
	Client  client.Client
	Config  Config
	Leading <-chan struct{} // closed when this pod writes status
}

// Reconcile is called, one call at a time, when any object has changed.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	in, err := r.read(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	options := r.Config.Options
	options.Addresses = addresses(in.Services, r.Config.Service)
	out := translate.Translate(in, options)
	applied := r.Config.Target.Apply(ctx, out)
	if applied != nil {
		r.Config.Log.Error("the configuration is not in force", "err", applied)
	}
	select {
	case <-r.Leading:
	default:
		// Another pod writes status; this one looks again in case it becomes the leader.
		return reconcile.Result{RequeueAfter: 10 * time.Second}, nil
	}
	if err := r.report(ctx, in, withholding(out.Status, applied)); err != nil {
		return reconcile.Result{}, err
	}
	if applied != nil {
		return reconcile.Result{RequeueAfter: 5 * time.Second}, nil
	}
	return reconcile.Result{}, nil
}

// read lists everything, from the cache.
func (r *Reconciler) read(ctx context.Context) (in translate.Objects, err error) {
	var (
		classes   gw.GatewayClassList
		gateways  gw.GatewayList
		http      gw.HTTPRouteList
		grpc      gw.GRPCRouteList
		policies  gw.BackendTLSPolicyList
		grants    gw.ReferenceGrantList
		services  corev1.ServiceList
		endpoints discoveryv1.EndpointSliceList
		secrets   corev1.SecretList
		maps      corev1.ConfigMapList
		namespace corev1.NamespaceList
	)
	for _, list := range []client.ObjectList{&classes, &gateways, &http, &grpc, &policies, &grants, &services, &endpoints, &secrets, &maps, &namespace} {
		err = errors.Join(err, r.Client.List(ctx, list))
	}
	return translate.Objects{
		Classes: classes.Items, Gateways: gateways.Items, HTTPRoutes: http.Items, GRPCRoutes: grpc.Items, Policies: policies.Items, Grants: grants.Items,
		Services: services.Items, EndpointSlices: endpoints.Items, Secrets: secrets.Items, ConfigMaps: maps.Items, Namespaces: namespace.Items,
	}, err
}

// addresses are those of the Service before Weir: of its load balancer, else in the cluster.
func addresses(services []corev1.Service, name types.NamespacedName) (list []gw.GatewayStatusAddress) {
	add := func(kind gw.AddressType, value string) {
		if value != "" && value != corev1.ClusterIPNone {
			list = append(list, gw.GatewayStatusAddress{Type: &kind, Value: value})
		}
	}
	i := slices.IndexFunc(services, func(s corev1.Service) bool { return s.Namespace == name.Namespace && s.Name == name.Name })
	if i < 0 {
		return nil
	}
	for _, in := range services[i].Status.LoadBalancer.Ingress {
		add(gw.IPAddressType, in.IP)
		add(gw.HostnameAddressType, in.Hostname)
	}
	if services[i].Spec.Type == corev1.ServiceTypeLoadBalancer {
		return list
	}
	for _, ip := range services[i].Spec.ExternalIPs {
		add(gw.IPAddressType, ip)
	}
	for _, ip := range services[i].Spec.ClusterIPs {
		add(gw.IPAddressType, ip)
	}
	return list
}

// withholding returns s with nothing said to be programmed if applying it failed.
func withholding(s translate.Status, applied error) translate.Status {
	if applied == nil {
		return s
	}
	withhold := func(conditions []metav1.Condition) {
		for i := range conditions {
			if c := &conditions[i]; c.Type == string(gw.GatewayConditionProgrammed) && c.Status == metav1.ConditionTrue {
				c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(gw.GatewayReasonPending), applied.Error()
			}
		}
	}
	for _, g := range s.Gateways {
		withhold(g.Conditions)
		for _, l := range g.Listeners {
			withhold(l.Conditions)
		}
	}
	return s
}

// report writes the statuses that differ. Those of gone parents are removed.
func (r *Reconciler) report(ctx context.Context, in translate.Objects, s translate.Status) error {
	var errs []error
	write := func(o client.Object, changed bool) {
		if changed {
			if err := r.Client.Status().Update(ctx, o); client.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("write the status of %s/%s: %w", o.GetNamespace(), o.GetName(), err))
			}
		}
	}
	for i := range in.Classes {
		o := in.Classes[i].DeepCopy()
		if want, ok := s.Classes[o.Name]; ok {
			want.Conditions = merge(o.Status.Conditions, want.Conditions)
			write(o, set(&o.Status, want))
		}
	}
	for i := range in.Gateways {
		o := in.Gateways[i].DeepCopy()
		if want, ok := s.Gateways[key(o)]; ok {
			want.Conditions = merge(o.Status.Conditions, want.Conditions)
			for k := range want.Listeners {
				l := &want.Listeners[k]
				if was := slices.IndexFunc(o.Status.Listeners, func(w gw.ListenerStatus) bool { return w.Name == l.Name }); was >= 0 {
					l.Conditions = merge(o.Status.Listeners[was].Conditions, l.Conditions)
				} else {
					l.Conditions = merge(nil, l.Conditions)
				}
			}
			write(o, set(&o.Status, want))
		}
	}
	for i := range in.HTTPRoutes {
		o := in.HTTPRoutes[i].DeepCopy()
		write(o, set(&o.Status.Parents, statuses(r, o.Status.Parents, s.HTTPRoutes[key(o)], ofParent)))
	}
	for i := range in.GRPCRoutes {
		o := in.GRPCRoutes[i].DeepCopy()
		write(o, set(&o.Status.Parents, statuses(r, o.Status.Parents, s.GRPCRoutes[key(o)], ofParent)))
	}
	for i := range in.Policies {
		o := in.Policies[i].DeepCopy()
		write(o, set(&o.Status.Ancestors, statuses(r, o.Status.Ancestors, s.Policies[key(o)], ofAncestor)))
	}
	return errors.Join(errs...)
}

func key(o client.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// set replaces *at and reports whether it differed.
func set[T any](at *T, want T) bool {
	if equality.Semantic.DeepEqual(*at, want) {
		return false
	}
	*at = want
	return true
}

// merge returns want with the transition times of was where a condition is as it was.
func merge(was, want []metav1.Condition) []metav1.Condition {
	list := slices.Clone(was)
	for _, c := range want {
		meta.SetStatusCondition(&list, c)
	}
	return slices.DeleteFunc(list, func(c metav1.Condition) bool { return meta.FindStatusCondition(want, c.Type) == nil })
}

// statuses returns the entries of other controllers, and then this one's. of returns an entry's
// controller, what it is about, and its conditions.
func statuses[S any](r *Reconciler, was, want []S, of func(*S) (gw.GatewayController, gw.ParentReference, *[]metav1.Condition)) []S {
	list := make([]S, 0, len(was)+len(want))
	for i := range was {
		if c, _, _ := of(&was[i]); c != r.Config.Options.Controller {
			list = append(list, was[i])
		}
	}
	for _, w := range want {
		_, ref, conditions := of(&w)
		var before []metav1.Condition
		if i := slices.IndexFunc(was, func(s S) bool {
			c, is, _ := of(&s)
			return c == r.Config.Options.Controller && equality.Semantic.DeepEqual(is, ref)
		}); i >= 0 {
			_, _, is := of(&was[i])
			before = *is
		}
		*conditions = merge(before, *conditions)
		list = append(list, w)
	}
	return list
}

func ofParent(s *gw.RouteParentStatus) (gw.GatewayController, gw.ParentReference, *[]metav1.Condition) {
	return s.ControllerName, s.ParentRef, &s.Conditions
}

func ofAncestor(s *gw.PolicyAncestorStatus) (gw.GatewayController, gw.ParentReference, *[]metav1.Condition) {
	return s.ControllerName, s.AncestorRef, &s.Conditions
}
