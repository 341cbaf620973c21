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

// A recording is what a request has besides whose reply is recorded, or that is
// a request for one.
type recording struct {
	*forwarding
	query     record.Query
	requested record.Request
	viewer    *record.Viewer // nil: it has not asked yet
	lines     []byte         // fields of an answer to a request that no route serves
	who       *auth.Identity
}

// mayRecord prepares for a reply that will be recorded if it is an event stream.
func (r *forwarding) mayRecord(tg *target) {
	req, x := r.head, &r.policy
	if !tg.record.Enabled() || r.method != "GET" && r.method != "POST" || req.Upgrade != nil {
		return
	}
	header := headerOf(req.Fields)
	rec := &recording{forwarding: r, who: x.Identity}
	rec.query = record.Query{
		Record: &tg.record, Route: x.Route.Name(), Owner: record.OwnerOf(x.Identity, tg.record.Key, header, x.Client),
		Since: header.Get("Last-Event-ID"), Tape: &record.Tape{},
	}
	rec.requested = record.Request{Route: x.Route.Name(), Method: r.method, Path: string(x.NormalPath()), Query: string(x.Query),
		Idempotency: header.Get("Idempotency-Key")}
	r.recording = rec
}

// sink is where the reply goes.
func (r *forwarding) sink() proxy.Sink {
	if r.recording != nil {
		return r.recording.query.Tape
	}
	return &r.reply
}

// queryRecorder finds out whether the reply is being recorded already. body is the whole
// body of the request.
func (rec *recording) queryRecorder(body []byte) {
	rec.requested.Body = body
	rec.query.Key = rec.requested.Key(rec.query.Owner)
	rec.attach()
}

// attach queries the recorder, and has the connection wait for the answer.
func (rec *recording) attach() {
	r, h := rec.request, rec.h
	r.body = nil
	h.pending = r
	h.wait(r.c)
	rec.query.Loop, rec.query.Then = r.c.Loop(), rec.recorded
	rec.viewer = h.loopState.srv.recorder.Query(rec.query)
}

// recorded gets the recorder's answer.
func (rec *recording) recorded(a record.Answer) {
	if rec.c.Closing() {
		rec.viewer.Leave()
		if a.Start {
			rec.query.Tape.Void()
		}
		return
	}
	switch {
	case a.Start:
		rec.begin()
	case a.Follow != nil:
		rec.follow(a.Follow)
	case a.Over:
		// To an EventSource 204 says not to come back (WHATWG HTML §9.2.3).
		rec.viewer.Leave()
		rec.answerWith(http.StatusNoContent, "", nil, answerFields, rec.streamFields())
	default:
		rec.viewer.Leave()
		rec.fail(a.Err)
	}
}

// begin sends the request to the upstream. What rec belongs to may be over when a call returns, but the
// exchange continues without it.
func (rec *recording) begin() {
	r := rec.forwarding
	e, tape, m, body := r.ready, rec.query.Tape, r.mirrorTo, rec.requested.Body
	trailer := r.trailers()
	r.ready, r.h.state = nil, answering
	if m != nil {
		r.startMirror(m, e)
		r.mirror.body(body)
		r.mirror.end(trailer)
	}
	tape.Begin(e, &r.reply)
	e.Start()
	if tape.Active() && len(body) > 0 {
		e.Body(body)
	}
	if tape.Active() {
		e.End(trailer)
	}
}

// Follow implements record.Client.
func (r *reply) Follow(f *record.Follow) { r.recording.follow(f) }

// Passes implements record.Client.
func (r *reply) Passes(x *proxy.Exchange) {
	r.h.x = x
	r.recording.viewer.Leave()
	r.recording = nil
}

// Refuse implements record.Client.
func (r *reply) Refuse(err *push.APIError) {
	r.recording.viewer.Leave()
	r.fail(err)
}

// follow makes the client a subscriber of a recording.
func (rec *recording) follow(f *record.Follow) {
	r, h, c := rec.request, rec.h, rec.c
	if h.ended {
		c.Close(nil) // the client went meanwhile
		return
	}
	fields := http1.AppendField(rec.streamFields(), "Weir-Recording", f.URL)
	sub := &push.Subscription{Subscription: wire.Subscription{Channels: []string{f.Channel}, Since: f.Since, MaxBackoff: rec.patience},
		Identity: rec.who, Fields: fields, Chunked: r.chunks()}
	h.unwait()
	if err := h.loopState.srv.push.ServeRecording(c, sub, rec.viewer.Leave); err != nil {
		rec.viewer.Leave()
		r.fail(push.ErrorOf(err))
		return
	}
	h.pending = nil
	r.status = http.StatusOK
	r.release()
	resumeInput(c)
}

// streamFields are the field lines of an answer that is a stream of ours: what the
// route's rules and CORS say.
func (rec *recording) streamFields() []byte {
	if !rec.matched {
		return rec.lines
	}
	f := policy.Framing{Length: -1, Extra: rec.reply.addedFields()}
	b := rec.policy.Route.AppendResponseHead(nil, &rec.policy, http.StatusOK, nil, f)
	_, b, _ = bytes.Cut(b, crlf)
	return b[:len(b)-len(crlf)]
}

// detach releases what a client that is gone follows or waits for. rec may be nil.
func (rec *recording) detach() {
	if rec != nil && rec.viewer != nil {
		if rec.query.Tape != nil {
			rec.query.Tape.Detach()
		}
		rec.viewer.Leave()
	}
}

// recordingAgain serves GET /api/recording.
func (r *builtin) recordingAgain() {
	query, _ := http1.QueryValue(r.head.Query, "id")
	id, ok := record.ParseID(string(query))
	switch {
	case !r.admitPage():
		r.fail(errOrigin)
		return
	case !ok:
		r.fail(&push.APIError{Status: http.StatusNotFound, Message: "that is not a recording", Hint: "take the URL from the Weir-Recording field"})
		return
	}
	var bad *push.APIError
	if r.forwarding.patience, bad = r.maxBackoff(); bad != nil {
		r.fail(bad)
		return
	}
	header := headerOf(r.head.Fields)
	rec := &recording{forwarding: &r.forwarding, lines: r.fields()}
	rec.query = record.Query{ID: &id, Since: header.Get("Last-Event-ID")}
	if v, ok := http1.QueryValue(r.head.Query, "lastEventId"); ok && rec.query.Since == "" {
		rec.query.Since = string(v)
	}
	begin := func(r *request, who *auth.Identity) {
		rec.who = who
		rec.query.Attach = func(o record.Owner) bool { return o.Admits(who, header) }
		r.forwarding.recording = rec
		rec.attach()
	}
	if id.NeedsIdentity() {
		r.identify(begin)
		return
	}
	begin(r.request, auth.Anonymous)
}
