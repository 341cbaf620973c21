package eventloop

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// echoer sends back what it gets.
type echoer struct{ nopHandler2 }

func (echoer) Data(c *Conn, b []byte) int {
	c.Write(b)
	return len(b)
}

func (echoer) EndOfStream(*Conn) bool { return false }

// serve runs a group until the test ends.
func serve(t *testing.T, cfg Config, accept func(*Conn) Handler) (*Group, string) {
	t.Helper()
	if cfg.Engine == "" {
		cfg.Engine = os.Getenv(trial.Engine)
	}
	g, err := New(cfg, accept, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g, run(t, g)
}

func run(t *testing.T, g *Group) string {
	t.Helper()
	addr, err := g.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		g.Release()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return addr.String()
}

// dial connects; the connection is closed with the test at the latest.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

func wantEcho(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	wantRead(t, c, text)
}

func wantRead(t *testing.T, c net.Conn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
		t.Fatalf("read %q, %v; want %q", b, err, text)
	}
}

// wantEnd reads the end of the stream, and nothing before it.
func wantEnd(t *testing.T, c net.Conn) {
	t.Helper()
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("read %q, %v; want the end", b, err)
	}
}

// on runs f on a loop and waits for it.
func on(t *testing.T, l *Loop, f func()) {
	t.Helper()
	done := make(chan struct{})
	if !l.Post(func() { defer close(done); f() }) {
		t.Fatal("the loop has ended")
	}
	<-done
}

// sends returns how many sends a loop has made until now.
func sends(t *testing.T, l *Loop) (n uint64) {
	t.Helper()
	on(t, l, func() { n = l.n.sends })
	return n
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestThousandConnections holds a loop to what the package promises of many: no
// goroutine for each, one send for each of a broadcast, and nothing left behind.
func TestThousandConnections(t *testing.T) {
	dial(t, listenPlain(t)) // the runtime opens its own poller
	files := descriptors(t)
	const n = 1000
	t.Run("serve", func(t *testing.T) {
		g, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler { return echoer{} })
		l := g.Loops()[0]
		on(t, l, func() {}) // it runs
		routines := runtime.NumGoroutine()
		clients := make([]net.Conn, n)
		for i := range clients {
			clients[i] = dial(t, addr)
		}
		for i, c := range clients {
			wantEcho(t, c, string(rune('a'+i%26))+"hello")
		}
		if got := runtime.NumGoroutine(); got > routines {
			t.Errorf("%d goroutines with %d connections, %d without", got, n, routines)
		}
		if g.Open() != n {
			t.Errorf("%d open, want %d", g.Open(), n)
		}
		before := sends(t, l)
		frame := []byte("the same for all")
		on(t, l, func() {
			l.Conns(func(c *Conn) bool {
				c.Send(frame)
				return true
			})
		})
		if got := sends(t, l) - before; got != n {
			t.Errorf("a broadcast to %d connections made %d sends", n, got)
		}
		for _, c := range clients {
			wantRead(t, c, string(frame))
			c.Close()
		}
		trial.Eventually(t, "all to be closed", func() bool { return g.Open() == 0 })
	})
	if got := descriptors(t); got != files {
		t.Errorf("%d descriptors, %d at first", got, files)
	}
}

func listenPlain(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

func TestEveryLoopTakesConnections(t *testing.T) {
	g, addr := serve(t, Config{Loops: 4}, func(*Conn) Handler { return echoer{} })
	ids := map[uint64]bool{}
	for range 400 {
		wantEcho(t, dial(t, addr), "x")
	}
	var accepted uint64
	for _, l := range g.Loops() {
		on(t, l, func() {
			if l.n.accepted == 0 {
				t.Errorf("loop %d got no connection of 400", l.ID())
			}
			accepted += l.n.accepted
			l.Conns(func(c *Conn) bool {
				ids[c.ID()] = true
				return true
			})
		})
	}
	if accepted != 400 || len(ids) != 400 || g.Open() != 400 {
		t.Errorf("%d accepted, %d IDs, %d open", accepted, len(ids), g.Open())
	}
}

// lines echoes whole lines.
type lines struct{ nopHandler2 }

func (lines) Data(c *Conn, b []byte) int {
	i := bytes.IndexByte(b, '\n') + 1
	c.Write(b[:i])
	return i
}

func TestSplitAndPipelinedRequests(t *testing.T) {
	g, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler { return lines{} })
	l := g.Loops()[0]
	c := dial(t, addr)
	for _, part := range []string{"o", "n", "e", "\n"} {
		if _, err := io.WriteString(c, part); err != nil {
			t.Fatal(err)
		}
	}
	wantRead(t, c, "one\n")
	before, text := sends(t, l), string(bytes.Repeat([]byte("pipelined\n"), 100))
	wantEcho(t, c, text) // one segment on loopback: one read
	if got := sends(t, l) - before; got != 1 {
		t.Errorf("100 answers to one read left in %d sends", got)
	}
}

func TestQueueOnARealSocketIsOneSendPerTick(t *testing.T) {
	g, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler { return echoer{} })
	l := g.Loops()[0]
	c := dial(t, addr)
	wantEcho(t, c, "x")
	before := sends(t, l)
	on(t, l, func() {
		l.Conns(func(c *Conn) bool {
			c.Queue([]byte("a"))
			c.Queue([]byte("b"))
			c.Queue([]byte("c"))
			return true
		})
	})
	wantRead(t, c, "abc")
	if got := sends(t, l) - before; got != 1 {
		t.Errorf("%d sends, want 1", got)
	}
}

// source sends size bytes of a seeded stream as fast as the peer takes them.
type source struct {
	nopHandler2
	r              *rand.Rand
	left           int
	stalls, drains *atomic.Int64
	closed         chan error
}

func (h *source) Data(c *Conn, b []byte) int { h.more(c); return len(b) }
func (h *source) Drained(c *Conn)            { h.drains.Add(1); h.more(c) }
func (h *source) Closed(_ *Conn, err error) {
	if h.closed != nil {
		h.closed <- err
	}
}

func (h *source) more(c *Conn) {
	for h.left > 0 && c.Unsent() == 0 && !c.Closing() {
		n := min(h.left, 1+h.r.IntN(200<<10))
		h.left -= n
		b := fill(h.r, n)
		switch h.r.IntN(3) {
		case 0:
			c.Write(b)
			c.loop.gather.flush()
		case 1:
			c.Send(b)
		case 2:
			c.Queue(b[:n/2])
			c.Queue(b[n/2:])
		}
		if c.Stalled() {
			h.stalls.Add(1)
		}
	}
	if h.left == 0 {
		c.CloseAfterFlush()
	}
}

// fill returns n random bytes.
func fill(r *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b[:n]
}

func TestSlowReaderGetsEveryByte(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		const size = 8 << 20
		var stalls, drains atomic.Int64
		g, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler {
			return &source{r: rand.New(rand.NewPCG(seed, 3)), left: size, stalls: &stalls, drains: &drains}
		})
		l := g.Loops()[0]
		c := dial(t, addr)
		if err := c.(*net.TCPConn).SetReadBuffer(16 << 10); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "go"); err != nil {
			t.Fatal(err)
		}
		trial.Eventually(t, "a stall", func() bool { return l.Stats().Stalls > 0 })
		before := drains.Load()
		got, want := newDigest(), newDigest()
		r := rand.New(rand.NewPCG(seed, 9))
		total := 0
		for {
			b := make([]byte, 1+r.IntN(1<<r.IntN(18)))
			n, err := c.Read(b)
			got.Write(b[:n])
			total += n
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		replay := &source{r: rand.New(rand.NewPCG(seed, 3)), left: size}
		for replay.left > 0 {
			n := min(replay.left, 1+replay.r.IntN(200<<10))
			replay.left -= n
			want.Write(fill(replay.r, n))
			replay.r.IntN(3)
		}
		if total != size || got.Sum64() != want.Sum64() {
			t.Errorf("seed %d: %d bytes of %d, or not the same", seed, total, size)
		}
		if drains.Load() == before {
			t.Errorf("seed %d: never drained", seed)
		}
	}
}

func TestReaderThatTakesNothingIsClosed(t *testing.T) {
	t.Parallel()
	closed := make(chan error, 1)
	var stalls, drains atomic.Int64
	g, addr := serve(t, shortStall(200*ms), func(*Conn) Handler {
		return &source{r: rand.New(rand.NewPCG(1, 1)), left: 1 << 30, stalls: &stalls, drains: &drains, closed: closed}
	})
	c := dial(t, addr)
	if _, err := io.WriteString(c, "go"); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != ErrStalled {
		t.Errorf("closed with %v", err)
	}
	trial.Eventually(t, "the counter", func() bool {
		var n uint64
		for _, l := range g.Loops() {
			n += l.Stats().StallCloses
		}
		return n == 1 && g.Open() == 0
	})
}

// counting counts the waits and wake-ups of a real poller.
type counting struct {
	poller.Poller
	waits int64
	wakes atomic.Int64
}

func (p *counting) Wake() { p.wakes.Add(1); p.Poller.Wake() }
func (p *counting) Wait(d time.Duration, h poller.Handler) error {
	p.waits++
	return p.Poller.Wait(d, h)
}

// TestPostIsNeverMissed posts to a loop that would otherwise sleep for an hour:
// a lost wake-up would hang it.
func TestPostIsNeverMissed(t *testing.T) {
	p := &counting{}
	g, err := newGroup(Config{Loops: 1}, func(*Conn) Handler { return echoer{} }, nil, func() (poller.Poller, error) {
		var err error
		p.Poller, err = poller.NewEpoll()
		return p, err
	})
	if err != nil {
		t.Fatal(err)
	}
	l := g.Loops()[0]
	l.maxSleep = time.Hour
	run(t, g)
	const posters, each = 16, 2000
	ran := 0
	var wg sync.WaitGroup
	for range posters {
		wg.Go(func() {
			for i := range each {
				if i%4 == 0 { // wait for it: the loop goes to sleep now and then
					done := make(chan struct{})
					l.Post(func() { ran++; close(done) })
					<-done
				} else {
					l.Post(func() { ran++ })
				}
			}
		})
	}
	wg.Wait()
	on(t, l, func() {
		if ran != posters*each {
			t.Errorf("%d of %d ran", ran, posters*each)
		}
		// A wake-up may meet a loop that is about to sleep and then does not.
		if w := p.wakes.Load(); w > p.waits || w == 0 {
			t.Errorf("%d wake-ups in %d waits", w, p.waits)
		}
	})
}

func TestHalfClosedClientGetsItsAnswer(t *testing.T) {
	_, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler {
		return &script{eof: func(c *Conn) bool {
			c.Write([]byte("late answer"))
			c.CloseAfterFlush()
			return true
		}}
	})
	c := dial(t, addr)
	if _, err := io.WriteString(c, "question"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantRead(t, c, "late answer")
	wantEnd(t, c)
}

// TestAnswerSurvivesUnreadInput refuses a request whose body is still coming.
func TestAnswerSurvivesUnreadInput(t *testing.T) {
	answer := bytes.Repeat([]byte("413 "), 50)
	g, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler {
		return &script{data: func(c *Conn, b []byte) int {
			c.Write(answer)
			c.CloseAfterFlush()
			return 1
		}}
	})
	for range 50 {
		c := dial(t, addr)
		for range 4 {
			if _, err := c.Write(make([]byte, 30<<10)); err != nil {
				t.Fatal(err)
			}
		}
		wantRead(t, c, string(answer))
		wantEnd(t, c)
		c.Close()
	}
	trial.Eventually(t, "all to be closed", func() bool { return g.Open() == 0 })
}

func TestBrokenConnectionIsReported(t *testing.T) {
	closed := make(chan error, 1)
	g, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler {
		return &script{data: func(c *Conn, b []byte) int { c.PauseReading(); return 0 }, closed: func(_ *Conn, err error) { closed <- err }}
	})
	c := dial(t, addr)
	wait := func() { trial.Eventually(t, "the input", func() bool { return g.Loops()[0].Stats().BytesIn > 0 }) }
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	wait()
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	c.Close() // a reset shows though reading is paused
	if err := <-closed; err == nil {
		t.Error("closed in order")
	}
}

func TestMaxConnsOnRealSockets(t *testing.T) {
	t.Parallel()
	g, addr := serve(t, Config{Loops: 1, MaxConns: 2}, func(*Conn) Handler { return echoer{} })
	a, b := dial(t, addr), dial(t, addr)
	wantEcho(t, a, "a")
	wantEcho(t, b, "b")
	wantEnd(t, dial(t, addr))
	trial.Eventually(t, "the counter", func() bool { return g.Loops()[0].Stats().Refused == 1 })
	a.Close()
	trial.Eventually(t, "room", func() bool { return g.Open() == 1 })
	wantEcho(t, dial(t, addr), "c")
}

func TestTimersOnRealTimeAreNeverEarly(t *testing.T) {
	type firing struct{ set, fired int64 }
	fired := make(chan firing, 100)
	_, addr := serve(t, Config{Loops: 2}, func(c *Conn) Handler {
		set := c.Loop().Now()
		c.SetTimer(int64(150 * ms))
		return &script{timer: func(_ *Conn, now int64) { fired <- firing{set, now} }}
	})
	for range 20 {
		dial(t, addr)
	}
	for range 20 {
		if f := <-fired; f.fired-f.set < int64(150*ms) {
			t.Errorf("fired after %v", time.Duration(f.fired-f.set))
		}
	}
}

func TestSendToAnIdleConnectionAllocatesNothing(t *testing.T) {
	g, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler { return echoer{} })
	l := g.Loops()[0]
	c := dial(t, addr)
	wantEcho(t, c, "x")
	frame := bytes.Repeat([]byte("y"), 64)
	const n = 200
	var allocs float64
	var before, after uint64
	on(t, l, func() {
		l.Conns(func(c *Conn) bool {
			before = l.n.sends
			allocs = testing.AllocsPerRun(n, func() { c.Send(frame) })
			after = l.n.sends
			return false
		})
	})
	if allocs != 0 || after-before != n+1 {
		t.Errorf("%v allocations per Send; %d sends, want %d", allocs, after-before, n+1)
	}
	if _, err := io.CopyN(io.Discard, c, (n+1)*64); err != nil {
		t.Error(err)
	}
}

func TestEchoAllocatesNothing(t *testing.T) {
	_, addr := serve(t, Config{Loops: 1}, func(*Conn) Handler { return echoer{} })
	c := dial(t, addr)
	b := []byte("a small message")
	echo := func() {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
	}
	echo()
	if n := testing.AllocsPerRun(500, echo); n != 0 {
		t.Errorf("%v allocations per echo, client included, want 0", n)
	}
}
