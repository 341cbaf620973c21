package downstream

import (
	"net/http"

	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/push"
)

// A validation is what a route's document is held against, once the body is whole.
type validation struct {
	by                  *policy.Validator
	method, path, query string
	header              http.Header
	body                []byte
}

func newValidation(by *policy.Validator, r *request) *validation {
	v := &validation{by: by, method: r.method, path: string(r.policy.NormalPath()), query: string(r.head.Query), header: headerOf(r.head.Fields)}
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

// collect takes the whole body of r, to be validated before e is started.
func (r *request) collect(e *proxy.Exchange, rest []byte) int {
	h, req := r.h, r.head
	limit := r.checked.by.MaxBody()
	if m := r.limit; m >= 0 {
		limit = min(limit, m)
	}
	r.policy.Retain()
	r.ready = e
	r.endpoint = &endpoint{maxBody: int(limit), serve: (*request).validate}
	h.pending = r
	switch {
	case !r.unread:
		r.validate()
		return 0
	case req.ContentLength > limit:
		r.tooLarge()
		return len(rest)
	}
	h.takeBody(r)
	if len(rest) == 0 {
		return 0
	}
	return h.readBody(r.c, rest)
}

// validate validates r off the loop and lets it go on if it is valid.
func (r *request) validate() {
	srv, v := r.h.lane.srv, r.checked
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
				r.validated(err)
			}
		})
	})
}

func (r *request) validated(err error) {
	h, c, v, e := r.h, r.c, r.checked, r.ready
	h.unwait()
	if err != nil {
		bad := &push.APIError{Status: http.StatusBadRequest, Message: err.Error()}
		if e, ok := err.(*policy.ValidationError); ok { //nolint:errorlint // Request returns nothing else
			bad.Status = e.Status
		}
		r.fail(bad)
		return
	}
	r.ready = nil
	seq := r.seq
	h.pending, h.x, h.state = r, e, answering
	h.count()
	if r.mirrorTo != nil {
		r.startMirror(r.mirrorTo, e)
		r.mirror.body(v.body)
		r.mirror.end()
	}
	e.Start()
	if r.seq == seq && !c.Closing() && len(v.body) > 0 {
		e.Body(v.body)
	}
	if r.seq == seq && !c.Closing() {
		e.End()
	}
}
