package loadgen_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A relay passes connections on, and can cut them.
type relay struct {
	addr string
	mu   sync.Mutex
	open map[net.Conn]bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String(), open: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			r.mu.Lock()
			r.open[c], r.open[up] = true, true
			r.mu.Unlock()
			pass := func(a, b net.Conn) {
				io.Copy(a, b)
				a.Close()
				b.Close()
			}
			wg.Go(func() { pass(c, up) })
			wg.Go(func() { pass(up, c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.cut()
		wg.Wait()
	})
	return r
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		c.Close()
	}
	clear(r.open)
}
