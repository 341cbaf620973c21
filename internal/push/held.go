package push

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
)

// A KeepAlive is what a held client gets when nothing else comes. The zero value is
// that of every stream of events.
type KeepAlive struct {
	Text  []byte
	Every time.Duration
}

// heldSession is a stream of events whose head and beginning came from a backend.
type heldSession struct {
	sseSession
	alive KeepAlive
}

var (
	_ hub.Sink          = (*heldSession)(nil)
	_ eventloop.Handler = (*heldSession)(nil)
	_ drainer           = (*heldSession)(nil)
)

// ServeHeld turns c, to which the head of an event stream and maybe some of its body
// were written, into a subscriber: what it gets from now on follows on that. There is
// no other answer any more, so that whatever fails ends the stream in words.
func (p *Push) ServeHeld(c *eventloop.Conn, r *Subscription, k KeepAlive) {
	s := &heldSession{alive: k}
	if s.alive.Every <= 0 {
		s.alive.Every = time.Duration(p.cfg.Heartbeat)
	}
	s.alive.Every = p.cfg.HeartbeatInterval(s.alive.Every, r.MaxBackoff)
	if len(s.alive.Text) == 0 {
		s.alive.Text = heartbeat
	}
	s.format = wire.SSE
	if r.Envelope || len(r.Channels) > 1 {
		s.format = wire.SSEEnvelope
	}
	if r.Chunked {
		s.format = wire.InChunks(s.format)
	}
	s.alive.Text = s.framed(s.alive.Text)
	if p.Draining() {
		s.partWith(p, c, codeRestart, "draining")
		return
	}
	old := c.Handler()
	c.SetHandler(s)
	p.tally(c, false, 1)
	if err := s.begin(p.LoopState(c), c, r, s); err != nil {
		c.SetHandler(old)
		p.tally(c, false, -1)
		code, reason := failure(err)
		p.log.Warn("hold", "conn", c.ID(), "peer", c.Peer(), "err", err)
		s.partWith(p, c, code, reason)
	}
}

// partWith ends a stream that did not come to be.
func (s *heldSession) partWith(p *Push, c *eventloop.Conn, code int, reason string) {
	p.countRejected(code)
	s.conn = c
	c.Write(s.framed(p.appendEnd(nil, code, reason, true)))
	s.part()
}

// Start implements hub.Sink: the head is out already.
func (s *heldSession) Start(at hub.Positions) {
	defer s.recovered()
	first, lossy := s.opening().resumes(at)
	if len(at) > 1 {
		s.keepsPosition(at, lossy)
	}
	b := sse.AppendRetry(nil, s.loopState.push.retryMillis())
	if len(first) > 0 {
		b = first.AppendTo(append(b, "id: "...))
		b = append(b, '\n')
	}
	s.opened()
	s.conn.Write(s.framed(append(b, '\n')))
	s.lastSend = s.loopState.loop.Now()
	s.armTimer(int64(s.alive.Every))
}

// Failed implements hub.Sink.
func (s *heldSession) Failed(err error) {
	s.headIsOut()
	s.sseSession.Failed(err)
}

// headIsOut keeps the last words from beginning with a head.
func (s *heldSession) headIsOut() {
	if s.opening() != nil {
		s.opened()
	}
}

func (s *heldSession) drain(c *eventloop.Conn) {
	s.headIsOut()
	s.sseSession.drain(c)
}

// Timer implements eventloop.Handler.
func (s *heldSession) Timer(c *eventloop.Conn, now int64) {
	every := int64(s.alive.Every)
	switch {
	case s.flags&ending != 0, s.expired(), c.Stalled(), s.flags&paced != 0 && s.backlog != nil:
		s.sseSession.Timer(c, now)
		return
	case s.loopState.push.Draining():
		s.drain(c)
		return
	case s.opening() != nil:
		s.headIsOut()
		s.end(codeTryLater, "not available now, try again later")
		return
	case now-s.lastSend >= every:
		s.lastSend = now
		c.Send(s.alive.Text)
	}
	s.armTimer(s.lastSend + every - now)
}
