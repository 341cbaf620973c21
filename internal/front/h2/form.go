package h2

import (
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// A RequestHead makes a head in the form of HTTP/1.1 of the fields of a request's header
// section, as HTTP/2 has them and HTTP/3 (RFC 9114 §4.2, §4.3). Reset makes it ready.
type RequestHead struct{ fields fields }

// Reset forgets all fields. lim are the bounds that the next ones are held to.
func (q *RequestHead) Reset(lim http1.Limits) { q.fields.reset(lim) }

// Add takes the next field.
func (q *RequestHead) Add(name, value string) {
	q.fields.add(hpack.HeaderField{Name: name, Value: value})
}

// Malformed reports why the fields break a rule of their own; empty: they break none.
func (q *RequestHead) Malformed() string { return q.fields.bad }

// TooLarge reports whether there was more than the bounds allow.
func (q *RequestHead) TooLarge() bool { return q.fields.over }

// Length is what the fields say about the length of the body; -1: nothing.
func (q *RequestHead) Length() int64 { return q.fields.length }

// Connect reports whether the request is for a tunnel.
func (q *RequestHead) Connect() bool { return q.fields.method == "CONNECT" }

// Bodiless reports whether the request's method has no use for a body.
func (q *RequestHead) Bodiless() bool {
	switch q.fields.method {
	case "GET", "HEAD", "OPTIONS", "DELETE":
		return true
	}
	return false
}

// Urgency is the request's, 0 first and 7 last (RFC 9218 §4.1).
func (q *RequestHead) Urgency() uint8 { return q.fields.urgency }

// Append appends the head. ends says that there is no body. It returns false if the fields
// break a rule that is not HTTP/1.1's, whose parser sees to the others. One that is too
// large becomes one that no parser within the bounds takes.
func (q *RequestHead) Append(b []byte, ends bool, lim http1.Limits) ([]byte, bool) {
	at := len(b)
	b, ok := q.fields.appendHead(b, ends)
	if ok && q.fields.over {
		b = appendTooLarge(b[:at], lim.MaxHead)
	}
	return b, ok
}

// TooLargeHead appends a head that no parser within the bounds takes.
func TooLargeHead(b []byte, lim http1.Limits) []byte { return appendTooLarge(b, lim.MaxHead) }

// Trailers returns the fields behind a body as lines of HTTP/1.1. It returns false if they
// are none.
func (q *RequestHead) Trailers() (lines []byte, ok bool) {
	r := &q.fields
	return r.rest, r.bad == "" && !r.over && r.seen == 0
}

// appendFieldName appends a field's name of an answer in small letters. It returns false if
// the field is about a connection of HTTP/1.1 and not to be sent (RFC 9113 §8.2.2).
func appendFieldName(b, name []byte) ([]byte, bool) {
	at := len(b)
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	switch string(b[at:]) {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "sec-websocket-accept":
		return b, false
	}
	return b, true
}
