package downstream

import (
	"bytes"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/record"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A recording is what a request has besides whose reply is recorded, or that asks
// for a recording.
type recording struct {
	ask     record.Ask
	request record.Request
	viewer  *record.Viewer // nil: it has not asked yet
	fields  []byte         // of an answer to a request that no route serves
	who     *auth.Identity
}

var _ record.Client = (*conn)(nil)

// UseRecorder makes rec keep the replies of routes that ask for it. Before SetRoutes
// and the loops only.
func (s *Server) UseRecorder(rec *record.Recorder) {
	s.recorder = rec
	if s.cfg.RoutesOnly {
		return
	}
	s.own(record.Path, &endpoint{methods: "GET", serve: (*request).recordingAgain, stream: true})
}

// mayRecord prepares for a reply that will be recorded if it is an event stream.
func (r *request) mayRecord(tg *target) {
	req, x := r.head, &r.policy
	if !tg.record.Enabled() || r.method != "GET" && r.method != "POST" || req.Upgrade != nil {
		return
	}
	header := headerOf(req.Fields)
	rec := &recording{who: x.Identity}
	rec.ask = record.Ask{
		Record: &tg.record, Route: x.Route.Name(), Owner: record.OwnerOf(x.Identity, tg.record.Key, header, x.Client),
		Since: header.Get("Last-Event-ID"), Tape: &record.Tape{},
	}
	rec.request = record.Request{Route: x.Route.Name(), Method: r.method, Path: string(x.NormalPath()), Query: string(x.Query),
		Idempotency: header.Get("Idempotency-Key")}
	r.recording = rec
}

// sink is where the reply goes.
func (r *request) sink() proxy.Sink {
	if r.recording != nil {
		return r.recording.ask.Tape
	}
	return r.h
}

// record goes on with a request whose body is complete.
func (r *request) record() { r.askForRecording(append([]byte(nil), r.body...)) }

// askForRecording finds out whether the reply is being recorded already.
func (r *request) askForRecording(body []byte) {
	rec := r.recording
	rec.request.Body = body
	rec.ask.Key = rec.request.Key(rec.ask.Owner)
	r.askRecorder()
}

func (r *request) askRecorder() {
	h, rec := r.h, r.recording
	r.body = nil
	h.pending = r
	h.wait(r.c)
	rec.ask.Loop, rec.ask.Then = r.c.Loop(), r.recorded
	rec.viewer = h.lane.srv.recorder.Ask(rec.ask)
}

// recorded gets the recorder's answer.
func (r *request) recorded(a record.Answer) {
	rec := r.recording
	if r.c.Closing() {
		rec.viewer.Leave()
		if a.Start {
			rec.ask.Tape.Void()
		}
		return
	}
	switch {
	case a.Start:
		r.startRecorded()
	case a.Follow != nil:
		r.follow(a.Follow)
	case a.Over:
		// To an EventSource 204 says not to come back (WHATWG HTML §9.2.3).
		rec.viewer.Leave()
		r.answerWith(http.StatusNoContent, "", nil, answerFields, r.streamFields())
	default:
		rec.viewer.Leave()
		r.fail(a.Err)
	}
}

// startRecorded asks the upstream. What r is may be over when a call returns, but the
// exchange goes on without it.
func (r *request) startRecorded() {
	rec, e, tape, m := r.recording, r.ready, r.recording.ask.Tape, r.mirrorTo
	body := rec.request.Body
	trailer := r.trailers()
	r.ready, r.h.state = nil, answering
	if m != nil {
		r.startMirror(m, e)
		r.mirror.body(body)
		r.mirror.end(trailer)
	}
	tape.Begin(e, r.h)
	e.Start()
	if tape.Active() && len(body) > 0 {
		e.Body(body)
	}
	if tape.Active() {
		e.End(trailer)
	}
}

// Follow implements record.Client.
func (h *conn) Follow(f *record.Follow) { h.pending.follow(f) }

// Passes implements record.Client.
func (h *conn) Passes(x *proxy.Exchange) {
	r := h.pending
	h.x = x
	r.recording.viewer.Leave()
	r.recording = nil
}

// Refuse implements record.Client.
func (h *conn) Refuse(err *push.APIError) {
	h.pending.recording.viewer.Leave()
	h.pending.fail(err)
}

// follow makes the client a subscriber of a recording.
func (r *request) follow(f *record.Follow) {
	h, c, rec := r.h, r.c, r.recording
	if h.ended {
		c.Close(nil) // the client went meanwhile
		return
	}
	fields := http1.AppendField(r.streamFields(), "Weir-Recording", f.URL)
	sub := &push.Subscription{Subscription: wire.Subscription{Channels: []string{f.Channel}, Since: f.Since}, Identity: rec.who, Fields: fields, Chunked: r.chunks()}
	h.unwait()
	if err := h.lane.srv.push.ServeRecording(c, sub, rec.viewer.Leave); err != nil {
		rec.viewer.Leave()
		r.fail(push.ErrorOf(err))
		return
	}
	h.pending = nil
	r.status = http.StatusOK
	r.release()
	goOn(c)
}

// streamFields are the field lines of an answer that is a stream of ours: what the
// route's rules and CORS say.
func (r *request) streamFields() []byte {
	if !r.matched {
		return r.recording.fields
	}
	f := policy.Framing{Length: -1, Extra: r.ownFields()}
	b := r.policy.Route.AppendResponseHead(nil, &r.policy, http.StatusOK, nil, f)
	_, b, _ = bytes.Cut(b, crlf)
	return b[:len(b)-len(crlf)]
}

// forsake ends what r follows or waits for: its client is gone.
func (r *request) forsake() {
	if rec := r.recording; rec != nil && rec.viewer != nil {
		if rec.ask.Tape != nil {
			rec.ask.Tape.Forsake()
		}
		rec.viewer.Leave()
	}
}

// recordingAgain serves GET /api/recording.
func (r *request) recordingAgain() {
	query, _ := http1.QueryValue(r.head.Query, "id")
	id, ok := record.ParseID(string(query))
	switch {
	case !r.admitPage():
		r.fail(errOrigin)
		return
	case !ok:
		r.fail(&push.APIError{Status: http.StatusNotFound, Message: "that is no recording", Hint: "take the URL from the Weir-Recording field"})
		return
	}
	header := headerOf(r.head.Fields)
	rec := &recording{fields: r.fields()}
	rec.ask = record.Ask{ID: &id, Since: header.Get("Last-Event-ID")}
	if v, ok := http1.QueryValue(r.head.Query, "lastEventId"); ok && rec.ask.Since == "" {
		rec.ask.Since = string(v)
	}
	begin := func(r *request, who *auth.Identity) {
		rec.who = who
		rec.ask.Attach = func(o record.Owner) bool { return o.Admits(who, header) }
		r.recording = rec
		r.askRecorder()
	}
	if id.NeedsIdentity() {
		r.identify(begin)
		return
	}
	begin(r, auth.Anonymous)
}
