package pushhttp

import (
	"net/http"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/sse"
)

// never is a time that does not come.
const never = 1 << 60 * time.Nanosecond

// ServeEvents is ServeSSE for a protocol's stream of events, of which protocol is the
// number. Its fields are on w already.
func (s *Server) ServeEvents(w http.ResponseWriter, r *http.Request, sub *socket.Subscription, protocol int) {
	if f := s.turnedAway(); f != nil {
		s.away(w, true, f)
		return
	}
	defer s.streams.Done()
	t := &sseStream{srv: s, w: w, rc: http.NewResponseController(w), custom: sub}
	format := sub.Format
	if s.compresses(sub.Options.Channels) {
		t.coding = wire.ChooseCoding([]byte(r.Header.Get("Accept-Encoding")))
		if in := t.coding.In(format); wire.CodingOf(in) == t.coding {
			format = in
		} else {
			t.coding = wire.Plain // it was added, and comes in no other
		}
	}
	defer s.enter(false, protocol)()
	opt := sub.Options
	if sub.Select != nil {
		opt.Select = sub.Select
	}
	id := sub.Identity
	if id == auth.Anonymous {
		id = nil
	}
	if s.turnsAway(CarrierOf(r.Context()), &opt) {
		t.close(failure(hub.ErrOverloaded), false)
		return
	}
	st, err := s.subscribe(s.list(r.Context(), r.RemoteAddr, "sse", protocol), opt, id, format, false)
	if err != nil {
		s.counters.failed.Add(1)
		if f := failure(err); f.code == codeTryLater {
			t.close(f, false)
			return
		}
		Fail(w, wire.ErrorOf(err))
		return
	}
	st.beat, st.life = sub.Heartbeat, sub.Life
	defer func() {
		st.leave()
		if t.began && sub.Ended != nil {
			sub.Ended()
		}
	}()
	t.st = st
	s.serve(r.Context(), st, t)
}

// appendFirst writes what a stream begins with.
func (t *sseStream) appendFirst(b []byte, at hub.Positions) []byte {
	if t.custom != nil {
		return append(b, t.custom.Preamble...)
	}
	b = sse.AppendRetry(b, t.srv.retryMillis())
	if len(at) > 0 {
		b = append(at.AppendTo(append(b, "id: "...)), '\n')
	}
	return append(b, '\n')
}

// customGap is gap for a protocol that tells of it in its own way, or not at all.
func (t *sseStream) customGap(g hub.Gap) error {
	if text := t.custom.Gap(g); len(text) > 0 {
		return t.own(text)
	}
	return nil
}

// customClose is close for a protocol's stream: who is to stay away for a while is told
// so by a field that is no event.
func (t *sseStream) customClose(f *farewell, opened bool) {
	if f.code == codeTokenExpired || f.code == codeNormal {
		return
	}
	if t.own(sse.AppendEnd(sse.AppendRetry(nil, int(t.srv.reconnect(f.code, !opened).Milliseconds())))) == nil {
		_ = t.rc.Flush() // the client may be gone: then there is nobody to tell
	}
}
