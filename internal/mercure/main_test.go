package mercure_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/downstream"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/mercure"
	"github.com/weir-gateway/weir/internal/mercure/protocol"
	"github.com/weir-gateway/weir/internal/presence"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for what must happen: long, for a machine under load.
const patience = 20 * time.Second

const (
	hubPath   = "/.well-known/mercure"
	publicURL = "https://hub.example.com" + hubPath
	pubSecret = "secret-of-publishers-of-the-test-0123456789"
	subSecret = "secret-of-subscribers-of-the-test-987654321"
	appOrigin = "https://app.example.com"
)

// node is a server with the protocol on real sockets.
type node struct {
	t        *testing.T
	addr     string
	hub      *hub.Hub
	server   *mercure.Server
	presence *presence.Presence
	cluster  *cluster.Cluster
	client   *http.Client
	stop     func() // ends it; what was published stays with the broker
}

// settings of a node. The zero value is alone, with everything on.
type settings struct {
	cfg     mercure.Config
	space   hub.Namespace
	bus     hub.Bus
	broker  hub.Broker // nil: in memory
	netHTTP bool
	strict  bool // cfg as it is
	quiet   bool // without subscription events
}

// both runs f on both fronts.
func both(t *testing.T, f func(t *testing.T, s settings)) {
	t.Helper()
	t.Run("loops", func(t *testing.T) { f(t, settings{}) })
	t.Run("net/http", func(t *testing.T) { f(t, settings{netHTTP: true}) })
}

func must[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (s *settings) complete() {
	s.cfg.Enabled = true
	s.space.Name = "mercure"
	if s.strict {
		return
	}
	s.cfg.PublicURL = publicURL
	s.cfg.Anonymous, s.cfg.Subscriptions = true, !s.quiet
	s.cfg.Publisher.Secret, s.cfg.Subscriber.Secret = pubSecret, subSecret
	s.cfg.PublishOrigins = []string{appOrigin}
}

func start(t *testing.T, s settings) *node {
	t.Helper()
	s.complete()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	a := must[*auth.Authenticator](t)(auth.New(auth.Config{HMACSecret: subSecret, AllowedOrigins: []string{appOrigin}}, log))
	formats := must[*wire.Formats](t)(wire.NewFormats(nil))
	if s.broker == nil {
		s.broker = must[*memory.Broker](t)(memory.New(memory.Config{}))
	}
	h := must[*hub.Hub](t)(hub.New(hub.Config{
		Encoders: formats.Encoders(), Log: log, Namespaces: []hub.Namespace{{Name: "default", Anonymous: true}, s.space},
	}, s.broker))
	ctx, cancel := context.WithCancel(context.Background())
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if s.bus == nil {
		s.bus = h.Bus()
	}
	c := must[*cluster.Cluster](t)(cluster.New(cluster.Config{Heartbeat: hub.Duration(50 * time.Millisecond), Lease: hub.Duration(time.Second)}, s.bus, log))
	p := must[*presence.Presence](t)(presence.New(presence.Config{Window: hub.Duration(20 * time.Millisecond)}, c, s.bus, log))
	server := must[*mercure.Server](t)(mercure.New(s.cfg, mercure.Deps{Hub: h, Auth: a, Cluster: c, Presence: p, Log: log}))
	n := &node{t: t, hub: h, server: server, presence: p, cluster: c, client: &http.Client{Transport: &http.Transport{}}}
	serve, closed := n.onLoops, func() {}
	if s.netHTTP {
		serve = n.onNetHTTP
	}
	run, closed := serve(formats, a, log)
	var wg sync.WaitGroup
	for what, run := range map[string]func(context.Context) error{"front": run, "cluster": c.Run, "presence": p.Run, "mercure": server.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	n.stop = sync.OnceFunc(func() {
		n.client.CloseIdleConnections()
		cancel()
		wg.Wait()
		closed()
		_ = h.Close()
		_ = a.Close()
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) onLoops(formats *wire.Formats, a *auth.Authenticator, log *slog.Logger) (run func(context.Context) error, closed func()) {
	var front *downstream.Server
	loops := must[*eventloop.Group](n.t)(eventloop.New(eventloop.Config{Loops: 2}, func(c *eventloop.Conn) eventloop.Handler { return front.Accept(c) }, log))
	p := must[*push.Push](n.t)(push.New(push.Config{}, formats, n.hub, loops.Loops(), log))
	front = must[*downstream.Server](n.t)(downstream.New(downstream.Config{}, p, a, len(loops.Loops()), log))
	if err := front.Mount(n.server.Endpoints()); err != nil {
		n.t.Fatal(err)
	}
	at := must[netip.AddrPort](n.t)(loops.Listen(netip.MustParseAddrPort("127.0.0.1:0")))
	n.addr = at.String()
	front.Listening(at)
	return loops.Run, func() {
		front.Close()
		for _, l := range loops.Loops() {
			if panics := l.Stats().Panics; panics > 0 {
				n.t.Errorf("%d panics", panics)
			}
		}
	}
}

func (n *node) onNetHTTP(formats *wire.Formats, a *auth.Authenticator, log *slog.Logger) (run func(context.Context) error, closed func()) {
	p := pushhttp.New(pushhttp.Config{}, formats, n.hub, log)
	front := stdhttp.New(stdhttp.Config{}, stdhttp.Deps{Hub: n.hub, Push: p, Auth: a, Ready: n.hub.Ready, Log: log})
	if err := front.Mount(n.server.Endpoints()); err != nil {
		n.t.Fatal(err)
	}
	l := must[net.Listener](n.t)(net.Listen("tcp", "127.0.0.1:0"))
	n.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- front.Serve(l) }()
	return func(ctx context.Context) error { p.Run(ctx); return nil }, func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = front.Close(ctx)
		<-served
	}
}

func sign(t *testing.T, secret, typ string, claims map[string]any) string {
	t.Helper()
	tok := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims(claims))
	tok.Header["typ"] = typ
	s, err := tok.SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// token07 is what deployed publishers and subscribers present.
func token07(t *testing.T, secret, right string, topics ...string) string {
	t.Helper()
	return sign(t, secret, "JWT", map[string]any{"mercure": map[string]any{right: topics, "payload": map[string]any{"user": 1}}})
}

// token08 is an access token of draft 08; topics that begin with ":" are URL patterns.
func token08(t *testing.T, secret, action string, topics ...string) string {
	t.Helper()
	var list []map[string]any
	for _, s := range topics {
		m := map[string]any{"match": s}
		if p, ok := strings.CutPrefix(s, "pattern "); ok {
			m = map[string]any{"match": p, "match_type": "urlpattern"}
		}
		list = append(list, m)
	}
	return sign(t, secret, "at+jwt", claims08(action, list))
}

func claims08(action string, topics any) map[string]any {
	return map[string]any{
		"iss": "me", "aud": publicURL, "exp": time.Now().Add(time.Hour).Unix(),
		"authorization_details": []any{map[string]any{
			"type": protocol.DetailType, "actions": []string{action}, "topics": topics, "payload": map[string]any{"user": 8},
		}},
	}
}

// request sends one and returns the answer, the body read.
func (n *node) request(method, target, body string, header ...string) (status int, head http.Header, text string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.addr+target, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := n.client.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// publish publishes with a token that allows all and returns the id.
func (n *node) publish(form string) string {
	n.t.Helper()
	status, _, text := n.request("POST", hubPath, form, "Authorization", "Bearer "+token07(n.t, pubSecret, "publish", "*"))
	if status != http.StatusOK {
		n.t.Fatalf("publish %q: %d %s", form, status, text)
	}
	return text
}

// A stream is a subscriber that stands.
type stream struct {
	t      *testing.T
	head   http.Header
	events chan event
	cancel func()
	body   io.Closer
}

type event struct{ id, kind, data string }

func (e event) String() string { return e.id + "|" + e.kind + "|" + e.data }

// subscribe opens a stream and fails if it cannot be had.
func (n *node) subscribe(query string, header ...string) *stream {
	n.t.Helper()
	return n.stream("GET", hubPath+"?"+query, "", header...)
}

func (n *node) stream(method, target, body string, header ...string) *stream {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.addr+target, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := n.client.Do(r)
	if err != nil {
		cancel()
		n.t.Fatal(err)
	}
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || ct != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		cancel()
		n.t.Fatalf("%s %s: %d %s %s", method, target, resp.StatusCode, ct, b)
	}
	s := &stream{t: n.t, head: resp.Header, events: make(chan event, 1<<16), body: resp.Body}
	done := make(chan struct{})
	s.cancel = sync.OnceFunc(func() { cancel(); _ = resp.Body.Close(); <-done })
	n.t.Cleanup(s.cancel)
	go func() {
		defer close(done)
		defer close(s.events)
		in := sse.NewReader(resp.Body)
		for {
			ev, err := in.Next()
			if err != nil {
				return
			}
			if ev.HasData {
				s.events <- event{string(ev.ID), string(ev.Type), string(ev.Data)}
			}
		}
	}()
	return s
}

// next is the next event.
func (s *stream) next() event {
	s.t.Helper()
	select {
	case e, ok := <-s.events:
		if !ok {
			s.t.Fatal("the stream has ended")
		}
		return e
	case <-time.After(patience):
		s.t.Fatal("no event")
	}
	return event{}
}

// data are the data of the next n events.
func (s *stream) data(n int) (out []string) {
	s.t.Helper()
	for range n {
		out = append(out, s.next().data)
	}
	return out
}

// expect compares.
func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// eventually waits for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func q(s string) string { return url.QueryEscape(s) }
