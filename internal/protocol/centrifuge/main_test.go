package centrifuge_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEverythingHoldsOverHTTP2(t *testing.T) { trial.Again(t, nodetest.Front, "http2") }

const (
	secret = "0123456789abcdef0123456789abcdef"
	apiKey = "key-of-the-server-api"
	ownKey = "key-of-weir-s-own-api"
)

// node is a server with the protocol, on real sockets.
type node struct {
	*nodetest.Node
	server *centrifuge.Server
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
	s.cfg.Enabled = true
	if s.cfg.Namespaces == nil {
		s.cfg.Namespaces = map[string]centrifuge.Namespace{"default": open}
		s.cfg.AnonymousConnect = true
	}
	s.cfg.APIKey = apiKey
	var numbers centrifuge.Formats
	n := &node{Node: nodetest.New(t, nodetest.Config{
		Auth: auth.Config{
			KeySet:  auth.KeySet{HMACSecret: secret, RequireExpiry: setting.Off},
			APIKeys: []auth.APIKey{{Name: "own", Key: ownKey, Publish: []string{"own.*"}}},
		},
		Namespaces: s.spaces, Broker: s.broker,
		Formats: func(f *wire.Formats) { numbers = centrifuge.AddFormats(f.Add) },
	})}
	n.Join(s.bus, 10*time.Millisecond)
	deps := centrifuge.Deps{Hub: n.Hub, Formats: numbers, Auth: n.Auth, Presence: n.Presence, Bus: n.Bus, Cluster: n.Cluster, Version: "test", Log: n.Log}
	if s.deps != nil {
		s.deps(&deps)
	}
	var err error
	n.server, err = centrifuge.New(s.cfg, deps)
	n.Must(err)
	n.Must(n.server.Start())
	n.OnStop(func() { _ = n.server.Close() })
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

// token signs claims.
func token(t *testing.T, claims map[string]any) string {
	t.Helper()
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims(claims)).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// client is a client of the protocol, in JSON, that sends exactly what it is given.
type client struct {
	*nodetest.Feed[string] // one JSON object each
	t                      *testing.T
	conn                   *websocket.Conn // nil: a stream
	id                     string          // its client id
}

// dial opens a WebSocket.
func (n *node) dial(path string) *client {
	n.T.Helper()
	return n.dialOptions(path, websocket.DialOptions{})
}

func (n *node) dialOptions(path string, o websocket.DialOptions) *client {
	n.T.Helper()
	conn := n.Dial(path, o)
	lines := func(put func(string)) error {
		return nodetest.Messages(conn, func(b []byte) {
			for line := range strings.SplitSeq(string(b), "\n") {
				put(line)
			}
		})
	}
	return &client{nodetest.Follow(n.T, lines, conn.CloseNow), n.T, conn, ""}
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.conn.Write(websocket.OpText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// stream opens a stream: lines of JSON, or events, whose data are the lines.
func (n *node) stream(method, path, body string, fields ...string) *client {
	n.T.Helper()
	feed, _ := nodetest.Stream(n.Node, streamLines, method, path, body, fields...)
	return &client{feed, n.T, nil, ""}
}

func streamLines(body io.Reader, put func(string)) error {
	in := bufio.NewScanner(body)
	in.Buffer(nil, 1<<20)
	id := ""
	for in.Scan() {
		switch line := in.Text(); {
		case strings.HasPrefix(line, "id: "):
			id = line[4:]
		case strings.HasPrefix(line, "data: "):
			if id != "" {
				put("id " + id)
				id = ""
			}
			put(line[6:])
		case line != "":
			put(line)
		}
	}
	return errors.Join(in.Err(), io.EOF)
}

// next returns the next line that is not a ping.
func (c *client) next() string {
	c.t.Helper()
	for {
		if line := c.Next(); line != "{}" {
			return line
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

// connect opens a WebSocket and connects with a request like {"token":…}.
func (n *node) connect(request string) *client {
	n.T.Helper()
	c := n.dial("/connection/websocket")
	c.send(`{"id":1,"connect":` + request + `}`)
	var r struct {
		Connect struct{ Client string }
	}
	line := c.next()
	if err := json.Unmarshal([]byte(line), &r); err != nil || r.Connect.Client == "" {
		n.T.Fatalf("connect: %s", line)
	}
	c.id = r.Connect.Client
	return c
}

// subscribe subscribes with a request and returns where the subscription starts.
func (c *client) subscribe(request string) (epoch string, offset uint64) {
	c.t.Helper()
	c.send(`{"id":2,"subscribe":` + request + `}`)
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
	n.T.Helper()
	return n.Publish(hub.Publication{Channel: channel, Data: []byte(data)})
}

// api calls the server API.
func (n *node) api(method, body string, fields ...string) (int, string) {
	n.T.Helper()
	status, _, text := n.Request("POST", "/centrifugo/api/"+method, body, append([]string{"X-API-Key", apiKey}, fields...)...)
	return status, strings.TrimSpace(text)
}

// wantAPI wants an answer of the server API.
func (n *node) wantAPI(method, body, want string) map[string]any {
	n.T.Helper()
	status, got := n.api(method, body)
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil || status != http.StatusOK {
		n.T.Fatalf("%s: %d %s", method, status, got)
	}
	n.Must(json.Unmarshal([]byte(want), &w))
	if !like(g, w) {
		n.T.Fatalf("%s %s:\ngot  %s\nwant %s", method, body, got, want)
	}
	m, _ := g.(map[string]any)
	return m
}

func escape(s string) string { return url.QueryEscape(s) }
