package policy

import (
	"bytes"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// appendQuery appends a query as sent. What no target may hold, which only
// another front can let through, is encoded.
func appendQuery(dst, query []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range query {
		if c <= ' ' || c >= 0x7f || c == '#' {
			dst = append(dst, '%', digits[c>>4], digits[c&15])
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

// appendWithoutToken is appendQuery without the pairs called token.
func appendWithoutToken(dst, query []byte) []byte {
	first := true
	for rest := query; rest != nil; {
		var pair []byte
		pair, rest, _ = bytes.Cut(rest, []byte("&")) // rest is nil behind the last
		if _, is := http1.QueryValue(pair, "token"); is {
			continue
		}
		if !first {
			dst = append(dst, '&')
		}
		first = false
		dst = appendQuery(dst, pair)
	}
	return dst
}

// appendHost appends a host in lower case, without the dot that may end a name.
func appendHost(dst, host []byte) []byte {
	name := hostName(host)
	port := host[len(name):]
	if n := len(name); n > 1 && name[n-1] == '.' {
		name = name[:n-1]
	}
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return append(dst, port...)
}

// hostName returns host without its port.
func hostName(host []byte) []byte {
	if i := bytes.LastIndexByte(host, ':'); i >= 0 && bytes.IndexByte(host[i:], ']') < 0 {
		return host[:i]
	}
	return host
}

// validHost reports whether h is bytes of host [ ":" port ]. The event loops' parser
// has checked more; this is for what others let through.
func validHost(h []byte) bool {
	for _, c := range h {
		switch {
		case plainBytes[c], c == '.', c == '_', c == '~', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return len(h) > 0
}

// redirected answers with the place that the route specifies.
func (r *admission) redirected(x *Exchange) Verdict {
	x.outBuf = r.redirect.expand(x.outBuf[:0], x)
	x.lines = http1.AppendField(x.lines[:0], "Location", x.outBuf)
	x.lines = r.AppendCORS(x.lines, x)
	return Verdict{Action: Respond, Status: r.cfg.Redirect.Status, Fields: x.lines}
}
