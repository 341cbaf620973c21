package judge

import (
	"net"
	"sync"
	"testing"
	"time"
)

// A Shape is what a Link does to the bytes of its connections.
type Shape struct {
	// Latency is added in each direction.
	Latency time.Duration
	// Rate bounds the bytes per second of a connection in each direction; 0: no bound.
	Rate int
	// HoldUp and HoldDown keep back what goes to the server, or comes from it, without
	// closing anything: to either side it looks like a network that drops every packet.
	HoldUp, HoldDown bool
}

// A Link passes connections on to an address, and shapes them. New connections are held
// as well.
type Link struct {
	// Addr is what is dialled in place of the server.
	Addr string

	to string
	wg sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond // shape or ended
	shape   Shape
	ended   bool
	conns   map[net.Conn]struct{}
}

// NewLink starts one, which ends with the test.
func NewLink(t testing.TB, to string) *Link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{Addr: ln.Addr().String(), to: to, conns: map[net.Conn]struct{}{}}
	l.changed = sync.NewCond(&l.mu)
	l.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		l.mu.Lock()
		l.ended = true
		l.changed.Broadcast()
		for c := range l.conns {
			_ = c.Close()
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

// Set changes the shape, for open connections too.
func (l *Link) Set(s Shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shape = s
	l.changed.Broadcast()
}

// Reset ends every connection with RST and returns how many there were.
func (l *Link) Reset() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.conns) / 2
	for c := range l.conns {
		reset(c)
	}
	return n
}

func (l *Link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Link) forget(c net.Conn) {
	_ = c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// pass waits while bytes in the direction are held, and returns the shape and whether the
// link has ended.
func (l *Link) pass(up bool) (s Shape, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended && (up && l.shape.HoldUp || !up && l.shape.HoldDown) {
		l.changed.Wait()
	}
	return l.shape, l.ended
}

func (l *Link) serve(down net.Conn) {
	defer l.forget(down)
	if !l.keep(down) {
		return
	}
	if _, ended := l.pass(true); ended {
		return
	}
	up, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer l.forget(up)
	if !l.keep(up) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.copy(up, down, true) })
	l.copy(down, up, false)
	both.Wait()
}

// A parcel is bytes on their way, and when they are to arrive.
type parcel struct {
	due  time.Time
	data []byte
}

// copy passes on what src sends, each parcel no sooner than the latency after it came.
func (l *Link) copy(dst, src net.Conn, up bool) {
	way := make(chan parcel, 256) // so much is on its way at most
	var arriving sync.WaitGroup
	arriving.Go(func() {
		for p := range way {
			s, ended := l.pass(up)
			wait := time.Until(p.due)
			if s.Rate > 0 {
				wait = max(wait, 0) + time.Duration(float64(len(p.data))/float64(s.Rate)*float64(time.Second))
			}
			if wait > 0 && !ended {
				time.Sleep(wait) // the network's own time
			}
			if _, err := dst.Write(p.data); err != nil || ended {
				break
			}
		}
		_ = dst.Close()
		_ = src.Close()
		for range way { // the sender ends
		}
	})
	buf := make([]byte, 16<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			l.mu.Lock()
			latency := l.shape.Latency
			l.mu.Unlock()
			way <- parcel{time.Now().Add(latency), append([]byte(nil), buf[:n]...)}
		}
		if err != nil {
			break
		}
	}
	close(way)
	arriving.Wait()
}
