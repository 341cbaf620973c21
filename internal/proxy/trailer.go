package proxy

import (
	"bytes"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// notInTrailers are fields that say how a message is framed, routed, authenticated
// or processed: a recipient may have acted on the head already (RFC 9110 §6.5.1).
var notInTrailers = []string{
	"transfer-encoding", "content-length", "content-encoding", "content-type", "content-range", "content-location",
	"host", "connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "via", "forwarded",
	"authorization", "proxy-authorization", "proxy-authenticate", "www-authenticate", "authentication-info", "cookie", "set-cookie",
	"cache-control", "expires", "pragma", "vary", "age", "date", "etag", "last-modified", "location", "retry-after", "warning",
	"expect", "max-forwards", "range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range",
	"strict-transport-security", "access-control-allow-origin", "access-control-allow-credentials",
}

// allowedTrailers is appendTrailers in place of b.
func allowedTrailers(b []byte) []byte { return appendTrailers(b[:0], b) }

// appendTrailers appends those field lines of a trailer section that may be passed on.
// The section was checked line by line when it was read.
func appendTrailers(out, b []byte) []byte {
	for len(b) > 0 {
		end := bytes.Index(b, crlf)
		if end <= 0 {
			break // the empty line that ends the section
		}
		line := b[:end+2]
		b = b[end+2:]
		if name, _, ok := bytes.Cut(line, []byte(":")); ok && !forbidden(name) {
			out = append(out, line...)
		}
	}
	return out
}

func forbidden(name []byte) bool {
	for _, f := range notInTrailers {
		if http1.EqualFold(name, f) {
			return true
		}
	}
	return false
}
