package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// rules are an extension's server. What it decides is requested by the events themselves.
type rules struct {
	extensionv1.UnimplementedExtensionServer
	mu     sync.Mutex
	events []*extensionv1.Event
}

// startRules serves r, and returns the address.
func startRules(t *testing.T, r *rules, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	extensionv1.RegisterExtensionServer(s, r)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func (r *rules) Decide(ctx context.Context, e *extensionv1.Event) (*extensionv1.Verdict, error) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	header := func(name string) string {
		i := slices.IndexFunc(e.Headers, func(h *extensionv1.Header) bool { return strings.EqualFold(h.Name, name) })
		if i < 0 {
			return ""
		}
		return e.Headers[i].Value
	}
	switch e.Kind {
	case extensionv1.Kind_KIND_REQUEST:
		return request(ctx, header("X-Case"))
	case extensionv1.Kind_KIND_RESPONSE:
		if header("X-Deny") != "" {
			return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: 451, Reason: "not here"}}, nil
		}
		return &extensionv1.Verdict{
			SetHeaders:    []*extensionv1.Header{{Name: "X-Answered", Value: fmt.Sprint(e.Status, " ", e.Path)}},
			RemoveHeaders: []string{"X-Secret"},
		}, nil
	case extensionv1.Kind_KIND_CONNECT:
		switch {
		case strings.Contains(e.Path, "deny"):
			return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Reason: "no clients today"}}, nil
		case strings.Contains(e.Path, "as=bob"):
			return &extensionv1.Verdict{Identity: &extensionv1.Identity{User: "bob", Subscribe: []string{"private:*"}}}, nil
		}
	case extensionv1.Kind_KIND_SUBSCRIBE, extensionv1.Kind_KIND_PUBLISH:
		switch channels := strings.Join(e.Channels, " "); {
		case strings.Contains(channels, "forbidden"):
			return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Reason: "not that channel"}}, nil
		case strings.Contains(channels, "upper") && e.Kind == extensionv1.Kind_KIND_PUBLISH:
			return &extensionv1.Verdict{Data: []byte(strings.ToUpper(string(e.Data)))}, nil
		}
	}
	return &extensionv1.Verdict{}, nil
}

func request(ctx context.Context, what string) (*extensionv1.Verdict, error) {
	switch what {
	case "deny":
		return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: 401, Body: []byte("who?"), Headers: []*extensionv1.Header{
			{Name: "WWW-Authenticate", Value: "Bearer"}, {Name: "Content-Type", Value: "text/plain"}, {Name: "Content-Length", Value: "999"},
		}}}, nil
	case "json":
		return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: 402, Reason: "pay first"}}, nil
	case "redirect":
		return &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: 302, Headers: []*extensionv1.Header{{Name: "Location", Value: "/login"}}}}, nil
	case "change":
		return &extensionv1.Verdict{SetHeaders: []*extensionv1.Header{{Name: "X-User", Value: "ann"}, {Name: "X-Rule", Value: "extension"}}, RemoveHeaders: []string{"X-Drop"}}, nil
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	case "error":
		return nil, status.Error(codes.Internal, "out of order")
	case "invalid":
		return &extensionv1.Verdict{SetHeaders: []*extensionv1.Header{{Name: "Host", Value: "other"}}}, nil
	}
	return &extensionv1.Verdict{}, nil
}

// seen returns the users of the events of a kind on connections of a protocol.
func (r *rules) seen(k extensionv1.Kind, protocol string) (users []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == k && e.Protocol == protocol {
			users = append(users, e.User)
		}
	}
	return users
}

// An extension decides on requests and responses of every version of HTTP, one of them over TLS.
func TestExtensionDecidesOnRequests(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Secret", "s")
		if strings.HasSuffix(r.URL.Path, "/denied") {
			w.Header().Set("X-Deny", "1")
		}
		w.WriteHeader(http.StatusAccepted)
		w.(http.Flusher).Flush() // the head comes alone
		fmt.Fprintf(w, "user %q rule %q drop %q body %d ", r.Header.Values("X-User"), r.Header.Values("X-Rule"), r.Header.Values("X-Drop"), len(body))
		_, _ = w.Write(body)
	}))
	defer backend.Close()
	r := &rules{}
	target := startRules(t, r)
	own, _ := selfSigned(t, t.TempDir(), 1)
	pair, err := tls.LoadX509KeyPair(own.CertFile, own.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	secure := startRules(t, r, grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	g, pool := http3Gateway(t, func(c *config.Config) {
		c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(backend.URL, "http://")}}}}
		fields := policy.HeaderRules{Set: map[string]string{"X-Rule": "route"}}
		c.Routes = []policy.RouteConfig{{Path: "/closed/*", Cluster: "b", RequestHeaders: fields}, {Path: "/open/*", Cluster: "b"}, {Path: "/other/*", Cluster: "b"}}
		timeout := hub.Duration(300 * time.Millisecond)
		c.Extensions = []extension.Config{
			{Name: "closed", Target: secure, TLS: extension.TLSConfig{Enabled: true, CAFile: own.CertFile}, Events: []string{"request", "response"}, Routes: []string{"/closed/*"}, Timeout: timeout},
			{Name: "open", Target: target, Events: []string{"request", "response"}, Routes: []string{"/open/*"}, Timeout: timeout, FailOpen: true},
		}
	})
	http1 := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, Protocols: onlyHTTP1()}, Timeout: trial.Patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer http1.CloseIdleConnections()
	http2, http3 := overHTTP2(t, &tls.Config{RootCAs: pool}), overHTTP3(t, pool)
	http2.CheckRedirect, http3.CheckRedirect = http1.CheckRedirect, http1.CheckRedirect
	large := strings.Repeat("x", 1<<20)
	for version, c := range map[int]*http.Client{1: http1, 2: http2, 3: http3} {
		f := func(path, what, body string, status int, want string, fields ...string) {
			t.Helper()
			res := send(t, c, "POST", g.URL()+path, body, "X-Case", what, "X-User", "root", "X-Drop", "d")
			b, err := io.ReadAll(res.Body)
			if res.ProtoMajor != version || res.StatusCode != status || !strings.Contains(string(b), want) || err != nil {
				t.Errorf("HTTP/%d, %s %s: %d %.200q (%v), want %d %q", version, path, what, res.StatusCode, b, err, status, want)
			}
			for i := 0; i < len(fields); i += 2 {
				if got := res.Header.Get(fields[i]); got != fields[i+1] {
					t.Errorf("HTTP/%d, %s %s: %s is %q, want %q", version, path, what, fields[i], got, fields[i+1])
				}
			}
		}
		f("/closed/x", "", "hello", 202, `user ["root"] rule ["route"] drop ["d"] body 5 hello`, "X-Answered", "202 /closed/x", "X-Secret", "")
		f("/closed/x?q=1", "change", large, 202, `user ["ann"] rule ["extension"] drop [] body 1048576 `+large[:10], "X-Answered", "202 /closed/x?q=1")
		f("/closed/x", "deny", "hello", 401, "who?", "WWW-Authenticate", "Bearer", "Content-Type", "text/plain")
		f("/closed/x", "json", "hello", 402, "pay first", "Content-Type", "application/json")
		f("/closed/x", "redirect", "", 302, "", "Location", "/login")
		f("/closed/denied", "", "hello", 451, "not here", "X-Secret", "")
		f("/closed/x", "slow", "hello", 504, "the extension closed did not answer in time")
		f("/closed/x", "error", "hello", 503, "the extension closed is not available")
		f("/closed/x", "invalid", "hello", 502, "the extension closed answered with an invalid verdict")
		f("/open/x", "slow", "hello", 202, `user ["root"] rule [] drop ["d"] body 5`)
		f("/open/x", "error", "hello", 202, `user ["root"] rule [] drop ["d"] body 5`)
		f("/other/x", "deny", "hello", 202, `user ["root"] rule [] drop ["d"] body 5`, "X-Answered", "", "X-Secret", "s")
	}
	s := g.extensions.Stats()["closed"]
	if e := s.Events["request"]; e["allowed"] != 9 || e["refused"] != 9 || e["timeout"] != 3 || e["failed"] != 6 || s.Pending != 0 {
		t.Errorf("%+v", s.Events)
	}
	if e := s.Events["response"]; e["allowed"] != 6 || e["refused"] != 3 {
		t.Errorf("%+v", s.Events)
	}
}

// A client that leaves cancels the call on its request.
func TestLeavingCancelsTheCall(t *testing.T) {
	r := &rules{}
	target := startRules(t, r)
	g := start(t, func(c *config.Config) {
		c.Routes = []policy.RouteConfig{{Path: "/x", Reply: policy.Reply{Status: 200}}}
		c.Extensions = []extension.Config{{Name: "r", Target: target, Events: []string{"request"}, Timeout: hub.Duration(time.Minute)}}
	})
	w := g.dial(t)
	w.Send("GET /x HTTP/1.1\r\nHost: a\r\nX-Case: slow\r\n\r\n")
	trial.Eventually(t, "the call is under way", func() bool { return g.extensions.Stats()["r"].Pending == 1 })
	_ = w.Close()
	trial.Eventually(t, "the call was cancelled", func() bool { return g.extensions.Stats()["r"].Events["request"]["canceled"] == 1 })
}

// allProtocols is a gateway whose extension decides on clients of all protocols.
func allProtocols(t *testing.T, target string) (*gateway, map[int]*http.Client) {
	t.Helper()
	g, pool := http3Gateway(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "mercure", Anonymous: true}, hub.Namespace{Name: "shop"})
		c.Mercure.Enabled, c.Mercure.Anonymous = true, true
		c.Centrifuge.Enabled, c.Centrifuge.Insecure = true, true
		c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: "app-key", Secret: "app-secret-0123456789", Namespace: "shop"}}
		c.Extensions = []extension.Config{{Name: "r", Target: target, Events: []string{"connect", "subscribe", "publish", "disconnect"}, Timeout: hub.Duration(trial.Patience)}}
	})
	http1 := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, Protocols: onlyHTTP1()}}
	t.Cleanup(http1.CloseIdleConnections)
	http2, http3 := overHTTP2(t, &tls.Config{RootCAs: pool}), overHTTP3(t, pool)
	http2.Timeout, http3.Timeout = 0, 0
	return g, map[int]*http.Client{1: http1, 2: http2, 3: http3}
}

// readUntil opens a stream and returns its status and what came until want, or all of it.
func readUntil(t *testing.T, c *http.Client, method, url, body, want string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var text strings.Builder
	for in := bufio.NewReader(res.Body); !strings.Contains(text.String(), want) || want == ""; {
		line, err := in.ReadString('\n')
		if text.WriteString(line); err != nil {
			break
		}
	}
	return res.StatusCode, text.String()
}

// Clients of every protocol meet the extension at each of its events, in their own words.
func TestExtensionDecidesOnClients(t *testing.T) {
	r := &rules{}
	g, clients := allProtocols(t, startRules(t, r))
	for version, c := range clients {
		// A row is a request for a stream, and how it is answered.
		for _, row := range []struct {
			what, method, path, body string
			status                   int
			want                     string
		}{
			{"native connect", "GET", "/sse?channel=a", "", 200, "retry: "},
			{"native connect refused", "GET", "/sse?channel=a&deny=1", "", 403, "no clients today"},
			{"native subscribe refused", "GET", "/sse?channel=forbidden", "", 403, "not that channel"},
			{"native without rights", "GET", "/sse?channel=private:x", "", 401, "a token is needed"},
			{"native identity", "GET", "/sse?channel=private:x&as=bob", "", 200, "retry: "},
			{"mercure connect", "GET", "/.well-known/mercure?topic=a", "", 200, ":"},
			{"mercure connect refused", "GET", "/.well-known/mercure?topic=a&deny=1", "", 403, "no clients today"},
			{"mercure subscribe refused", "GET", "/.well-known/mercure?topic=forbidden", "", 403, "not that channel"},
			{"centrifuge connect", "POST", "/connection/http_stream", `{"id":1,"connect":{}}`, 200, `"client"`},
			{"centrifuge connect refused", "POST", "/connection/http_stream?deny=1", `{"id":1,"connect":{}}`, 403, "no clients today"},
			{"centrifuge subscribe", "POST", "/connection/http_stream?as=bob", "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}", 200, `"id":2,"subscribe":{`},
			{"centrifuge subscribe refused", "POST", "/connection/http_stream", "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"forbidden\"}}", 200, `"error":{"code":103,"message":"not that channel"}`},
			{"centrifuge publish", "POST", "/connection/http_stream", "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"publish\":{\"channel\":\"a\",\"data\":1}}", 200, `"id":2,"publish":{`},
			{"centrifuge publish refused", "POST", "/connection/http_stream", "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"publish\":{\"channel\":\"forbidden\",\"data\":1}}", 200, `"error":{"code":103,"message":"not that channel"}`},
		} {
			if status, text := readUntil(t, c, row.method, g.URL()+row.path, row.body, row.want); status != row.status || !strings.Contains(text, row.want) {
				t.Errorf("HTTP/%d: %s: %d %q, want %d %q", version, row.what, status, text, row.status, row.want)
			}
		}
		f := func(channel, body string, status int, want string) {
			t.Helper()
			res := send(t, c, "POST", g.URL()+"/api/publish", fmt.Sprintf(`{"channel":%q,"data":%s}`, channel, body))
			b, _ := io.ReadAll(res.Body)
			if res.StatusCode != status || !strings.Contains(string(b), want) {
				t.Errorf("HTTP/%d: publish on %s: %d %q, want %d %q", version, channel, res.StatusCode, b, status, want)
			}
		}
		f("forbidden", `"x"`, 403, "not that channel")
		f("upper", `"hello"`, 200, "offset")
		if _, text := readUntil(t, c, "GET", g.URL()+"/sse?channel=upper&since=0", "", "HELLO"); !strings.Contains(text, `"HELLO"`) {
			t.Errorf("HTTP/%d: the message was not replaced: %q", version, text)
		}
	}
	if users := r.seen(extensionv1.Kind_KIND_SUBSCRIBE, "centrifuge"); !slices.Contains(users, "bob") {
		t.Errorf("subscriptions of %q: the identity of the connection is missing", users)
	}
	for protocol, n := range map[string]int{"native": 3, "mercure": 3, "centrifuge": 15} {
		trial.Eventually(t, "clients of "+protocol+" that have left", func() bool { return len(r.seen(extensionv1.Kind_KIND_DISCONNECT, protocol)) >= n })
	}
}

// Sockets of Weir's own protocol and of Pusher's.
func TestExtensionDecidesOnSockets(t *testing.T) {
	r := &rules{}
	target := startRules(t, r)
	g := start(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "shop"})
		c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: "app-key", Secret: "app-secret-0123456789", Namespace: "shop"}}
		c.Extensions = []extension.Config{{Name: "r", Target: target, Events: []string{"connect", "subscribe", "publish", "disconnect"}, Timeout: hub.Duration(trial.Patience)}}
	})
	dial := func(path string) (*websocket.Conn, *http.Response) {
		t.Helper()
		conn, res, err := websocket.Dial(t.Context(), strings.Replace(g.url, "http", "ws", 1)+path, websocket.DialOptions{})
		if err != nil {
			return nil, res
		}
		t.Cleanup(conn.CloseNow)
		return conn, res
	}
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	read := func(c *websocket.Conn) string {
		t.Helper()
		_, b, err := c.Read(ctx)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	if c, _ := dial("/ws?channel=a&hello=1"); c == nil || !strings.Contains(read(c), "subscribed") {
		t.Error("a client of /ws was refused")
	}
	for path, want := range map[string]int{"/ws?channel=a&deny=1": 403, "/ws?channel=forbidden": 403, "/ws?channel=private:x": 401} {
		if c, res := dial(path); c != nil || res == nil || res.StatusCode != want {
			t.Errorf("%s: %v, want %d", path, res, want)
		}
	}
	p, _ := dial("/app/app-key?protocol=7&deny=1")
	if got := read(p); !strings.Contains(got, "4009") || !strings.Contains(got, "no clients today") {
		t.Errorf("a Pusher client that is refused: %s", got)
	}
	p, _ = dial("/app/app-key?protocol=7")
	read(p) // its id
	for channel, want := range map[string]string{"forbidden": `pusher:subscription_error`, "a": "subscription_succeeded"} {
		if err := p.Write(websocket.OpText, []byte(`{"event":"pusher:subscribe","data":{"channel":"`+channel+`"}}`)); err != nil {
			t.Fatal(err)
		}
		if got := read(p); !strings.Contains(got, want) || !strings.Contains(got, channel) {
			t.Errorf("subscribed to %s: %s, want %s", channel, got, want)
		}
	}
	p.CloseNow()
	trial.Eventually(t, "the client of Pusher has left", func() bool { return len(r.seen(extensionv1.Kind_KIND_DISCONNECT, "pusher")) == 2 })
}

// Client events of Pusher's clients are publications, which an extension refuses and replaces.
func TestExtensionDecidesOnClientEvents(t *testing.T) {
	r := &rules{}
	target := startRules(t, r)
	const key, secret = "app-key", "app-secret-0123456789"
	g := start(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "shop"})
		c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: key, Secret: secret, Namespace: "shop", ClientEvents: true}}
		c.Extensions = []extension.Config{{Name: "r", Target: target, Events: []string{"publish"}, Timeout: hub.Duration(trial.Patience)}}
	})
	b := &nodetest.Bridge{To: strings.TrimPrefix(g.url, "http://")}
	b.Start(t, t.Cleanup)
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	for version, addr := range map[string]string{"HTTP/1.1": b.To, "HTTP/2": b.Addr} {
		write := func(c *websocket.Conn, text string) {
			t.Helper()
			if err := c.Write(websocket.OpText, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		want := func(c *websocket.Conn, parts ...string) (text string) {
			t.Helper()
			_, b, err := c.Read(ctx)
			for _, part := range parts {
				if err != nil || !strings.Contains(string(b), part) {
					t.Errorf("%s: %q (%v), want %q", version, b, err, part)
				}
			}
			return string(b)
		}
		joined := func() *websocket.Conn {
			t.Helper()
			c, _, err := websocket.Dial(ctx, "ws://"+addr+"/app/"+key+"?protocol=7", websocket.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.CloseNow)
			_, after, _ := strings.Cut(want(c, "connection_established"), `socket_id\":\"`)
			id, _, _ := strings.Cut(after, `\`)
			for _, channel := range []string{"private-a", "private-upper", "private-forbidden"} {
				auth := protocol.SignSubscription(key, secret, id, channel, "")
				write(c, fmt.Sprintf(`{"event":"pusher:subscribe","data":{"channel":%q,"auth":%q}}`, channel, auth))
				want(c, "subscription_succeeded", channel)
			}
			return c
		}
		from, to := joined(), joined()
		write(from, `{"event":"client-x","channel":"private-forbidden","data":"hello"}`)
		want(from, "pusher:error", "not that channel")
		write(from, `{"event":"client-x","channel":"private-upper","data":"hello"}`)
		want(to, "client-x", "private-upper", `"HELLO"`)
		write(from, `{"event":"client-x","channel":"private-a","data":"hello"}`)
		want(to, "client-x", "private-a", `"hello"`)
	}
	if n := len(r.seen(extensionv1.Kind_KIND_PUBLISH, "pusher")); n != 6 {
		t.Errorf("%d publications were decided on, want 6", n)
	}
}

// A reload adds, changes and removes extensions.
func TestExtensionsAreReloaded(t *testing.T) {
	target := startRules(t, &rules{})
	var mu sync.Mutex
	var cfg config.Config
	load := func() (config.Config, error) { mu.Lock(); defer mu.Unlock(); return cfg, nil }
	g := startApp(t, func(c *config.Config) {
		c.Routes = []policy.RouteConfig{{Path: "/x", Reply: policy.Reply{Status: 200}}}
		cfg = *c
	}, Options{Load: load})
	f := func(what string, status int, list ...extension.Config) {
		t.Helper()
		mu.Lock()
		cfg.Extensions = list
		for i := range list {
			list[i] = list[i].WithDefaults()
		}
		mu.Unlock()
		if _, err := g.Reload(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if res := send(t, http.DefaultClient, "GET", g.url+"/x", "", "X-Case", "json"); res.StatusCode != status {
			t.Errorf("%s: %d, want %d", what, res.StatusCode, status)
		}
	}
	one := extension.Config{Name: "r", Target: target, Events: []string{"request"}, Timeout: hub.Duration(trial.Patience)}
	f("none", 200)
	f("added", 402, one)
	again := one
	again.Events = []string{"response"}
	f("another event", 200, again)
	f("removed", 200)
	mu.Lock()
	cfg.Extensions = []extension.Config{{Name: "r", Target: "nowhere", Events: []string{"request"}}}
	mu.Unlock()
	if _, err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "extensions[0]") {
		t.Errorf("%v", err)
	}
}
