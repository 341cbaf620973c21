package limit

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// A ProxyHeader is what a PROXY protocol header says (haproxy's
// proxy-protocol.txt, versions 1 and 2). Only a trusted peer's is to be read, and
// from a peer that must send one a connection without is to be closed: a client that
// may choose could pretend to be anyone.
type ProxyHeader struct {
	// Version is 1 or 2.
	Version uint8
	// Local: the proxy speaks for itself (LOCAL, UNKNOWN, or a family that is not
	// IP): the connection's own addresses count, those here are zero.
	Local bool
	// Source is the client, Destination what it connected to.
	Source, Destination netip.AddrPort
}

// A ProxyError says why a PROXY header was refused; the connection must be closed.
type ProxyError struct{ Reason string }

// Error returns the reason.
func (e *ProxyError) Error() string { return "PROXY header: " + e.Reason }

var (
	errProxyNone    = &ProxyError{"there is none"}
	errProxyLine    = &ProxyError{"bad version 1 line"}
	errProxyVersion = &ProxyError{"unknown version or command"}
	errProxyLength  = &ProxyError{"addresses are longer than the header"}
	errProxyTooLong = &ProxyError{"longer than any"}
)

const (
	proxyV1     = "PROXY "
	proxyV2     = "\r\n\r\n\x00\r\nQUIT\n"
	proxyV1Max  = 107     // with its CRLF, §2.1
	proxyV2Head = 16      // signature, version and command, family, length
	proxyV2Max  = 2 << 10 // addresses and TLVs that are waited for
)

// ParseProxy reads a PROXY header at the start of b and returns its length. n == 0
// without an error means that b is not a whole header yet. Every error is a
// *ProxyError. TLVs of version 2 are passed over.
func ParseProxy(b []byte) (h ProxyHeader, n int, err error) {
	var e *ProxyError
	switch {
	case hasStart(b, proxyV1):
		h, n, e = parseProxyV1(b)
	case hasStart(b, proxyV2):
		h, n, e = parseProxyV2(b)
	default:
		e = errProxyNone
	}
	if e != nil {
		return ProxyHeader{}, 0, e
	}
	return h, n, nil
}

// hasStart reports whether b begins with start, as far as b goes.
func hasStart(b []byte, start string) bool {
	n := min(len(b), len(start))
	return string(b[:n]) == start[:n]
}

// parseProxyV1 reads "PROXY TCP4 src dst sport dport" and CRLF (§2.1).
func parseProxyV1(b []byte) (h ProxyHeader, n int, e *ProxyError) {
	end := bytes.Index(b[:min(len(b), proxyV1Max)], []byte("\r\n"))
	if end < 0 {
		if len(b) >= proxyV1Max {
			return h, 0, errProxyTooLong
		}
		return h, 0, nil
	}
	h.Version, n = 1, end+2
	words := b[len(proxyV1):end]
	var word [5][]byte
	for i := range word {
		cut := bytes.IndexByte(words, ' ')
		if i == 0 && (bytes.Equal(words, []byte("UNKNOWN")) || cut >= 0 && bytes.Equal(words[:cut], []byte("UNKNOWN"))) {
			h.Local = true // what follows is to be ignored
			return h, n, nil
		}
		if (cut < 0) != (i == len(word)-1) {
			return h, 0, errProxyLine
		}
		if cut < 0 {
			cut = len(words)
		}
		word[i], words = words[:cut], words[min(cut+1, len(words)):]
	}
	source, ok1 := netip.Addr{}, false
	destination, ok2 := netip.Addr{}, false
	switch string(word[0]) {
	case "TCP4":
		source, ok1 = parse4Addr(word[1])
		destination, ok2 = parse4Addr(word[2])
	case "TCP6":
		source, ok1 = parse6Addr(word[1])
		destination, ok2 = parse6Addr(word[2])
	}
	sport, ok3 := parsePort(word[3])
	dport, ok4 := parsePort(word[4])
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return h, 0, errProxyLine
	}
	h.Source, h.Destination = netip.AddrPortFrom(source, sport), netip.AddrPortFrom(destination, dport)
	return h, n, nil
}

func parse4Addr(b []byte) (netip.Addr, bool) {
	var a [4]byte
	ok := parse4(b, a[:])
	return netip.AddrFrom4(a), ok
}

func parse6Addr(b []byte) (netip.Addr, bool) {
	var a [16]byte
	ok := parse6(b, &a)
	return netip.AddrFrom16(a).Unmap(), ok
}

// parsePort takes 0 to 65535 without leading zeros.
func parsePort(b []byte) (uint16, bool) {
	if len(b) == 0 || len(b) > 5 || b[0] == '0' && len(b) > 1 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return uint16(n), n <= 65535
}

// parseProxyV2 reads the binary form (§2.2).
func parseProxyV2(b []byte) (h ProxyHeader, n int, e *ProxyError) {
	if len(b) > 12 && b[12]&^1 != 0x20 {
		return h, 0, errProxyVersion
	}
	if len(b) < proxyV2Head {
		return h, 0, nil
	}
	size := int(binary.BigEndian.Uint16(b[14:]))
	if size > proxyV2Max {
		return h, 0, errProxyTooLong
	}
	want := 0
	family := b[13] >> 4
	switch family {
	case 1:
		want = 12
	case 2:
		want = 36
	}
	h.Version = 2
	h.Local = b[12] == 0x20 || want == 0
	if size < want && !h.Local {
		return h, 0, errProxyLength
	}
	if n = proxyV2Head + size; len(b) < n {
		return ProxyHeader{}, 0, nil
	}
	if h.Local {
		return h, n, nil
	}
	a := b[proxyV2Head:n]
	if family == 1 {
		h.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[:4])), binary.BigEndian.Uint16(a[8:]))
		h.Destination = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[4:8])), binary.BigEndian.Uint16(a[10:]))
		return h, n, nil
	}
	h.Source = netip.AddrPortFrom(netip.AddrFrom16([16]byte(a[:16])).Unmap(), binary.BigEndian.Uint16(a[32:]))
	h.Destination = netip.AddrPortFrom(netip.AddrFrom16([16]byte(a[16:32])).Unmap(), binary.BigEndian.Uint16(a[34:]))
	return h, n, nil
}
