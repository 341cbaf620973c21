package loadgen

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// A tlsWire is a connection with TLS. It is not on the event loop: two goroutines
// read and write it, and its endpoint is called on the loop as any other. It costs
// tens of kilobytes more.
type tlsWire struct {
	s *shard
	h endpoint

	// Owned by the loop.
	ended  bool
	parked []byte // what the endpoint did not consume
	timer  *time.Timer

	cancel context.CancelFunc

	// Any goroutine.
	mu    sync.Mutex
	wake  *sync.Cond
	conn  net.Conn
	out   []byte
	flush bool // close when out is empty
	done  bool
}

// maxTLSQueue bounds what waits to be written.
const maxTLSQueue = 4 << 20

func dialTLS(s *shard, h endpoint, t *target) *tlsWire {
	ctx, cancel := context.WithTimeout(context.Background(), s.g.spec.Timeout)
	w := &tlsWire{s: s, h: h, cancel: cancel}
	w.wake = sync.NewCond(&w.mu)
	local := s.g.source(h)
	s.g.work.Go(func() {
		defer cancel()
		d := net.Dialer{}
		if local.IsValid() {
			d.LocalAddr = &net.TCPAddr{IP: local.AsSlice()}
		}
		raw, err := d.DialContext(ctx, "tcp", t.addr.String())
		if err == nil {
			var conn net.Conn
			if conn, err = t.shake(ctx, &countedConn{Conn: raw, g: s.g}); err == nil {
				w.serve(conn)
				return
			}
			_ = raw.Close()
		}
		s.loop.Post(func() { w.Close(err) })
	})
	return w
}

// shake is the handshake on raw, which the caller closes if it fails.
func (t *target) shake(ctx context.Context, raw net.Conn) (net.Conn, error) {
	if t.gm != nil {
		defer context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })()
		s, err := gm.DialStream(raw, t.gm)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	c := t.tls.Clone()
	c.NextProtos = []string{"http/1.1"}
	conn := tls.Client(raw, c)
	return conn, conn.HandshakeContext(ctx)
}

// serve reads conn until it ends.
func (w *tlsWire) serve(conn net.Conn) {
	w.mu.Lock()
	w.conn = conn
	done := w.done
	w.mu.Unlock()
	if done {
		_ = conn.Close()
		return
	}
	w.s.g.work.Go(w.write)
	turn := make(chan struct{}, 1)
	call := func(f func()) {
		if w.s.loop.Post(func() { f(); turn <- struct{}{} }) {
			<-turn
		}
	}
	call(func() {
		if !w.ended {
			w.h.Connected(nil)
		}
	})
	buf := make([]byte, 16<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			call(func() { w.arrived(buf[:n]) })
		}
		if err != nil {
			call(func() {
				if !w.ended {
					w.h.EndOfStream(nil)
				}
				w.Close(err)
			})
			return
		}
	}
}

func (w *tlsWire) arrived(b []byte) {
	if w.ended {
		return
	}
	if len(w.parked) > 0 {
		w.parked = append(w.parked, b...)
		b = w.parked
	}
	for len(b) > 0 && !w.ended {
		n := w.h.Data(nil, b)
		b = b[n:]
		if n == 0 {
			break
		}
	}
	w.parked = append(w.parked[:0:0], b...)
}

// write sends what waits until the wire ends.
func (w *tlsWire) write() {
	var b []byte
	for {
		w.mu.Lock()
		for len(w.out) == 0 && !w.done && !w.flush {
			w.wake.Wait()
		}
		if w.done || len(w.out) == 0 {
			done := w.done
			w.mu.Unlock()
			if !done {
				w.s.loop.Post(func() { w.Close(nil) })
			}
			return
		}
		b, w.out = w.out, b[:0]
		w.mu.Unlock()
		if _, err := w.conn.Write(b); err != nil {
			w.s.loop.Post(func() { w.Close(err) })
			return
		}
	}
}

// Write implements wire.
func (w *tlsWire) Write(b []byte) {
	w.mu.Lock()
	w.out = append(w.out, b...)
	full := len(w.out) > maxTLSQueue
	w.mu.Unlock()
	w.wake.Signal()
	if full {
		w.Close(eventloop.ErrQueueFull)
	}
}

// CloseAfterFlush implements wire.
func (w *tlsWire) CloseAfterFlush() {
	w.mu.Lock()
	w.flush = true
	w.mu.Unlock()
	w.wake.Signal()
}

// SetTimer implements wire.
func (w *tlsWire) SetTimer(d int64) {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if d > 0 && !w.ended {
		w.timer = time.AfterFunc(time.Duration(d), func() {
			w.s.loop.Post(func() {
				if !w.ended && w.timer != nil {
					w.h.Timer(nil, 0)
				}
			})
		})
	}
}

// Close implements wire.
func (w *tlsWire) Close(err error) {
	if w.ended {
		return
	}
	w.ended = true
	w.SetTimer(0)
	w.cancel()
	w.mu.Lock()
	w.done = true
	conn := w.conn
	w.mu.Unlock()
	w.wake.Broadcast()
	if conn != nil {
		w.s.g.work.Go(func() { _ = conn.Close() }) // it may wait briefly to send close_notify
	}
	w.h.Closed(nil, err)
}

// A countedConn counts bytes.
type countedConn struct {
	net.Conn
	g *Generator
}

type byteCounts struct{ in, out atomic.Uint64 }

// Read implements net.Conn.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.g.bytes.in.Add(uint64(n))
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.g.bytes.out.Add(uint64(n))
	return n, err
}
