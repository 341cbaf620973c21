package app

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestDrainDisconnectsClientsOverTime(t *testing.T) {
	const over = time.Second
	g := start(t, func(*config.Config) {})
	streams, sockets := g.subscribers(t, 30, "")
	idle := g.dial(t)
	idle.Send(wiretest.CRLF("GET /healthz HTTP/1.1\nHost: a\n\n"))
	idle.Answer("GET")
	g.push.Leave()
	(&departure{App: g.App}).start(wire.DrainPlan{Over: over, Away: 2 * over, Spread: over / 2}, true)

	// While it drains, the listener says so in everyone's language.
	idle.Send(wiretest.CRLF("GET /readyz HTTP/1.1\nHost: a\n\n"))
	res, body := idle.Answer("GET")
	wantError(t, "/readyz", res, body, 503)
	if !strings.Contains(body, "draining") || !res.Close || !idle.Closed() {
		t.Errorf("/readyz: %s, close %v", body, res.Close)
	}
	s := g.dial(t)
	s.Send(wiretest.CRLF("GET /sse?channel=news HTTP/1.1\nHost: a\n\n"))
	if res := s.Response(); res.StatusCode != 200 {
		t.Errorf("a new stream: %d, want 200", res.StatusCode)
	}
	if b := s.Block(); !strings.HasPrefix(b, "retry: ") || !strings.Contains(b, `"code":1012`) || !s.Closed() {
		t.Errorf("a new stream: %q, want end 1012", b)
	}
	// A refused WebSocket is open for as long as its client should wait.
	w := g.ws(t, "channel=news", "")
	began := time.Now()
	var mu sync.Mutex
	var ends []time.Duration
	retries := map[string]bool{}
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			b := streams[i].Block()
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Since(begin))
			retries[b[:strings.IndexByte(b, '\n')]] = true
			if !strings.Contains(b, "event: end\ndata: {\"code\":1012,\"reason\":\"draining\"}\n") {
				t.Errorf("SSE: %q", b)
			}
		})
		wg.Go(func() {
			if got := sockets[i].CloseCode(); got != 1012 {
				t.Errorf("WebSocket: %d, want 1012", got)
			}
			sockets[i].Close()
		})
	}
	wg.Wait()
	if got := w.CloseCode(); got != 1012 || time.Since(began) < leastRefusalHeld {
		t.Errorf("a new WebSocket: closed with %d after %v", got, time.Since(began))
	}
	spread := map[int]bool{}
	for _, d := range ends {
		spread[int(d/(over/5))] = true
	}
	if len(spread) < 3 {
		t.Errorf("all ended within %d fifths of the time: %v", len(spread), ends)
	}
	if len(retries) < 10 {
		t.Errorf("%d different retry times for 30 clients", len(retries))
	}
	for _, s := range streams {
		s.Close()
	}
	g.stop()
	err := <-g.done
	g.done <- err
	if err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := net.DialTimeout("tcp", g.Addr().String(), time.Second); err == nil {
		t.Error("the listener is still open")
	}
}

const leastRefusalHeld = 200 * time.Millisecond

func TestDrainCanBeCutShort(t *testing.T) {
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", "off"
	cfg.Broker = config.Broker{Kind: config.BrokerMemory}
	cfg.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true}}
	cfg.Shutdown.Drain = hub.Duration(time.Hour)
	a, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	soft, cancel := newContext(t)
	hard, cut := newContext(t)
	done := make(chan error, 1)
	go func() { done <- a.Run(soft, hard, nil) }()
	g := &gateway{App: a}
	g.subscribers(t, 1, "")
	cancel()
	cut()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(trial.Patience):
		t.Fatal("it continues")
	}
}

func TestHeartbeatsAndIdleSockets(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Push.Heartbeat, c.Push.IdleTimeout = hub.Duration(600*time.Millisecond), hub.Duration(1500*time.Millisecond)
	})
	s := g.dial(t)
	s.Send(wiretest.CRLF("GET /sse?channel=a HTTP/1.1\nHost: a\n\n"))
	s.Response()
	s.Block()
	silent, alive := g.ws(t, "channel=a", ""), g.ws(t, "channel=a", "")
	begin := time.Now()
	for range 2 {
		if b := s.Block(); b != ":\n" {
			t.Errorf("SSE: %q, want a comment", b)
		}
	}
	pings := 0
	for {
		op, b := silent.Frame()
		if op == websocket.OpClose {
			if code := int(b[0])<<8 | int(b[1]); code != 1001 || pings != 2 {
				t.Errorf("close %d after %d pings, want 1001 after 2", code, pings)
			}
			break
		}
		pings++
		if op, _ := alive.Frame(); op != websocket.OpPing {
			t.Fatalf("%v, want a ping", op)
		}
		alive.SendFrame(websocket.OpPong, "")
	}
	// The third heartbeat would come at 1.8s.
	if took := time.Since(begin); took < 1400*time.Millisecond {
		t.Errorf("closed after %v, want 1.5s", took)
	}
	if op, _ := alive.Frame(); op != websocket.OpPing {
		t.Errorf("%v, want the other one pinged on", op)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// settled returns how many goroutines there are when nothing starts or ends any
// more: the parts of a gateway start parts of their own.
func settled() int {
	n := runtime.NumGoroutine()
	for same := 0; same < 10; same++ {
		time.Sleep(10 * time.Millisecond) // for something to start or end: that nothing does has no sign
		if now := runtime.NumGoroutine(); now != n {
			n, same = now, 0
		}
	}
	return n
}

// Clients disconnect at any time: in the middle of a head, a body, a verification, a
// replay or a delivery, in order or with a reset. Nothing of them stays.
func TestClientsThatVanishLeaveNothing(t *testing.T) {
	g := start(t, withSecret)
	for i := range 200 {
		g.put(t, "news", fmt.Sprintf(`"%d %s"`, i, strings.Repeat("x", 1000)))
	}
	http.DefaultClient.CloseIdleConnections()
	goroutines, files := settled(), descriptors(t)
	const seed1, seed2 = 2, 7
	rnd := rand.New(rand.NewPCG(seed1, seed2))
	var scripts []string
	for range 200 {
		token := mint(t, auth.MintClaims{Subscribe: []string{"**"}, Publish: []string{"**"}})
		scripts = append(scripts, []string{
			wiretest.CRLF("GET /sse?channel=news HTTP/1.1\nHost: a\nLast-Event-ID: 0\n\n"),
			wiretest.CRLF("GET /sse?channel=private:" + fmt.Sprint(rnd.IntN(5)) + "&channel=news&token=" + token + "&lastEventId=0 HTTP/1.1\nHost: a\n\n"),
			wiretest.CRLF("GET /ws?channel=news&since=0&token="+token+" HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"\n") +
				string(websocket.AppendMaskedFrame(nil, websocket.OpText, []byte(`{"type":"ping"}`), [4]byte{1})),
			postHead("Authorization: Bearer "+token+"\n", len(publishBody)) + publishBody,
			postHead(keyField, len(publishBody)) + publishBody + postHead(keyField, len(publishBody)) + publishBody,
		}[rnd.IntN(5)])
	}
	cuts, resets, reads := make([]int, len(scripts)), make([]bool, len(scripts)), make([]int, len(scripts))
	for i, s := range scripts {
		cuts[i], resets[i], reads[i] = 1+rnd.IntN(2*len(s)), rnd.IntN(2) == 0, rnd.IntN(3)*rnd.IntN(20_000)
	}
	stop := make(chan struct{})
	var publisher, clients sync.WaitGroup
	publisher.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				g.hub.Publish(hub.Publication{Channel: "news", Data: fmt.Appendf(nil, "%d", i)}, func(hub.Position, error) {})
				runtime.Gosched()
			}
		}
	})
	for worker := range 8 {
		clients.Go(func() {
			for i := worker; i < len(scripts); i += 8 {
				c, err := net.Dial("tcp", g.Addr().String())
				if err != nil {
					t.Errorf("client %d (seed %d, %d): %v", i, seed1, seed2, err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(trial.Patience))
				_, _ = io.WriteString(c, scripts[i][:min(cuts[i], len(scripts[i]))])
				if cuts[i] >= len(scripts[i]) {
					_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // there may be less to read
					_, _ = io.CopyN(io.Discard, c, int64(reads[i]))
				}
				if resets[i] {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				_ = c.Close()
			}
		})
	}
	clients.Wait()
	close(stop)
	publisher.Wait()
	trial.Eventually(t, "the connections are gone", func() bool { return g.loops.Open() == 0 })
	trial.Eventually(t, "the counters are back", func() bool {
		st := g.push.Stats()
		return st.SSE == 0 && st.WebSocket == 0 && st.Queued == 0 && st.QueuedBytes == 0 && g.front.Waiting() == 0 && g.hub.Stats().QueueDepth == 0
	})
	trial.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines })
	trial.Eventually(t, "no descriptor is left", func() bool { return descriptors(t) <= files })
	// And it still works.
	s := g.sse(t, "channel=other", "")
	s.block()
	g.publish(t, "other", "1")
	if b := s.block(); !strings.HasSuffix(b, "data: 1\n") {
		t.Errorf("%q", b)
	}
	s.res.Body.Close()
}
