package centrifuge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/centrifuge"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/cluster/clustertest"
	"github.com/weir-gateway/weir/internal/downstream"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/presence"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testFront says which front serves: empty means the event loops, "net/http" the other.
const testFront = "WEIR_TEST_FRONT"

// Every test here must hold on both fronts: this one runs them all again, in a process
// of its own.
func TestEverythingHoldsOnNetHTTP(t *testing.T) {
	if os.Getenv(testFront) != "" {
		return // this is that process
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, fmt.Sprintf("-test.short=%v", testing.Short()))
	cmd.Env = append(os.Environ(), testFront+"=net/http")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// patience is for what must happen: long, for a machine under load.
const patience = 20 * time.Second

const (
	secret = "0123456789abcdef0123456789abcdef"
	apiKey = "key-of-the-server-api"
	ownKey = "key-of-weir-s-own-api"
)

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

// node is a server with the protocol, on real sockets.
type node struct {
	t       *testing.T
	addr    string
	hub     *hub.Hub
	server  *centrifuge.Server
	cluster *cluster.Cluster
	drain   func(over time.Duration)
}

// settings of a node. The zero value is alone and lets everybody in.
type settings struct {
	cfg    centrifuge.Config
	spaces []hub.Namespace
	bus    hub.Bus
	broker hub.Broker
	deps   func(*centrifuge.Deps)
}

// open is a namespace that has everything.
var open = centrifuge.Namespace{
	Presence: true, JoinLeave: true, AllowRecovery: true, AllowPositioning: true, ForceRecovery: true,
	AllowSubscribeForClient: true, AllowSubscribeForAnonymous: true,
	AllowPublishForClient: true, AllowPublishForAnonymous: true,
	AllowPresenceForClient: true, AllowPresenceForAnonymous: true,
	AllowHistoryForClient: true, AllowHistoryForAnonymous: true,
	AllowUserLimited: true, AllowDelta: true, AllowTagsFilter: true,
}

func start(t *testing.T, s settings) *node {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	n := &node{t: t}
	s.cfg.Enabled = true
	if s.cfg.Namespaces == nil {
		s.cfg.Namespaces = map[string]centrifuge.Namespace{"default": open}
		s.cfg.AnonymousConnect = true
	}
	s.cfg.APIKey = apiKey
	a, err := auth.New(auth.Config{
		HMACSecret: secret, AllowNoExpiry: true,
		APIKeys: []auth.APIKey{{Name: "own", Key: ownKey, Publish: []string{"own.*"}}},
	}, log)
	n.must(err)
	broker := s.broker
	if broker == nil {
		broker, err = memory.New(memory.Config{})
		n.must(err)
	}
	formats, err := wire.NewFormats(nil)
	n.must(err)
	numbers := centrifuge.AddFormats(formats.Add)
	if s.spaces == nil {
		s.spaces = []hub.Namespace{{Name: "default"}}
	}
	h, err := hub.New(hub.Config{Encoders: formats.Encoders(), Log: log, Namespaces: s.spaces}, broker)
	n.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	n.must(h.Start(ctx))
	if s.bus == nil {
		s.bus = h.Bus()
	}
	c, err := cluster.New(cluster.Config{Heartbeat: hub.Duration(50 * time.Millisecond), Lease: hub.Duration(2 * time.Second)}, s.bus, log)
	n.must(err)
	p, err := presence.New(presence.Config{Window: hub.Duration(10 * time.Millisecond)}, c, s.bus, log)
	n.must(err)
	deps := centrifuge.Deps{Hub: h, Formats: numbers, Auth: a, Presence: p, Bus: s.bus, Cluster: c, Version: "test", Log: log}
	if s.deps != nil {
		s.deps(&deps)
	}
	server, err := centrifuge.New(s.cfg, deps)
	n.must(err)
	n.must(server.Start())
	n.hub, n.server, n.cluster = h, server, c
	serve := n.onLoops
	if os.Getenv(testFront) != "" {
		serve = n.onNetHTTP
	}
	run, closed := serve(formats, a, log)
	var wg sync.WaitGroup
	for what, run := range map[string]func(context.Context) error{"front": run, "cluster": c.Run, "presence": p.Run, "centrifuge": server.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		wg.Wait()
		closed()
		_ = server.Close()
		_ = h.Close()
		_ = a.Close()
	})
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// onLoops has event loops serve n.
func (n *node) onLoops(formats *wire.Formats, a *auth.Authenticator, log *slog.Logger) (run func(context.Context) error, closed func()) {
	n.t.Helper()
	var front *downstream.Server
	loops, err := eventloop.New(eventloop.Config{Loops: 2}, func(c *eventloop.Conn) eventloop.Handler { return front.Accept(c) }, log)
	n.must(err)
	p, err := push.New(push.Config{}, formats, n.hub, loops.Loops(), log)
	n.must(err)
	front, err = downstream.New(downstream.Config{}, p, a, len(loops.Loops()), log)
	n.must(err)
	n.must(front.Mount(n.server.Endpoints()))
	at, err := loops.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	n.must(err)
	n.addr = at.String()
	front.Listening(at)
	n.drain = p.Drain
	return loops.Run, func() {
		front.Close()
		for _, l := range loops.Loops() {
			if panics := l.Stats().Panics; panics > 0 {
				n.t.Errorf("%d panics", panics)
			}
		}
	}
}

// onNetHTTP has net/http serve n.
func (n *node) onNetHTTP(formats *wire.Formats, a *auth.Authenticator, log *slog.Logger) (run func(context.Context) error, closed func()) {
	n.t.Helper()
	p := pushhttp.New(pushhttp.Config{}, formats, n.hub, log)
	front := stdhttp.New(stdhttp.Config{}, stdhttp.Deps{Hub: n.hub, Push: p, Auth: a, Ready: n.hub.Ready, Log: log})
	n.must(front.Mount(n.server.Endpoints()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	n.must(err)
	n.addr = l.Addr().String()
	n.drain = func(over time.Duration) { p.Drain(over) }
	served := make(chan error, 1)
	go func() { served <- front.Serve(l) }()
	return func(ctx context.Context) error { p.Run(ctx); return nil }, func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = front.Close(ctx)
		<-served
	}
}

// pair is two nodes that know each other. They share no broker: what is published on
// one stays there.
func pair(t *testing.T, s settings) (a, b *node) {
	t.Helper()
	nodes := clustertest.NewNet(1)
	t.Cleanup(nodes.Close)
	s.bus = nodes.Join("a")
	a = start(t, s)
	s.bus = nodes.Join("b")
	b = start(t, s)
	eventually(t, "the nodes know each other", func() bool { return len(a.cluster.Nodes()) == 2 && len(b.cluster.Nodes()) == 2 })
	return a, b
}

// token signs claims.
func token(t *testing.T, claims map[string]any) string {
	t.Helper()
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims(claims)).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// client is a client of the protocol, in JSON, that says exactly what it is told to.
type client struct {
	t     *testing.T
	lines chan string // one JSON object each
	ended chan error
	say   func(text string)
	conn  *websocket.Conn
	id    string // its client id
}

// dial opens a WebSocket.
func (n *node) dial(path string) *client {
	n.t.Helper()
	return n.dialOptions(path, websocket.DialOptions{})
}

func (n *node) dialOptions(path string, o websocket.DialOptions) *client {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+n.addr+path, o)
	n.must(err)
	c := &client{t: n.t, conn: conn, lines: make(chan string, 4096), ended: make(chan error, 1)}
	c.say = func(text string) {
		n.t.Helper()
		n.must(conn.Write(websocket.OpText, []byte(text)))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			_, b, err := conn.Read(context.Background())
			if err != nil {
				c.ended <- err
				return
			}
			for line := range strings.SplitSeq(string(b), "\n") {
				c.lines <- line
			}
		}
	})
	n.t.Cleanup(func() { conn.CloseNow(); wg.Wait() })
	return c
}

// stream opens a stream: lines of JSON, or events, whose data are the lines.
func (n *node) stream(method, path, body string, fields ...string) *client {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.addr+path, strings.NewReader(body))
	n.must(err)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	n.must(err)
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		n.t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, b)
	}
	c := &client{t: n.t, lines: make(chan string, 4096), ended: make(chan error, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		in := bufio.NewScanner(res.Body)
		in.Buffer(nil, 1<<20)
		id := ""
		for in.Scan() {
			switch line := in.Text(); {
			case strings.HasPrefix(line, "id: "):
				id = line[4:]
			case strings.HasPrefix(line, "data: "):
				if id != "" {
					c.lines <- "id " + id
					id = ""
				}
				c.lines <- line[6:]
			case line != "":
				c.lines <- line
			}
		}
		c.ended <- errors.Join(in.Err(), io.EOF)
	})
	n.t.Cleanup(func() { cancel(); _ = res.Body.Close(); wg.Wait() })
	return c
}

// next returns the next line that is no ping.
func (c *client) next() string {
	c.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case line := <-c.lines:
			if line != "{}" {
				return line
			}
		case err := <-c.ended:
			if len(c.lines) == 0 {
				c.t.Fatalf("ended: %v", err)
			}
			c.ended <- err // what came before it first
		case <-timeout.C:
			c.t.Fatal("nothing came")
		}
	}
}

// expect wants the next line to be the JSON, in which a string "?" is anything.
func (c *client) expect(want string) map[string]any {
	c.t.Helper()
	got := c.next()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		c.t.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		c.t.Fatalf("%s: %v", want, err)
	}
	if !like(g, w) {
		c.t.Fatalf("got  %s\nwant %s", got, want)
	}
	m, _ := g.(map[string]any)
	return m
}

// like compares JSON, with "?" for anything.
func like(got, want any) bool {
	switch w := want.(type) {
	case string:
		if w == "?" {
			return true
		}
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for k := range w {
			if _, ok := g[k]; !ok || !like(g[k], w[k]) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !like(g[i], w[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(got, want)
}

// closes wants a close frame.
func (c *client) closes(code uint16, reason string) {
	c.t.Helper()
	select {
	case err := <-c.ended:
		var e *websocket.CloseError
		if !errors.As(err, &e) || e.Code != code || e.Reason != reason {
			c.t.Errorf("ended with %v, want %d %q", err, code, reason)
		}
	case line := <-c.lines:
		c.t.Errorf("got %s, want the end: %d %q", line, code, reason)
	case <-time.After(patience):
		c.t.Errorf("no end, want %d %q", code, reason)
	}
}

// connect opens a WebSocket and connects with a request like {"token":…}.
func (n *node) connect(request string) *client {
	n.t.Helper()
	c := n.dial("/connection/websocket")
	c.say(`{"id":1,"connect":` + request + `}`)
	var r struct {
		Connect struct{ Client string }
	}
	line := c.next()
	if err := json.Unmarshal([]byte(line), &r); err != nil || r.Connect.Client == "" {
		n.t.Fatalf("connect: %s", line)
	}
	c.id = r.Connect.Client
	return c
}

// subscribe subscribes with a request and returns where the subscription begins.
func (c *client) subscribe(request string) (epoch string, offset uint64) {
	c.t.Helper()
	c.say(`{"id":2,"subscribe":` + request + `}`)
	var r struct {
		Subscribe *struct {
			Epoch  string
			Offset uint64
		}
	}
	line := c.next()
	if err := json.Unmarshal([]byte(line), &r); err != nil || r.Subscribe == nil {
		c.t.Fatalf("subscribe: %s", line)
	}
	return r.Subscribe.Epoch, r.Subscribe.Offset
}

// publish publishes past the protocol.
func (n *node) publish(channel, data string) hub.Position {
	n.t.Helper()
	return n.publishMessage(hub.Publication{Channel: channel, Data: []byte(data)})
}

func (n *node) publishMessage(p hub.Publication) hub.Position {
	n.t.Helper()
	got := make(chan hub.Position, 1)
	n.hub.Publish(p, func(at hub.Position, err error) {
		if err != nil {
			n.t.Error(err)
		}
		got <- at
	})
	return <-got
}

// api calls the server API.
func (n *node) api(method, body string, fields ...string) (int, string) {
	n.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+n.addr+"/centrifugo/api/"+method, strings.NewReader(body))
	n.must(err)
	req.Header.Set("X-API-Key", apiKey)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	n.must(err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	n.must(err)
	return res.StatusCode, string(bytes.TrimSpace(b))
}

// wantAPI wants an answer of the server API.
func (n *node) wantAPI(method, body, want string) map[string]any {
	n.t.Helper()
	status, got := n.api(method, body)
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil || status != http.StatusOK {
		n.t.Fatalf("%s: %d %s", method, status, got)
	}
	n.must(json.Unmarshal([]byte(want), &w))
	if !like(g, w) {
		n.t.Fatalf("%s %s:\ngot  %s\nwant %s", method, body, got, want)
	}
	m, _ := g.(map[string]any)
	return m
}

func escape(s string) string { return url.QueryEscape(s) }
