package eventloop

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestEverythingHoldsWithEpoll(t *testing.T) {
	trial.Again(t, trial.Engine, engineEpoll, "-test.skip=^TestEngines")
}

// real is a Group on real sockets.
type real struct {
	*Group
	t    *testing.T
	addr netip.AddrPort
}

// eachEngine runs f with a running Group of every engine.
func eachEngine(t *testing.T, cfg Config, accept func(*Conn) Handler, f func(t *testing.T, g *real)) {
	for _, name := range []string{engineEpoll, engineUring} {
		t.Run(name, func(t *testing.T) {
			cfg.Engine = name
			g, err := New(cfg, accept, nil)
			if err != nil {
				t.Fatal(err)
			}
			if g.Engine() != name {
				t.Fatalf("engine %q, want %q", g.Engine(), name)
			}
			r := &real{Group: g, t: t}
			if r.addr, err = g.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- g.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run: %v", err)
				}
			})
			f(t, r)
		})
	}
}

func (r *real) dial() *net.TCPConn {
	r.t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(r.addr))
	if err != nil {
		r.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	r.t.Cleanup(func() { c.Close() })
	return c
}

// until waits for a condition that loops bring about.
func (r *real) until(what string, cond func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			r.t.Fatalf("not within 20s: %s", what)
		}
		r.onLoops(func(*Loop) {})
	}
}

// onLoops runs f on every loop, and waits.
func (r *real) onLoops(f func(l *Loop)) {
	var wg sync.WaitGroup
	for _, l := range r.Loops() {
		wg.Add(1)
		l.Post(func() { defer wg.Done(); f(l) })
	}
	wg.Wait()
}

// funcs is a Handler of functions, any of which may be nil.
type funcs struct {
	data   func(c *Conn, b []byte) int
	closed func(c *Conn, err error)
}

func (h *funcs) Data(c *Conn, b []byte) int {
	if h.data == nil {
		return len(b)
	}
	return h.data(c, b)
}
func (h *funcs) EndOfStream(*Conn) bool { return false }
func (h *funcs) Drained(*Conn)          {}
func (h *funcs) Timer(*Conn, int64)     {}
func (h *funcs) Closed(c *Conn, err error) {
	if h.closed != nil {
		h.closed(c, err)
	}
}

func echoing(*Conn) Handler {
	return &funcs{data: func(c *Conn, b []byte) int { c.Write(b); return len(b) }}
}

func TestEnginesEchoOverSeveralLoops(t *testing.T) {
	eachEngine(t, Config{Loops: 3}, echoing, func(t *testing.T, r *real) {
		var wg sync.WaitGroup
		for i := range 100 {
			c := r.dial()
			wg.Go(func() {
				want := bytes.Repeat([]byte{byte(i)}, 10_000+i)
				go func() { _, _ = c.Write(want) }()
				got := make([]byte, len(want))
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
					t.Errorf("connection %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	})
}

// Sent, queued and written bytes of one tick, and of ticks after a stall, keep
// their order; the close comes after the last of them.
func TestEnginesKeepTheOrderOfAStalledConnection(t *testing.T) {
	frame := bytes.Repeat([]byte("f"), 1000)
	const rounds = 3000
	accept := func(*Conn) Handler {
		return &funcs{data: func(c *Conn, b []byte) int {
			for i := range rounds {
				c.Send(append([]byte{byte(i)}, frame...))
				c.Write([]byte{byte(i + 1)})
				c.Queue(frame)
			}
			c.CloseAfterFlush()
			return len(b)
		}}
	}
	eachEngine(t, Config{Loops: 1, MaxQueue: 64 << 20}, accept, func(t *testing.T, r *real) {
		c := r.dial()
		_ = c.SetReadBuffer(16 << 10)
		if _, err := c.Write([]byte("go")); err != nil {
			t.Fatal(err)
		}
		r.until("the connection is stalled", func() bool { return r.Loops()[0].Stats().Stalls > 0 })
		got, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		for i := range rounds {
			want = append(append(append(append(want, byte(i)), frame...), byte(i+1)), frame...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes, want %d, or in another order", len(got), len(want))
		}
	})
}

func TestEnginesCloseClientsThatReadNothing(t *testing.T) {
	t.Parallel()
	why := make(chan error, 1)
	accept := func(*Conn) Handler {
		return &funcs{
			data:   func(c *Conn, b []byte) int { c.Send(make([]byte, 32<<20)); c.Send([]byte("more")); return len(b) },
			closed: func(_ *Conn, err error) { why <- err },
		}
	}
	cfg := Config{Loops: 1, WriteStall: hub.Duration(200 * time.Millisecond), MaxQueue: 64 << 20}
	eachEngine(t, cfg, accept, func(t *testing.T, r *real) {
		if _, err := r.dial().Write([]byte("go")); err != nil {
			t.Fatal(err)
		}
		if err := <-why; !errors.Is(err, ErrStalled) {
			t.Errorf("closed by %v, want %v", err, ErrStalled)
		}
	})
}

func TestEnginesKeepSlowReaders(t *testing.T) {
	t.Parallel()
	const total = 16 << 20
	accept := func(*Conn) Handler {
		return &funcs{data: func(c *Conn, b []byte) int {
			c.Send(make([]byte, total/2))
			c.Send(make([]byte, total/2))
			c.CloseAfterFlush()
			return len(b)
		}}
	}
	cfg := Config{Loops: 1, WriteStall: hub.Duration(time.Second), MaxQueue: 64 << 20}
	eachEngine(t, cfg, accept, func(t *testing.T, r *real) {
		c := r.dial()
		_ = c.SetReadBuffer(128 << 10)
		if _, err := c.Write([]byte("go")); err != nil {
			t.Fatal(err)
		}
		// 64 KiB every 100 ms is far more than 4 KiB a second, and far from all.
		b, n := make([]byte, 64<<10), 0
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 25 {
			<-tick.C
			k, err := io.ReadFull(c, b)
			if n += k; err != nil {
				t.Fatalf("after %d bytes: %v", n, err)
			}
		}
		rest, err := io.Copy(io.Discard, c)
		if err != nil || n+int(rest) != total {
			t.Errorf("%d bytes of %d, %v", n+int(rest), total, err)
		}
	})
}

func TestEnginesAbortWithAReset(t *testing.T) {
	accept := func(*Conn) Handler {
		return &funcs{data: func(c *Conn, b []byte) int { c.Abort(nil); return len(b) }}
	}
	eachEngine(t, Config{Loops: 1}, accept, func(t *testing.T, r *real) {
		c := r.dial()
		_, _ = c.Write([]byte("go"))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer reads %v, want a reset", err)
		}
	})
}

func TestEnginesRefuseBeyondMaxConns(t *testing.T) {
	t.Parallel()
	eachEngine(t, Config{Loops: 2, MaxConns: 10}, echoing, func(t *testing.T, r *real) {
		for range 10 {
			r.dial()
		}
		r.until("ten are open", func() bool { return r.Open() == 10 })
		if _, err := r.dial().Read(make([]byte, 1)); err == nil {
			t.Error("an eleventh connection is served")
		}
	})
}

func TestEnginesStopAccepting(t *testing.T) {
	eachEngine(t, Config{Loops: 2}, echoing, func(t *testing.T, r *real) {
		c := r.dial()
		r.until("it is open", func() bool { return r.Open() == 1 })
		r.StopAccepting()
		for range 5 {
			r.onLoops(func(*Loop) {})
		}
		r.dial()
		for range 20 {
			r.onLoops(func(*Loop) {})
		}
		if n := r.Open(); n != 1 {
			t.Errorf("%d connections are open, want 1", n)
		}
		_, _ = c.Write([]byte("x"))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Errorf("the first connection: %v", err)
		}
	})
}

// Posting while loops go to sleep must never be left lying.
func TestEnginesWakeForEveryPost(t *testing.T) {
	eachEngine(t, Config{Loops: 2}, echoing, func(t *testing.T, r *real) {
		var wg sync.WaitGroup
		var ran atomic.Int64
		begin := time.Now()
		for range 4 {
			wg.Go(func() {
				for range 300 {
					r.onLoops(func(*Loop) { ran.Add(1) })
				}
			})
		}
		wg.Wait()
		if d := time.Since(begin); ran.Load() != 2400 || d > 20*time.Second {
			t.Errorf("%d functions ran in %v", ran.Load(), d)
		}
	})
}

func TestTheEngineIsChosenInWords(t *testing.T) {
	no := errors.New("io_uring_setup: forbidden: operation not permitted")
	var old error // why io_uring is not preferred
	f := func(cfg Config, refusal error, want string, warns bool) {
		t.Helper()
		var out bytes.Buffer
		cfg.Loops = 2
		cfg, open := chooseEngine(cfg.WithDefaults(), slog.New(slog.NewTextHandler(&out, nil)), func() error { return refusal }, func() error { return old })
		p, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		if p.Name() != want {
			t.Errorf("%q with %v opens %s, want %s", cfg.Engine, refusal, p.Name(), want)
		}
		if warned := strings.Contains(out.String(), no.Error()) && strings.Contains(out.String(), "WARN"); warned != warns {
			t.Errorf("%q with %v logs %q", cfg.Engine, refusal, out.String())
		}
		if bound := 2 * min(connsPerTable(), maxTable); want == engineUring && cfg.MaxConns == 0 || cfg.MaxConns > 1 && cfg.MaxConns < bound && want == engineUring {
			t.Errorf("%q is bound to %d connections", cfg.Engine, cfg.MaxConns)
		}
	}
	many := connsPerTable() * 2
	f(Config{Engine: "epoll"}, nil, engineEpoll, false)
	f(Config{Engine: "epoll"}, no, engineEpoll, false)
	f(Config{Engine: "io_uring"}, nil, engineUring, false)
	f(Config{Engine: "io_uring"}, no, engineEpoll, true)
	f(Config{Engine: "io_uring", MaxConns: 1}, nil, engineUring, false)
	f(Config{}, nil, engineUring, false)
	f(Config{Engine: "auto", Sockets: SocketConfig{Priority: 3}}, nil, engineUring, false)
	old = errors.New("too old")
	f(Config{}, nil, engineEpoll, false)
	f(Config{Engine: "io_uring"}, nil, engineUring, false)
	f(Config{Engine: "auto"}, no, engineEpoll, false)
	f(Config{Engine: "auto", MaxConns: many}, nil, engineUring, false)
	f(Config{Engine: "auto", MaxConns: many}, no, engineEpoll, true)

	fits := func(conns int, want bool) {
		t.Helper()
		var out bytes.Buffer
		chooseEngine(Config{Loops: 2, MaxConns: conns}.WithDefaults(), slog.New(slog.NewTextHandler(&out, nil)), func() error { return nil }, func() error { return nil })
		if warned := strings.Contains(out.String(), "raise loops"); warned == want {
			t.Errorf("%d connections in two loops: %q", conns, out.String())
		}
	}
	fits(2*min(connsPerTable(), maxTable), true)
	fits(2*min(connsPerTable(), maxTable)+1, false)
}
