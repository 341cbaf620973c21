package policy

import (
	"strings"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/redact"
)

// UsualMethods are what a route without methods of its own is for, as Allow names them.
// TRACE is not among them.
const UsualMethods = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

// maxForwards bounds what is passed on of Max-Forwards: the least that a number of hops
// may be is what we support at most (RFC 9110 §7.6.2).
const maxForwards = 255

// traced refuses TRACE where the route's methods do not name it: a backend answers with
// the request that it got, and with it what the gateway added.
func (r *admission) traced(x *Exchange) (v Verdict, refused bool) {
	if string(x.Method) != "TRACE" {
		return v, false
	}
	if !r.allowsTrace {
		x.lines = http1.AppendField(x.lines[:0], "Allow", r.allow)
		return Verdict{Status: 405, Message: "method not allowed", Hint: "TRACE needs a route whose methods name it", Fields: x.lines}, true
	}
	if x.Length > 0 {
		return Verdict{Status: 400, Message: "TRACE with a body"}, true // RFC 9110 §9.3.8
	}
	return v, false
}

// hops reads Max-Forwards of TRACE and OPTIONS. last means that Weir is where the request
// ends: then v is the answer.
func (r *admission) hops(x *Exchange) (v Verdict, last bool) {
	x.hopsLeft = -1
	trace := string(x.Method) == "TRACE"
	if !trace && string(x.Method) != "OPTIONS" {
		return v, false
	}
	value := x.Fields.Get("Max-Forwards")
	if value == nil {
		return v, false
	}
	n, ok := hopCount(value)
	switch {
	case !ok:
		return r.refuse(x, 400, "bad Max-Forwards", "it is a number of hops"), true
	case n > 0:
		x.hopsLeft = int16(min(n-1, maxForwards))
		return v, false
	case trace:
		x.lines = r.AppendCORS(x.lines[:0], x)
		return Verdict{Action: Respond, Status: 200, Fields: x.lines, ContentType: "message/http", Body: appendEcho(nil, x)}, true
	}
	x.lines = http1.AppendField(x.lines[:0], "Allow", r.allow)
	x.lines = r.AppendCORS(x.lines, x)
	return Verdict{Action: Respond, Status: 204, Fields: x.lines}, true
}

// hopCount reads 1*DIGIT. A number that is too large for any way is the largest.
func hopCount(v []byte) (n int, ok bool) {
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int(c-'0'), 1<<20)
	}
	return n, len(v) > 0
}

// appendEcho appends the request as it came, without what may be a secret (RFC 9110 §9.3.8).
func appendEcho(dst []byte, x *Exchange) []byte {
	dst = append(append(dst, "TRACE "...), x.path...)
	if x.Query != nil {
		dst = redact.AppendQuery(append(dst, '?'), x.Query, x.Route.redact)
	}
	version := " HTTP/1.1\r\n"
	switch x.Minor {
	case 0:
		version = " HTTP/1.0\r\n"
	case 2:
		version = " HTTP/2\r\n"
	case 3:
		version = " HTTP/3\r\n"
	}
	dst = append(dst, version...)
	dst = http1.AppendField(dst, "Host", x.Host)
	for i := range x.Fields {
		if f := &x.Fields[i]; !redact.Name(f.Name) {
			dst = http1.AppendField(dst, f.Name, f.Value)
		}
	}
	return append(dst, "\r\n"...)
}

// allowOf returns the methods of a route as Allow names them.
func allowOf(methods []string) string {
	if len(methods) == 0 {
		return UsualMethods
	}
	return strings.Join(methods, ", ")
}
