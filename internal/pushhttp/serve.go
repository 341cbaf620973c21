package pushhttp

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// protocol is one that endpoints speak, with its connections.
type protocol struct {
	name             string
	sockets, streams *atomic.Int64
}

// Protocol returns the number of a protocol by its name. Before requests come only.
func (s *Server) Protocol(name string) int {
	if i := slices.IndexFunc(s.protocols, func(x protocol) bool { return x.name == name }); i >= 0 {
		return i
	}
	s.protocols = append(s.protocols, protocol{name, new(atomic.Int64), new(atomic.Int64)})
	return len(s.protocols) - 1
}

// ProtocolStats are the connections of one protocol now. They are among those of Stats
// too: in WebSocket and in SSE.
type ProtocolStats struct {
	Name             string
	Sockets, Streams int64
}

// Protocols returns what there is of each protocol. Any goroutine.
func (s *Server) Protocols() []ProtocolStats {
	var list []ProtocolStats
	for _, x := range s.protocols[1:] {
		list = append(list, ProtocolStats{x.name, x.sockets.Load(), x.streams.Load()})
	}
	return list
}

// enter counts a stream in and returns what counts it out.
func (s *Server) enter(isSocket bool, protocol int) (leave func()) {
	kind, own := &s.counters.sse, s.protocols[protocol].streams
	if isSocket {
		kind, own = &s.counters.ws, s.protocols[protocol].sockets
	}
	kind.Add(1)
	own.Add(1)
	return func() {
		own.Add(-1)
		kind.Add(-1)
	}
}

// Work runs work on a goroutine and calls then from it. It returns false when there is
// too much under way: nothing is done then.
func (s *Server) Work(work func(context.Context), then func()) bool {
	if s.atWork.Add(1) > maxWork {
		s.atWork.Add(-1)
		return false
	}
	s.working.Go(func() {
		defer then()
		defer s.atWork.Add(-1)
		defer func() {
			if r := recover(); r != nil {
				s.counters.panics.Add(1)
				s.log.Error("panic in the work of a protocol", "panic", r)
			}
		}()
		work(s.ctx)
	})
	return true
}

// CountPublished counts a publication of a protocol's.
func (s *Server) CountPublished(err error) {
	if err != nil {
		s.counters.publishErrors.Add(1)
	} else {
		s.counters.published.Add(1)
	}
}

// now is a monotonic clock.
func (s *Server) now() int64 { return int64(time.Since(s.base)) }

// SocketOptions say what a WebSocket of a protocol's is.
type SocketOptions struct {
	Peer netip.AddrPort
	// Protocol is Server.Protocol's.
	Protocol int
	// MaxMessage bounds what the client may send at a time; 0 means 64 KiB.
	MaxMessage int
	// Early is what was read behind the handshake already.
	Early []byte
	// AwayCode and AwayReason are socket.WebSocketOptions'; code 0: this front's own.
	AwayCode   int
	AwayReason string
}

// ServeSocket makes nc, a WebSocket whose handshake is done, speak what open returns. It
// returns when that has ended, and closes nc.
func (s *Server) ServeSocket(ctx context.Context, nc net.Conn, o SocketOptions, open func(socket.Transport) socket.Session) {
	defer nc.Close()
	if f := s.turnedAway(); f != nil {
		if o.AwayCode != 0 { // the code itself tells the client to wait
			f = &farewell{o.AwayCode, o.AwayReason}
		} else {
			s.hold(ctx, f.code)
		}
		_ = nc.SetWriteDeadline(time.Now().Add(s.cfg.WriteStall))
		_, _ = nc.Write(websocket.AppendClose(nil, uint16(f.code), f.reason)) // it is over either way
		return
	}
	defer s.streams.Done()
	defer s.enter(true, o.Protocol)()
	l := s.newLink(s.list(ctx, o.Peer.String(), "websocket", o.Protocol), o.Peer, true)
	l.open(open)
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{l: l, nc: nc, early: o.Early, gone: cancel, stop: ctx.Done()}
	r.limits.MaxMessage = o.MaxMessage
	if o.MaxMessage <= 0 {
		r.limits.MaxMessage = defaultMaxMessage
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer cancel()
		r.run()
	}()
	write := func(b []byte) error {
		_ = nc.SetWriteDeadline(time.Now().Add(s.cfg.WriteStall)) // an error shows with the write
		_, err := nc.Write(b)
		return err
	}
	if s.pumpLink(ctx, l, write) {
		// The client has its part of the close to say, or what it sent would reset the
		// connection and might take the last words with it.
		select {
		case <-reading:
		case <-time.After(closeTimeout):
		}
	}
	cancel()
	_ = nc.Close()
	<-reading
	l.close()
}

const (
	defaultMaxMessage = 64 << 10
	closeTimeout      = 2 * time.Second
)

func (s *Server) newLink(as listing, peer netip.AddrPort, isSocket bool) *link {
	l := &link{srv: s, listing: as, peer: peer, isSocket: isSocket, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	l.lane = s.lanes[int(s.next.Add(1))%len(s.lanes)]
	l.lastRead.Store(s.now())
	return l
}

// pumpLink writes what the session sends until its end or ctx's. It reports whether
// everything was said.
func (s *Server) pumpLink(ctx context.Context, l *link, write func([]byte) error) bool {
	drained, leaving := s.drained, (<-chan time.Time)(nil)
	var scratch []byte
	for {
		select {
		case <-ctx.Done():
			return false
		case <-l.ready:
		case <-drained:
			drained = nil
			leaving = s.leaveAfter()
		case <-leaving:
			l.lane.post(l.goAway)
		}
		queue, ended, cut := l.take()
		if cut {
			return false
		}
		for len(queue) > 0 {
			b, n := queue[0], 1
			if len(queue) > 1 && len(b) < mergeLimit {
				scratch = scratch[:0]
				for n = 0; n < len(queue) && len(scratch)+len(queue[n]) <= mergeLimit; n++ {
					scratch = append(scratch, queue[n]...)
				}
				b = scratch
			}
			if write(b) != nil {
				return false
			}
			l.written(len(b))
			queue = queue[n:]
		}
		if cap(scratch) > 4<<10 {
			scratch = nil
		}
		if ended {
			return true
		}
	}
}

// mergeLimit bounds what leaves in one write when several pieces wait.
const mergeLimit = 64 << 10

// reader is the goroutine that reads a WebSocket.
type reader struct {
	l      *link
	nc     net.Conn
	early  []byte
	limits websocket.Limits
	parser websocket.Parser
	gone   context.CancelFunc
	stop   <-chan struct{}
}

func (r *reader) run() {
	r.parser.Init(websocket.ParserOptions{Limits: &r.limits})
	defer r.parser.Reset()
	buf := make([]byte, 4<<10)
	have := r.early
	r.early = nil
	rest, ok := r.show(have)
	for ok {
		if len(rest) > 0 && len(rest) == len(buf) {
			return // no head of a frame is that long
		}
		n := copy(buf, rest)
		m, err := r.nc.Read(buf[n:])
		if m > 0 {
			r.l.lastRead.Store(r.l.srv.now())
			rest, ok = r.show(buf[:n+m])
		}
		if err != nil {
			return
		}
	}
}

// show passes on what b says, and returns what is left of it. ok is false at the end.
func (r *reader) show(b []byte) (rest []byte, ok bool) {
	l := r.l
	for {
		ev, n, ok, err := r.parser.Next(b)
		b = b[n:]
		if err != nil {
			l.srv.counters.clientErrs.Add(1)
			code, reason := codeInternal, "internal error"
			if p, ok := err.(*websocket.ProtocolError); ok { //nolint:errorlint // Next returns nothing else
				code, reason = int(p.Code), p.Reason
			}
			l.call(func() { l.Close(code, reason) })
			r.discard()
			return nil, false
		}
		if !ok {
			return b, true
		}
		switch ev.Op {
		case websocket.OpPing:
			l.put(websocket.AppendFrame(nil, websocket.OpPong, ev.Payload))
		case websocket.OpPong:
			l.call(func() { l.session.Pong() })
		case websocket.OpClose:
			l.call(func() { l.Close(int(ev.Code), "") })
			return nil, false
		default:
			l.call(func() { l.session.Message(ev.Payload, ev.Op == websocket.OpBinary) })
		}
		if !r.mayGoOn() {
			return nil, false
		}
	}
}

// mayGoOn waits while the client takes its answers more slowly than it asks.
func (r *reader) mayGoOn() bool {
	for {
		r.l.mu.Lock()
		waits := r.l.bytes
		r.l.mu.Unlock()
		if waits <= maxReplies {
			return true
		}
		select {
		case <-r.l.room:
		case <-r.stop:
			return false
		}
	}
}

// discard reads on after a client broke the rules, so that it reads why.
func (r *reader) discard() {
	buf := make([]byte, 4<<10)
	for total := 0; total < 1<<20; {
		n, err := r.nc.Read(buf)
		if err != nil {
			return
		}
		total += n
	}
}

// StreamOptions say what the body of an answer is that a protocol goes on with.
type StreamOptions struct {
	ContentType string
	// Protocol is Server.Protocol's.
	Protocol int
}

// ServeStream answers r with a body that speaks what open returns, and returns when that
// has ended. Header fields of the caller's may be set on w already.
func (s *Server) ServeStream(w http.ResponseWriter, r *http.Request, o StreamOptions, open func(socket.Transport) socket.Session) {
	if f := s.turnedAway(); f != nil {
		s.away(w, strings.HasPrefix(strings.ToLower(o.ContentType), eventStream), f)
		return
	}
	defer s.streams.Done()
	defer s.enter(false, o.Protocol)()
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	l := s.newLink(s.list(r.Context(), r.RemoteAddr, "stream", o.Protocol), peer, false)
	streamHead(w, o.ContentType)
	rc := http.NewResponseController(w)
	write := func(b []byte) error {
		_ = rc.SetWriteDeadline(time.Now().Add(s.cfg.WriteStall)) // not every writer has one
		_, err := w.Write(b)
		if err == nil {
			err = rc.Flush()
		}
		_ = rc.SetWriteDeadline(time.Time{})
		return err
	}
	if rc.Flush() != nil {
		return
	}
	l.open(open)
	s.pumpLink(r.Context(), l, write)
	l.close()
}

var errAway = &wire.Error{Status: http.StatusServiceUnavailable, Message: "overloaded, try again later"}

const eventStream = "text/event-stream"

func streamHead(w http.ResponseWriter, contentType string) {
	h := w.Header()
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
}

// Away answers a client that is to come back later; one of a stream of events so that a
// browser's EventSource keeps trying.
func (s *Server) Away(w http.ResponseWriter, stream bool) {
	if stream {
		s.counters.overloaded.Add(1)
	}
	s.away(w, stream, failure(hub.ErrOverloaded))
}

func (s *Server) away(w http.ResponseWriter, stream bool, f *farewell) {
	wait := s.reconnect(f.code, true)
	if !stream {
		if f.code == codeRestart {
			w.Header().Set("Retry-After", strconv.FormatInt(int64(max(wait.Round(time.Second)/time.Second, 1)), 10))
			Fail(w, &wire.Error{Status: http.StatusServiceUnavailable, Message: f.reason, Hint: "connect again after Retry-After seconds"})
			return
		}
		Fail(w, errAway)
		return
	}
	streamHead(w, eventStream)
	_, _ = w.Write(sse.AppendEnd(sse.AppendRetry(nil, int(wait.Milliseconds())))) // the client may be gone
}
