package app

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// An authorization server decides on requests of every version of HTTP, and on WebSocket
// upgrades; what a client sends under the names that it sets does not reach the backend.
func TestForwardAuthDecides(t *testing.T) {
	authority := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "Bearer ann":
			w.Header().Set("X-User", "ann")
		case "Bearer nameless": // admitted, without a name
		case "Bearer broken":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, "who are you?")
		}
	}))
	defer authority.Close()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "websocket" {
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("X-Seen", r.Header.Get("X-User"))
			w.WriteHeader(http.StatusSwitchingProtocols)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "user %q roles %q body %d trailer %q", r.Header.Values("X-User"), r.Header.Values("X-Roles"), len(body), r.Trailer.Get("X-User"))
	}))
	defer backend.Close()
	forward := authz.ForwardConfig{URL: authority.URL, ResponseHeaders: []string{"X-User", "X-Roles"}}
	open := forward
	open.FailOpen = true
	g, pool := http3Gateway(t, func(c *config.Config) {
		c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(backend.URL, "http://")}}}}
		c.Routes = []policy.RouteConfig{{Path: "/closed/*", Cluster: "b", ForwardAuth: forward}, {Path: "/open/*", Cluster: "b", ForwardAuth: open}}
	})
	http1 := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, Protocols: onlyHTTP1()}, Timeout: trial.Patience}
	defer http1.CloseIdleConnections()
	large := strings.Repeat("x", 1<<20)
	for version, c := range map[int]*http.Client{1: http1, 2: overHTTP2(t, &tls.Config{RootCAs: pool}), 3: overHTTP3(t, pool)} {
		f := func(path, token, body string, status int, want string) {
			t.Helper()
			res := send(t, c, "POST", g.URL()+path, body, "Authorization", token, "X-User", "root", "X-Roles", "admin", "X_User", "root")
			b, err := io.ReadAll(res.Body)
			if res.ProtoMajor != version || res.StatusCode != status || !strings.Contains(string(b), want) || err != nil {
				t.Errorf("HTTP/%d, %s: %d %.200q (%v), want %d %q", version, token, res.StatusCode, b, err, status, want)
			}
		}
		f("/closed/x", "Bearer ann", "hello", 200, `user ["ann"] roles [] body 5`)
		f("/closed/x", "Bearer ann", large, 200, `user ["ann"] roles [] body 1048576`)
		f("/closed/x", "Bearer nameless", "", 200, `user [] roles [] body 0`)
		f("/closed/x", "Bearer eve", "hello", 401, "who are you?")
		f("/closed/x", "Bearer broken", "hello", 503, "authorization server is not available")
		f("/open/x", "Bearer broken", "hello", 200, `user [] roles [] body 5`)
	}
	for token, want := range map[string]int{"Bearer ann": 101, "Bearer eve": 401, "Bearer broken": 503} {
		res := send(t, http1, "GET", g.URL()+"/closed/ws", "", "Authorization", token, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version", "13", "X-User", "root")
		if res.StatusCode != want || want == 101 && res.Header.Get("X-Seen") != "ann" {
			t.Errorf("upgrade with %s: %d %v, want %d", token, res.StatusCode, res.Header, want)
		}
	}
	if s := g.wing.state.Forwarding()["/closed/*"]; s.Admitted != 10 || s.Refused != 4 || s.Failed != 4 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
}

func onlyHTTP1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}
