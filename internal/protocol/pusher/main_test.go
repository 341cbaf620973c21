package pusher_test

import (
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/protocol/pusher/pushertest"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEverythingHoldsOverHTTP2(t *testing.T) { trial.Again(t, nodetest.Front, "http2") }

const (
	appID     = "7"
	appKey    = "key-of-app-7"
	appSecret = "secret-of-app-7"
)

// node is a server with the protocol, on real sockets.
type node struct {
	*nodetest.Node
	server *pusher.Server
	ready  atomic.Bool
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
	s.app.ID, s.app.Key, s.app.Secret = appID, appKey, appSecret
	s.cfg.Enabled, s.cfg.Apps = true, append([]pusher.App{s.app}, s.apps...)
	s.space.Name = "default"
	var broker hub.Broker
	var err error
	switch {
	case s.nats != "":
		broker, err = nats.New(nats.Config{URL: s.nats}, trial.Log(t))
	case s.late:
		broker, err = memory.New(memory.Config{})
		broker = lateBroker{broker}
	}
	if err != nil {
		t.Fatal(err)
	}
	var format hub.Format
	n := &node{Node: nodetest.New(t, nodetest.Config{
		Broker: broker, Namespaces: []hub.Namespace{s.space, {Name: "other"}},
		Formats: func(f *wire.Formats) { format = pusher.AddFormat(f, s.cfg) },
	})}
	n.Join(s.bus, 20*time.Millisecond)
	n.ready.Store(true)
	ready := func() error {
		if !n.ready.Load() {
			return errors.New("draining")
		}
		return nil
	}
	n.server, err = pusher.New(s.cfg, pusher.Deps{Ready: ready, Hub: n.Hub, Format: format, Cluster: n.Cluster, Presence: n.Presence, Bus: n.Bus, Log: n.Log})
	n.Must(err)
	n.Run("pusher", n.server.Run)
	n.Serve(n.server.Endpoints())
	return n
}

// pair is two nodes that know each other and share no broker.
func pair(t *testing.T, s settings) (a, b *node) {
	t.Helper()
	return nodetest.Pair(t, func(bus hub.Bus) (*node, *nodetest.Node) {
		s.bus = bus
		n := start(t, s)
		return n, n.Node
	})
}

// share is two nodes on one NATS.
func share(t *testing.T, s settings) (a, b *node) {
	t.Helper()
	s.nats = natstest.Server(t)
	a, b = start(t, s), start(t, s)
	nodetest.Meet(a.Node, b.Node)
	return a, b
}

// client is a client of the protocol that sends exactly what it is given.
type client struct {
	*nodetest.Feed[frame] // nil until it reads
	t                     *testing.T
	conn                  *websocket.Conn
	socket                string // its socket_id
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
	n.T.Helper()
	c := n.open(path)
	c.read()
	return c
}

// open is dial for a client that does not read yet.
func (n *node) open(path string) *client {
	n.T.Helper()
	return &client{t: n.T, conn: n.Dial(path, websocket.DialOptions{})}
}

// read has the client read from now on.
func (c *client) read() {
	c.Feed = nodetest.Follow(c.t, func(put func(frame)) error {
		return nodetest.Messages(c.conn, func(b []byte) {
			var f frame
			if err := json.Unmarshal(b, &f); err != nil {
				c.t.Errorf("%s: %v", b, err)
			}
			put(f)
		})
	}, c.conn.CloseNow)
}

// connect opens a connection as pusher-js does.
func (n *node) connect() *client {
	n.T.Helper()
	c := n.dial("/app/" + appKey + "?protocol=7&client=js&version=8.4.0&flash=false")
	var hello struct {
		Socket   string `json:"socket_id"`
		Activity int    `json:"activity_timeout"`
	}
	f := c.Next()
	if err := json.Unmarshal([]byte(f.text()), &hello); err != nil || f.Event != "pusher:connection_established" || hello.Activity == 0 {
		n.T.Fatalf("greeting %+v: %v", f, err)
	}
	if err := protocol.CheckSocketID(hello.Socket); err != nil {
		n.T.Fatal(err)
	}
	c.socket = hello.Socket
	return c
}

// want checks the next frame, written as event, channel and data.
func (c *client) want(event, channel, data string) frame {
	c.t.Helper()
	f := c.Next()
	if f.Event != event || f.Channel != channel || f.text() != data {
		c.t.Fatalf("got  %s on %q: %s\nwant %s on %q: %s", f.Event, f.Channel, f.text(), event, channel, data)
	}
	return f
}

// silent checks that nothing has come: what a ping is answered with comes next.
func (c *client) silent() {
	c.t.Helper()
	c.send(`{"event":"pusher:ping","data":{}}`)
	c.want("pusher:pong", "", "{}")
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.conn.Write(websocket.OpText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) sendEvent(event, channel string, data any) {
	c.t.Helper()
	m := map[string]any{"event": event, "data": data}
	if channel != "" {
		m["channel"] = channel
	}
	b, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(string(b))
}

// request requests a subscription with what an application would sign.
func (c *client) request(channel, channelData string) {
	c.t.Helper()
	d := map[string]string{"channel": channel}
	if protocol.KindOf(channel).Is(protocol.Private) {
		d["auth"] = protocol.SignSubscription(appKey, appSecret, c.socket, channel, channelData)
	}
	if channelData != "" {
		d["channel_data"] = channelData
	}
	c.sendEvent("pusher:subscribe", "", d)
}

// join subscribes and waits until that is acknowledged.
func (c *client) join(channel string) {
	c.t.Helper()
	c.request(channel, "")
	c.want("pusher_internal:subscription_succeeded", channel, "{}")
}

// wantClose checks the code of the close frame, and the error before it.
func (c *client) wantClose(code int) {
	c.t.Helper()
	all, err := c.Rest()
	for _, f := range all {
		var e struct{ Code int }
		if f.Event == "pusher:error" && (json.Unmarshal(f.Data, &e) != nil || e.Code != code) {
			c.t.Errorf("error %s, want code %d", f.Data, code)
		}
	}
	if ce, ok := errors.AsType[*websocket.CloseError](err); !ok || int(ce.Code) != code {
		c.t.Errorf("closed with %v, want %d", err, code)
	}
}

// call makes a signed REST call, as the vendor's libraries do.
func (n *node) call(method, path, query, body string) (status int, answer string) {
	n.T.Helper()
	r := protocol.Request{Method: method, Path: path, Query: query, Body: []byte(body)}
	return n.http(method, path+"?"+pushertest.SignedQuery(r, appKey, appSecret, time.Now()), body)
}

func (n *node) http(method, target, body string) (status int, answer string) {
	n.T.Helper()
	status, _, answer = n.Request(method, target, body, "Content-Type", "application/json")
	return status, answer
}

// trigger triggers an event as an application does.
func (n *node) trigger(name, data, socket string, channels ...string) {
	n.T.Helper()
	m := map[string]any{"name": name, "data": data, "channels": channels}
	if socket != "" {
		m["socket_id"] = socket
	}
	b, err := json.Marshal(m)
	if err != nil {
		n.T.Fatal(err)
	}
	if status, answer := n.call("POST", "/apps/"+appID+"/events", "", string(b)); status != 200 || answer != "{}" {
		n.T.Fatalf("trigger: %d %s", status, answer)
	}
}
