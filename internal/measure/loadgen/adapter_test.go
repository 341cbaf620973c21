package loadgen_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// whole checks a pubsub window in which everything went well: rate messages, each
// to every one of its subscribers.
func whole(t *testing.T, name string, w *loadgen.Window, published, received uint64) {
	t.Helper()
	addsUp(t, w)
	d := w.Delivery
	if len(w.Errors) > 0 || d.Published != published || d.Expected != received || d.Received != received ||
		d.Lost+d.Late+d.Repeated+d.Reordered+d.Foreign > 0 || d.Reach != 1 {
		t.Errorf("%s: errors %v, %+v; want %d published and %d received", name, w.Errors, d, published, received)
	}
}

const apiKey = "test-key-0123456789"

// gateway runs Weir itself.
func gateway(t *testing.T) *app.App {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Broker = config.Broker{Kind: config.BrokerMemory}
	cfg.EventLoop.Loops = 2
	cfg.Push.Echo = true
	cfg.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true}}
	cfg.Auth.APIKeys = []auth.APIKey{{Name: "test", Key: apiKey}}
	cfg.Shutdown.Drain = hub.Duration(10 * time.Millisecond)
	a, err := app.New(cfg, app.Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- a.Run(ctx, context.Background(), func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
	<-ready
	return a
}

func TestWeirAdapterAgainstTheGateway(t *testing.T) {
	f := func(name string, change func(*loadgen.Spec)) {
		t.Helper()
		a := gateway(t)
		spec := loadgen.Spec{
			Kind: loadgen.PubSub, Target: a.URL(), Adapter: "weir", Headers: []string{"X-API-Key: " + apiKey},
			Conns: 12, Channels: 3, Publishers: 2, Arrival: loadgen.Uniform,
		}
		change(&spec)
		whole(t, name, measure(t, spec, loadgen.Load{Rate: 300}, 500*time.Millisecond), 150, 600)
	}
	f("sse", func(*loadgen.Spec) {})
	f("ws", func(s *loadgen.Spec) { s.Transport = "ws" })
	f("ws, compressed, resuming", func(s *loadgen.Spec) { s.Transport, s.Deflate, s.Reconnect = "ws", true, true })
	f("channels by the target", func(s *loadgen.Spec) { s.Target += "/sse?channel=room.{channel}" })
	f("several loops", func(s *loadgen.Spec) { s.Loops = 3 })
}

func TestWeirStreamsResumeAfterACut(t *testing.T) {
	trial.Long(t)
	for _, transport := range []string{"sse", "ws"} {
		a := gateway(t)
		relay := newRelay(t, strings.TrimPrefix(a.URL(), "http://"))
		g := generator(t, loadgen.Spec{
			Kind: loadgen.PubSub, Target: "http://" + relay.addr, Publish: a.URL(), Adapter: "weir", Transport: transport,
			Headers: []string{"X-API-Key: " + apiKey}, Conns: 10, Reconnect: true, Duration: 1500 * time.Millisecond, Rate: 200, Timeout: 5 * time.Second,
		})
		if err := g.Connect(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(500*time.Millisecond, relay.cut)
		r, err := g.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		d := r.Total.Delivery
		if d.Reconnects != 10 || d.Resumed != 10 || d.Lost+d.Late+d.Repeated+d.Reordered+d.Gaps > 0 || d.Received < 2000 || d.Received != d.Expected {
			t.Errorf("%s: %+v; want 10 streams that resumed without loss", transport, d)
		}
		_ = g.Close()
	}
}

func TestHTTPAndEchoAgainstTheGateway(t *testing.T) {
	a := gateway(t)
	faultless(t, measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: a.URL() + "/healthz", Conns: 3, Arrival: loadgen.Uniform},
		loadgen.Load{Rate: 300}, 300*time.Millisecond), 90)
	for _, deflate := range []bool{false, true} {
		faultless(t, measure(t, loadgen.Spec{Kind: loadgen.Echo, Target: a.URL(), Adapter: "weir", Conns: 3, Pipeline: 8, Deflate: deflate, Payload: 500, Arrival: loadgen.Burst},
			loadgen.Load{Rate: 300}, 300*time.Millisecond), 90)
	}
}

func TestNchanAdapter(t *testing.T) {
	for _, transport := range []string{"sse", "ws"} {
		w := newWorld(t, nil) // its wire is that of a world: /sub/ and /pub/, data as it is
		whole(t, transport, measure(t, loadgen.Spec{
			Kind: loadgen.PubSub, Target: w.URL, Adapter: "nchan", Transport: transport, Conns: 8, Channels: 2, Arrival: loadgen.Uniform,
		}, loadgen.Load{Rate: 200}, 400*time.Millisecond), 80, 320)
		whole(t, transport+" with paths", measure(t, loadgen.Spec{
			Kind: loadgen.PubSub, Target: w.URL + "/sub/c{channel}", Adapter: "nchan", Transport: transport, Conns: 4, Channels: 4, Arrival: loadgen.Uniform,
		}, loadgen.Load{Rate: 200}, 400*time.Millisecond), 80, 80)
	}
}

func TestMercureAdapter(t *testing.T) {
	w := newWorld(t, nil)
	const token = "Bearer e30.e30.x"
	hub := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/mercure" || r.Header.Get("Authorization") != token {
			rw.WriteHeader(401)
			return
		}
		if r.Method == "GET" {
			w.events(rw, r, r.URL.Query().Get("topic")+r.URL.Query().Get("match"))
			return
		}
		if err := r.ParseForm(); err != nil || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
			rw.WriteHeader(400)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.publish(r.PostForm.Get("topic"), []byte(r.PostForm.Get("data")))
		io.WriteString(rw, "urn:uuid:1")
	})
	spec := loadgen.Spec{
		Kind: loadgen.PubSub, Target: hub, Adapter: "mercure", Headers: []string{"Authorization: " + token},
		Conns: 6, Channels: 3, Channel: "https://example.com/books/{channel}", Arrival: loadgen.Uniform,
	}
	whole(t, "mercure", measure(t, spec, loadgen.Load{Rate: 200}, 300*time.Millisecond), 60, 120)
	spec.Channel, spec.Target = "", hub+"/.well-known/mercure?match="+url.QueryEscape("room {channel}")
	whole(t, "mercure by match", measure(t, spec, loadgen.Load{Rate: 200}, 300*time.Millisecond), 60, 120)
	spec.Headers = nil
	if err := generator(t, spec).Connect(context.Background()); err == nil || !strings.Contains(err.Error(), "status 401") {
		t.Errorf("without a token: %v", err)
	}
	// Channels that are closed now would block the world's end.
	w.kick()
}

// centrifuge makes a world speak Centrifuge's JSON protocol.
func centrifuge(w *world) {
	w.frame = func(channel string, offset int, data []byte) []byte {
		return fmt.Appendf(nil, `{"push":{"channel":%s,"pub":{"data":%s,"offset":%d}}}`, quote(channel), data, offset)
	}
	w.greet = func(c *websocket.Conn, m *member) error {
		_, b, err := c.Read(context.Background())
		if err != nil {
			return err
		}
		// The member joins its channel only now.
		var reply []string
		for line := range strings.SplitSeq(string(b), "\n") {
			var cmd struct {
				ID        int
				Connect   *struct{}
				Subscribe *struct {
					Channel string
					Recover bool
					Epoch   string
					Offset  int
				}
			}
			if err := json.Unmarshal([]byte(line), &cmd); err != nil {
				return err
			}
			switch {
			case cmd.Connect != nil:
				reply = append(reply, `{"id":1,"connect":{"client":"x","version":"1","ping":25,"pong":true}}`)
			case cmd.Subscribe != nil && strings.HasPrefix(cmd.Subscribe.Channel, "secret"):
				reply = append(reply, `{"id":2,"error":{"code":103,"message":"permission denied"}}`)
			case cmd.Subscribe != nil:
				w.mu.Lock()
				m.channel = cmd.Subscribe.Channel
				w.last = append(w.last, fmt.Sprintf("%v %s %d", cmd.Subscribe.Recover, cmd.Subscribe.Epoch, cmd.Subscribe.Offset))
				reply = append(reply, fmt.Sprintf(`{"id":%d,"subscribe":{"recoverable":true,"epoch":"ep","offset":%d,"recovered":%v}}`,
					cmd.ID, w.offset[m.channel], cmd.Subscribe.Recover))
				w.mu.Unlock()
			}
		}
		if err := c.Write(websocket.OpText, []byte(strings.Join(reply, "\n"))); err != nil {
			return err
		}
		return c.Write(websocket.OpText, []byte("{}"))
	}
}

// centrifugo is a server of that protocol and its HTTP API.
func centrifugo(t *testing.T, w *world) string {
	n := 0
	return serve(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/connection/websocket" {
			w.socket(rw, r, "")
			return
		}
		var p struct {
			Channel string
			Data    json.RawMessage
		}
		if r.URL.Path != "/api/publish" || r.Header.Get("X-API-Key") != "k" || json.NewDecoder(r.Body).Decode(&p) != nil {
			rw.WriteHeader(401)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if n++; n%20 == 0 && strings.HasPrefix(p.Channel, "news") {
			io.WriteString(rw, `{"error":{"code":102,"message":"unknown channel"}}`)
			return
		}
		w.publish(p.Channel, p.Data)
		io.WriteString(rw, `{"result":{"offset":1,"epoch":"ep"}}`)
	})
}

func TestCentrifugeAdapter(t *testing.T) {
	w := newWorld(t, centrifuge)
	spec := loadgen.Spec{
		Kind: loadgen.PubSub, Target: centrifugo(t, w), Adapter: "centrifuge", Headers: []string{"X-API-Key: k"},
		Conns: 6, Channels: 2, Channel: "news:{channel}", Publishers: 1, Arrival: loadgen.Uniform,
	}
	win := measure(t, spec, loadgen.Load{Rate: 200}, 500*time.Millisecond)
	addsUp(t, win)
	d := win.Delivery
	if win.Errors["error 102"] != 5 || d.Published != 95 || d.Expected != 285 || d.Received != 285 || d.Lost+d.Late+d.Repeated > 0 {
		t.Errorf("errors %v, %+v; want 5 refused of 100, and the rest received", win.Errors, d)
	}
	spec.Channel = "secret"
	if err := generator(t, spec).Connect(context.Background()); err == nil || !strings.Contains(err.Error(), "error 103 permission denied") {
		t.Errorf("a forbidden channel: %v", err)
	}
}

func TestCentrifugeStreamsRecover(t *testing.T) {
	w := newWorld(t, centrifuge)
	g := generator(t, loadgen.Spec{
		Kind: loadgen.PubSub, Target: centrifugo(t, w), Adapter: "centrifuge", Headers: []string{"X-API-Key: k"},
		Conns: 4, Publishers: 1, Arrival: loadgen.Uniform, Reconnect: true,
	})
	if _, err := g.Measure(context.Background(), loadgen.Load{Rate: 100}, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	w.kick()
	trial.Eventually(t, "the streams to come back", func() bool { return w.subscribed() == 4 })
	win, err := g.Measure(context.Background(), loadgen.Load{Rate: 100}, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if d := win.Delivery; d.Received != 40 || d.Lost+d.Late+d.Repeated > 0 {
		t.Errorf("%+v", d)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.last[len(w.last)-1]; got != "true ep 10" {
		t.Errorf("came back with %q, want the epoch and the offset of the last message", got)
	}
}
