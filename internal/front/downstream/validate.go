package downstream

import (
	"bytes"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/push"
)

// A validation is what a route's document is compared with, once the body is complete.
type validation struct {
	*forwarding
	by                  *policy.Validator
	method, path, query string
	header              http.Header
	body                []byte
}

func newValidation(by *policy.Validator, r *forwarding) *validation {
	v := &validation{forwarding: r, by: by, method: r.method, path: string(r.policy.NormalPath()), query: string(r.head.Query), header: headerOf(r.head.Fields)}
	v.header["Host"] = []string{string(r.head.Host)}
	return v
}

func headerOf(fields []http1.Field) http.Header {
	h := http.Header{}
	for _, f := range fields {
		h.Add(string(f.Name), string(f.Value))
	}
	return h
}

// collects reports whether the whole body is needed before the upstream is asked: to
// be validated, to identify the request, or to join it with others.
func (r *forwarding) collects(tg *target) bool {
	return tg.validate != nil && tg.validate.Requests() || r.recording != nil || r.batching != nil
}

// maxCollected bounds a body that is collected where nothing else does.
const maxCollected = 8 << 20

// collect takes the whole body of r before e is started.
func (r *forwarding) collect(e *proxy.Exchange, rest []byte) int {
	h, req := r.h, r.head
	limit, serve := int64(maxCollected), func(r *request) { r.forwarding.recording.queryRecorder(bytes.Clone(r.body)) }
	if r.batching != nil {
		serve = func(r *request) { r.forwarding.batching.join(bytes.Clone(r.body)) }
	}
	if r.checked != nil && r.checked.by.Requests() {
		limit, serve = r.checked.by.MaxBody(), func(r *request) { r.forwarding.checked.validate() }
	}
	if m := r.limit; m >= 0 {
		limit = min(limit, m)
	}
	r.policy.Retain()
	r.ready = e
	r.endpoint = &endpoint{maxBody: int(limit), serve: serve}
	h.pending = r.request
	switch {
	case !r.unread:
		serve(r.request)
		return 0
	case req.ContentLength > limit:
		r.tooLarge()
		return len(rest)
	}
	h.collectBody(r.request)
	if len(rest) == 0 {
		return 0
	}
	return h.readBody(rest)
}

// validate validates r off the loop and lets it continue if it is valid.
func (v *validation) validate() {
	r, srv := v.request, v.h.loopState.srv
	if srv.inFlight.Add(1) > int64(srv.cfg.MaxVerifying) {
		srv.inFlight.Add(-1)
		r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "too many requests to validate, try again later"})
		return
	}
	v.body = append([]byte(nil), r.body...)
	r.body = nil
	r.h.pending = r
	r.h.wait(r.c)
	srv.working.Go(func() {
		err := v.by.Request(srv.ctx, v.method, v.path, v.query, v.header, v.body)
		srv.inFlight.Add(-1)
		r.c.Loop().Post(func() {
			if !r.c.Closing() {
				v.validated(err)
			}
		})
	})
}

func (v *validation) validated(err error) {
	r := v.forwarding
	h, c, e := r.h, r.c, r.ready
	h.unwait()
	if err != nil {
		bad := &push.APIError{Status: http.StatusBadRequest, Message: err.Error()}
		if e, ok := err.(*policy.ValidationError); ok { //nolint:errorlint // Request returns nothing else
			bad.Status = e.Status
		}
		r.fail(bad)
		return
	}
	if r.recording != nil {
		r.recording.queryRecorder(v.body)
		return
	}
	if r.batching != nil {
		r.batching.join(v.body)
		return
	}
	r.ready = nil
	seq, trailer := r.seq, r.trailers()
	h.pending, h.x, h.state = r.request, e, answering
	h.count()
	if r.mirrorTo != nil {
		r.startMirror(r.mirrorTo, e)
		r.mirror.body(v.body)
		r.mirror.end(trailer)
	}
	e.Start()
	if r.seq == seq && !c.Closing() && len(v.body) > 0 {
		e.Body(v.body)
	}
	if r.seq == seq && !c.Closing() {
		e.End(trailer)
	}
}
