package loadgen_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestRunMakesItsWindowsAndTheirTotal(t *testing.T) {
	g := generator(t, loadgen.Spec{
		Kind: loadgen.HTTP, Target: serve(t, hello), Conns: 4, Rate: 400, Arrival: loadgen.Uniform,
		Warmup: 200 * time.Millisecond, Duration: time.Second, Window: 250 * time.Millisecond,
	})
	r, err := g.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Windows) != 4 || r.Partial || r.Version != 1 || r.Machine.CPUs == 0 || r.Spec.Seed == 0 {
		t.Errorf("%d windows, partial %v, version %d, %+v", len(r.Windows), r.Partial, r.Version, r.Machine)
	}
	faultless(t, &r.Total, 400) // nothing of the warm-up
	var sum uint64
	for _, w := range r.Windows {
		sum += w.Offered
		if w.Offered == 0 || w.Length <= 0 || w.Load.Rate < 399 || w.Load.Rate > 401 || w.Load.Conns != 4 {
			t.Errorf("window %+v", w)
		}
	}
	if sum != 400 || r.Total.Response.TotalCount() != 400 || r.Total.Connect.TotalCount() != 4 {
		t.Errorf("%d in the windows, %d response times, %d connects", sum, r.Total.Response.TotalCount(), r.Total.Connect.TotalCount())
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := loadgen.ReadResult(bytes.NewReader(b)); err != nil || back.Total.Offered != 400 {
		t.Errorf("read again: %+v, %v", back, err)
	}
	if _, err := g.Run(context.Background()); err != nil {
		t.Errorf("a second run: %v", err)
	}
}

// A server under overload answers the arrivals of the warm-up first. They belong to
// what it carries in the window, though not to what was offered in it.
func TestWhatTheWarmupLeftCountsAsThroughput(t *testing.T) {
	gate := make(chan struct{})
	g := generator(t, loadgen.Spec{
		Kind: loadgen.HTTP, Target: serve(t, func(w http.ResponseWriter, r *http.Request) { <-gate; hello(w, r) }), Conns: 4, Rate: 100,
		Arrival: loadgen.Uniform, Warmup: 200 * time.Millisecond, Duration: time.Second, Window: time.Second,
	})
	var opening sync.WaitGroup
	opening.Go(func() {
		trial.Eventually(t, "the window to start", func() bool { return g.Snapshot().Phase == "measuring" })
		close(gate)
	})
	r, err := g.Run(context.Background())
	opening.Wait()
	if err != nil {
		t.Fatal(err)
	}
	addsUp(t, &r.Total)
	if w := &r.Total; w.Offered != 100 || w.Carried != 20 || w.Answered() != w.Completed+20 {
		t.Errorf("offered %d, carried %d, completed %d, answered %d; want 100 offered and the 20 of the warm-up carried", w.Offered, w.Carried, w.Completed, w.Answered())
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := loadgen.ReadResult(bytes.NewReader(b)); err != nil || back.Total.Carried != 20 {
		t.Errorf("read again: carried %d, %v", back.Total.Carried, err)
	}
}

// counter counts connections of a server.
func counter(t *testing.T, h http.HandlerFunc) (url string, opened, open *atomic.Int64) {
	opened, open = new(atomic.Int64), new(atomic.Int64)
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		switch st {
		case http.StateNew:
			opened.Add(1)
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, opened, open
}

func TestARampOfTheRateLeavesConnectionsAlone(t *testing.T) {
	url, opened, _ := counter(t, hello)
	g := generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 3, Rate: 100, Arrival: loadgen.Uniform, Stages: []loadgen.Stage{
		{Duration: 300 * time.Millisecond, Rate: 500}, {Duration: 300 * time.Millisecond, Rate: 0},
	}})
	r, err := g.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// 0.3·(100+500)/2 + 0.3·500/2, and the warm-up's last tenth of an arrival.
	if n := r.Total.Offered; n < 164 || n > 166 || opened.Load() != 3 || r.Total.Reconnects > 0 {
		t.Errorf("offered %d on %d connections; want 165 on 3", n, opened.Load())
	}
	addsUp(t, &r.Total)
}

func TestARampOfConnectionsLeavesTheRateAlone(t *testing.T) {
	url, opened, open := counter(t, hello)
	g := generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 2, Rate: 200, Arrival: loadgen.Uniform, Stages: []loadgen.Stage{
		{Duration: 300 * time.Millisecond, Rate: -1, Conns: 20}, {Duration: 300 * time.Millisecond, Rate: -1, Conns: 5},
	}})
	r, err := g.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	faultless(t, &r.Total, 120)
	if n := opened.Load(); n < 18 || n > 20 {
		t.Errorf("%d connections were opened on the way from 2 to 20 and to 5", n)
	}
	trial.Eventually(t, "five to six connections", func() bool { return open.Load() <= 6 && open.Load() >= 5 })
}

func TestMeasureChangesConnections(t *testing.T) {
	url, opened, open := counter(t, hello)
	g := generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 2, Arrival: loadgen.Uniform})
	f := func(conns int, wantOpened int64) {
		t.Helper()
		w, err := g.Measure(context.Background(), loadgen.Load{Rate: 100, Conns: conns}, 100*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		faultless(t, w, 10)
		if w.Load.Conns != conns {
			t.Errorf("conns %d, want %d", w.Load.Conns, conns)
		}
		trial.Eventually(t, "the connections", func() bool { return open.Load() == int64(conns) && opened.Load() == wantOpened })
	}
	f(2, 2)
	f(8, 8)
	f(3, 8)
	f(4, 9)
}

func TestADoneContextGivesWhatWasMeasured(t *testing.T) {
	f := func(spec loadgen.Spec) {
		t.Helper()
		spec.Duration = time.Hour
		g := generator(t, spec)
		ctx, cancel := context.WithCancel(context.Background())
		if err := g.Connect(ctx); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(300*time.Millisecond, cancel)
		r, err := g.Run(ctx)
		if err != nil || !r.Partial {
			t.Fatalf("%+v, %v; want a partial result", r, err)
		}
		if r.Total.Offered < 10 || r.Total.Length > 20*time.Second {
			t.Errorf("offered %d in %v", r.Total.Offered, r.Total.Length)
		}
		_ = g.Close()
	}
	f(loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Rate: 200})
	f(loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Closed: true})
	w := newWorld(t, nil)
	spec := plain(w, "sse", 3)
	spec.Rate = 200
	f(spec)

	// Already before it starts.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r, err := generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Rate: 1}).Run(ctx); err != nil || !r.Partial {
		t.Errorf("%+v, %v; want a partial result", r, err)
	}
}

func TestSnapshotFollowsTheRun(t *testing.T) {
	g := generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Conns: 2, Rate: 300, Warmup: 100 * time.Millisecond, Duration: 2 * time.Second})
	var wg sync.WaitGroup
	var phases []string
	var rate, p99 bool
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			s := g.Snapshot()
			if len(phases) == 0 || phases[len(phases)-1] != s.Phase {
				phases = append(phases, s.Phase)
			}
			rate = rate || s.CompletedRate > 100 && s.OfferedRate > 100 && s.Conns == 2
			p99 = p99 || s.P99 > 0 && s.ServiceP99 > 0
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	if _, err := g.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "the last phase", func() bool { return g.Snapshot().Phase == "done" })
	close(stop)
	wg.Wait()
	if !rate || !p99 || !slices.Contains(phases, "measuring") {
		t.Errorf("rates seen %v, percentiles seen %v, phases %v", rate, p99, phases)
	}
}

func TestOneAtATime(t *testing.T) {
	g := generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Rate: 10, Duration: time.Minute})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := g.Run(ctx)
		done <- err
	}()
	trial.Eventually(t, "the run", func() bool { return g.Snapshot().Phase != "connecting" })
	if _, err := g.Measure(ctx, loadgen.Load{Rate: 1}, time.Second); err == nil || !strings.Contains(err.Error(), "at work") {
		t.Errorf("Measure during a run: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAConnectionCostsUnder2KB counts what the generator's side of idle streams
// keeps on the heap. The server's side is in another world: raw sockets that are
// only accepted.
func TestAConnectionCostsUnder2KB(t *testing.T) {
	const n = 2000
	f := func(kind loadgen.Kind, answer string) {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		// Accepted connections cost the server's heap: it is measured first.
		var mu sync.Mutex
		var held []net.Conn
		var wg sync.WaitGroup
		wg.Go(func() {
			buf := make([]byte, 4096)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				k, _ := c.Read(buf)
				_, _ = c.Write([]byte(answer))
				if kind == loadgen.WebSocket {
					_, _ = c.Write(upgrade(buf[:k]))
				}
				mu.Lock()
				held = append(held, c)
				mu.Unlock()
			}
		})
		control := heapOfDialed(t, n)
		g := generator(t, loadgen.Spec{Kind: kind, Target: "http://" + l.Addr().String(), Conns: n, ConnectRate: 20_000})
		before := heap()
		if err := g.Connect(context.Background()); err != nil {
			t.Fatal(err)
		}
		trial.Eventually(t, "all of them", func() bool { mu.Lock(); defer mu.Unlock(); return len(held) == n })
		each := (int64(heap()) - int64(before)) / n
		t.Logf("%s: %d bytes per connection, of which the test's own server has %d", kind, each, control)
		if each -= control; each > 2048 {
			t.Errorf("%s: %d bytes per connection", kind, each)
		}
		_ = g.Close()
		l.Close()
		wg.Wait()
		for _, c := range held {
			c.Close()
		}
	}
	f(loadgen.SSE, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nid: 1700000000-123456\nretry: 1000\n\n")
	f(loadgen.WebSocket, "")
}

func heap() uint64 {
	debug.FreeOSMemory()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// heapOfDialed is what net.Conns of one side cost.
func heapOfDialed(t *testing.T, n int) int64 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before := heap()
	var all []net.Conn
	for range n / 4 { // both sides are here
		a, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a, b)
	}
	each := (int64(heap()) - int64(before)) / int64(len(all))
	for _, c := range all {
		c.Close()
	}
	return each
}

func TestPartsOfASplitMakeTheWhole(t *testing.T) {
	w := newWorld(t, nil)
	spec := loadgen.Spec{
		Kind: loadgen.PubSub, Target: w.URL + "/sub/c{channel}", Publish: w.URL + "/pub/c{channel}", Conns: 9, Channels: 3, Publishers: 3,
		Rate: 300, Arrival: loadgen.Uniform, Warmup: time.Millisecond, Duration: 500 * time.Millisecond,
	}
	parts, err := spec.Split(2)
	if err != nil {
		t.Fatal(err)
	}
	results := make([]*loadgen.Result, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		g := generator(t, p)
		if err := g.Connect(context.Background()); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			r, err := g.Run(context.Background())
			if err != nil {
				t.Error(err)
			}
			results[i] = r
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	r := results[0]
	if err := r.Merge(results[1]); err != nil {
		t.Fatal(err)
	}
	whole(t, "both", &r.Total, 150, 450)
	if r.Spec.Conns != 9 || r.Spec.Channels != 3 || r.Spec.Rate != 300 || r.Total.Length > 5*time.Second {
		t.Errorf("%+v over %v", r.Spec, r.Total.Length)
	}
}
