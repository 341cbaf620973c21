// Package controller keeps a Weir and the status of Gateway API objects as the objects of a
// cluster want them. It runs beside one Weir, in its pod: it writes the file that Weir watches
// and requests a reload, which cuts no stream. Each pod configures its own Weir; the leader
// alone writes status.
package controller

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/integrations/gateway-api/translate"
)

// Config is what a controller needs to know.
type Config struct {
	// Options are those of the translation; Addresses come from Service.
	Options translate.Options
	// Service is the one before Weir, whose addresses the Gateways have.
	Service types.NamespacedName
	// LeaseNamespace and LeaseName are where the pods elect the one that writes status.
	LeaseNamespace, LeaseName string
	// Target is the Weir.
	Target *Target
	Log    *slog.Logger
}

// Scheme returns the types that the controller reads.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, gw.Install} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Run keeps the Weir current until ctx is done.
func Run(ctx context.Context, kube *rest.Config, c Config) error {
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	m, err := ctrl.NewManager(kube, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		LeaderElection: c.LeaseName != "", LeaderElectionID: c.LeaseName, LeaderElectionNamespace: c.LeaseNamespace, LeaderElectionReleaseOnCancel: true,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Field: fields.OneTermEqualSelector("type", string(corev1.SecretTypeTLS))},
		}},
	})
	if err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	r := &Reconciler{Client: m.GetClient(), Config: c, Leading: m.Elected()}
	everyPod := false
	b := ctrl.NewControllerManagedBy(m).Named("weir").WithOptions(optionsFor(everyPod))
	// All objects lead to one request: a change of any is a translation of all.
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	for _, o := range []client.Object{
		&gw.GatewayClass{}, &gw.Gateway{}, &gw.HTTPRoute{}, &gw.GRPCRoute{}, &gw.BackendTLSPolicy{}, &gw.ReferenceGrant{},
		&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Namespace{},
	} {
		b = b.Watches(o, one)
	}
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	return m.Start(ctx)
}
