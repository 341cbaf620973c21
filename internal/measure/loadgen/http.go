package loadgen

import (
	"strconv"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A bodyReader finds the end of a body.
type bodyReader struct {
	kind    http1.Body
	left    int64
	chunked *http1.Chunked
}

func (r *bodyReader) start(head *http1.Response) {
	r.kind, r.left = head.Body, head.ContentLength
	if r.kind == http1.BodyChunked {
		if r.chunked == nil {
			r.chunked = new(http1.Chunked)
		}
		*r.chunked = http1.Chunked{}
	}
}

// read consumes n bytes of b, which hold data of the body; done says that it is
// complete.
func (r *bodyReader) read(b []byte) (data []byte, n int, done bool, err error) {
	switch r.kind {
	case http1.BodyLength:
		n = int(min(int64(len(b)), r.left))
		r.left -= int64(n)
		return b[:n], n, r.left == 0, nil
	case http1.BodyChunked:
		return r.chunked.Decode(b)
	case http1.BodyUntilClose:
		return b, len(b), false, nil
	}
	return nil, 0, true, nil
}

// An httpConn carries HTTP/1.1 requests: the load itself, or publishes.
type httpConn struct {
	requestConn
	body    bodyReader
	inBody  bool
	last    bool // the connection ends after this response
	status  int
	verdict string // of this response so far: why it is an error
	peek    []byte // the beginning of a body that must be looked at
	request []byte // of its own, where Target differs by connection
	pub     uint16 // number as a publisher
}

var _ sender = (*httpConn)(nil)

// Connected implements eventloop.Connector.
func (h *httpConn) Connected(*eventloop.Conn) { h.s.established(h) }

// transmit implements sender.
func (h *httpConn) transmit(ex *exchange) {
	switch {
	case h.s.g.spec.Kind == PubSub:
		h.w.Write(h.s.publishes.request(int(h.pub), ex))
	case h.request != nil:
		h.w.Write(h.request)
	default:
		h.w.Write(h.s.g.request)
	}
}

// Data implements eventloop.Handler.
func (h *httpConn) Data(_ *eventloop.Conn, b []byte) int {
	h.s.touch()
	total := 0
	for len(b) > 0 && h.state == up {
		n, ok := h.step(b)
		total += n
		b = b[n:]
		if !ok {
			break
		}
	}
	h.s.serve()
	return total
}

// step takes one thing out of b; not ok means that more is needed, or that the
// connection has ended.
func (h *httpConn) step(b []byte) (n int, ok bool) {
	if h.inBody {
		data, n, done, err := h.body.read(b)
		if err != nil {
			h.w.Close(badResponse{err})
			return n, false
		}
		h.look(data)
		if done {
			h.answered()
		}
		return n, done || n > 0
	}
	if len(h.out) == 0 {
		h.w.Close(badResponse{errUnasked})
		return len(b), false
	}
	head := &h.s.reader.head
	n, err := http1.ParseResponse(head, b, http1.Limits{}, h.s.g.method)
	if err != nil {
		h.w.Close(badResponse{err})
		return 0, false
	}
	if n == 0 {
		return 0, false
	}
	if head.Status < 200 && head.Status != 101 {
		return n, true
	}
	h.status, h.last = head.Status, !head.KeepAlive
	h.verdict = ""
	if head.Status < 200 || head.Status >= 400 || h.s.g.spec.Kind == PubSub && head.Status >= 300 {
		h.verdict = statusReason(head.Status)
	}
	h.peek = h.peek[:0]
	h.body.start(head)
	h.inBody = true
	if head.Body == http1.BodyNone || head.Body == http1.BodyTunnel || head.Body == http1.BodyLength && head.ContentLength == 0 {
		h.answered()
	}
	return n, true
}

// look keeps what the adapter must see of the body.
func (h *httpConn) look(data []byte) {
	if room := h.s.g.adapter.peek - len(h.peek); h.s.g.spec.Kind == PubSub && room > 0 {
		h.peek = append(h.peek, data[:min(room, len(data))]...)
	}
}

// answered ends the response to the oldest exchange.
func (h *httpConn) answered() {
	h.inBody = false
	ex := h.finish()
	now := h.s.now
	if h.verdict == "" && h.s.g.spec.Kind == PubSub {
		h.verdict = h.s.g.adapter.refused(h.peek)
	}
	if h.verdict == "" {
		h.s.complete(ex, now)
	} else {
		h.s.fail(ex, h.verdict, now)
	}
	switch {
	case h.last:
		h.w.Close(nil)
	case h.retiring && len(h.out) == 0:
		h.w.Close(errRetired)
	default:
		h.s.free.offer(h)
	}
}

// EndOfStream implements eventloop.Handler.
func (h *httpConn) EndOfStream(*eventloop.Conn) bool {
	if h.inBody && h.body.kind == http1.BodyUntilClose {
		h.s.touch()
		h.last = true
		h.answered()
	}
	return false
}

// Closed implements eventloop.Handler.
func (h *httpConn) Closed(_ *eventloop.Conn, err error) {
	h.inBody = false
	h.lost(h, err)
}

// A badResponse is what could not be understood.
type badResponse struct{ error }

func (e badResponse) Error() string { return "bad response: " + e.error.Error() }
func (e badResponse) Unwrap() error { return e.error }

type plainError string

func (e plainError) Error() string { return string(e) }

const errUnasked = plainError("nothing was asked")

func statusReason(status int) string { return "status " + strconv.Itoa(status) }

// reader is what parsing needs and a loop can share.
type reader struct{ head http1.Response }
