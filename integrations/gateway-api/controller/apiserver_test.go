//go:build apiserver

package controller

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// make test-gateway-api-server builds what these variables name, and has a network of its own with
// the address: an EndpointSlice takes none of loopback.
func setting(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run make test-gateway-api-server", name)
	}
	return v
}

// A server is a kube-apiserver and its etcd with the CRDs.
type server struct {
	client.Client        // of an administrator
	kubeconfig    string // of the controller's user, who has the rights of the chart
}

func newServer(t *testing.T) *server {
	t.Helper()
	env := &envtest.Environment{
		BinaryAssetsDirectory: setting(t, "KUBEBUILDER_ASSETS"), CRDDirectoryPaths: []string{setting(t, "GATEWAY_API_CRDS")}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: time.Minute,
	}
	env.ControlPlane.GetAPIServer().Configure().Set("advertise-address", setting(t, "ADDRESS")) // there is no default route to find one by
	kube, err := env.Start()
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := rbacv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(kube, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	user, err := env.AddUser(envtest.User{Name: "weir"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Client: c, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(s.kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"realtime", "shop", "other"} {
		s.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	s.grant(t)
	return s
}

func (s *server) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := s.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// grant gives the controller's user the roles that the chart makes, and nothing else.
func (s *server) grant(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../../../test/deploy/testdata/gatewayapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "weir"}}
	roles := 0
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatal(err)
		}
		switch head.Kind {
		case "ClusterRole":
			var r rbacv1.ClusterRole
			if err := yaml.UnmarshalStrict([]byte(doc), &r); err != nil {
				t.Fatal(err)
			}
			roles++
			s.create(t, &r, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: r.Name}, Subjects: user, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r.Name}})
		case "Role":
			var r rbacv1.Role
			if err := yaml.UnmarshalStrict([]byte(doc), &r); err != nil {
				t.Fatal(err)
			}
			roles++
			r.Namespace = "realtime"
			s.create(t, &r, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}, Subjects: user, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.Name}})
		}
	}
	if roles != 2 {
		t.Fatalf("%d roles in the chart's golden render, want 2", roles)
	}
}

// A pod is a Weir with its sidecar, each a process.
type pod struct {
	public, probe string
	sidecar       *exec.Cmd
	log           strings.Builder
}

// command starts a program that is ended with the test.
func (p *pod) command(t *testing.T, env []string, name string, arg ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, arg...)
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), env...), &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr, cmd.Stdout = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s: %s", filepath.Base(name), text[max(0, len(text)-4000):])
		}
	})
	return cmd
}

func newPod(t *testing.T, s *server, sidecar string) *pod {
	t.Helper()
	dir, admin := t.TempDir(), freePort(t)
	p := &pod{public: freePort(t), probe: freePort(t)}
	base, file := filepath.Join(dir, "base.yaml"), filepath.Join(dir, "weir.yaml")
	text := fmt.Sprintf("listen: %s\nadmin: {listen: %s, token: %s}\nbroker: {kind: none}\n", p.public, admin, adminToken)
	if err := os.WriteFile(base, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.sidecar = p.command(t, []string{"KUBECONFIG=" + s.kubeconfig, "WEIR_ADMIN_TOKEN=" + adminToken}, sidecar,
		"-port", "80", "-service", "realtime/weir", "-lease", "realtime/weir-gateway-api", "-base", base, "-file", file, "-dir", filepath.Join(dir, "files"), "-admin", "http://"+admin, "-probe", p.probe)
	eventually(t, "a configuration is written", func() bool { return get(t, p.probe, "/readyz") == "" })
	p.command(t, nil, setting(t, "WEIR"), "serve", "--config", file)
	return p
}

// reachable makes a Service of namespace with one endpoint, where handler answers.
func (s *server) reachable(t *testing.T, namespace, name string, handler http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(setting(t, "ADDRESS"), "0"))
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- h.Serve(l) }()
	t.Cleanup(func() { _ = h.Close(); <-done })
	for _, o := range service(t, name, "http://"+l.Addr().String()) {
		o.SetNamespace(namespace)
		s.create(t, o)
	}
}

func answers(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// condition is the status of a condition of a route's only parent, if it is about the newest generation.
func (s *server) condition(t *testing.T, route *gw.HTTPRoute, name gw.RouteConditionType) string {
	t.Helper()
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(route), route); err != nil {
		t.Fatal(err)
	}
	if len(route.Status.Parents) != 1 {
		return ""
	}
	c := meta.FindStatusCondition(route.Status.Parents[0].Conditions, string(name))
	if c == nil || c.ObservedGeneration != route.Generation {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

// update changes the newest version of an object, again when another has changed it meanwhile.
func update[T client.Object](t *testing.T, s *server, o T, change func(T)) {
	t.Helper()
	eventually(t, "the update", func() bool {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		change(o)
		err := s.Update(t.Context(), o)
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// TestAgainstAnAPIServer runs two pods of a release at a kube-apiserver with its etcd, the CRDs of the
// Gateway API and the rights that the chart gives.
func TestAgainstAnAPIServer(t *testing.T) {
	s := newServer(t)
	events := make(chan string)
	s.reachable(t, "shop", "stream", func(w http.ResponseWriter, r *http.Request) {
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
	})
	s.reachable(t, "shop", "v1", answers("v1"))
	s.reachable(t, "shop", "v2", answers("v2"))
	s.reachable(t, "other", "v3", answers("v3"))
	weir := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "realtime", Name: "weir"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	app := httpRoute("app", "/app", "v1")
	web := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: gw.GatewaySpec{GatewayClassName: "weir", Listeners: []gw.Listener{{Name: "any", Port: 80, Protocol: gw.HTTPProtocolType}}}}
	s.create(t, weir, &gw.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "weir"}, Spec: gw.GatewayClassSpec{ControllerName: "weir-gateway.io/weir"}}, web, httpRoute("stream", "/stream", "stream"), app)
	sidecar := setting(t, "SIDECAR")
	pods := []*pod{newPod(t, s, sidecar)}
	s.reports(t, web, weir) // so it is the leader
	pods = append(pods, newPod(t, s, sidecar))
	everywhere := func(path, want string) {
		t.Helper()
		for i, p := range pods {
			eventually(t, fmt.Sprintf("pod %d answers %s with %q", i, path, want), func() bool { return get(t, p.public, path) == want })
		}
	}
	everywhere("/app", "v1")

	// A change of a route cuts no stream of another.
	res, err := http.Get("http://" + pods[1].public + "/stream")
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
	update(t, s, app, func(r *gw.HTTPRoute) { r.Spec.Rules[0].BackendRefs[0].Name = "v2" })
	everywhere("/app", "v2")
	next("after")

	// Another namespace's Service needs a ReferenceGrant, whose end is noticed too.
	namespace := gw.Namespace("other")
	update(t, s, app, func(r *gw.HTTPRoute) {
		r.Spec.Rules[0].BackendRefs[0].Name, r.Spec.Rules[0].BackendRefs[0].Namespace = "v3", &namespace
	})
	eventually(t, "the reference is refused", func() bool { return s.condition(t, app, gw.RouteConditionResolvedRefs) == "False RefNotPermitted" })
	grant := &gw.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "shop"}, Spec: gw.ReferenceGrantSpec{
		From: []gw.ReferenceGrantFrom{{Group: gw.GroupName, Kind: "HTTPRoute", Namespace: "shop"}}, To: []gw.ReferenceGrantTo{{Kind: "Service"}},
	}}
	s.create(t, grant)
	everywhere("/app", "v3")
	eventually(t, "the reference is resolved", func() bool { return s.condition(t, app, gw.RouteConditionResolvedRefs) == "True ResolvedRefs" })

	s.refuses(t)
	s.outlivesItsLeader(t, pods, app)
	next("at the end")
}

// reports checks what the objects say of themselves.
func (s *server) reports(t *testing.T, web *gw.Gateway, weir *corev1.Service) {
	t.Helper()
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(weir), weir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Gateway is programmed, with the Service's address and its routes", func() bool {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(web), web); err != nil {
			t.Fatal(err)
		}
		return meta.IsStatusConditionTrue(web.Status.Conditions, string(gw.GatewayConditionProgrammed)) && len(web.Status.Addresses) == 1 &&
			web.Status.Addresses[0].Value == weir.Spec.ClusterIP && len(web.Status.Listeners) == 1 && web.Status.Listeners[0].AttachedRoutes == 2
	})
	var class gw.GatewayClass
	if err := s.Get(t.Context(), types.NamespacedName{Name: "weir"}, &class); err != nil {
		t.Fatal(err)
	}
	if !meta.IsStatusConditionTrue(class.Status.Conditions, string(gw.GatewayClassConditionStatusAccepted)) || len(class.Status.SupportedFeatures) == 0 {
		t.Errorf("the class: %+v", class.Status)
	}
}

// refuses has routes that the server's own validation takes, and that Weir cannot express.
func (s *server) refuses(t *testing.T) {
	t.Helper()
	expression := gw.PathMatchRegularExpression
	bad := httpRoute("bad", "/a.*", "v1")
	bad.Spec.Rules[0].Matches[0].Path.Type = &expression
	s.create(t, bad)
	eventually(t, "a regular expression is refused", func() bool { return s.condition(t, bad, gw.RouteConditionAccepted) == "False UnsupportedValue" })
	// What the CRDs forbid does not get here.
	mixed := httpRoute("mixed", "/b", "v1")
	mixed.Spec.Rules[0].Filters = []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterRequestRedirect, RequestRedirect: &gw.HTTPRequestRedirectFilter{}}}
	if err := s.Create(t.Context(), mixed); !apierrors.IsInvalid(err) {
		t.Errorf("a redirect with a backend: %v", err)
	}
}

// outlivesItsLeader kills the sidecar that writes status: the other one becomes the leader.
func (s *server) outlivesItsLeader(t *testing.T, pods []*pod, app *gw.HTTPRoute) {
	t.Helper()
	if err := pods[0].sidecar.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	update(t, s, app, func(r *gw.HTTPRoute) {
		r.Spec.Rules[0].BackendRefs[0].Name, r.Spec.Rules[0].BackendRefs[0].Namespace = "v1", nil
	})
	eventually(t, "the other pod follows", func() bool { return get(t, pods[1].public, "/app") == "v1" })
	for deadline := time.Now().Add(2 * time.Minute); s.condition(t, app, gw.RouteConditionResolvedRefs) != "True ResolvedRefs"; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the status of the route is not renewed after the end of the leader")
		}
	}
}
