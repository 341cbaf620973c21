package http1

import "bytes"

var (
	slash    = []byte("/")
	asterisk = []byte("*")
)

// parseTarget splits r.Target by its form (RFC 9112 §3.2). The authority-form
// belongs to CONNECT, which opens a tunnel and is refused.
func (r *Request) parseTarget() *Error {
	t := r.Target
	switch {
	case string(r.Method) == "CONNECT":
		return errConnect
	case t[0] == '/':
	case len(t) == 1 && t[0] == '*':
		if string(r.Method) != "OPTIONS" {
			return errAsterisk
		}
		r.Path = t
		return nil
	default:
		rest, ok := cutScheme(t)
		if !ok {
			return errTargetForm
		}
		end := 0
		for end < len(rest) && rest[end] != '/' && rest[end] != '?' {
			end++
		}
		// "@" is not a host byte, so user information is refused here as well.
		if !validHost(rest[:end]) {
			return errAuthority
		}
		r.Host = rest[:end:end]
		t = rest[end:]
	}
	r.Path = t
	if q := bytes.IndexByte(t, '?'); q >= 0 {
		r.Path, r.Query = t[:q:q], t[q+1:]
	}
	if len(r.Path) == 0 {
		r.Path = slash
		if r.Query == nil && string(r.Method) == "OPTIONS" {
			r.Path = asterisk // RFC 9112 §3.2.4
		}
	}
	if !validEscapes(r.Path) {
		return errTargetEscape
	}
	return nil
}

// cutScheme removes "http://" or "https://", in any case.
func cutScheme(t []byte) (rest []byte, ok bool) {
	for _, scheme := range [...]string{"http://", "https://"} {
		if len(t) >= len(scheme) && EqualFold(t[:len(scheme)], scheme) {
			return t[len(scheme):], true
		}
	}
	return nil, false
}

// defaultPort returns the port that an absolute target's authority may leave out.
func (r *Request) defaultPort() string {
	if lower[r.Target[4]] == 's' {
		return "443"
	}
	return "80"
}

// validEscapes reports whether every "%" in b starts two hexadecimal digits.
func validEscapes(b []byte) bool {
	for {
		i := bytes.IndexByte(b, '%')
		if i < 0 {
			return true
		}
		if len(b)-i < 3 || class[b[i+1]]&isHex == 0 || class[b[i+2]]&isHex == 0 {
			return false
		}
		b = b[i+3:]
	}
}

// validHost reports whether b is uri-host [ ":" port ] (RFC 9110 §7.2) with a
// host that is not empty. Names are letters, digits and "-._~": the
// percent-encoding and the punctuation that RFC 3986 also allows stand in no
// DNS name, and a comma is what two Host fields become when joined.
func validHost(b []byte) bool {
	host, port := splitPort(b)
	if !validPort(port) || len(host) == 0 {
		return false
	}
	if host[0] == '[' {
		return host[len(host)-1] == ']' && validIPv6(host[1:len(host)-1])
	}
	for _, c := range host {
		if class[c]&isHost == 0 {
			return false
		}
	}
	return true
}

// splitPort cuts ":port" off an authority; the port is empty or starts with ":".
func splitPort(b []byte) (host, port []byte) {
	for i := len(b) - 1; i >= 0; i-- {
		switch b[i] {
		case ':':
			return b[:i], b[i:]
		case ']':
			return b, nil
		}
	}
	return b, nil
}

// validPort takes nothing, ":" or ":" and a number up to 65535 (the empty port
// is the default one, RFC 3986 §3.2.3).
func validPort(b []byte) bool {
	if len(b) <= 1 {
		return true
	}
	if len(b) > len(":65535") {
		return false
	}
	n := 0
	for _, c := range b[1:] {
		if class[c]&isDigit == 0 {
			return false
		}
		n = n*10 + int(c-'0')
	}
	return n <= 65535
}

// validIPv6 reports whether b is an IPv6 address without a zone (RFC 4291 §2.2).
func validIPv6(b []byte) bool {
	groups, digits, gap := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case class[c]&isHex != 0:
			digits++
			if digits > 4 {
				return false
			}
			if digits == 1 {
				groups++
			}
		case c == ':' && i+1 < len(b) && b[i+1] == ':':
			if gap || (digits == 0 && i > 0) {
				return false
			}
			gap, digits = true, 0
			i++
		case c == ':':
			if digits == 0 || i+1 == len(b) {
				return false
			}
			digits = 0
		case c == '.':
			// The group just started is the first number of an IPv4 address, which
			// takes the place of the last two groups.
			groups++
			return validIPv4(b[i-digits:]) && (groups == 8 && !gap || groups < 8 && gap)
		default:
			return false
		}
	}
	return groups == 8 && !gap || groups < 8 && gap
}

// validIPv4 reports whether b is four numbers up to 255 without leading zeros.
func validIPv4(b []byte) bool {
	for part := range 4 {
		n, digits := 0, 0
		for len(b) > 0 && class[b[0]]&isDigit != 0 {
			if digits > 0 && n == 0 || digits == 3 {
				return false
			}
			n, digits, b = n*10+int(b[0]-'0'), digits+1, b[1:]
		}
		if digits == 0 || n > 255 {
			return false
		}
		if part < 3 {
			if len(b) == 0 || b[0] != '.' {
				return false
			}
			b = b[1:]
		}
	}
	return len(b) == 0
}

// sameAuthority compares two valid authorities: without case, and with the
// default port left out or not.
func sameAuthority(a, b []byte, defaultPort string) bool {
	hostA, portA := splitPort(a)
	hostB, portB := splitPort(b)
	return EqualFold(hostA, hostB) && samePort(portA, portB, defaultPort)
}

func samePort(a, b []byte, defaultPort string) bool {
	norm := func(p []byte) string {
		if len(p) <= 1 {
			return defaultPort
		}
		return string(p[1:])
	}
	return norm(a) == norm(b)
}
