// Package h2 speaks HTTP/2 on the event loops (RFC 9113). Each stream is a connection of
// its own to anyone who handles requests: its head comes in the one form that all heads have
// here, that of HTTP/1.1, and what is answered in that form goes out as HTTP/2. So there is
// one front, one push session and one proxy, and a client's version of HTTP is framing.
//
// A connection costs one struct and a table of its streams, a stream one struct: no
// goroutine, no buffer while nothing is under way. What is written to the streams of one
// connection in a tick leaves in one send. A window that is full is a socket that is full:
// what waits is bounded, and meets the policy for slow readers, stream by stream.
package h2

import (
	"cmp"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

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
}

func (c Config) withDefaults() Config {
	c.MaxStreams = cmp.Or(c.MaxStreams, 250)
	c.Head.MaxHead = cmp.Or(c.Head.MaxHead, 32<<10)
	c.HeadTimeout = cmp.Or(c.HeadTimeout, 10*time.Second)
	c.KeepAlive = cmp.Or(c.KeepAlive, 15*time.Second)
	return c
}

// A Server takes connections of HTTP/2 on event loops.
type Server struct {
	// Fixed at New.
	cfg        Config
	accept     func(*eventloop.Conn) eventloop.Handler
	log        *slog.Logger
	loopStates []*loopState
}

// loopState is the server's part on one loop.
type loopState struct {
	srv   *Server
	head  []byte // of a request, while it is made
	req   fields // what its header block says
	chunk []byte // a piece of a body with its frame, either way
	// moving is a part of a connection's state, while it is made.
	moving takeover.State
	// gathered is a piece of a body in the input that is looked at, for gathers; see gather.
	gathers  *stream
	gathered []byte
	answers  Answers[*stream]
	block    blockWriter
	buffers  buffers
	held     map[*stream]*bufferedBody // few streams have one

	drains bool // no connection is to stay

	// Any goroutine.
	counters counters
	_        [64]byte
}

type counters struct {
	conns, streams, refused, malformed atomic.Uint64
	open, openStreams                  atomic.Int64
	floods                             [floods]atomic.Uint64
	endings                            [endings]atomic.Uint64
}

// New returns a Server. accept is called on the loop with each new stream and returns what
// handles it, as for a connection that speaks HTTP/1.1; nil refuses the stream. loops is the
// number of loops that it will be used on.
func New(cfg Config, accept func(*eventloop.Conn) eventloop.Handler, loops int, log *slog.Logger) *Server {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	s := &Server{cfg: cfg.withDefaults(), accept: accept, log: log}
	for range loops {
		l := &loopState{srv: s, held: map[*stream]*bufferedBody{}}
		l.block.init()
		s.loopStates = append(s.loopStates, l)
	}
	return s
}

// ServeConn makes c speak HTTP/2 from now on. seen is how much of the preface has come; the
// rest is c's next input. Only c's handler so far may call it.
func (s *Server) ServeConn(c *eventloop.Conn, seen int) {
	l := s.loopStates[c.Loop().ID()]
	h := &conn{loopState: l, writer: newWriter(c, &l.buffers), preface: uint8(seen), credit: connWindow}
	l.counters.conns.Add(1)
	l.counters.open.Add(1)
	c.SetHandler(h)
	c.SetTimer(int64(s.cfg.HeadTimeout))
	h.control(h.greeting())
	if l.drains {
		h.leave(endDrain)
	}
}

const (
	// connWindow is what the client may send before any of it was taken, over all streams.
	connWindow = 1 << 20
	// streamWindow is the same for one stream, wideWindow for one that is taken as fast as it
	// comes: each read of the socket brings more then. Few streams of a connection have it at a
	// time, so that those whose handlers accept nothing leave room for the others.
	streamWindow = firstWindow
	wideWindow   = 256 << 10
	wideMost     = 2
)

// greeting is the server's preface (RFC 9113 §3.4).
func (h *conn) greeting() []byte {
	cfg := &h.loopState.srv.cfg
	b := appendSettings(nil,
		setting{settingMaxStreams, uint32(cfg.MaxStreams)},
		setting{settingMaxHeaderList, uint32(cfg.Head.MaxHead)},
		setting{settingConnect, 1},
		setting{settingNoPriorities, 1},
	)
	return appendWindowUpdate(b, 0, connWindow-firstWindow)
}

// Drain sends every connection a GOAWAY, so that it takes its next requests elsewhere (RFC 9113 §6.8); what is
// under way continues. Any goroutine; it returns at once.
func (s *Server) Drain(loops []*eventloop.Loop) {
	for _, loop := range loops {
		l := s.loopStates[loop.ID()]
		loop.Post(func() {
			if l.drains {
				return
			}
			l.drains = true
			var all []*conn
			loop.Conns(func(c *eventloop.Conn) bool {
				if h, ok := c.Handler().(*conn); ok {
					all = append(all, h)
				}
				return true
			})
			for _, h := range all {
				h.leave(endDrain)
			}
		})
	}
}

// Stats are counters since New, and what is open now.
type Stats struct {
	Connections uint64 // taken
	Streams     uint64 // requests, the refused ones included
	Refused     uint64 // streams over a bound
	Malformed   uint64 // streams that broke RFC 9113 in a way that concerns them alone
	Open        int64  // connections now
	OpenStreams int64
	// Floods are the connections closed for sending too much of something, by its name.
	Floods map[string]uint64
	// Ended are the connections that got a GOAWAY, by why: idle, no_request, drain, client,
	// flood or error.
	Ended map[string]uint64
}

// Stats may be called from any goroutine. A nil Server has served nothing.
func (s *Server) Stats() Stats {
	t := Stats{Floods: map[string]uint64{}, Ended: map[string]uint64{}}
	if s == nil {
		return t
	}
	for _, l := range s.loopStates {
		c := &l.counters
		t.Connections += c.conns.Load()
		t.Streams += c.streams.Load()
		t.Refused += c.refused.Load()
		t.Malformed += c.malformed.Load()
		t.Open += c.open.Load()
		t.OpenStreams += c.openStreams.Load()
		for i := range c.floods {
			t.Floods[flood(i).String()] += c.floods[i].Load()
		}
		for i := range c.endings {
			t.Ended[ending(i).String()] += c.endings[i].Load()
		}
	}
	return t
}
