package controller

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/integrations/gateway-api/translate"
)

const adminToken = "0123456789abcdef-admin"

// binary is the weir that WEIR names, else one built here.
func binary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("WEIR"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "weir")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/weir")
	cmd.Dir, cmd.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// freePort returns an address of loopback that was free.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// eventually waits for ok, which is generous since the machine may be busy.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30s: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// service is a Service with one ready endpoint, the server at url.
func service(t *testing.T, name, url string) []client.Object {
	t.Helper()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	p := int32(n)
	return []client.Object{
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Port: &p}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{host}}},
		},
	}
}

// httpRoute leads path to a Service.
func httpRoute(name, path, service string) *gw.HTTPRoute {
	port := gw.PortNumber(80)
	return &gw.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: gw.HTTPRouteSpec{
		CommonRouteSpec: gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: "web"}}},
		Rules: []gw.HTTPRouteRule{{
			Matches:     []gw.HTTPRouteMatch{{Path: &gw.HTTPPathMatch{Value: &path}}},
			BackendRefs: []gw.HTTPBackendRef{{BackendRef: gw.BackendRef{BackendObjectReference: gw.BackendObjectReference{Name: gw.ObjectName(service), Port: &port}}}},
		}},
	}}
}

// TestChangeOfARouteCutsNoStreamOfAnother runs a Weir that the reconciler configures, changes
// a route, and reads on from an event stream that another route carries.
func TestChangeOfARouteCutsNoStreamOfAnother(t *testing.T) {
	events := make(chan string)
	stream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case e := <-events:
				_, _ = fmt.Fprintf(w, "data: %s\n\n", e)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer stream.Close()
	says := func(text string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		t.Cleanup(s.Close)
		return s
	}
	objects := []client.Object{
		&gw.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "weir"}, Spec: gw.GatewayClassSpec{ControllerName: "weir-gateway.io/weir"}},
		&gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: gw.GatewaySpec{GatewayClassName: "weir", Listeners: []gw.Listener{{Name: "any", Port: 80, Protocol: gw.HTTPProtocolType}}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "realtime", Name: "weir"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.7"}}},
		httpRoute("stream", "/stream", "stream"), httpRoute("app", "/app", "v1"),
	}
	objects = append(objects, service(t, "stream", stream.URL)...)
	objects = append(objects, service(t, "v1", says("v1").URL)...)
	objects = append(objects, service(t, "v2", says("v2").URL)...)
	r, public := start(t, objects)
	ctx := t.Context()

	res, err := http.Get("http://" + public + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewScanner(res.Body)
	next := func(want string) {
		t.Helper()
		events <- want
		for lines.Scan() {
			if lines.Text() == "data: "+want {
				return
			}
		}
		t.Fatalf("the stream ended before %q: %v", want, lines.Err())
	}
	next("before")
	if got := get(t, public, "/app"); got != "v1" {
		t.Fatalf("/app answers %q", got)
	}
	app := httpRoute("app", "/app", "v2")
	change(t, r, app)
	eventually(t, "the change of the route", func() bool { return get(t, public, "/app") == "v2" })
	next("after")

	// A route that Weir cannot express says so, and the others stay.
	expression := gw.PathMatchRegularExpression
	bad := httpRoute("bad", "/a.*", "v1")
	bad.Spec.Rules[0].Matches[0].Path.Type = &expression
	if err := r.Client.Create(ctx, bad); err != nil {
		t.Fatal(err)
	}
	reconcileOnce(t, r)
	var seen gw.HTTPRoute
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(bad), &seen); err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(seen.Status.Parents[0].Conditions, string(gw.RouteConditionAccepted)); c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(gw.RouteReasonUnsupportedValue) {
		t.Errorf("conditions of a regular expression: %+v", seen.Status)
	}
	next("at the end")
	gatewayIs(t, r, metav1.ConditionTrue)

	// A parent that is gone takes its status with it, and what other controllers wrote stays.
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(app), app); err != nil {
		t.Fatal(err)
	}
	app.Status.Parents = append(app.Status.Parents, gw.RouteParentStatus{ParentRef: gw.ParentReference{Name: "other"}, ControllerName: "example.com/other", Conditions: []metav1.Condition{}})
	if err := r.Client.Status().Update(ctx, app); err != nil {
		t.Fatal(err)
	}
	app.Spec.ParentRefs = nil
	change(t, r, app)
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(app), app); err != nil {
		t.Fatal(err)
	}
	if p := app.Status.Parents; len(p) != 1 || p[0].ControllerName != "example.com/other" {
		t.Errorf("parents %+v", p)
	}
	eventually(t, "the end of the route", func() bool { return get(t, public, "/app") != "v2" })
	next("last")
}

// TestAnInvalidBaseIsNotWritten keeps what runs, and says that nothing is programmed.
func TestAnInvalidBaseIsNotWritten(t *testing.T) {
	r, _ := start(t, []client.Object{
		&gw.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "weir"}, Spec: gw.GatewayClassSpec{ControllerName: "weir-gateway.io/weir"}},
		&gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: gw.GatewaySpec{GatewayClassName: "weir", Listeners: []gw.Listener{{Name: "any", Port: 80, Protocol: gw.HTTPProtocolType}}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "realtime", Name: "weir"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.7"}}},
	})
	gatewayIs(t, r, metav1.ConditionTrue)
	was, err := os.ReadFile(r.Config.Target.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.Config.Target.Base, []byte("listen: nowhere\nnonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reconcileOnce(t, r)
	gatewayIs(t, r, metav1.ConditionFalse)
	if now, err := os.ReadFile(r.Config.Target.File); err != nil || string(now) != string(was) {
		t.Errorf("%v: the file is now %s", err, now)
	}
}

// start runs a Weir and a reconciler for it, and returns where it listens.
func start(t *testing.T, objects []client.Object) (*Reconciler, string) {
	t.Helper()
	dir, public, admin := t.TempDir(), freePort(t), freePort(t)
	base := filepath.Join(dir, "base.yaml")
	text := fmt.Sprintf("listen: %s\nadmin: {listen: %s, token: %s}\nbroker: {kind: none}\n", public, admin, adminToken)
	if err := os.WriteFile(base, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	leading := make(chan struct{})
	close(leading)
	r := &Reconciler{
		Leading: leading,
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
			WithStatusSubresource(&gw.GatewayClass{}, &gw.Gateway{}, &gw.HTTPRoute{}, &gw.GRPCRoute{}, &gw.BackendTLSPolicy{}).Build(),
		Config: Config{
			Options: translate.Options{Controller: "weir-gateway.io/weir", Port: 80, Dir: dir},
			Service: types.NamespacedName{Namespace: "realtime", Name: "weir"}, Log: slog.New(slog.DiscardHandler),
			Target: &Target{Base: base, File: filepath.Join(dir, "weir.yaml"), Dir: dir, Admin: "http://" + admin, Token: adminToken},
		},
	}
	reconcileOnce(t, r) // writes the file; there is no Weir yet
	gatewayIs(t, r, metav1.ConditionFalse)
	ctx, cancel := context.WithCancel(context.Background())
	weir := exec.CommandContext(ctx, binary(t), "serve", "--config", r.Config.Target.File)
	var log strings.Builder
	weir.Dir, weir.Stderr = dir, &log
	weir.Cancel = func() error { return weir.Process.Signal(os.Interrupt) }
	weir.WaitDelay = 10 * time.Second
	if err := weir.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = weir.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	eventually(t, "weir ready", func() bool {
		res, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	reconcileOnce(t, r)
	return r, public
}

func reconcileOnce(t *testing.T, r *Reconciler) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
}

// change stores a new spec of a route and reconciles.
func change(t *testing.T, r *Reconciler, o *gw.HTTPRoute) {
	t.Helper()
	var now gw.HTTPRoute
	if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(o), &now); err != nil {
		t.Fatal(err)
	}
	now.Spec = o.Spec
	if err := r.Client.Update(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
	reconcileOnce(t, r)
}

// gatewayIs checks Programmed of the Gateway shop/web.
func gatewayIs(t *testing.T, r *Reconciler, want metav1.ConditionStatus) {
	t.Helper()
	var g gw.Gateway
	if err := r.Client.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "web"}, &g); err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(g.Status.Conditions, string(gw.GatewayConditionProgrammed)); c == nil || c.Status != want {
		t.Errorf("Programmed is %+v, want %s", c, want)
	}
}

func get(t *testing.T, address, path string) string {
	t.Helper()
	res, err := http.Get("http://" + address + path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(res.Body) // what is cut is not what is wanted
	return string(text)
}
