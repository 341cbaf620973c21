package pusher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/cluster/clustertest"
	"github.com/weir-gateway/weir/internal/downstream"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/presence"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/pusher"
	"github.com/weir-gateway/weir/internal/pusher/protocol"
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
	appID     = "7"
	appKey    = "key-of-app-7"
	appSecret = "secret-of-app-7"
)

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

// node is a server with the protocol on its loops, on real sockets.
type node struct {
	t        *testing.T
	addr     string
	hub      *hub.Hub
	server   *pusher.Server
	presence *presence.Presence
	cluster  *cluster.Cluster
	drain    func(over time.Duration)
}

// settings of a node. The zero value is alone, with an app that has everything on.
type settings struct {
	cfg   pusher.Config
	app   pusher.App
	apps  []pusher.App
	space hub.Namespace
	bus   hub.Bus
	nats  string // URL of a NATS that is the broker; empty: none, what is published stays in the process
	late  bool   // the broker answers from elsewhere, and later
}

// lateBroker answers publishers as a broker does that is on another machine.
type lateBroker struct{ hub.Broker }

func (b lateBroker) Publish(ns *hub.Namespace, p hub.Publication, done func(hub.Position, error)) {
	b.Broker.Publish(ns, p, func(at hub.Position, err error) { go done(at, err) })
}

// start runs a node.
func start(t *testing.T, s settings) *node {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.app.ID, s.app.Key, s.app.Secret = appID, appKey, appSecret
	s.cfg.Enabled, s.cfg.Apps = true, append([]pusher.App{s.app}, s.apps...)
	s.space.Name = "default"

	a, err := auth.New(auth.Config{}, log)
	must(err)
	var broker hub.Broker
	broker, err = memory.New(memory.Config{})
	must(err)
	switch {
	case s.nats != "":
		broker, err = nats.New(nats.Config{URL: s.nats}, log)
		must(err)
	case s.late:
		broker = lateBroker{broker}
	}
	formats, err := wire.NewFormats(nil)
	must(err)
	format := pusher.AddFormat(formats, s.cfg)
	h, err := hub.New(hub.Config{Encoders: formats.Encoders(), Log: log, Namespaces: []hub.Namespace{s.space, {Name: "other"}}}, broker)
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	must(h.Start(ctx))
	if s.bus == nil {
		s.bus = h.Bus()
	}
	c, err := cluster.New(cluster.Config{Heartbeat: hub.Duration(50 * time.Millisecond), Lease: hub.Duration(2 * time.Second)}, s.bus, log)
	must(err)
	p, err := presence.New(presence.Config{Window: hub.Duration(20 * time.Millisecond)}, c, s.bus, log)
	must(err)
	pushers, err := pusher.New(s.cfg, pusher.Deps{Hub: h, Format: format, Cluster: c, Presence: p, Bus: s.bus, Log: log})
	must(err)

	n := &node{t: t, hub: h, server: pushers, presence: p, cluster: c}
	serve := n.onLoops
	if os.Getenv(testFront) != "" {
		serve = n.onNetHTTP
	}
	run, closed := serve(formats, a, log)
	var wg sync.WaitGroup
	for what, run := range map[string]func(context.Context) error{"front": run, "cluster": c.Run, "presence": p.Run, "pusher": pushers.Run} {
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
		_ = h.Close()
		_ = a.Close()
	})
	return n
}

// onLoops has event loops serve n.
func (n *node) onLoops(formats *wire.Formats, a *auth.Authenticator, log *slog.Logger) (run func(context.Context) error, closed func()) {
	n.t.Helper()
	must := n.must
	var front *downstream.Server
	loops, err := eventloop.New(eventloop.Config{Loops: 2}, func(c *eventloop.Conn) eventloop.Handler { return front.Accept(c) }, log)
	must(err)
	p, err := push.New(push.Config{}, formats, n.hub, loops.Loops(), log)
	must(err)
	front, err = downstream.New(downstream.Config{}, p, a, len(loops.Loops()), log)
	must(err)
	must(front.Mount(n.server.Endpoints()))
	at, err := loops.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	must(err)
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

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
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

// share is two nodes on one NATS.
func share(t *testing.T, s settings) (a, b *node) {
	t.Helper()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(patience) {
		t.Fatal("NATS does not start")
	}
	s.nats = ns.ClientURL()
	a, b = start(t, s), start(t, s)
	eventually(t, "the nodes know each other", func() bool { return len(a.cluster.Nodes()) == 2 && len(b.cluster.Nodes()) == 2 })
	return a, b
}

// client is a client of the protocol that says exactly what it is told to.
type client struct {
	t      *testing.T
	conn   *websocket.Conn
	socket string // its socket_id

	frames chan frame
	closed chan error
	reads  chan struct{} // it reads when this is closed
}

type frame struct {
	Event   string          `json:"event"`
	Channel string          `json:"channel"`
	Data    json.RawMessage `json:"data"`
	User    string          `json:"user_id"`
}

// text is the frame's data, unwrapped if it is a string.
func (f frame) text() string {
	var s string
	if json.Unmarshal(f.Data, &s) == nil {
		return s
	}
	return string(f.Data)
}

// dial opens a connection without waiting for the greeting.
func (n *node) dial(path string) *client {
	n.t.Helper()
	c := n.open(path)
	close(c.reads)
	return c
}

// open is dial for a client that does not read yet.
func (n *node) open(path string) *client {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+n.addr+path, websocket.DialOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	c := &client{t: n.t, conn: conn, frames: make(chan frame, 4096), closed: make(chan error, 1), reads: make(chan struct{})}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-c.reads:
		case <-end:
			return
		}
		for {
			_, b, err := conn.Read(context.Background())
			if err != nil {
				c.closed <- err
				return
			}
			var f frame
			if err := json.Unmarshal(b, &f); err != nil {
				n.t.Errorf("%s: %v", b, err)
			}
			select {
			case c.frames <- f:
			case <-end:
				return
			}
		}
	})
	n.t.Cleanup(func() {
		close(end)
		conn.CloseNow()
		wg.Wait()
	})
	return c
}

// connect opens a connection as pusher-js does.
func (n *node) connect() *client {
	n.t.Helper()
	c := n.dial("/app/" + appKey + "?protocol=7&client=js&version=8.4.0&flash=false")
	var hello struct {
		Socket   string `json:"socket_id"`
		Activity int    `json:"activity_timeout"`
	}
	f := c.next()
	if err := json.Unmarshal([]byte(f.text()), &hello); err != nil || f.Event != "pusher:connection_established" || hello.Activity == 0 {
		n.t.Fatalf("greeting %+v: %v", f, err)
	}
	if err := protocol.CheckSocketID(hello.Socket); err != nil {
		n.t.Fatal(err)
	}
	c.socket = hello.Socket
	return c
}

func (c *client) next() frame {
	c.t.Helper()
	select {
	case f := <-c.frames:
		return f
	default:
	}
	select {
	case f := <-c.frames:
		return f
	case err := <-c.closed:
		select {
		case f := <-c.frames:
			c.closed <- err
			return f
		default:
		}
		c.t.Fatalf("closed: %v", err)
	case <-time.After(patience):
		c.t.Fatal("nothing came")
	}
	return frame{}
}

// want checks the next frame, written as event, channel and data.
func (c *client) want(event, channel, data string) frame {
	c.t.Helper()
	f := c.next()
	if f.Event != event || f.Channel != channel || f.text() != data {
		c.t.Fatalf("got  %s on %q: %s\nwant %s on %q: %s", f.Event, f.Channel, f.text(), event, channel, data)
	}
	return f
}

// silent checks that nothing has come: what a ping is answered with comes next.
func (c *client) silent() {
	c.t.Helper()
	c.say(`{"event":"pusher:ping","data":{}}`)
	c.want("pusher:pong", "", "{}")
}

func (c *client) say(text string) {
	c.t.Helper()
	if err := c.conn.Write(websocket.OpText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) sayEvent(event, channel string, data any) {
	c.t.Helper()
	m := map[string]any{"event": event, "data": data}
	if channel != "" {
		m["channel"] = channel
	}
	b, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.say(string(b))
}

// ask asks for a subscription with what an application would sign.
func (c *client) ask(channel, channelData string) {
	c.t.Helper()
	d := map[string]string{"channel": channel}
	if protocol.KindOf(channel).Is(protocol.Private) {
		d["auth"] = protocol.SignSubscription(appKey, appSecret, c.socket, channel, channelData)
	}
	if channelData != "" {
		d["channel_data"] = channelData
	}
	c.sayEvent("pusher:subscribe", "", d)
}

// join subscribes and waits until that stands.
func (c *client) join(channel string) {
	c.t.Helper()
	c.ask(channel, "")
	c.want("pusher_internal:subscription_succeeded", channel, "{}")
}

// wantClose checks the code of the close frame, and the error before it.
func (c *client) wantClose(code int) {
	c.t.Helper()
	for {
		select {
		case f := <-c.frames:
			var e struct{ Code int }
			if f.Event == "pusher:error" && (json.Unmarshal(f.Data, &e) != nil || e.Code != code) {
				c.t.Errorf("error %s, want code %d", f.Data, code)
			}
		case err := <-c.closed:
			var ce *websocket.CloseError
			if !errors.As(err, &ce) || int(ce.Code) != code {
				c.t.Errorf("closed with %v, want %d", err, code)
			}
			return
		case <-time.After(patience):
			c.t.Fatal("not closed")
		}
	}
}

// call makes a signed REST call, as the vendor's libraries do.
func (n *node) call(method, path, query, body string) (status int, answer string) {
	n.t.Helper()
	r := protocol.Request{Method: method, Path: path, Query: query, Body: []byte(body)}
	return n.http(method, path+"?"+protocol.SignedQuery(r, appKey, appSecret, time.Now()), body)
}

func (n *node) http(method, target, body string) (status int, answer string) {
	n.t.Helper()
	req, err := http.NewRequest(method, "http://"+n.addr+target, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// trigger triggers an event as an application does.
func (n *node) trigger(name, data, socket string, channels ...string) {
	n.t.Helper()
	m := map[string]any{"name": name, "data": data, "channels": channels}
	if socket != "" {
		m["socket_id"] = socket
	}
	b, err := json.Marshal(m)
	if err != nil {
		n.t.Fatal(err)
	}
	if status, answer := n.call("POST", "/apps/"+appID+"/events", "", string(b)); status != 200 || answer != "{}" {
		n.t.Fatalf("trigger: %d %s", status, answer)
	}
}

// publish publishes through the hub, as other APIs do.
func (n *node) publish(p hub.Publication) {
	n.t.Helper()
	done := make(chan error, 1)
	n.hub.Publish(p, func(_ hub.Position, err error) { done <- err })
	if err := <-done; err != nil {
		n.t.Fatal(err)
	}
}
