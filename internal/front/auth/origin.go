package auth

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
)

// An Access reports what a web page of some origin may do.
type Access uint8

// From least to most.
const (
	// OriginRefused: the page may not connect (403).
	OriginRefused Access = iota
	// OriginOpen: it may connect, but what the browser adds by itself (cookies)
	// must not count, and CORS must not allow credentials: only "*", "null" or the
	// default for loopback let it in.
	OriginOpen
	// OriginTrusted: same origin, listed by name, or no web page.
	OriginTrusted
)

// An origin is scheme, host and port (RFC 6454 §4). Scheme and host are compared
// without case.
type origin struct {
	scheme, host []byte
	port         uint16 // the scheme's if none is written; 0: the scheme has none
}

// same reports whether o and e differ at most in their hosts.
func (o origin) same(e origin) bool { return o.port == e.port && equalFold(o.scheme, e.scheme) }

type origins struct {
	any, null bool
	exact     []origin
	sub       []origin // host is the suffix with its dot, ".example.com"
}

// A Page is what is known of the web page that makes a request. Its slices are read
// during the call only.
type Page struct {
	// Origin and Host are the request's header fields. No Origin means that no web
	// page made the request, or one of the same origin with a simple GET.
	Origin, Host []byte
	// TLS reports whether the request came over TLS here.
	TLS bool
	// Peer is the other end of the connection. The zero Addr is not loopback.
	Peer netip.Addr
	// Forwarded reports whether a proxy added fields of its own (ForwardingFields):
	// then Peer is the proxy.
	Forwarded bool
}

// ForwardingFields are the header fields by which a request shows that it came
// through a proxy.
var ForwardingFields = [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via"}

// OriginAccess returns what the page may do. Its own origin, made of Host and TLS, is
// always trusted. It never waits and allocates nothing.
//
// Behind a proxy that terminates TLS, list the public origin: the request's own
// scheme is not known here, and headers that claim it are not trusted.
func (a *ruleSet) OriginAccess(p Page) Access {
	if len(p.Origin) == 0 {
		return OriginTrusted
	}
	o, ok := parseOrigin(p.Origin)
	origins := &a.rules.Load().origins
	switch {
	case !ok && string(p.Origin) == "null" && (origins.null || origins.any):
		return OriginOpen
	case !ok:
		return OriginRefused
	case o.sameAs(p.Host, p.TLS) || origins.lists(o):
		return OriginTrusted
	case origins.any || o.isLoopback() && p.onLoopback():
		return OriginOpen
	}
	return OriginRefused
}

// onLoopback reports whether a browser on this machine made the request, and requested
// this machine by a name that only ever means itself. A page whose own name was made to
// resolve to 127.0.0.1 (DNS rebinding) shows that name in Host.
func (p *Page) onLoopback() bool {
	if p.TLS || p.Forwarded || !p.Peer.Unmap().IsLoopback() {
		return false
	}
	host, _, ok := parseHost(p.Host)
	return ok && isLoopbackName(host)
}

// isLoopback reports whether o is a page of a web server on the user's own machine.
func (o origin) isLoopback() bool {
	return (equalFold(o.scheme, []byte("http")) || equalFold(o.scheme, []byte("https"))) && isLoopbackName(o.host)
}

// isLoopbackName reports whether host is localhost, 127.0.0.1 or [::1]. Other names and
// addresses of the loopback network can be listed.
func isLoopbackName(host []byte) bool {
	return equalFold(host, []byte("localhost")) || string(host) == "127.0.0.1" || string(host) == "[::1]"
}

// lists reports whether o is listed by name or as a subdomain.
func (s *origins) lists(o origin) bool {
	for _, e := range s.exact {
		if o.same(e) && equalFold(o.host, e.host) {
			return true
		}
	}
	for _, e := range s.sub {
		cut := len(o.host) - len(e.host)
		if cut > 0 && o.same(e) && equalFold(o.host[cut:], e.host) {
			return true
		}
	}
	return false
}

func (o origin) sameAs(host []byte, tls bool) bool {
	scheme := []byte("http")
	if tls {
		scheme = []byte("https")
	}
	self := origin{scheme: scheme}
	var ok bool
	if self.host, self.port, ok = parseHost(host); !ok {
		return false
	}
	self.addPort()
	return o.same(self) && equalFold(o.host, self.host)
}

// parseOrigin reads what a browser sends (RFC 6454 §6.1): scheme://host[:port]
// and nothing else.
func parseOrigin(b []byte) (o origin, ok bool) {
	scheme, rest, ok := bytes.Cut(b, []byte("://"))
	if !ok || !validScheme(scheme) {
		return o, false
	}
	o.scheme = scheme
	if o.host, o.port, ok = parseHost(rest); !ok {
		return o, false
	}
	o.addPort()
	return o, true
}

// parseHost splits host[:port] and refuses what is not plain host name or
// bracketed address. port is 0 if none is written.
func parseHost(b []byte) (host []byte, port uint16, ok bool) {
	var rest []byte
	if len(b) > 0 && b[0] == '[' {
		end := bytes.IndexByte(b, ']')
		if end < 0 {
			return nil, 0, false
		}
		host, rest = b[:end+1], b[end+1:]
		if len(host) < 4 || !all(host[1:end], func(c byte) bool { return isHex(c) || c == ':' || c == '.' }) {
			return nil, 0, false
		}
	} else {
		colon := bytes.IndexByte(b, ':')
		if colon < 0 {
			colon = len(b)
		}
		host, rest = b[:colon], b[colon:]
		if len(host) == 0 || len(host) > 253 || !all(host, isHostByte) {
			return nil, 0, false
		}
	}
	if len(rest) == 0 {
		return host, 0, true
	}
	port, ok = parsePort(rest[1:])
	return host, port, ok && rest[0] == ':'
}

// parsePort takes 1 to 65535 without leading zero.
func parsePort(digits []byte) (uint16, bool) {
	if len(digits) == 0 || len(digits) > 5 || digits[0] == '0' || !all(digits, isDigit) {
		return 0, false
	}
	n := 0
	for _, d := range digits {
		n = n*10 + int(d-'0')
	}
	return uint16(n), n <= 65535
}

func compileOrigins(list []string, p *problems) (s origins) {
	for i, text := range list {
		key := fmt.Sprintf("allowed_origins[%d]", i)
		switch text {
		case "*":
			s.any = true
			continue
		case "null":
			s.null = true
			continue
		}
		o, ok := parseOrigin([]byte(strings.Replace(text, "://*.", "://", 1)))
		wild := strings.Contains(text, "://*.")
		switch {
		case !ok:
			p.add(key, "", "%.80q is not an origin: want https://host, https://host:port, https://*.example.com, null or *", text)
		case wild && (o.host[0] == '[' || o.host[0] == '.' || !bytes.Contains(o.host, []byte(".")) && string(o.host) != "localhost"):
			p.add(key, "", "%.80q is too wide: name at least two labels after *.", text)
		case wild:
			o.host = append([]byte("."), o.host...)
			s.sub = append(s.sub, o)
		default:
			s.exact = append(s.exact, o)
		}
	}
	return s
}

// addPort writes out the port that the scheme implies.
func (o *origin) addPort() {
	switch {
	case o.port != 0:
	case equalFold(o.scheme, []byte("https")):
		o.port = 443
	case equalFold(o.scheme, []byte("http")):
		o.port = 80
	}
}

func validScheme(b []byte) bool {
	return len(b) > 0 && len(b) <= 32 && isAlpha(b[0]) &&
		all(b, func(c byte) bool { return isAlpha(c) || isDigit(c) || c == '+' || c == '-' || c == '.' })
}

func all(b []byte, ok func(byte) bool) bool {
	for _, c := range b {
		if !ok(c) {
			return false
		}
	}
	return true
}

func isAlpha(c byte) bool    { c |= 0x20; return c >= 'a' && c <= 'z' }
func isDigit(c byte) bool    { return c >= '0' && c <= '9' }
func isHex(c byte) bool      { l := c | 0x20; return isDigit(c) || l >= 'a' && l <= 'f' }
func isHostByte(c byte) bool { return isAlpha(c) || isDigit(c) || c == '-' || c == '.' || c == '_' }

// equalFold compares ASCII without case. bytes.EqualFold would also fold the
// Kelvin sign to k.
func equalFold(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
