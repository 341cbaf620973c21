package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// withClasses makes the namespaces of a market and of its orders.
func withClasses(c *config.Config) {
	c.Namespaces = []hub.Namespace{
		{Name: "default", Anonymous: true},
		{Name: "market", Durability: hub.None, Anonymous: true, Class: "market", Policy: hub.Conflate},
		{Name: "orders", Anonymous: true, Class: "order"},
		{Name: "history", Anonymous: true, Class: "account"},
	}
}

// call is a request for the publication of data.
func call(channel, more string) string {
	body := `{"channel":"` + channel + `","data":1` + more + `}`
	return fmt.Sprintf("POST /api/publish HTTP/1.1\r\nHost: a\r\nX-API-Key: %s\r\nContent-Length: %d\r\n\r\n%s", testKey, len(body), body)
}

// class returns the counters of a class.
func (g *gateway) class(c limit.Class) limit.ClassStats {
	for _, s := range g.watching.watch.AdmissionStats() {
		if s.Class == c {
			return s
		}
	}
	return limit.ClassStats{}
}

// blocked stops the first loop until the function it returns is called.
func (g *gateway) blocked(t *testing.T) (release func()) {
	t.Helper()
	began, end := make(chan struct{}), make(chan struct{})
	g.loops.Loops()[0].Post(func() { close(began); <-end })
	<-began
	release = sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	return release
}

// count reads messages of a stream until it ends.
func count(w *wiretest.Conn, n, ended *atomic.Int64) {
	buf := make([]byte, 64<<10)
	for {
		k, err := w.R.Read(buf)
		n.Add(int64(bytes.Count(buf[:k], []byte("data: "))))
		if err != nil {
			ended.Add(1)
			return
		}
	}
}

// A load is publishers that each publish again when they are answered.
type load struct {
	ok, shed, other atomic.Int64
	all             sync.WaitGroup
}

func (l *load) run(t *testing.T, g *gateway, publishers int, channel string, stop <-chan struct{}) {
	for range publishers {
		w := g.dial(t)
		l.all.Go(func() {
			request := []byte(call(channel, ""))
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := w.Write(request)
				var res *http.Response
				if err == nil {
					res, err = http.ReadResponse(w.R, nil)
				}
				if err != nil {
					l.other.Add(1)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body) // a broken one shows in the next
				switch {
				case res.StatusCode == http.StatusOK:
					l.ok.Add(1)
				case res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "":
					l.shed.Add(1)
				default:
					l.other.Add(1)
				}
			}
		})
	}
}

func TestOrdersPassAFloodOfMarketData(t *testing.T) {
	const followers = 100
	g := start(t, func(c *config.Config) {
		withClasses(c)
		c.Admission.MarketDelay = hub.Duration(500 * time.Microsecond)
	})
	var delivered, arrived, ended atomic.Int64
	var streams sync.WaitGroup
	for i := range followers + 1 {
		channel, n := "market:a", &delivered
		if i == followers {
			channel, n = "orders:a", &arrived
		}
		w := g.dial(t)
		w.Send(wiretest.CRLF("GET /sse?channel=" + channel + " HTTP/1.1\nHost: a\n\n"))
		w.Response()
		w.Block()
		streams.Go(func() { count(w, n, &ended) })
		t.Cleanup(func() { _ = w.Close() })
	}
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	t.Cleanup(end)
	var market, orders load
	market.run(t, g, 150, "market:a", stop)
	orders.run(t, g, 3, "orders:a", stop)
	trial.Eventually(t, "the market is shed and orders are not", func() bool {
		return market.shed.Load() > 300 && market.ok.Load() > 300 && orders.ok.Load() > 100
	})
	end()
	market.all.Wait()
	orders.all.Wait()
	if orders.shed.Load() != 0 || orders.other.Load()+market.other.Load() != 0 {
		t.Errorf("%d orders were shed; %d and %d answers are no answers", orders.shed.Load(), orders.other.Load(), market.other.Load())
	}
	for _, f := range []struct {
		class limit.Class
		load  *load
	}{{limit.Market, &market}, {limit.Order, &orders}} {
		s := g.class(f.class)
		if s.Offered != s.Admitted+s.Refused+s.Expired+s.Conflated+s.Abandoned || s.Queued != 0 {
			t.Errorf("%v: %+v does not add up", f.class, s)
		}
		if int64(s.Admitted) != f.load.ok.Load() || int64(s.Refused+s.Expired) != f.load.shed.Load() {
			t.Errorf("%v: %+v, and clients were answered %d and %d", f.class, s, f.load.ok.Load(), f.load.shed.Load())
		}
	}
	trial.Eventually(t, "every message is delivered", func() bool {
		return delivered.Load() == followers*market.ok.Load() && arrived.Load() == orders.ok.Load()
	})
	if n := ended.Load(); n != 0 {
		t.Errorf("%d subscribers were closed", n)
	}
	if s := g.loops.Loops()[0].Stats().Panics + g.loops.Loops()[1].Stats().Panics; s != 0 {
		t.Errorf("%d panics", s)
	}
}

// queueing is a gateway of one loop whose every request of a class waits, as long as a busy
// machine needs.
func queueing(t *testing.T) *gateway {
	t.Helper()
	return start(t, func(c *config.Config) {
		withClasses(c)
		c.EventLoop.Loops, c.Admission.Slice = 1, 1
		c.Admission.OrderDelay, c.Admission.MarketDelay = hub.Duration(time.Second), hub.Duration(time.Second)
	})
}

func TestOfWaitingPublicationsWithAKeyOnlyTheNewestIsMade(t *testing.T) {
	g := queueing(t)
	s := g.sse(t, "channel=market:a", "")
	s.block()
	const n = 20
	var publishers []*wiretest.Conn
	for range n {
		w := g.dial(t)
		w.Send("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		w.Answer("GET")
		publishers = append(publishers, w)
	}
	release := g.blocked(t)
	for i, w := range publishers {
		w.Send(strings.Replace(call("market:a", `,"key":"EURUSD"`), `"data":1`, fmt.Sprintf(`"data":%d`, i%10), 1))
	}
	release()
	conflated, made := 0, 0
	for _, w := range publishers {
		res, body := w.Answer("POST")
		var r struct {
			Result struct{ Conflated bool }
		}
		if res.StatusCode != http.StatusOK || json.Unmarshal([]byte(body), &r) != nil {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
		if r.Result.Conflated {
			conflated++
		} else {
			made++
		}
	}
	if conflated == 0 {
		t.Error("none was conflated")
	}
	for range made {
		if b := s.block(); !strings.Contains(b, "data: ") {
			t.Errorf("%q", b)
		}
	}
	if st := g.class(limit.Market); int(st.Conflated) != conflated || int(st.Admitted) != made || st.Queued != 0 {
		t.Errorf("%+v, and clients were answered %d and %d", st, conflated, made)
	}
}

func TestClientsThatVanishLeaveTheQueue(t *testing.T) {
	g := queueing(t)
	const n = 30
	var publishers []*wiretest.Conn
	for range n {
		w := g.dial(t)
		w.Send("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		w.Answer("GET")
		publishers = append(publishers, w)
	}
	release := g.blocked(t)
	for _, w := range publishers {
		w.Send(call("orders:a", ""))
	}
	for _, w := range publishers[n/2:] {
		_ = w.Conn.(*net.TCPConn).SetLinger(0)
		_ = w.Close()
	}
	release()
	for _, w := range publishers[:n/2] {
		if res, body := w.Answer("POST"); res.StatusCode != http.StatusOK {
			t.Errorf("%d %s", res.StatusCode, body)
		}
	}
	trial.Eventually(t, "the queue is empty", func() bool { return g.class(limit.Order).Queued == 0 })
	s := g.class(limit.Order)
	if s.Offered != s.Admitted+s.Abandoned || s.Refused+s.Expired != 0 {
		t.Errorf("%+v", s)
	}
	if res, _ := ask(publishers[0], call("orders:a", "")); res.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d", res.StatusCode)
	}
}

// ask sends a request and reads the answer.
func ask(w *wiretest.Conn, request string) (*http.Response, string) {
	w.Send(request)
	method, _, _ := strings.Cut(request, " ")
	return w.Answer(method)
}

func TestHistoryPausesWhileProcessorsAreShort(t *testing.T) {
	g := start(t, withClasses)
	at := g.publish(t, "history:a", "1")
	resume := fmt.Sprintf("%s-%d", at.Epoch, at.Offset-1)
	first := func() string { return g.sse(t, "channel=history:a&lastEventId="+resume, "").block() }
	rests := func(on bool) {
		g.push.Guard(1, on)
		for _, l := range g.loops.Loops() { // it is there when what follows is done
			done := make(chan struct{})
			l.Post(func() { close(done) })
			<-done
		}
	}
	rests(true)
	if b := first(); !strings.Contains(b, "retry: ") || !strings.Contains(b, `"code":1013`) {
		t.Errorf("a client that requests history receives %q", b)
	}
	w := g.dial(t)
	w.Send(wiretest.CRLF("GET /ws?channel=history:a&since=" + resume + " HTTP/1.1\nHost: a\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n"))
	if res, _ := w.Answer("GET"); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("over WebSocket: %d", res.StatusCode)
	}
	if b := g.sse(t, "channel=history:a", "").block(); !strings.Contains(b, "id: ") {
		t.Errorf("one that requests none receives %q", b)
	}
	rests(false)
	if s := g.class(limit.Replay); s.Refused != 2 {
		t.Errorf("%+v", s)
	}
	s := g.sse(t, "channel=history:a&lastEventId="+resume, "")
	s.block()
	if b := s.block(); !strings.Contains(b, "data: 1") {
		t.Errorf("afterwards %q", b)
	}
}

func TestTheGuardHalvesAtOnceAndGivesBackByTenths(t *testing.T) {
	g := guard{bound: 2 * time.Millisecond, scale: 1}
	f := func(p99 time.Duration, scale float64, rest bool) {
		t.Helper()
		if g.look(p99); g.scale < scale-1e-9 || g.scale > scale+1e-9 || g.rest != rest {
			t.Errorf("scale %.2f, rest %v, want %.2f and %v", g.scale, g.rest, scale, rest)
		}
	}
	f(time.Millisecond, 1, false)
	f(3*time.Millisecond, 0.5, true)
	f(3*time.Millisecond, 0.25, true)
	f(time.Millisecond, 0.35, true)
	f(time.Millisecond, 0.45, true)
	f(time.Millisecond, 0.55, false)
	for range 6 {
		g.look(time.Millisecond)
	}
	f(0, 1, false)
	for range 3 { // always short: those who rest work now and then
		for range maxPause {
			if g.look(time.Second); !g.rest {
				t.Error("no rest")
			}
		}
		for range someWork {
			if g.look(time.Second); g.rest {
				t.Error("rest without an end")
			}
		}
	}
	g = guard{bound: -1, scale: 1}
	f(time.Second, 1, false)
}

// governed turns the governor on with a memory limit.
func governed(limit int64, soft, hard float64) func(*config.Config) {
	return func(c *config.Config) {
		c.Governor.Enabled, c.Governor.Probes = setting.On, setting.Off
		c.Governor.Interval, c.Governor.Window = hub.Duration(20*time.Millisecond), hub.Duration(time.Second)
		c.Governor.Memory.Limit, c.Governor.Thresholds.Soft, c.Governor.Thresholds.Hard = limit, soft, hard
	}
}

func TestWithLittleMemoryNewSubscriptionsAreRejected(t *testing.T) {
	g := start(t, governed(1<<40, 1e-9, 0.99))
	trial.Eventually(t, "new ones are rejected", func() bool {
		return g.push.Stats().Overloaded > 0 || strings.Contains(g.sse(t, "channel=a", "").block(), `"code":1013`)
	})
	if code := g.ws(t, "channel=a", "").CloseCode(); code != 1013 {
		t.Errorf("over WebSocket: %d", code)
	}
	g.publish(t, "a", "1") // publishing continues
}

func TestWithoutMemoryNewClientsAreRejectedAndOthersStay(t *testing.T) {
	g := start(t, nil)
	there := g.dial(t)
	ask(there, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	g.admission.full.Store(g.watching.watch.Governor)
	if w := g.dial(t); !w.Closed() {
		t.Error("a new connection is served")
	}
	if res, _ := ask(there, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != http.StatusOK {
		t.Errorf("one that was there: %d", res.StatusCode)
	}
	g.admission.full.Store(nil)
	if res, _ := ask(g.dial(t), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d", res.StatusCode)
	}
	if r := &g.admission.refusals; r.Memory.Load()+r.Files.Load() != 1 {
		t.Error("it is not counted")
	}
}

func TestATinyMemoryLimitRefusesConnections(t *testing.T) {
	g := start(t, governed(16<<20, 0.5, 0.6))
	trial.Eventually(t, "connections are refused", func() bool {
		c, err := net.Dial("tcp", g.Addr().String())
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(trial.Patience))
		_, _ = c.Write([]byte("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")) // it may be closed already
		n, _ := c.Read(make([]byte, 1))
		return n == 0
	})
	if g.admission.refusals.Memory.Load() == 0 {
		t.Error("it is not counted")
	}
	res, err := http.Get("http://" + g.AdminAddr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); !bytes.Contains(b, []byte(`weir_budget_level{budget="memory"} 2`)) {
		t.Error("the operator does not see it")
	}
}

func TestAnAddressHasSoManyConnections(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Limits.PerAddress.Connections = 3 })
	ok := func(w *wiretest.Conn) bool {
		if _, err := w.Write([]byte("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
			return false
		}
		res, err := http.ReadResponse(w.R, nil)
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK
	}
	var open []*wiretest.Conn
	for range 3 {
		w := g.dial(t)
		if !ok(w) {
			t.Fatal("one of three is refused")
		}
		open = append(open, w)
	}
	if ok(g.dial(t)) {
		t.Error("a fourth is served")
	}
	_ = open[0].Close()
	trial.Eventually(t, "there is room again", func() bool { return ok(g.dial(t)) })
	if n := g.admission.front.Stats().Connections; n == 0 {
		t.Error("it is not counted")
	}
}

func TestPublishersAndSubscribersAreHeldToTheirRates(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Trusted.Proxies = []string{"127.0.0.1"}
		rate := limit.Rate{PerSecond: 0.001, Burst: 2}
		c.Limits.PerAddress.PublishRate, c.Limits.PerAddress.SubscribeRate = rate, rate
		c.Limits.PerAddress.ConnectRate, c.Limits.PerAddress.Connections = rate, 1 // not for the proxy's own
		c.Limits.Exempt = []string{"10.9.0.0/16"}
	})
	f := func(client string, want ...int) {
		t.Helper()
		w := g.dial(t)
		for i, status := range want {
			res, body := ask(w, strings.Replace(call("a", ""), "Host: a\r\n", "Host: a\r\nX-Forwarded-For: "+client+"\r\n", 1))
			if res.StatusCode != status {
				t.Errorf("%s, publication %d: %d %s", client, i, res.StatusCode, body)
			}
			if status == http.StatusTooManyRequests && res.Header.Get("Retry-After") == "" {
				t.Errorf("%s: no Retry-After", client)
			}
		}
	}
	f("192.0.2.1", 200, 200, 429, 429)
	f("192.0.2.2", 200, 200, 429)
	f("10.9.1.1", 200, 200, 200, 200)
	for i := range 3 {
		w := g.dial(t)
		w.Send(wiretest.CRLF("GET /sse?channel=a HTTP/1.1\nHost: a\nX-Forwarded-For: 192.0.2.3\n\n"))
		if res := w.Response(); res.StatusCode != http.StatusOK {
			t.Errorf("subscription %d: %d", i, res.StatusCode)
		}
		if away := strings.Contains(w.Block(), `"code":1013`); away != (i == 2) {
			t.Errorf("subscription %d is rejected: %v", i, away)
		}
	}
	if s := g.admission.front.Stats(); s.Publish != 3 || s.Subscribe != 1 || s.ConnectRate+s.Connections != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTheBoardShowsClasses(t *testing.T) {
	g := start(t, withClasses)
	g.publish(t, "orders:a", "1")
	all := g.watching.watch.Sources().Snapshot(t.Context()).Admission
	if len(all) != int(limit.Classes)-1 || all[1].Class != "order" || all[1].Offered != 1 || all[1].Admitted != 1 {
		t.Errorf("%+v", all)
	}
	plain := start(t, nil)
	if all := plain.watching.watch.Sources().Snapshot(t.Context()).Admission; len(all) != 0 {
		t.Errorf("without classes: %+v", all)
	}
}
