package push

import (
	"slices"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// recordedSession follows the channel of one recording: the same as any stream of
// events, but it has an end.
type recordedSession struct {
	sseSession
	left func()
	// over: the last record was delivered; the rest is for the socket to take.
	over bool
}

var (
	_ hub.Sink          = (*recordedSession)(nil)
	_ eventloop.Handler = (*recordedSession)(nil)
	_ drainer           = (*recordedSession)(nil)
	_ lagging           = (*recordedSession)(nil)
)

// ServeRecording turns c into a client of the recording on r's channel, of which
// there must be one. The stream ends after the record that ends the recording. left
// is called once, when the client is gone, and not after an error: that means that
// nothing was started and c is as before.
func (p *Push) ServeRecording(c *eventloop.Conn, r *Subscription, left func()) error {
	if p.Draining() {
		p.reject(c, r.Fields, codeRestart, "draining")
		left()
		return nil
	}
	s := &recordedSession{left: left}
	if s.format = wire.Recorded; r.Chunked {
		s.format = wire.InChunks(s.format)
	}
	old := c.Handler()
	c.SetHandler(s)
	p.tally(c, false, 1)
	err := s.begin(p.LoopState(c), c, r, s)
	if err == nil {
		return nil
	}
	c.SetHandler(old)
	p.tally(c, false, -1)
	if code, reason := failure(err); code == codeTryLater {
		p.reject(c, r.Fields, code, reason)
		left()
		return nil
	}
	return err
}

// Deliver implements hub.Sink.
func (s *recordedSession) Deliver(b *hub.Batch) {
	if s.over {
		return
	}
	last := slices.IndexFunc(b.Messages, func(m *hub.Message) bool { return wire.EndsRecording(m.Data) })
	if last < 0 {
		s.sseSession.Deliver(b)
		return
	}
	defer s.recovered()
	s.over = true
	if !s.enqueue(&hub.Batch{Messages: b.Messages[:last+1], Replay: b.Replay}) {
		s.loopState.push.counters.tooSlow.Add(1)
		s.end(codeTooSlow, "too slow")
		return
	}
	s.finish()
}

// finish sends what is held, and closes after the last of it.
func (s *recordedSession) finish() {
	s.release()
	if s.backlog == nil && s.flags&ending == 0 {
		s.leave()
		s.part()
	}
}

// Drained implements eventloop.Handler.
func (s *recordedSession) Drained(c *eventloop.Conn) {
	if s.over {
		s.finish()
		return
	}
	s.sseSession.Drained(c)
}

// Timer implements eventloop.Handler.
func (s *recordedSession) Timer(c *eventloop.Conn, now int64) {
	s.sseSession.Timer(c, now)
	if s.over {
		s.finish()
	}
}

// Closed implements eventloop.Handler.
func (s *recordedSession) Closed(c *eventloop.Conn, err error) {
	s.sseSession.Closed(c, err)
	s.left()
}
