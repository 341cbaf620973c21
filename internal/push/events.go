package push

import (
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
)

// custom is what a protocol's stream of events does otherwise than Weir's own.
type custom struct {
	gap       func(hub.Gap) []byte
	review    func(*access.Review) bool
	state     func(takeover.State) (takeover.State, bool) // nil: it does not move
	moved     func()
	ended     func() // to be called at the end; nil: it did not start, or no caller needs it
	heartbeat int64
	ends      int64 // when it does, on the loop's clock; 0: never
	protocol  uint8
}

// never is a time that does not come.
const never = int64(1) << 60

func newCustom(r *Subscription, now int64) *custom {
	c := &custom{gap: r.Custom.Gap, heartbeat: int64(r.Custom.Heartbeat), review: r.Custom.Review, protocol: r.Protocol, state: r.Custom.AppendState, moved: r.Custom.Moved}
	if c.heartbeat < 0 {
		c.heartbeat = never
	}
	if r.Custom.Life > 0 {
		c.ends = now + int64(r.Custom.Life)
	}
	return c
}

func (s *session) custom() *custom {
	if s.extras == nil {
		return nil
	}
	return s.extras.custom
}

// ServeEvents is ServeSSE for r.Custom.
func (p *Push) ServeEvents(c *eventloop.Conn, r *Subscription) error {
	if p.Draining() {
		p.away(c, eventStream, r.Fields, codeRestart, "draining")
		return nil
	}
	s := &sseSession{}
	s.format = r.Custom.Format
	r.Channels = r.Custom.Options.Channels
	if p.compresses(r.Channels) {
		s.format = wire.ChooseCoding(r.Accept).In(s.format)
	}
	if r.Chunked {
		s.format = wire.InChunks(s.format)
	}
	old := c.Handler()
	c.SetHandler(s)
	s.tally(c, p, r.Protocol, 1)
	err := s.begin(p.LoopState(c), c, r, s)
	if err == nil {
		return nil
	}
	c.SetHandler(old)
	s.tally(c, p, r.Protocol, -1)
	if code, _ := failure(err); code == codeTryLater {
		p.countRejected(code)
		c.Write(appendSSEAnswer(nil, r.Fields, p.appendRetry(nil, code, true)))
		c.CloseAfterFlush()
		return nil
	}
	return err
}

// tally counts the client in, or out.
func (s *sseSession) tally(c *eventloop.Conn, p *Push, protocol uint8, n int64) {
	p.tally(c, false, n)
	if protocol != 0 {
		p.protocols[protocol].streams.Add(n)
	}
}

// appendRetry appends a block that is not an event and says when to come back.
func (r *refusals) appendRetry(b []byte, code int, refused bool) []byte {
	return sse.AppendEnd(sse.AppendRetry(b, int(r.reconnect(code, refused).Milliseconds())))
}

// appendFirst writes what a stream starts with.
func (s *sseSession) appendFirst(b []byte, o *opening, at hub.Positions) []byte {
	if s.custom() != nil {
		return append(b, o.preamble...)
	}
	b = sse.AppendRetry(b, s.loopState.push.retryMillis())
	if len(at) > 0 {
		b = at.AppendTo(append(b, "id: "...))
		b = append(b, '\n')
	}
	return append(b, '\n')
}

// appendLast writes the last words, after a head if that is not out yet.
func (s *sseSession) appendLast(b []byte, code int, reason string) []byte {
	switch {
	case s.custom() == nil:
		return s.loopState.push.appendEnd(b, code, reason, s.opening() != nil)
	case code == codeTokenExpired || code == codeRevoked || code == codeNormal:
		return b // it may come back at once
	}
	return s.loopState.push.appendRetry(b, code, s.opening() != nil)
}

// lived reports whether the time of the stream is over.
func (s *sseSession) lived(now int64) bool {
	c := s.custom()
	return c != nil && c.ends != 0 && now >= c.ends
}

const eventStream = "text/event-stream"

// A panic in Began or Ended must not end the loop.
func (s *session) report(f func()) {
	if f != nil {
		defer s.recovered()
		f()
	}
}
