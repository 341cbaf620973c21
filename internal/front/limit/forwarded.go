package limit

import (
	"bytes"
	"net/netip"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// maxHops bounds a walk; more trusted proxies in a row than that are a loop.
const maxHops = 64

// walkList walks X-Forwarded-For: a comma-separated list of addresses over all
// field lines, the nearest proxy's entry last.
func (t *Trust) walkList(peer netip.Addr, fields []http1.Field) netip.Addr {
	client, hops := peer, 0
	for i := len(fields) - 1; i >= 0; i-- {
		if !http1.EqualFold(fields[i].Name, HeaderXForwardedFor) {
			continue
		}
		list := fields[i].Value
		for list != nil {
			var e []byte
			if cut := bytes.LastIndexByte(list, ','); cut >= 0 {
				list, e = list[:cut], list[cut+1:]
			} else {
				list, e = nil, list
			}
			e = trimSpace(e)
			if len(e) == 0 {
				continue // empty elements count for nothing (RFC 9110 §5.6.1)
			}
			addr, ok := parseNode(e)
			if hops++; !ok || hops > maxHops {
				return client
			}
			if client = addr; !t.Trusts(addr) {
				return client
			}
		}
	}
	return client
}

// walkForwarded walks Forwarded (RFC 7239 §4) in the same way. An element without
// for= is a proxy that hides it: the walk ends at it. A line that is not
// well-formed is not searched for commas.
func (t *Trust) walkForwarded(peer netip.Addr, fields []http1.Field) netip.Addr {
	client, hops := peer, 0
	for i := len(fields) - 1; i >= 0; i-- {
		if !http1.EqualFold(fields[i].Name, HeaderForwarded) {
			continue
		}
		var nodes [maxHops][]byte
		n, ok := forNodes(fields[i].Value, &nodes)
		if !ok {
			return client
		}
		for n--; n >= 0; n-- {
			addr, ok := parseNode(nodes[n])
			if hops++; !ok || hops > maxHops {
				return client
			}
			if client = addr; !t.Trusts(addr) {
				return client
			}
		}
	}
	return client
}

// forNodes puts the for= of each element of a Forwarded value into nodes, empty
// where an element has none, and returns how many there are.
func forNodes(v []byte, nodes *[maxHops][]byte) (n int, ok bool) {
	for i := 0; ; {
		var node []byte
		seen, pairs := false, false
		for {
			i = skipSpace(v, i)
			if i == len(v) || v[i] == ',' {
				break
			}
			if v[i] == ';' {
				i++
				continue
			}
			name, value, next, ok := cutPair(v, i)
			if !ok {
				return 0, false
			}
			pairs = true
			if http1.EqualFold(name, "for") {
				if seen {
					return 0, false // each parameter at most once, RFC 7239 §4
				}
				seen, node = true, value
			}
			i = skipSpace(v, next)
			if i < len(v) && v[i] != ';' && v[i] != ',' {
				return 0, false
			}
		}
		if pairs {
			if n == maxHops {
				return 0, false
			}
			nodes[n] = node
			n++
		}
		if i == len(v) {
			return n, true
		}
		i++ // the comma
	}
}

// cutPair reads token "=" ( token / quoted-string ) at v[i:]. Escapes stay in the
// value: no address and no host needs one, so what has one is taken for neither.
func cutPair(v []byte, i int) (name, value []byte, next int, ok bool) {
	eq := bytes.IndexByte(v[i:], '=')
	if eq <= 0 || !http1.ValidName(v[i:i+eq]) {
		return nil, nil, 0, false
	}
	name = v[i : i+eq]
	i += eq + 1
	if i < len(v) && v[i] == '"' {
		for j := i + 1; j < len(v); j++ {
			switch v[j] {
			case '\\':
				j++
			case '"':
				return name, v[i+1 : j], j + 1, true
			}
		}
		return nil, nil, 0, false
	}
	// A token; a colon and brackets are let pass, as many write addresses unquoted.
	j := i
	for j < len(v) && v[j] != ';' && v[j] != ',' && v[j] != ' ' && v[j] != '\t' && v[j] != '"' {
		j++
	}
	return name, v[i:j], j, true
}

func skipSpace(v []byte, i int) int {
	for i < len(v) && (v[i] == ' ' || v[i] == '\t') {
		i++
	}
	return i
}

func trimSpace(b []byte) []byte { return bytes.Trim(b, " \t") }

// parseNode reads an address with or without a port: 192.0.2.1, 192.0.2.1:80,
// 2001:db8::1, [2001:db8::1], [2001:db8::1]:80.
func parseNode(b []byte) (netip.Addr, bool) {
	if len(b) > 0 && b[0] == '[' {
		end := bytes.IndexByte(b, ']')
		if end < 0 || !validPort(b[end+1:]) {
			return netip.Addr{}, false
		}
		a, ok := ParseAddr(b[1:end])
		return a, ok && bytes.IndexByte(b[:end], ':') >= 0
	}
	if colon := bytes.IndexByte(b, ':'); colon >= 0 && bytes.IndexByte(b[colon+1:], ':') < 0 {
		if !validPort(b[colon:]) {
			return netip.Addr{}, false
		}
		b = b[:colon]
	}
	return ParseAddr(b)
}

// validPort takes nothing, or ":" and a number up to 65535.
func validPort(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if b[0] != ':' || len(b) < 2 || len(b) > 6 {
		return false
	}
	n := 0
	for _, c := range b[1:] {
		if c < '0' || c > '9' {
			return false
		}
		n = n*10 + int(c-'0')
	}
	return n <= 65535
}

// ParseAddr reads an IPv4 or IPv6 address without a zone, as netip.ParseAddr
// does, and unmaps it. It allocates nothing, whatever b is.
func ParseAddr(b []byte) (netip.Addr, bool) {
	if bytes.IndexByte(b, ':') < 0 {
		var v4 [4]byte
		if !parse4(b, v4[:]) {
			return netip.Addr{}, false
		}
		return netip.AddrFrom4(v4), true
	}
	var v6 [16]byte
	if !parse6(b, &v6) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16(v6).Unmap(), true
}

// parse4 reads four numbers up to 255 without leading zeros.
func parse4(b []byte, out []byte) bool {
	for part := range 4 {
		n, digits := 0, 0
		for len(b) > 0 && '0' <= b[0] && b[0] <= '9' {
			if digits == 3 || digits > 0 && n == 0 {
				return false
			}
			n, digits, b = n*10+int(b[0]-'0'), digits+1, b[1:]
		}
		if digits == 0 || n > 255 {
			return false
		}
		out[part] = byte(n)
		if part < 3 {
			if len(b) == 0 || b[0] != '.' {
				return false
			}
			b = b[1:]
		}
	}
	return len(b) == 0
}

// parse6 reads RFC 4291 §2.2.
func parse6(b []byte, out *[16]byte) bool {
	n, gap := 0, -1 // bytes of out that are there; where "::" is
	if len(b) >= 2 && b[0] == ':' && b[1] == ':' {
		gap, b = 0, b[2:]
	}
	for len(b) > 0 {
		if n == 16 {
			return false
		}
		v, digits := 0, 0
		for digits < len(b) && digits < 5 && hexDigit(b[digits]) >= 0 {
			v = v<<4 | hexDigit(b[digits])
			digits++
		}
		if digits == 0 || digits > 4 {
			return false
		}
		if digits < len(b) && b[digits] == '.' {
			if n > 12 || !parse4(b, out[n:n+4]) {
				return false
			}
			n += 4
			break
		}
		out[n], out[n+1] = byte(v>>8), byte(v)
		n += 2
		if b = b[digits:]; len(b) == 0 {
			break
		}
		if b[0] != ':' || len(b) == 1 {
			return false
		}
		if b = b[1:]; b[0] == ':' {
			if gap >= 0 {
				return false
			}
			gap, b = n, b[1:]
		}
	}
	if gap < 0 {
		return n == 16
	}
	if n == 16 {
		return false
	}
	moved := n - gap
	copy(out[16-moved:], out[gap:n])
	clear(out[gap : 16-moved])
	return true
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// Origin returns what the nearest proxy says of the scheme and the host that the
// client used: X-Forwarded-Proto and X-Forwarded-Host, or proto= and host= of the
// last element of Forwarded. nil where it says nothing. Only after Trusts; the
// values are as sent.
func (t *Trust) Origin(fields []http1.Field) (scheme, host []byte) {
	if !t.forwarded {
		return lastOf(fields, "x-forwarded-proto"), lastOf(fields, "x-forwarded-host")
	}
	for i := len(fields) - 1; i >= 0; i-- {
		v := fields[i].Value
		if !http1.EqualFold(fields[i].Name, HeaderForwarded) {
			continue
		}
		for i := 0; i < len(v); {
			i = skipSpace(v, i)
			switch {
			case i == len(v):
				return scheme, host
			case v[i] == ',':
				scheme, host = nil, nil
				i++
				continue
			case v[i] == ';':
				i++
				continue
			}
			name, value, next, ok := cutPair(v, i)
			if !ok {
				return nil, nil
			}
			switch i = next; {
			case http1.EqualFold(name, "proto"):
				scheme = value
			case http1.EqualFold(name, "host"):
				host = value
			}
		}
		return scheme, host
	}
	return nil, nil
}

// lastOf returns the last element of the last field called name.
func lastOf(fields []http1.Field, name string) []byte {
	for i := len(fields) - 1; i >= 0; i-- {
		if http1.EqualFold(fields[i].Name, name) {
			v := fields[i].Value
			return trimSpace(v[bytes.LastIndexByte(v, ',')+1:])
		}
	}
	return nil
}
