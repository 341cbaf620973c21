package protocols

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// pusherApp makes the library for servers, named app, which also signs for clients.
func pusherApp(a *agent, addr string) {
	a.t.Helper()
	host, port, _ := strings.Cut(addr, ":")
	a.make("PusherServer", "app", obj{
		"appId": pusherID, "key": pusherKey, "secret": pusherSecret, "host": host, "port": port, "useTLS": false,
		"encryptionMasterKeyBase64": base64.StdEncoding.EncodeToString(make([]byte, 32)),
	})
}

// pusherClient connects a client of kind Pusher or BrowserPusher for a user.
func pusherClient(a *agent, kind, addr, name, user string) {
	a.t.Helper()
	a.make(kind, name, pusherKey, obj{"wsHost": "127.0.0.1", "wsPort": port(addr)}, ref("app"), user, then{
		{"connection.bind", "state_change", emit("state_change")}, {"connection.bind", "connected", emit("connected")},
		{"connection.bind", "error", emit("error")},
	})
	a.next(name, "connected")
}

func port(addr string) string {
	_, p, _ := strings.Cut(addr, ":")
	return p
}

// join subscribes a client to a channel, named "<client>/<channel>", and waits until
// it is subscribed. Events are those to listen to besides.
func join(a *agent, client, channel string, events ...string) (name string, data json.RawMessage) {
	a.t.Helper()
	name = client + "/" + channel
	a.name(name, client, "subscribe", channel, on("bind", append([]string{"pusher:subscription_succeeded", "pusher:subscription_error"}, events...)...))
	return name, a.next(name, "pusher:subscription_succeeded")
}

// hooks is the application's address for webhooks.
type hooks struct {
	*httptest.Server
	mu   sync.Mutex
	got  []hook
	next int
}

type hook struct {
	header http.Header
	body   string
}

func startHooks(t *testing.T) *hooks {
	h := &hooks{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got = append(h.got, hook{r.Header, string(body)})
	}))
	t.Cleanup(h.Close)
	return h
}

// wait has the library for servers check each webhook that comes, until the events
// named have come.
func (h *hooks) wait(a *agent, want ...string) {
	a.t.Helper()
	seen := map[string]bool{}
	judge.Eventually(a.t, patience, "the webhooks "+strings.Join(want, ", ")+" come", func() bool {
		h.mu.Lock()
		fresh := h.got[h.next:]
		h.next = len(h.got)
		h.mu.Unlock()
		for _, k := range fresh {
			headers := obj{}
			for name := range k.header {
				headers[strings.ToLower(name)] = k.header.Get(name)
			}
			a.name("hook", "app", "webhook", obj{"headers": headers, "rawBody": k.body})
			expect(a.t, "the webhook is signed", a.call("hook", "isValid"), true)
			type one struct {
				Name, Channel, Event string
				UserID               string `json:"user_id"`
			}
			for _, e := range decode[[]one](a.t, a.call("hook", "getEvents")) {
				seen[strings.TrimSpace(strings.Join([]string{e.Name, e.Channel, e.UserID, e.Event}, " "))] = true
			}
		}
		return !slices.ContainsFunc(want, func(w string) bool {
			for s := range seen {
				if strings.Join(strings.Fields(s), " ") == w {
					return false
				}
			}
			return true
		})
	})
}

func TestPusher(t *testing.T) {
	for _, kind := range []string{"Pusher", "BrowserPusher"} {
		t.Run(kind, func(t *testing.T) {
			h := startHooks(t)
			s := serve(t, obj{"pusher": obj{"vacated_delay": "100ms", "apps": []any{app(obj{
				"subscription_count": true, "webhooks": []any{obj{"url": h.URL}},
			})}}})
			a := nodeAgent(t)
			pusherApp(a, s.Public)
			c := &stage{t: t, a: a, h: h}
			for name, user := range map[string]string{"a": "u1", "b": "u2", "b2": "u2"} {
				pusherClient(a, kind, s.Public, name, user)
			}
			c.public()
			c.private()
			c.presence()
			c.encryptedAndCache()
			c.ends()
		})
	}
}

// stage is where the clients a, b and b2 play, the latter two of one user.
type stage struct {
	t *testing.T
	a *agent
	h *hooks
}

func (c *stage) public() {
	one, _ := join(c.a, "a", "orders", "made")
	two, _ := join(c.a, "b", "orders", "made")
	c.h.wait(c.a, "channel_occupied orders")
	c.a.call("app", "trigger", "orders", "made", obj{"id": 1})
	for _, ch := range []string{one, two} {
		expect(c.t, ch, c.a.next(ch, "made"), obj{"id": 1})
	}
	// All but the client whose socket it is.
	c.a.call("app", "trigger", []string{"orders", "other"}, "made", "text", obj{"socket_id": c.a.get("a", "connection.socket_id")})
	c.a.call("app", "triggerBatch", []any{obj{"channel": "orders", "name": "made", "data": obj{"id": 3}}})
	expect(c.t, "the other gets it", c.a.next(two, "made"), "text")
	expect(c.t, "and the next", c.a.next(two, "made"), obj{"id": 3})
	expect(c.t, "the one without", c.a.next(one, "made"), obj{"id": 3})
	r := c.a.call("app", "get", obj{"path": "/channels/orders", "params": obj{"info": "subscription_count"}})
	expect(c.t, "subscriptions", json.RawMessage(text(field(c.t, r, "body"))), obj{"occupied": true, "subscription_count": 2})
	r = c.a.call("app", "get", obj{"path": "/channels", "params": obj{}})
	expect(c.t, "channels", json.RawMessage(text(field(c.t, r, "body"))), obj{"channels": obj{"orders": obj{}}})
	c.a.call("b", "unsubscribe", "orders")
	c.a.call("a", "unsubscribe", "orders")
	c.h.wait(c.a, "channel_vacated orders")
}

func (c *stage) private() {
	one, _ := join(c.a, "a", "private-x", "client-hi")
	two, _ := join(c.a, "b", "private-x", "client-hi")
	expect(c.t, "client event is sent", c.a.call(one, "trigger", "client-hi", obj{"n": 1}), true)
	expect(c.t, "client event", c.a.next(two, "client-hi"), obj{"n": 1})
	c.h.wait(c.a, "client_event private-x client-hi")
	c.a.none(one, "client-hi")
}

func (c *stage) presence() {
	events := []string{"pusher:member_added", "pusher:member_removed", "client-p"}
	one, data := join(c.a, "a", "presence-r", events...)
	expect(c.t, "members", field(c.t, data, "members"), obj{"u1": obj{"name": "name of u1"}})
	two, data := join(c.a, "b", "presence-r", events...)
	expect(c.t, "count", field(c.t, data, "count"), 2)
	expect(c.t, "me", field(c.t, data, "me", "id"), "u2")
	expect(c.t, "added", field(c.t, c.a.next(one, "pusher:member_added"), "id"), "u2")
	three, data := join(c.a, "b2", "presence-r", events...)
	expect(c.t, "count with the user's second connection", field(c.t, data, "count"), 2)
	c.a.call(two, "trigger", "client-p", "hello")
	e := c.a.event(one, "client-p")
	expect(c.t, "client event", e.Data, "hello")
	expect(c.t, "its user", field(c.t, e.More, "user_id"), "u2")
	r := c.a.call("app", "get", obj{"path": "/channels/presence-r/users", "params": obj{}})
	users := decode[struct{ Users []struct{ ID string } }](c.t, []byte(text(field(c.t, r, "body"))))
	if len(users.Users) != 2 {
		c.t.Errorf("users: %+v", users)
	}
	c.a.call("b", "unsubscribe", "presence-r") // the user is there still
	c.a.call(one, "trigger", "client-p", "fence")
	c.a.next(three, "client-p")
	c.a.none(one, "pusher:member_removed")
	c.a.none(one, "pusher:member_added")
	c.a.call("b2", "disconnect")
	expect(c.t, "removed", field(c.t, c.a.next(one, "pusher:member_removed"), "id"), "u2")
	c.h.wait(c.a, "member_added presence-r u2", "member_removed presence-r u2")
}

func (c *stage) encryptedAndCache() {
	one, _ := join(c.a, "a", "private-encrypted-z", "secret")
	c.a.call("app", "trigger", "private-encrypted-z", "secret", obj{"s": "ü"})
	expect(c.t, "decrypted", c.a.next(one, "secret"), obj{"s": "ü"})
	one, _ = join(c.a, "a", "cache-q", "pusher:cache_miss", "last")
	c.a.next(one, "pusher:cache_miss")
	c.h.wait(c.a, "cache_miss cache-q")
	c.a.call("app", "trigger", "cache-q", "last", obj{"n": 5})
	expect(c.t, "live", c.a.next(one, "last"), obj{"n": 5})
	two, _ := join(c.a, "b", "cache-q", "pusher:cache_miss", "last")
	expect(c.t, "cached", c.a.next(two, "last"), obj{"n": 5})
	c.a.none(two, "pusher:cache_miss")
}

func (c *stage) ends() {
	c.a.must(obj{"on": "a", "call": "user.bind", "args": []any{"note", emit("note")}})
	c.a.call("a", "signin")
	judge.Eventually(c.t, patience, "the user has signed in", func() bool { return c.a.get("a", "user.serverToUserChannel.subscribed") == "true" })
	c.a.call("app", "sendToUser", "u1", "note", obj{"n": 1})
	expect(c.t, "sent to the user", c.a.next("a", "note"), obj{"n": 1})
	c.a.call("app", "terminateUserConnections", "u1")
	for text(field(c.t, c.a.next("a", "state_change"), "current")) != "disconnected" {
	}
	expect(c.t, "why", field(c.t, c.a.next("a", "error"), "data", "code"), 4009)
	if f := c.a.refused("app", "trigger", "", "made", "x"); f.Message == "" {
		c.t.Errorf("no channel: %+v", f)
	}
}

// Older versions of the SDK give WebSocket up after two closes without a close frame
// within four minutes. However often the server is restarted or killed, this one comes
// back.
func TestPusherReconnects(t *testing.T) {
	s := serve(t)
	a := nodeAgent(t)
	pusherApp(a, s.Public)
	front := startFront(t, s.Public)
	kinds := []string{"Pusher", "BrowserPusher"}
	for _, kind := range kinds {
		pusherClient(a, kind, front, kind, "u")
		join(a, kind, "presence-room", "made")
	}
	again := func(how string, stop func()) {
		t.Helper()
		begin := time.Now()
		restart(t, s, stop)
		for _, kind := range kinds {
			a.next(kind, "connected")
			a.next(kind+"/presence-room", "pusher:subscription_succeeded")
			t.Logf("%s is back %s after the end by %s", kind, time.Since(begin).Round(time.Millisecond), how)
		}
		a.call("app", "trigger", "presence-room", "made", how)
		for _, kind := range kinds {
			expect(t, kind, a.next(kind+"/presence-room", "made"), how)
		}
	}
	for range 3 {
		again("SIGTERM", func() { s.Signal(syscall.SIGTERM) })
	}
	for range 3 {
		again("SIGKILL", s.Kill)
	}
	again("SIGTERM", func() { s.Signal(syscall.SIGTERM) })
}

// A front is before the server as a balancer does: it holds a connection until
// the server says that it is ready. Without one the SDK, turned away once, as by a
// server that is about to end, waits for 15 s.
func startFront(t *testing.T, backend string) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { passOn(ctx, conn, backend) })
		}
	})
	return ln.Addr().String()
}

func passOn(ctx context.Context, conn net.Conn, backend string) {
	defer conn.Close()
	var up net.Conn
	for up == nil {
		if resp, err := judge.HTTP.Get("http://" + backend + "/readyz"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				if up, err = new(net.Dialer).DialContext(ctx, "tcp", backend); err == nil {
					break
				}
				up = nil
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond): // the pace of trying again
		}
	}
	defer up.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = conn.Close(), up.Close() })
	defer stop()
	var wg sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}
	wg.Go(func() { pipe(up, conn) })
	pipe(conn, up)
	wg.Wait()
}
