package rung

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/sse"
)

// sseRungs are ladder A: one goroutine per subscriber, and what it does to get an
// event onto the socket. Setting nodelay=off switches Nagle's algorithm on,
// which Go switches off by default; pinned=on gives each subscriber's goroutine a
// thread of its own.
func sseRungs() map[string]Server {
	return map[string]Server{
		"a/fields":   sseServer(func() stream { return fieldStream{} }, nil),
		"a/states":   sseServer(func() stream { return &stateStream{} }, nil),
		"a/pooled":   sseServer(func() stream { return pooledStream{} }, nil),
		"a/onewrite": sseServer(func() stream { return oneWriteStream{} }, nil),
		"a/hijacked": hijackedServer(nil),
		"a/shared":   hijackedServer(encodeSSE),
		"a/timed":    serveTimed,
		"a/reply":    serveReplies,
	}
}

// A stream writes one subscriber's events with net/http.
type stream interface {
	write(w http.ResponseWriter, flush func() error, m *message) error
}

// fieldStream is where the ladder starts: each field is formatted into a fresh
// string, printed and flushed, so an event is five system calls.
type fieldStream struct{}

func (fieldStream) write(w http.ResponseWriter, flush func() error, m *message) error {
	fields := []string{
		fmt.Sprintf("id: %s-%d\n", epoch, m.offset),
		fmt.Sprintf("event: %s\n", "message"),
		fmt.Sprintf("retry: %d\n", 3000),
		fmt.Sprintf("data: %s\n", string(m.data)),
		"\n",
	}
	for _, field := range fields {
		var b strings.Builder
		b.WriteString(field)
		fmt.Fprintf(w, "%s", b.String())
		if err := flush(); err != nil {
			return err
		}
	}
	return nil
}

// A connState is what a connection is doing.
type connState int

const (
	idle connState = iota
	writing
	closed
)

// stateStream is fieldStream with the connection's state spelled out: what it
// does is known at any time, and a write to a peer that accepts nothing ends.
type stateStream struct {
	fieldStream
	state connState
}

func (s *stateStream) write(w http.ResponseWriter, flush func() error, m *message) error {
	if s.state == closed {
		return net.ErrClosed
	}
	s.state = writing
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		s.state = closed
		return err
	}
	if err := s.fieldStream.write(w, flush, m); err != nil {
		s.state = closed
		return err
	}
	s.state = idle
	return nil
}

// buffers are 4 KB each, which holds nearly every event.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// pooledStream appends into a pooled buffer instead of formatting: nothing is
// allocated per event, but each field still leaves by itself.
type pooledStream struct{}

func (pooledStream) write(w http.ResponseWriter, flush func() error, m *message) error {
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	put := func(b []byte) error {
		*p = b
		if _, err := w.Write(b); err != nil {
			return err
		}
		return flush()
	}
	id := append(appendPosition(append((*p)[:0], "id: "...), m.offset), '\n')
	if err := put(id); err != nil {
		return err
	}
	if err := put(sse.AppendType((*p)[:0], "message")); err != nil {
		return err
	}
	if err := put(sse.AppendRetry((*p)[:0], 3000)); err != nil {
		return err
	}
	if err := put(sse.AppendData((*p)[:0], m.data)); err != nil {
		return err
	}
	return put(sse.AppendEnd((*p)[:0]))
}

// oneWriteStream puts the whole event into the buffer and flushes once.
type oneWriteStream struct{}

func (oneWriteStream) write(w http.ResponseWriter, flush func() error, m *message) error {
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	*p = appendSSE((*p)[:0], m)
	if _, err := w.Write(*p); err != nil {
		return err
	}
	return flush()
}

// appendSSE appends the event that all rungs send.
func appendSSE(dst []byte, m *message) []byte {
	dst = appendPosition(append(dst, "id: "...), m.offset)
	dst = append(dst, "\nevent: message\nretry: 3000\n"...)
	return sse.AppendEnd(sse.AppendData(dst, m.data))
}

func encodeSSE(m *message) []byte { return appendSSE(nil, m) }

// A mailbox is the queue between a publisher and a subscriber's goroutine. Full,
// it takes no more.
type mailbox chan delivery

type delivery struct {
	message *message
	frame   []byte // shared; nil where every subscriber encodes for itself
}

func (q mailbox) deliver(m *message, frame []byte) bool {
	select {
	case q <- delivery{m, frame}:
		return true
	default:
		return false
	}
}

// checkpoint is the first block of a stream: its position.
func checkpoint() []byte { return []byte("retry: 3000\nid: " + epoch + "-0\n\n") }

// sseServer serves net/http streams of the given kind.
func sseServer(open func() stream, timed func(time.Duration)) Server {
	return func(ctx context.Context, env *Env) error {
		hub := &channels{extra: &env.Extra}
		mux := http.NewServeMux()
		mux.Handle("POST /api/publish", hub)
		mux.HandleFunc("GET /sse", func(w http.ResponseWriter, r *http.Request) {
			if env.Set["pinned"] == "on" {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
			}
			q, s, rc := make(mailbox, 256), open(), http.NewResponseController(w)
			flush := rc.Flush
			if timed != nil {
				flush = func() error {
					began := time.Now()
					defer func() { timed(time.Since(began)) }()
					return rc.Flush()
				}
			}
			w.Header().Set("Content-Type", sse.ContentType)
			_, _ = w.Write(checkpoint())
			defer hub.subscribe(r.URL.Query().Get("channel"), q)()
			if rc.Flush() != nil {
				return
			}
			for {
				select {
				case <-r.Context().Done():
					return
				case d := <-q:
					if s.write(w, flush, d.message) != nil {
						return
					}
				}
			}
		})
		return serveHTTP(ctx, env, &http.Server{Handler: mux, ConnContext: delayed(env), ReadHeaderTimeout: 10 * time.Second})
	}
}

// serveReplies answers publish requests in five pieces, each flushed by itself: the
// same habit, where the other side is one that sends a request and waits.
func serveReplies(ctx context.Context, env *Env) error {
	var c counter
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/publish", func(w http.ResponseWriter, r *http.Request) {
		var p publication
		if err := p.check(json.NewDecoder(r.Body).Decode(&p)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, flush := string(appendResult(nil, c.offset.Add(1))), http.NewResponseController(w).Flush
		w.Header().Set("Content-Type", "application/json")
		for len(answer) > 0 {
			n := min(8, len(answer))
			fmt.Fprint(w, answer[:n])
			if answer = answer[n:]; flush() != nil {
				return
			}
		}
	})
	return serveHTTP(ctx, env, &http.Server{Handler: mux, ConnContext: delayed(env), ReadHeaderTimeout: 10 * time.Second})
}

// delayed applies the setting nodelay.
func delayed(env *Env) func(context.Context, net.Conn) context.Context {
	if env.Set["nodelay"] != "off" {
		return nil
	}
	return func(ctx context.Context, c net.Conn) context.Context {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetNoDelay(false) // a connection that is gone already says so when it is written
		}
		return ctx
	}
}

// hijackedServer takes the connection over from net/http after the handshake: no
// chunks, no buffer between, one write per event. With encode the event is made
// once and all subscribers write the same bytes.
func hijackedServer(encode func(*message) []byte) Server {
	return func(ctx context.Context, env *Env) error {
		hub := &channels{extra: &env.Extra, encode: encode}
		mux := http.NewServeMux()
		mux.Handle("POST /api/publish", hub)
		mux.HandleFunc("GET /sse", func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			q := make(mailbox, 256)
			defer hub.subscribe(r.URL.Query().Get("channel"), q)()
			head := "HTTP/1.1 200 OK\r\nContent-Type: " + sse.ContentType + "\r\nConnection: close\r\n\r\n"
			if _, err := c.Write(append([]byte(head), checkpoint()...)); err != nil {
				return
			}
			pump(c, q)
		})
		return serveHTTP(ctx, env, &http.Server{Handler: mux, ConnContext: delayed(env), ReadHeaderTimeout: 10 * time.Second})
	}
}

// pump writes what comes until the peer goes. A second goroutine reads, because
// nothing else would notice that.
func pump(c net.Conn, q mailbox) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		var b [1]byte
		_, _ = c.Read(b[:])
	}()
	defer func() { c.Close(); <-gone }()
	for {
		select {
		case <-gone:
			return
		case d := <-q:
			p := buffers.Get().(*[]byte)
			frame := d.frame
			if frame == nil {
				*p = appendSSE((*p)[:0], d.message)
				frame = *p
			}
			_, err := c.Write(frame)
			buffers.Put(p)
			if err != nil {
				return
			}
		}
	}
}

// serveTimed is the rung a/onewrite with a watch on every flush, and one on a
// ticker of 10 ms beside it.
func serveTimed(ctx context.Context, env *Env) error {
	timed := func(d time.Duration) {
		switch {
		case d < 5*time.Microsecond:
			env.Extra.Add("flush_under_5us", 1)
		case d <= 50*time.Microsecond:
			env.Extra.Add("flush_5_to_50us", 1)
		default:
			env.Extra.Add("flush_over_50us", 1)
		}
	}
	ticks, stop := context.WithCancel(ctx)
	var ticking sync.WaitGroup
	ticking.Go(func() { watchTicker(ticks, &env.Extra) })
	defer ticking.Wait()
	defer stop()
	return sseServer(func() stream { return oneWriteStream{} }, timed)(ctx, env)
}

// watchTicker adds up how far from its time each tick comes.
func watchTicker(ctx context.Context, extra *Extra) {
	const every = 10 * time.Millisecond
	t := time.NewTicker(every)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			now := time.Now()
			extra.Add("ticks", 1)
			extra.Add("tick_error_seconds", (now.Sub(last) - every).Abs().Seconds())
			last = now
		}
	}
}
