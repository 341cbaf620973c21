package downstream_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A webClient speaks gRPC-Web: over one version of HTTP, in one of its forms.
type webClient struct {
	http *http.Transport
	text bool
}

func webFrame(message string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return append(b, message...)
}

// call returns the status of HTTP, the messages, and the trailers, which may be in the head.
func (c webClient) call(t *testing.T, url string, body io.Reader, fields ...string) (got string) {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	kind := "application/grpc-web+raw"
	if c.text {
		kind = "application/grpc-web-text+raw"
	}
	req.Header = http.Header{"Content-Type": {kind}, "X-Grpc-Web": {"1"}, "Accept": {kind}}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := c.http.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	got = fmt.Sprint(res.StatusCode)
	if res.Header.Get("Content-Type") != kind {
		got += " " + res.Header.Get("Content-Type")
	}
	if s := res.Header.Get("Grpc-Status"); s != "" {
		return got + " head " + s + " " + res.Header.Get("Grpc-Message")
	}
	if c.text {
		var plain []byte
		for len(all) > 0 { // each piece may be padded
			quad, err := base64.StdEncoding.DecodeString(string(all[:4]))
			if err != nil {
				return err.Error()
			}
			plain, all = append(plain, quad...), all[4:]
		}
		all = plain
	}
	for len(all) >= 5 {
		n := int(binary.BigEndian.Uint32(all[1:]))
		if text := string(all[5 : 5+n]); all[0] == 0x80 {
			lines := strings.Split(strings.TrimSpace(text), "\r\n")
			slices.Sort(lines)
			got += " trailers " + strings.Join(lines, ", ")
		} else if n > 50 {
			got += fmt.Sprintf(" %d bytes", n)
		} else {
			got += " " + text
		}
		all = all[5+n:]
	}
	return got
}

func (c webClient) body(messages ...string) io.Reader {
	var b []byte
	for _, m := range messages {
		b = append(b, webFrame(m)...)
	}
	if c.text {
		return strings.NewReader(base64.StdEncoding.EncodeToString(b))
	}
	return bytes.NewReader(b)
}

func webClients(t *testing.T) map[string]webClient {
	all := map[string]webClient{}
	for version := 1; version <= 2; version++ {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(version == 1)
		tr.Protocols.SetUnencryptedHTTP2(version == 2)
		t.Cleanup(tr.CloseIdleConnections)
		all[fmt.Sprintf("HTTP/%d, binary", version)] = webClient{tr, false}
		all[fmt.Sprintf("HTTP/%d, text", version)] = webClient{tr, true}
	}
	return all
}

func TestGRPCWebIsTurnedIntoGRPC(t *testing.T) {
	addr, _, _ := grpcServer(t, func(method string, s grpc.ServerStream) error {
		if method == "/a.B/Refused" {
			return status.Error(codes.PermissionDenied, "not you")
		}
		return echoAll("m", s)
	})
	for _, engine := range []string{"epoll", "io_uring"} {
		g := grpcGateway(t, settings{
			loops: eventloop.Config{Engine: engine},
			more:  []upstream.Config{{Name: "down", Protocol: "http2", Peers: []upstream.PeerConfig{{Address: "127.0.0.1:1"}}}},
			routes: []policy.RouteConfig{
				{Path: "/a.B/*", Cluster: "main", GRPCWeb: true, CORS: policy.CORS{AllowedOrigins: []string{"https://app.example"}}},
				{Path: "/down.S/*", Cluster: "down", GRPCWeb: true}, {Path: "/secret.S/*", Cluster: "main", GRPCWeb: true, Auth: policy.Auth{Required: true}},
				{Path: "/small.S/*", Cluster: "main", GRPCWeb: true, Limits: policy.Limits{MaxBody: 100}},
			},
		}, addr)
		for name, c := range webClients(t) {
			f := func(path string, body io.Reader, want string, fields ...string) {
				t.Helper()
				if got := c.call(t, g.url(path), body, fields...); got != want {
					t.Errorf("%s, %s, %s: %s, want %s", engine, name, path, got, want)
				}
			}
			const ok = " trailers grpc-message: , grpc-status: 0, x-bin-bin: AAE, x-method: m"
			f("/a.B/C", c.body("hello"), "200 hello"+ok)
			f("/a.B/C", c.body("a", "bc", "def"), "200 a bc def"+ok)
			f("/a.B/C", c.body(), "200 head 0 ")
			f("/a.B/C", c.body(strings.Repeat("x", 100_000)), "200 100000 bytes"+ok)
			f("/a.B/C", io.MultiReader(c.body("in", "pieces")), "200 in pieces"+ok) // of no known length
			f("/a.B/C", c.body("one", "fail"), "200 one trailers grpc-message: as asked: 100 %25%0A, grpc-status: 9, x-bin-bin: AAE, x-method: m")
			f("/a.B/Refused", c.body("hello"), "200 head 7 not you")
			f("/down.S/C", c.body("hello"), "200 trailers grpc-message: the backend cannot be reached, grpc-status: 14")
			f("/secret.S/C", c.body("hello"), "200 trailers grpc-message: a token is required, grpc-status: 16")
			f("/small.S/C", c.body(strings.Repeat("x", 1000)), "200 trailers grpc-message: the body is too large, grpc-status: 8")
			if c.text {
				f("/a.B/C", strings.NewReader("AAAA!"), "200 trailers grpc-message: the body is not base64, grpc-status: 3")
				f("/a.B/C", strings.NewReader("AAAAA"), "200 trailers grpc-message: the body is not base64, grpc-status: 3")
				padded := base64.StdEncoding.EncodeToString(webFrame("x")) + base64.StdEncoding.EncodeToString(webFrame("yz"))
				f("/a.B/C", strings.NewReader(padded), "200 x yz"+ok)
			}
		}
	}
}

// Pages may send what clients of gRPC-Web send, and read what those need.
func TestGRPCWebFromOtherOrigins(t *testing.T) {
	addr, _, _ := grpcServer(t, func(string, grpc.ServerStream) error { return status.Error(codes.NotFound, "none") })
	g := grpcGateway(t, settings{routes: []policy.RouteConfig{{Cluster: "main", GRPCWeb: true,
		CORS: policy.CORS{AllowedOrigins: []string{"https://app.example"}, Headers: []string{"x-own"}, ExposeHeaders: []string{"x-also"}}}}}, addr)
	ask := func(method string, fields ...string) http.Header {
		req, _ := http.NewRequestWithContext(t.Context(), method, g.url("/a.B/C"), bytes.NewReader(webFrame("x")))
		req.Header.Set("Origin", "https://app.example")
		for i := 0; i < len(fields); i += 2 {
			req.Header.Set(fields[i], fields[i+1])
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.Header
	}
	h := ask("OPTIONS", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type,x-grpc-web,x-user-agent")
	if got, want := h.Get("Access-Control-Allow-Headers"), "x-own, content-type, x-grpc-web, x-user-agent, grpc-timeout"; got != want {
		t.Errorf("allowed: %q, want %q", got, want)
	}
	h = ask("POST", "Content-Type", "application/grpc-web+proto")
	if got, want := h.Get("Access-Control-Expose-Headers"), "x-also, grpc-status, grpc-message, grpc-status-details-bin"; got != want {
		t.Errorf("exposed: %q, want %q", got, want)
	}
	if h.Get("Grpc-Status") != "5" || h.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("%v", h)
	}
}

// Without the setting, and for what only looks like it, nothing is turned.
func TestOnlyGRPCWebIsTurned(t *testing.T) {
	b := newBackend2(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, r.Header.Get("Content-Type"))
	})
	g := grpcGateway(t, settings{routes: []policy.RouteConfig{{Path: "/on", Cluster: "main", GRPCWeb: true}, {Path: "/off", Cluster: "main"}}}, b.addr())
	f := func(path, kind, want string) {
		t.Helper()
		res, err := http.Post(g.url(path), kind, strings.NewReader("AAAA"))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		if got := fmt.Sprint(res.StatusCode, " ", res.Header.Get("Content-Type"), " ", string(body)); got != want {
			t.Errorf("%s, %s: %s, want %s", path, kind, got, want)
		}
	}
	f("/on", "application/grpc-web-text", "418 text/html application/grpc")
	f("/on", "application/grpc-webber", "418 text/html application/grpc-webber")
	f("/on", "text/plain", "418 text/html text/plain")
	f("/off", "application/grpc-web", "418 text/html application/grpc-web")
}
