package downstream

import (
	"bytes"
	"cmp"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// gRPC is proxied as any HTTP/2 is. What it needs besides: its own form of errors, deadlines,
// and requests that may be silent for as long as the caller likes.

// speaksGRPC reports whether a request is one of gRPC: application/grpc, or that with a suffix.
func speaksGRPC(req *http1.Request) bool {
	const name = "application/grpc"
	v := req.Get("Content-Type")
	return len(v) >= len(name) && http1.EqualFold(v[:len(name)], name) && (len(v) == len(name) || v[len(name)] == '+' || v[len(name)] == ';')
}

// grpcTimeout reads a grpc-timeout field: up to eight digits and a unit. 0: there is none, or
// it is not valid.
func grpcTimeout(v []byte) time.Duration {
	if len(v) < 2 || len(v) > 9 {
		return 0
	}
	n, err := strconv.ParseUint(string(v[:len(v)-1]), 10, 32)
	if err != nil {
		return 0
	}
	units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}
	unit, ok := units[v[len(v)-1]]
	switch {
	case !ok:
		return 0
	case n > uint64(maxGRPCTimeout/unit):
		return maxGRPCTimeout
	}
	return max(time.Duration(n)*unit, time.Nanosecond)
}

// maxGRPCTimeout is as good as none.
const maxGRPCTimeout = 10 * 365 * 24 * time.Hour

// grpcStatus is the status of gRPC for an answer of our own with a status of HTTP.
func grpcStatus(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusLengthRequired, http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType:
		return 3 // INVALID_ARGUMENT
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return 4 // DEADLINE_EXCEEDED
	case http.StatusForbidden:
		return 7 // PERMISSION_DENIED
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge:
		return 8 // RESOURCE_EXHAUSTED
	case http.StatusConflict:
		return 10 // ABORTED
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return 12 // UNIMPLEMENTED
	case http.StatusInternalServerError:
		return 13 // INTERNAL
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return 14 // UNAVAILABLE
	case http.StatusUnauthorized:
		return 16 // UNAUTHENTICATED
	}
	return 2 // UNKNOWN
}

// appendGRPCStatus appends the fields that say how a call ended.
func appendGRPCStatus(b []byte, code int, message string) []byte {
	b = http1.AppendIntField(b, "grpc-status", int64(code))
	b = append(b, "grpc-message: "...)
	const digits = "0123456789ABCDEF"
	for i := range len(message) { // percent-encoded, as the gRPC protocol has it
		if c := message[i]; c < ' ' || c > '~' || c == '%' {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return append(b, "\r\n"...)
}

// answerGRPC answers a call of gRPC that came to nothing with a status of HTTP: 200, no body,
// and what gRPC makes of it.
func (r *forwarding) answerGRPC(status int, fields []byte) {
	loopState := r.h.loopState
	message := r.reason
	message = cmp.Or(message, http.StatusText(status))
	code := grpcStatus(status)
	if r.unread || loopState.srv.push.Draining() {
		r.keepAlive = false
	}
	b := appendStatus(loopState.buf[:0], http.StatusOK)
	b = loopState.appendDate(b, r.c.Loop())
	var body []byte
	if r.web == nil {
		b = append(b, "Content-Type: application/grpc\r\nContent-Length: 0\r\n"...)
		b = appendGRPCStatus(b, code, message)
	} else {
		body = r.web.trailers(appendGRPCStatus(nil, code, message))
		b = http1.AppendField(b, "Content-Type", r.web.contentType())
		b = http1.AppendIntField(b, "Content-Length", int64(len(body)))
	}
	b = append(b, fields...)
	if !r.keepAlive {
		b = append(b, "Connection: close\r\n"...)
	}
	loopState.buf = append(append(b, "\r\n"...), body...)
	h, c, keepAlive := r.h, r.c, r.keepAlive
	c.Write(loopState.buf)
	r.status, r.reply.grpcCode = status, code
	r.release()
	h.next(c, keepAlive)
}

// cutGRPC ends a call of gRPC in the middle of its reply by a status, where the client takes
// trailers. It reports whether it could.
func (r *reply) cutGRPC(status int, message string) bool {
	h, c := r.h, r.c
	if !r.grpc || !r.acceptsTrailers || r.web != nil && !r.web.answered || r.web == nil && !c.Shared() && !r.chunkedOut || c.Closing() {
		return false
	}
	r.grpcCode = grpcStatus(status)
	lines := appendGRPCStatus(nil, r.grpcCode, message)
	switch {
	case r.web != nil:
		r.endWeb(lines)
	case c.Shared():
		writeTrailer(c, lines)
	default:
		c.Write(http1.AppendLastChunk(nil, lines))
	}
	r.release()
	h.next(c, false)
	return true
}

// notes keeps the status of gRPC that a reply ends with, in its head or its trailers.
func (r *reply) notes(status []byte) {
	if !r.grpc {
		return
	}
	if n, err := strconv.ParseUint(string(status), 10, 8); err == nil {
		r.grpcCode = int(n)
	}
}

// trailerField returns the value of the field called name among lines, or nil.
func trailerField(lines []byte, name string) []byte {
	for line := range bytes.Lines(lines) {
		if k, v, ok := bytes.Cut(line, []byte(":")); ok && http1.EqualFold(k, name) {
			return bytes.TrimSpace(v)
		}
	}
	return nil
}

// paces reports whether the client may take any time with its request: a call of gRPC, or a
// request that is being answered already. Both ends of an exchange move then.
func (h *conn) paces(c *eventloop.Conn) bool {
	r := h.pending
	if h.state != relaying || r == nil || !r.forwarding.grpc && !r.forwarding.reply.began {
		return false
	}
	c.SetTimer(h.loopState.srv.bounds.body)
	return true
}
