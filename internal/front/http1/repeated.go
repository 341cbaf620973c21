package http1

import "net/textproto"

// singletons are fields that a request has at most once, in lower case: their values are
// no lists, and two readers that take different ones of two take two requests. Host and
// the fields of the framing are evaluated by ParseRequest. net/http and proxies join the
// Cookie fields that HTTP/2 may split (RFC 9113 §8.2.3) before they are looked at here.
var singletons = [...]string{
	"origin", "cookie", "content-type", "authorization", "proxy-authorization", "x-api-key", "last-event-id", "max-forwards", "idempotency-key", "sec-fetch-site",
	"sec-websocket-key", "sec-websocket-version", "access-control-request-method",
}

// lengths has a bit for the length of each of them.
var lengths = func() (bits uint64) {
	for _, name := range singletons {
		bits |= 1 << len(name)
	}
	return bits
}()

// canonical are singletons as http.Header spells them.
var canonical = func() (names [len(singletons)]string) {
	for i, name := range singletons {
		names[i] = textproto.CanonicalMIMEHeaderKey(name)
	}
	return names
}()

// Repeated returns the name of a field that is in a request more than once although
// its value is not a list, or "". Such a request is refused with 400.
func Repeated(fields []Field) string {
	var seen uint64 // of lengths: most requests have no two that may be the same
	for i := range fields {
		n := len(fields[i].Name)
		if n >= 64 || lengths&(1<<n) == 0 {
			continue
		}
		if seen&(1<<n) != 0 {
			if name := singleton(fields[i].Name); name != "" && Fields(fields[:i]).Count(name) > 0 {
				return name
			}
		}
		seen |= 1 << n
	}
	return ""
}

func singleton(name []byte) string {
	for _, s := range singletons {
		if len(s) == len(name) && EqualFold(name, s) {
			return s
		}
	}
	return ""
}

// RepeatedIn is Repeated for the header of a request of net/http.
func RepeatedIn(h map[string][]string) string {
	for i, name := range canonical {
		if len(h[name]) > 1 {
			return singletons[i]
		}
	}
	return ""
}
