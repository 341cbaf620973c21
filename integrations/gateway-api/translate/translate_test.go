package translate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
)

var update = flag.Bool("update", false, "write the golden files")

// noTime finds the transition times, which are zero.
var noTime = regexp.MustCompile(`lastTransitionTime: null\n\s*`)

// pair is a certificate and its key, made once.
var pair = sync.OnceValues(func() (crt, key []byte) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"*.example"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		panic(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
})

// read decodes manifests strictly. Secrets and ConfigMaps without data get the test's
// certificate.
func read(t testing.TB, text []byte) (in Objects) {
	t.Helper()
	crt, key := pair()
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		switch head.Kind {
		case "GatewayClass":
			add(t, &in.Classes, doc)
		case "Gateway":
			add(t, &in.Gateways, doc)
		case "HTTPRoute":
			add(t, &in.HTTPRoutes, doc)
		case "GRPCRoute":
			add(t, &in.GRPCRoutes, doc)
		case "BackendTLSPolicy":
			add(t, &in.Policies, doc)
		case "ReferenceGrant":
			add(t, &in.Grants, doc)
		case "Service":
			add(t, &in.Services, doc)
		case "EndpointSlice":
			add(t, &in.EndpointSlices, doc)
		case "Namespace":
			add(t, &in.Namespaces, doc)
		case "Secret":
			if s := add(t, &in.Secrets, doc); s.Data == nil {
				s.Data = map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key}
			}
		case "ConfigMap":
			if m := add(t, &in.ConfigMaps, doc); m.Data == nil {
				m.Data = map[string]string{"ca.crt": string(crt)}
			}
		default:
			t.Fatalf("kind %q", head.Kind)
		}
	}
	return in
}

func add[T any](t testing.TB, list *[]T, doc string) *T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(doc), &v); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	*list = append(*list, v)
	return &(*list)[len(*list)-1]
}

func options(https bool, dir string) Options {
	ip := gw.IPAddressType
	o := Options{Controller: "weir-gateway.io/weir", Port: 80, Dir: dir, Addresses: []gw.GatewayStatusAddress{{Type: &ip, Value: "192.0.2.1"}}}
	if https {
		o.Port, o.HTTPS = 443, true
	}
	return o
}

// golden is what a golden file has: the configuration, the names of files, and each status.
func golden(t testing.TB, out Output) string {
	t.Helper()
	var b strings.Builder
	text, err := out.Config.Render(nil, tlsterm.Certificate{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "# weir.yaml\n%s", text)
	fmt.Fprintf(&b, "# certificates\n")
	for _, c := range out.Config.Certificates {
		fmt.Fprintf(&b, "%s %s\n", c.CertFile, c.KeyFile)
	}
	fmt.Fprintf(&b, "# files\n%s\n", strings.Join(sortedKeys(out.Files), "\n"))
	show := func(kind, name string, status any) {
		text, err := yaml.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "--- %s %s\n%s", kind, name, noTime.ReplaceAllString(string(text), ""))
	}
	s := out.Status
	for _, name := range sortedKeys(s.Classes) {
		show("GatewayClass", name, s.Classes[name].Conditions)
	}
	each(s.Gateways, func(n string, v gw.GatewayStatus) { show("Gateway", n, v) })
	each(s.HTTPRoutes, func(n string, v []gw.RouteParentStatus) { show("HTTPRoute", n, v) })
	each(s.GRPCRoutes, func(n string, v []gw.RouteParentStatus) { show("GRPCRoute", n, v) })
	each(s.Policies, func(n string, v []gw.PolicyAncestorStatus) { show("BackendTLSPolicy", n, v) })
	return b.String()
}

func each[K interface {
	comparable
	fmt.Stringer
}, V any](m map[K]V, do func(string, V)) {
	byName := map[string]V{}
	for k, v := range m {
		byName[k.String()] = v
	}
	for _, n := range sortedKeys(byName) {
		do(n, byName[n])
	}
}

func cases(t testing.TB) map[string]Objects {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	all := map[string]Objects{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(f), ".yaml")] = read(t, text)
	}
	return all
}

func TestCasesAreGolden(t *testing.T) {
	for name, in := range cases(t) {
		got := golden(t, Translate(in, options(name == "tls", "/run/weir")))
		file := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || string(want) != got {
			t.Errorf("%s is not current (%v); run: go test -run %s -update\n%s", file, err, t.Name(), got)
		}
	}
}

func TestOrderOfObjectsDoesNotMatter(t *testing.T) {
	for name, in := range cases(t) {
		o := options(name == "tls", "/run/weir")
		want := golden(t, Translate(in, o))
		slices.Reverse(in.Gateways)
		slices.Reverse(in.HTTPRoutes)
		slices.Reverse(in.GRPCRoutes)
		slices.Reverse(in.Policies)
		slices.Reverse(in.Services)
		slices.Reverse(in.EndpointSlices)
		if got := golden(t, Translate(in, o)); got != want {
			t.Errorf("%s differs:\n%s", name, got)
		}
	}
}

// TestWeirAcceptsWhatIsRendered has Weir load and check each case, its files in place.
func TestWeirAcceptsWhatIsRendered(t *testing.T) {
	for name, in := range cases(t) {
		dir := t.TempDir()
		out := Translate(in, options(name == "tls", dir))
		if err := accepts(dir, out, name == "tls"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func accepts(dir string, out Output, https bool) error {
	files := out.Files
	fallback := tlsterm.Certificate{}
	if https {
		crt, key := pair()
		files["fallback.crt"], files["fallback.key"] = crt, key
		fallback = tlsterm.Certificate{CertFile: dir + "/fallback.crt", KeyFile: dir + "/fallback.key"}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	text, err := out.Config.Render([]byte("broker: {kind: none}\n"), fallback)
	if err != nil {
		return err
	}
	if _, err := config.Load(config.Sources{File: "weir.yaml", Text: text}, app.Check); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

// TestRequestsReachTheirRules plays requests to Weir's table of routes.
func TestRequestsReachTheirRules(t *testing.T) {
	all := cases(t)
	play := func(name string) func(request, want string) {
		out := Translate(all[name], options(name == "tls", "/run/weir"))
		set, err := policy.New(out.Config.Routes, policy.Deps{})
		if err != nil {
			t.Fatal(err)
		}
		return func(request, want string) {
			t.Helper()
			var req http1.Request
			head := []byte(strings.ReplaceAll(request, "\n", "\r\n") + "\r\n\r\n")
			if _, err := http1.ParseRequest(&req, head, http1.Limits{}); err != nil {
				t.Fatalf("%q: %v", request, err)
			}
			x := &policy.Exchange{}
			x.Reset()
			x.Method, x.Path, x.Query, x.Host, x.Fields = req.Method, req.Path, req.Query, req.Host, req.Fields
			v, got := set.Match(x), ""
			switch {
			case x.Route == nil:
				got = fmt.Sprint(v.Status)
			case x.Route.Config().Reply.Status != 0:
				got = fmt.Sprint(x.Route.Config().Reply.Status)
			default:
				got, _, _ = strings.Cut(strings.TrimPrefix(x.Route.Name(), "gateway-api/"), " ")
			}
			if got != want {
				t.Errorf("%q reaches %s, want %s", request, got, want)
			}
		}
	}
	f := play("matching")
	f("GET / HTTP/1.1\nHost: a", "http/shop/matching/0")
	f("GET /other HTTP/1.1\nHost: a", "http/shop/matching/0")
	f("GET /other HTTP/1.1\nHost: a\nVersion: two", "http/shop/matching/1")
	f("GET /v2 HTTP/1.1\nHost: a", "http/shop/matching/1")
	f("GET /v2/x HTTP/1.1\nHost: a\nVersion: one", "http/shop/matching/1") // a longer path goes before a header
	f("GET /v2x HTTP/1.1\nHost: a", "http/shop/matching/0")
	f("POST /x HTTP/1.1\nHost: methods.example", "http/shop/methods/0")
	f("GET /only HTTP/1.1\nHost: methods.example", "http/shop/methods/0")
	f("HEAD /only HTTP/1.1\nHost: methods.example", "404")
	f("POST /only HTTP/1.1\nHost: methods.example", "http/shop/methods/0")
	f("GET /only/x HTTP/1.1\nHost: methods.example", "404")
	f("GET /q/a?animal=whale HTTP/1.1\nHost: methods.example", "http/shop/methods/1")
	f("POST /q?animal=whale HTTP/1.1\nHost: methods.example", "http/shop/methods/1")
	f("POST /q?animal=dolphin HTTP/1.1\nHost: methods.example", "http/shop/methods/0")
	f("GET /q?animal=dolphin HTTP/1.1\nHost: methods.example", "404")
	f = play("filters")
	f("GET /some HTTP/1.1\nHost: missing.example", "http/shop/missing/0")
	f("GET /all HTTP/1.1\nHost: missing.example", "500")
	f("GET / HTTP/1.1\nHost: refused.example", "404")
	f("POST /shop.Orders/Place HTTP/1.1\nHost: grpc.example", "grpc/shop/calls/0")
	f("POST /shop.Orders/Watch HTTP/1.1\nHost: grpc.example", "grpc/shop/calls/1")
	f("POST /other/Watch HTTP/1.1\nHost: grpc.example", "grpc/shop/calls/1")
	f("POST /shop.Orders/Cancel HTTP/1.1\nHost: grpc.example", "404")
	f("POST /shop.Orders/Cancel HTTP/1.1\nHost: grpc.example\nX-New: 1", "grpc/shop/calls/1")
	f = play("tls")
	f("GET / HTTP/1.1\nHost: www.example", "http/shop/allowed/0")
	f("GET / HTTP/1.1\nHost: granted.test", "404")
}

func TestABaseThatCannotBeExtendedIsRefused(t *testing.T) {
	f := func(base, want string) {
		t.Helper()
		if _, err := (Config{Routes: []policy.RouteConfig{{Name: "a"}}}).Render([]byte(base), tlsterm.Certificate{CertFile: "a"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", base, err, want)
		}
	}
	f("routes: 1", "routes of the base configuration is not a list")
	f("tls: 1", "tls of the base configuration is not a section")
	f("a: 1\na: 2", "read the base configuration")
}

// FuzzTranslate: whatever the routes are, Weir accepts what is made of them.
func FuzzTranslate(f *testing.F) {
	base, err := os.ReadFile("testdata/matching.yaml")
	if err != nil {
		f.Fatal(err)
	}
	objects := read(f, base)
	for _, in := range cases(f) {
		for i := range in.HTTPRoutes {
			text, err := json.Marshal(in.HTTPRoutes[i].Spec)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Add([]byte(`{"rules":[{"matches":[{"path":{"type":"Exact","value":"/{a}/b"}},{"path":{"value":"/a//b"}}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r gw.HTTPRoute
		if json.NewDecoder(bytes.NewReader(text)).Decode(&r.Spec) != nil || len(text) > 4<<10 {
			return
		}
		in := objects
		in.HTTPRoutes = []gw.HTTPRoute{r}
		in.HTTPRoutes[0].Name, in.HTTPRoutes[0].Namespace = "fuzzed", "shop"
		in.HTTPRoutes[0].Spec.ParentRefs = objects.HTTPRoutes[0].Spec.ParentRefs
		if err := accepts(t.TempDir(), Translate(in, options(false, "/run/weir")), false); err != nil {
			t.Error(err)
		}
	})
}
