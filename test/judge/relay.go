package judge

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// A Relay is between clients and a server and resets connections in the
// middle of whatever they are saying.
type Relay struct {
	// Addr is what clients dial.
	Addr string
	// Cuts counts the connections it has reset.
	Cuts atomic.Int64
	// Down counts the bytes on their way to clients.
	Down atomic.Int64

	to     string
	calm   atomic.Bool
	random func() int64
	wg     sync.WaitGroup

	mu     sync.Mutex
	ended  bool
	active map[net.Conn]net.Conn // downstream → upstream
}

// NewRelay starts a relay to addr. Each connection is reset, both ways, after a
// random number of bytes up to maxBytes from the server, or a random number up
// to 400 from the client: a handshake is cut too. It ends with the test.
func NewRelay(t testing.TB, addr string, maxBytes int64, seed uint64) *Relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, seed))
	r := &Relay{Addr: ln.Addr().String(), to: addr, active: map[net.Conn]net.Conn{}}
	r.random = func() int64 {
		mu.Lock()
		defer mu.Unlock()
		return rng.Int64N(maxBytes) + 1
	}
	r.wg.Go(func() {
		for {
			down, err := ln.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(down) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		r.mu.Lock()
		r.ended = true
		for down, up := range r.active {
			_ = down.Close()
			_ = up.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

// Calm ends the cutting: from now on no connection is reset.
func (r *Relay) Calm() { r.calm.Store(true) }

func (r *Relay) serve(down net.Conn) {
	defer down.Close()
	up, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer up.Close()
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return
	}
	r.active[down] = up
	r.mu.Unlock()
	fromServer := r.random()
	fromClient := fromServer%4*100 + fromServer%100 + 1
	if fromServer%5 != 0 {
		fromClient = 1 << 40 // one connection in five may be cut in its own request
	}
	r.wg.Go(func() { r.copy(up, down, fromClient, nil) })
	r.copy(down, up, fromServer, &r.Down)
	r.mu.Lock()
	delete(r.active, down)
	r.mu.Unlock()
}

// copy relays from src to dst, adding up the bytes if there is where, and resets
// both after limit bytes.
func (r *Relay) copy(dst, src net.Conn, limit int64, count *atomic.Int64) {
	buf := make([]byte, 2<<10)
	for left := limit; ; {
		n, err := src.Read(buf)
		cut := !r.calm.Load() && int64(n) >= left
		if cut {
			n = int(left)
		}
		if n > 0 {
			if count != nil {
				count.Add(int64(n))
			}
			if _, werr := dst.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		left -= int64(n)
		if cut {
			r.Cuts.Add(1)
			reset(src)
			reset(dst)
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = dst.(*net.TCPConn).CloseWrite()
				return
			}
			_ = dst.Close()
			_ = src.Close()
			return
		}
		if left <= 0 {
			left = limit // calm meanwhile
		}
	}
}

// reset ends a connection with RST instead of FIN.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}
