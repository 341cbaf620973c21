package downstream

import (
	"net/http"
	"net/netip"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push"
)

// beginBody authenticates before it buffers the body, so unauthenticated clients cannot
// make it allocate. The head is at hand now and will not be when the body is there.
func (h *conn) beginBody(r *request, req *http1.Request, rest []byte) int {
	n := req.ContentLength
	whole := n >= 0 && int64(len(rest)) >= n
	r.unread = !whole
	switch {
	case !req.Chunked && n < 0:
		r.fail(&push.APIError{Status: http.StatusLengthRequired, Message: "a body is wanted", Hint: "send Content-Length, or chunks"})
		return len(rest)
	case n > int64(r.endpoint.maxBody):
		r.tooLarge()
		return len(rest)
	}
	r.expect = req.Expect100 && len(rest) == 0
	h.expectBody(r, n)
	seq := r.seq
	if !r.admitPage() {
		r.fail(errOrigin)
		return h.skipped(n, whole, rest)
	}
	switch id, token, known := r.known(); {
	case known && id == auth.Anonymous:
		r.fail(errPublisher)
	case known:
		if !r.builtin.mayPublish(r.client(), id) {
			break
		}
		r.builtin.identity = id
		h.collectBody(r)
		return h.readBody(rest)
	case token != "":
		client := r.client()
		r.builtin.verify(token, func(r *request, id *auth.Identity) { r.builtin.admitted(client, id) }) // the body waits
	}
	if r.seq == seq && h.state == answering {
		return 0
	}
	return h.skipped(n, whole, rest)
}

// skipped is what of rest a request used that was refused: if its body is complete, the
// connection continues after it.
func (h *conn) skipped(n int64, whole bool, rest []byte) int {
	if whole {
		return int(n)
	}
	return len(rest)
}

// expectBody prepares for a body of n bytes; -1: chunked.
func (h *conn) expectBody(r *request, n int64) {
	h.pending, h.left, h.got, h.chunked, h.body = r, n, 0, http1.Chunked{}, nil
}

var errPublisher = &push.APIError{Status: http.StatusUnauthorized, Message: "publishing needs a key or a token",
	Hint: "send X-API-Key, or Authorization: Bearer with publish grants"}

// admitted continues with the body of r after its token was verified.
func (r *builtin) admitted(client netip.Addr, id *auth.Identity) {
	if id == auth.Anonymous {
		r.fail(errPublisher)
		return
	}
	if !r.mayPublish(client, id) {
		return
	}
	h, c := r.h, r.c
	r.identity = id
	h.collectBody(r.request)
	h.readBody(nil) // there may be nothing to wait for
	resumeInput(c)
}

// collectBody makes the connection collect the body of r.
func (h *conn) collectBody(r *request) {
	if r.expect {
		r.c.Write(continueHead)
	}
	h.state = readingBody
	r.c.SetTimer(h.loopState.srv.bounds.body)
}

var continueHead = []byte("HTTP/1.1 100 Continue\r\n\r\n")

// readBody collects the body and serves when all of it is there. What is kept is
// bounded by the endpoint's limit.
func (h *conn) readBody(b []byte) int {
	r := h.pending
	if h.left >= 0 && h.body == nil && int64(len(b)) >= h.left {
		n := int(h.left)
		h.serveBody(r, b[:n])
		return n
	}
	used, done := 0, false
	for !done && used < len(b) {
		data, n, end, err := h.piece(b[used:])
		if err != nil {
			h.dropBody()
			h.loopState.counters.bad.Add(1)
			r.broken(err)
			return len(b)
		}
		if n == 0 && !end {
			break
		}
		used, done = used+n, end
		if len(h.body)+len(data) > r.endpoint.maxBody {
			h.dropBody()
			r.tooLarge()
			return len(b)
		}
		h.body = append(h.body, data...)
	}
	if done {
		h.serveBody(r, h.body)
	}
	return used
}

// piece decodes the next piece of a body at the start of b, of which it uses n bytes.
func (h *conn) piece(b []byte) (data []byte, n int, done bool, err error) {
	if h.left < 0 {
		data, n, done, err = h.chunked.DecodeTrailer(b, &h.pending.trailer)
	} else {
		data = b[:min(int64(len(b)), h.left)]
		n = len(data)
		h.left -= int64(n)
		done = h.left == 0
	}
	h.got += int64(len(data))
	return data, n, done, err
}

// serveBody serves r with its whole body, which is valid until this returns.
func (h *conn) serveBody(r *request, body []byte) {
	h.dropBody()
	r.unread = false
	r.body = body
	r.endpoint.serve(r)
}

func (h *conn) dropBody() { h.state, h.pending, h.body = readingHead, nil, nil }
