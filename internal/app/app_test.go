package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) {
	if fails := os.Getenv(successor); fails != "" {
		fmt.Fprintln(os.Stderr, "the failing process:", succeed(failures[fails]))
		os.Exit(1)
	}
	// net/http lets go of a connection half a second after it refused a body.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const testKey = "test-key-0123456789"

// gateway is a running App for a test.
type gateway struct {
	*App
	url  string
	stop func() // begins the drain
	done chan error
}

func start(t *testing.T, change func(*config.Config)) *gateway {
	t.Helper()
	return startWith(t, change, nil)
}

func startWith(t *testing.T, change func(*config.Config), files map[string]downstream.Static) *gateway {
	t.Helper()
	return startApp(t, change, Options{Files: files})
}

func startApp(t *testing.T, change func(*config.Config), opt Options) *gateway {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Broker = config.Broker{Kind: config.BrokerMemory}
	cfg.EventLoop.Loops, cfg.EventLoop.Engine = 2, os.Getenv(trial.Engine)
	cfg.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true}, {Name: "orders", Anonymous: true}, {Name: "private"}}
	cfg.Auth.APIKeys = []auth.APIKey{{Name: "test", Key: testKey}}
	cfg.Shutdown.Drain = hub.Duration(100 * time.Millisecond)
	cfg.Governor.Enabled = setting.Off // tests count goroutines, descriptors and allocations; those of it turn it on
	if change != nil {
		change(&cfg)
	}
	opt.Version = "test"
	if opt.Log == nil {
		opt.Log = trial.Log(t)
	}
	a, err := New(cfg, opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- a.Run(ctx, context.Background(), func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		err := <-done
		done <- err // a test may have waited for it as well
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("Run ended early: %v", err)
	}
	return &gateway{App: a, url: "http://" + a.Addr().String(), stop: cancel, done: done}
}

func (g *gateway) publish(t *testing.T, channel, data string) hub.Position {
	t.Helper()
	status, body := g.post(t, "/api/publish", fmt.Sprintf(`{"channel":%q,"data":%s}`, channel, data))
	if status != http.StatusOK {
		t.Fatalf("publish: %d %s", status, body)
	}
	var r struct {
		Result struct {
			Epoch  string
			Offset uint64
		}
	}
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatal(err)
	}
	return hub.Position{Epoch: r.Result.Epoch, Offset: r.Result.Offset}
}

func (g *gateway) post(t *testing.T, path, body string) (int, []byte) {
	t.Helper()
	req, _ := http.NewRequest(http.MethodPost, g.url+path, strings.NewReader(body))
	req.Header.Set("X-API-Key", testKey)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, b
}

// stream is an SSE answer read block by block.
type stream struct {
	t   *testing.T
	res *http.Response
	r   *bufio.Reader
}

func (g *gateway) sse(t *testing.T, query, last string) *stream {
	t.Helper()
	req, _ := http.NewRequest(http.MethodGet, g.url+"/sse?"+query, nil)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("GET /sse?%s: %d %s", query, res.StatusCode, b)
	}
	return &stream{t, res, bufio.NewReader(res.Body)}
}

// block returns the lines up to the next empty line.
func (s *stream) block() string {
	s.t.Helper()
	var b strings.Builder
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			s.t.Fatalf("stream ended after %q: %v", b.String(), err)
		}
		if line == "\n" {
			return b.String()
		}
		b.WriteString(line)
	}
}

func TestPublishReachesSubscribers(t *testing.T) {
	g := start(t, nil)
	one := g.sse(t, "channel=news", "")
	first := one.block()
	if !strings.HasPrefix(first, "retry: ") || !strings.Contains(first, "\nid: ") {
		t.Fatalf("first block %q, want retry and id", first)
	}
	two := g.sse(t, "channel=news&channel=other", "")
	two.block()
	conn, _, err := websocket.Dial(t.Context(), strings.Replace(g.url, "http", "ws", 1)+"/ws?channel=news&hello=1", websocket.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if _, b, err := conn.Read(t.Context()); err != nil || !bytes.Contains(b, []byte(`"type":"subscribed"`)) {
		t.Fatalf("hello: %s %v", b, err)
	}
	pos := g.publish(t, "news", `{"n": 1}`)
	if got, want := one.block(), "id: "+pos.String()+"\ndata: {\"n\": 1}\n"; got != want {
		t.Errorf("one channel: %q, want %q", got, want)
	}
	if got := two.block(); !strings.Contains(got, `"channel":"news"`) || !strings.Contains(got, `"data":{"n": 1}}`) {
		t.Errorf("two channels: %q, want an envelope", got)
	}
	if _, b, err := conn.Read(t.Context()); err != nil || !bytes.Contains(b, []byte(`"offset":1`)) {
		t.Errorf("websocket: %s %v", b, err)
	}
}

func TestResumeReplaysWhatWasMissed(t *testing.T) {
	g := start(t, nil)
	s := g.sse(t, "channel=news", "")
	s.block()
	pos := g.publish(t, "news", `1`)
	s.block()
	s.res.Body.Close()
	for i := 2; i <= 300; i++ {
		g.publish(t, "news", fmt.Sprint(i))
	}
	s = g.sse(t, "channel=news", pos.String())
	if got := s.block(); !strings.Contains(got, "id: "+pos.String()) {
		t.Errorf("first block %q, want the position requested", got)
	}
	for i := 2; i <= 300; i++ {
		if got := s.block(); !strings.HasSuffix(got, fmt.Sprintf("data: %d\n", i)) {
			t.Fatalf("block %q, want %d", got, i)
		}
	}
	g.publish(t, "news", `301`)
	if got := s.block(); !strings.HasSuffix(got, "data: 301\n") {
		t.Errorf("live after replay: %q", got)
	}
}

// underWay is how many publications are followed to the sockets.
func (g *gateway) underWay() int {
	n, _ := g.watching.probe.UnderWay()
	return n
}

// TestLoopsLeaveAPToOthers: a loop that waits keeps its P.
func TestLoopsLeaveAPToOthers(t *testing.T) {
	start(t, func(c *config.Config) { c.EventLoop.Loops = sys.Processors() })
	if ps := runtime.GOMAXPROCS(0); ps <= sys.Processors() {
		t.Errorf("Go uses %d Ps, and there are %d loops", ps, sys.Processors())
	}
}
