// Package h3 serves HTTP/3 (RFC 9114) by quic-go. As with HTTP/2, each stream is a connection
// of an event loop to anyone who handles requests, whose head comes in the form of HTTP/1.1 and
// whose answer is written in it. So there is one front, one push session and one proxy for
// all versions of HTTP.
//
// QUIC itself runs on quic-go's goroutines, beside the loops, with one socket for all
// clients. A connection of it is one on a loop, too (eventloop.Loop.CarryRoot), which counts
// for limits and has the streams. A stream has a goroutine while its request is read, and
// another one while an answer is written faster than the network takes it; one that waits
// for events has none. What passes between a stream and its loop is bounded both ways.
package h3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	"golang.org/x/sync/errgroup"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// Protocol is what ALPN agrees on (RFC 9114 §3.1).
const Protocol = "h3"

// Config of a Server. The zero value works.
type Config struct {
	// MaxStreams bounds the streams of one connection at a time; 0 means 250.
	MaxStreams int
	// Head bounds the heads of requests; zeros mean http1's.
	Head http1.Limits
	// HeadTimeout bounds the time until a connection's first request, and that of a head
	// that comes in pieces; 0 means 10s.
	HeadTimeout time.Duration
	// KeepAlive closes a connection without streams after that long; 0 means 15s.
	KeepAlive time.Duration
	// WriteStall closes a stream that takes less than 16 KiB in that time while bytes wait
	// for it; 0 means 30s.
	WriteStall time.Duration
	// HandshakeTimeout bounds the handshake; 0 means 10s.
	HandshakeTimeout time.Duration
	// MaxHandshakes bounds the handshakes under way; one more is refused. 0 means 1,024.
	// From an eighth of them on clients have to prove their address first (Retry).
	MaxHandshakes int
	// Key makes the keys of address tokens and stateless resets, so that a client finds out at
	// once that the process it was connected to is gone, from the next one or another node
	// that has it, too. nil: keys that end with the process.
	Key func(purpose string) (key [32]byte, ok bool)
}

func (c Config) withDefaults() Config {
	c.HeadTimeout = cmp.Or(c.HeadTimeout, 10*time.Second)
	c.KeepAlive = cmp.Or(c.KeepAlive, 15*time.Second)
	c.WriteStall = cmp.Or(c.WriteStall, 30*time.Second)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 10*time.Second)
	c.MaxStreams = cmp.Or(c.MaxStreams, 250)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, 1024)
	c.Head.MaxHead = cmp.Or(c.Head.MaxHead, 32<<10)
	return c
}

// A Front is what a Server serves for.
type Front struct {
	// Busy reports whether new connections are to be refused. Any goroutine.
	Busy func() bool
	// Admit reports whether a connection may stay, whose peer has proved its address. It is
	// called on the connection's loop.
	Admit func(*eventloop.Conn) bool
	// Established is called with the result of an admitted connection's handshake, on its loop.
	Established func(*eventloop.Conn, *tls.ConnectionState)
	// Accept is called on the loop with each new stream and returns what handles it, as for
	// a connection that speaks HTTP/1.1; nil refuses it.
	Accept func(*eventloop.Conn) eventloop.Handler
	// Failed is called for each failed handshake, if not nil. Any goroutine.
	Failed func()
}

// A Server serves HTTP/3 on event loops.
type Server struct {
	// Fixed at New, and at Listen.
	cfg        Config
	front      Front
	log        *slog.Logger
	loops      []*eventloop.Loop
	loopStates []*loopState
	transport  *quic.Transport
	socket     *markedSocket
	listener   *quic.Listener

	// Any goroutine.
	next        atomic.Uint32 // which loop gets the next connection
	handshakes  atomic.Int64  // under way
	draining    atomic.Bool
	ended       context.Context
	end         context.CancelFunc
	connections sync.WaitGroup
	counters    counters
}

type counters struct {
	conns, streams, refused, malformed  atomic.Uint64
	open, openStreams                   atomic.Int64
	shed, retries, failed, moved, stall atomic.Uint64
	floods                              [h2.Floods]atomic.Uint64
}

// loopState is the server's part on one loop.
type loopState struct {
	chunk   []byte // a piece of a body with its frame, either way
	answers h2.Answers[*stream]
	block   bytes.Buffer   // a field section of ours
	encoder *qpack.Encoder // into block
	drains  bool           // no connection is to stay
}

// New returns a Server on loops. Listen comes next.
func New(cfg Config, front Front, loops []*eventloop.Loop, log *slog.Logger) *Server {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	s := &Server{cfg: cfg.withDefaults(), front: front, log: log, loops: loops}
	s.ended, s.end = context.WithCancel(context.Background())
	for range loops {
		l := &loopState{}
		l.encoder = qpack.NewEncoder(&l.block)
		s.loopStates = append(s.loopStates, l)
	}
	return s
}

// acceptors is how many goroutines accept. quic-go refuses a connection when its handshake
// ends while 32 others wait to be accepted, and a queue longer than that is not to be had:
// each goroutine that waits makes room for one more, so that clients that reconnect all at
// once are accepted.
const acceptors = 128

// Run accepts connections until ctx is done or Close. The loops must run.
func (s *Server) Run(ctx context.Context) error {
	var g errgroup.Group
	for range acceptors {
		g.Go(func() error { return s.accept(ctx) })
	}
	return g.Wait()
}

// accept serves connections until ctx is done or the listener is closed.
func (s *Server) accept(ctx context.Context) error {
	for {
		q, err := s.listener.Accept(ctx)
		switch {
		case errors.Is(err, quic.ErrServerClosed), ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		i := int(s.next.Add(1)-1) % len(s.loops)
		h := &conn{srv: s, loopState: s.loopStates[i], loop: s.loops[i], quic: q}
		s.connections.Go(h.serve)
	}
}

// Drain sends every connection a GOAWAY, so that it takes its next requests elsewhere (RFC 9114 §5.2), and
// refuses new ones; what is under way continues. Any goroutine; it returns at once.
func (s *Server) Drain() {
	s.draining.Store(true)
	for i, loop := range s.loops {
		l := s.loopStates[i]
		loop.Post(func() {
			l.drains = true
			var all []*conn
			loop.Conns(func(c *eventloop.Conn) bool {
				if h, ok := c.Handler().(*conn); ok {
					all = append(all, h)
				}
				return true
			})
			for _, h := range all {
				h.leave()
			}
		})
	}
}

// Close ends all connections and waits for their goroutines. The loops must have ended.
func (s *Server) Close() error {
	s.end()
	var err error
	if s.listener != nil {
		err = s.listener.Close()
		_ = s.transport.Close()
		_ = s.transport.Conn.Close()
	}
	s.connections.Wait()
	return err
}

// Stats are counters since New, and what is open now.
type Stats struct {
	Connections uint64 // established and admitted
	Streams     uint64 // requests, the refused ones included
	Refused     uint64 // streams over a bound
	Malformed   uint64 // streams that broke RFC 9114 in a way that concerns them alone
	Shed        uint64 // connections refused before their handshake: too many of those, or a drain
	Retries     uint64 // clients that had to prove their address first
	Failed      uint64 // handshakes that came to nothing
	Moved       uint64 // changes of a client's address, noticed at its next request or its end
	Stalled     uint64 // streams closed for taking too little
	Open        int64  // connections now
	OpenStreams int64
	// Floods are the connections closed for sending too much of something, by its name.
	Floods map[string]uint64
}

// Stats may be called from any goroutine. A nil Server has served nothing.
func (s *Server) Stats() Stats {
	t := Stats{Floods: map[string]uint64{}}
	if s == nil {
		return t
	}
	c := &s.counters
	for _, f := range [...]h2.Flood{h2.FloodReset, h2.FloodMadeReset, h2.FloodEmpty, h2.FloodHeaders, h2.FloodUnknown, h2.FloodPriority} {
		t.Floods[f.String()] = c.floods[f].Load()
	}
	t.Connections, t.Streams, t.Refused, t.Malformed = c.conns.Load(), c.streams.Load(), c.refused.Load(), c.malformed.Load()
	t.Shed, t.Retries, t.Failed, t.Moved, t.Stalled = c.shed.Load(), c.retries.Load(), c.failed.Load(), c.moved.Load(), c.stall.Load()
	t.Open, t.OpenStreams = c.open.Load(), c.openStreams.Load()
	return t
}
