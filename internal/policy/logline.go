package policy

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/http1"
)

const redacted = "(redacted)"

// credentials are fields of which the log never gets the value.
var credentials = []string{"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-auth-token", "x-csrf-token"}

// wantsLine reports whether x may get a line: sampled, or only if it fails.
func (x *Exchange) wantsLine() bool {
	if x.Route != nil {
		return x.Route.logged
	}
	return x.set != nil && x.set.deps.AccessLog != nil
}

// describe writes the request's part of the line while the request is there.
func (x *Exchange) describe() {
	if len(x.line) > 0 || !x.wantsLine() {
		return
	}
	b := append(x.line[:0], `,"method":`...)
	b = appendJSON(b, x.Method)
	b = append(b, `,"host":`...)
	b = appendJSON(b, x.Host)
	b = append(b, `,"path":`...)
	if x.path != nil {
		b = appendJSON(b, x.path)
	} else {
		b = appendJSON(b, x.Path)
	}
	if x.Query != nil {
		b = append(b, `,"query":`...)
		var buf []byte
		if x.Route != nil {
			buf = appendRedacted(x.lines[:0], x.Query, x.Route.redact)
			x.lines = buf
		} else {
			buf = append(x.lines[:0], redacted...) // nobody has said what is secret
			x.lines = buf
		}
		b = appendJSON(b, buf)
	}
	if x.Route != nil && len(x.Route.cfg.AccessLog.Headers) > 0 {
		b = x.describeHeaders(b)
	}
	x.line = b
}

func (x *Exchange) describeHeaders(b []byte) []byte {
	b = append(b, `,"headers":{`...)
	first := true
	for _, name := range x.Route.cfg.AccessLog.Headers {
		v := http1get(x.Fields, name)
		if v == nil {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(strconv.AppendQuote(b, strings.ToLower(name)), ':')
		if isCredential(name) {
			b = append(b, `"`+redacted+`"`...)
		} else {
			b = appendJSON(b, v)
		}
	}
	return append(b, '}')
}

func isCredential(name string) bool {
	for _, c := range credentials {
		if strings.EqualFold(name, c) {
			return true
		}
	}
	return false
}

// writeLine hands the finished line to the log.
func (x *Exchange) writeLine(o *Outcome) {
	if !x.wantsLine() || x.Route != nil && !x.logged && o.Status < 500 {
		return
	}
	x.describe()
	b := append(x.lines[:0], `{"time":"`...)
	b = time.Now().UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","route":`...)
	if x.Route != nil {
		b = appendJSON(b, x.Route.cfg.Name)
	} else {
		b = append(b, `""`...)
	}
	b = strconv.AppendInt(append(b, `,"status":`...), int64(o.Status), 10)
	b = strconv.AppendFloat(append(b, `,"duration_ms":`...), float64(o.DurationNS)/1e6, 'f', 3, 64)
	b = strconv.AppendInt(append(b, `,"bytes_in":`...), o.BytesIn, 10)
	b = strconv.AppendInt(append(b, `,"bytes_out":`...), o.BytesOut, 10)
	if o.Upstream != "" {
		b = appendJSON(append(b, `,"upstream":`...), o.Upstream)
	}
	if o.Retries > 0 {
		b = strconv.AppendInt(append(b, `,"retries":`...), int64(o.Retries), 10)
	}
	if x.Trace.ID != [16]byte{} {
		b = hex.AppendEncode(append(b, `,"trace_id":"`...), x.Trace.ID[:])
		b = hex.AppendEncode(append(b, `","span_id":"`...), x.Trace.Span[:])
		b = append(b, '"')
	}
	client := x.Client
	if !client.IsValid() {
		client = x.Peer.Addr()
	}
	b = append(appendAddr(append(b, `,"client":"`...), client), '"')
	if x.Identity != nil && x.Identity.By != "" {
		b = appendJSON(append(b, `,"sub":`...), x.Identity.Subject)
		b = appendJSON(append(b, `,"auth":`...), x.Identity.By)
	}
	b = append(append(b, x.line...), "}\n"...)
	x.lines = b
	x.set.deps.AccessLog.add(b)
}

// appendRedacted appends a query in which the values of secrets are replaced. A
// pair that cannot be decoded is no pair of a known name: it goes as a whole.
func appendRedacted(dst, query []byte, secrets []string) []byte {
	for rest := query; rest != nil; {
		var pair []byte
		pair, rest = cutPair(rest)
		for p, err := range http1.Query(pair) {
			switch {
			case err != nil:
				dst = append(dst, redacted...)
			case isSecret(p.Name, secrets):
				name := pair
				for i, c := range pair {
					if c == '=' {
						name = pair[:i]
						break
					}
				}
				dst = append(append(append(dst, name...), '='), redacted...)
			default:
				dst = append(dst, pair...)
			}
		}
		if rest != nil {
			dst = append(dst, '&')
		}
	}
	return dst
}

func isSecret(name []byte, secrets []string) bool {
	for _, s := range secrets {
		if http1.EqualFold(name, s) {
			return true
		}
	}
	return false
}

// appendJSON appends s as a JSON string. What is no UTF-8 becomes U+FFFD.
func appendJSON[S ~string | ~[]byte](dst []byte, s S) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20 || c == 0x7f:
			dst = append(dst, `\u00`...)
			dst = append(dst, digits[c>>4], digits[c&15])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		}
		i++
	}
	return append(dst, '"')
}
