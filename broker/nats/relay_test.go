package nats

import (
	"net"
	"sync"
	"testing"
)

// A relay passes connections on to an address. Held, it passes nothing on and
// closes nothing, as a network does that drops every packet; what was sent
// meanwhile arrives afterwards, late, as TCP delivers it.
type relay struct {
	addr, to string
	wg       sync.WaitGroup

	mu    sync.Mutex
	moved sync.Cond // held or ended changed
	held  bool
	ended bool
	conns []net.Conn
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String(), to: to}
	r.moved.L = &r.mu
	r.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		r.ended = true
		r.moved.Broadcast()
		for _, c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

// hold begins or ends the cut.
func (r *relay) hold(held bool) {
	r.mu.Lock()
	r.held = held
	r.mu.Unlock()
	r.moved.Broadcast()
}

// pass waits while the relay is held and reports whether it has ended.
func (r *relay) pass() (ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.held && !r.ended {
		r.moved.Wait()
	}
	return r.ended
}

// keep has c closed with the relay.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		c.Close()
		return false
	}
	r.conns = append(r.conns, c)
	return true
}

func (r *relay) serve(down net.Conn) {
	defer down.Close()
	if !r.keep(down) || r.pass() {
		return
	}
	up, err := net.Dial("tcp", r.to)
	if err != nil || !r.keep(up) {
		return
	}
	defer up.Close()
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		r.copy(up, down)
	})
	r.copy(down, up)
	<-done
}

func (r *relay) copy(dst, src net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if r.pass() {
			return
		}
		if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
			dst.Close()
			src.Close()
			return
		}
	}
}
