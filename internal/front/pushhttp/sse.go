package pushhttp

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
)

// sseStream carries a stream as server-sent events in the body of an answer.
type sseStream struct {
	srv    *Server
	st     *stream
	w      http.ResponseWriter
	rc     *http.ResponseController
	coding wire.Coding
	// stands is where a stream of several namespaces is, whose id lines are its own.
	stands hub.Positions
	// counted: that it was sent away is counted already.
	counted bool
}

var _ transport = (*sseStream)(nil)

// ServeSSE answers r with the subscription, and returns when the stream has ended.
// Header fields of the caller's may be set on w already.
func (s *Server) ServeSSE(w http.ResponseWriter, r *http.Request, sub *wire.Subscription, id *auth.Identity) {
	t := &sseStream{srv: s, w: w, rc: http.NewResponseController(w)}
	if f := s.turnedAway(); f != nil {
		t.counted = true
		t.close(f, false)
		return
	}
	defer s.streams.Done()
	format := wire.SSE
	if sub.Envelope || len(sub.Channels) > 1 {
		format = wire.SSEEnvelope
	}
	if s.formats.Compresses(sub.Channels) {
		t.coding = wire.ChooseCoding([]byte(r.Header.Get("Accept-Encoding")))
		format = t.coding.In(format)
	}
	s.counters.sse.Add(1)
	defer s.counters.sse.Add(-1)
	st, err := s.subscribe(sub.Options(), id, format, !s.access.Granted(id, sub.Channels))
	if err != nil {
		s.counters.failed.Add(1)
		if f := failure(err); f.code == codeTryLater {
			t.close(f, false)
			return
		}
		Fail(w, wire.ErrorOf(err))
		return
	}
	defer st.leave()
	t.st = st
	s.serve(r.Context(), st, t)
}

// Fail answers with an error of the API.
func Fail(w http.ResponseWriter, e *wire.Error) {
	Respond(w, e.Status, wire.AppendError(nil, e))
}

// Respond is Answer, for an error too: whom there is no room for is asked to wait.
func Respond(w http.ResponseWriter, status int, body []byte) {
	if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", strconv.FormatInt(1+rand.Int64N(4), 10)) // not the same for all
	}
	Answer(w, status, body)
}

// Answer answers a call of the API.
func Answer(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // nobody is left to hear of a failure
}

// head writes the answer's head.
func (t *sseStream) head() {
	h := t.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	if t.coding != wire.Plain {
		h.Set("Content-Encoding", t.coding.String())
		h.Add("Vary", "Accept-Encoding")
	}
	t.w.WriteHeader(http.StatusOK)
}

// write sends b, bounded in time.
func (t *sseStream) write(b []byte) error {
	_ = t.rc.SetWriteDeadline(time.Now().Add(t.srv.cfg.WriteStall)) // not every writer has one
	if t.st != nil {
		t.st.sending.Add(int64(len(b)))
	}
	_, err := t.w.Write(b)
	return err
}

// own writes text of the stream's own in its coding.
func (t *sseStream) own(text []byte) error {
	if t.coding != wire.Plain {
		text = t.srv.formats.Encode(t.coding, nil, text, false)
	}
	return t.write(text)
}

func (t *sseStream) open(at hub.Positions) error {
	if len(at) > 1 {
		t.stands = append(hub.Positions(nil), at...)
		t.st.format = t.coding.In(wire.SSEData)
	}
	t.head()
	if t.coding == wire.Gzip {
		if err := t.write(wire.GzipHeader); err != nil {
			return err
		}
	}
	first := sse.AppendRetry(nil, t.srv.retryMillis())
	if len(at) > 0 {
		first = append(at.AppendTo(append(first, "id: "...)), '\n')
	}
	if err := t.own(append(first, '\n')); err != nil {
		return err
	}
	return t.flush()
}

func (t *sseStream) message(m *hub.Message) error {
	if t.stands != nil && m.Offset != 0 {
		for i := range t.stands {
			if t.stands[i].Epoch == m.Epoch {
				t.stands[i] = m.Position()
			}
		}
		if err := t.own(append(t.stands.AppendTo([]byte("id: ")), '\n')); err != nil {
			return err
		}
	}
	return t.write(t.srv.hub.Encode(m, t.st.format))
}

func (t *sseStream) gap(g hub.Gap) error {
	b := sse.AppendType(nil, "gap")
	if !g.At.IsZero() {
		b = append(b, "id: "...)
		b = append(b, t.moved(g)...)
		b = append(b, '\n')
	}
	b = wire.AppendGap(append(b, "data: "...), "", g, "")
	return t.own(append(b, "\n\n"...))
}

// moved takes a gap into the stream's own position and returns its token.
func (t *sseStream) moved(g hub.Gap) string {
	if t.stands == nil {
		return g.At.String()
	}
	from, _ := hub.ParsePosition(g.From)
	for i, p := range t.stands {
		if p.Epoch == g.At.Epoch || p.Epoch == from.Epoch {
			t.stands[i] = g.At
		}
	}
	return string(t.stands.AppendTo(nil))
}

// flush sends what was written. The deadline goes with it: one that is left behind
// ends a stream of HTTP/2 when it comes, even if nothing waits then.
func (t *sseStream) flush() error {
	err := t.rc.Flush()
	_ = t.rc.SetWriteDeadline(time.Time{})
	t.st.sending.Store(0)
	return err
}

func (t *sseStream) beat() error {
	if err := t.own([]byte(":\n\n")); err != nil {
		return err
	}
	return t.flush()
}

// close says why in a way that keeps a browser's EventSource trying: it gives up
// for good on any status but 200.
func (t *sseStream) close(f *farewell, opened bool) {
	if f == nil {
		return
	}
	if !opened {
		t.coding = wire.Plain
		t.head()
		if f.code == codeTryLater && !t.counted {
			t.srv.counters.overloaded.Add(1)
		}
	}
	if t.own(wire.AppendEnd(nil, int(t.srv.reconnect(f.code, !opened).Milliseconds()), f.code, f.reason)) == nil {
		_ = t.rc.Flush() // the client may be gone: then there is nobody to tell
	}
}
