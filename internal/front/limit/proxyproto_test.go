package limit

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

const v2 = "\r\n\r\n\x00\r\nQUIT\n"

func TestProxyHeaders(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		h, n, err := ParseProxy([]byte(in + "GET"))
		got := h.Source.String() + " " + h.Destination.String()
		if h.Local {
			got = "local"
		}
		if err != nil || n != len(in) || got != want {
			t.Errorf("%q: %s, %d, %v; want %s", in, got, n, err, want)
		}
	}
	f("PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n", "192.0.2.1:56324 198.51.100.1:443")
	f("PROXY TCP6 2001:db8::1 ::1 0 65535\r\n", "[2001:db8::1]:0 [::1]:65535")
	f("PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", "192.0.2.1:1 [::1]:2")
	f("PROXY UNKNOWN\r\n", "local")
	f("PROXY UNKNOWN ffff::1 what ever\r\n", "local")
	f(v2+"\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x01\xdc\x04\x01\xbb", "192.0.2.1:56324 198.51.100.1:443")
	f(v2+"\x21\x11\x00\x0f\xc0\x00\x02\x01\xc6\x33\x64\x01\xdc\x04\x01\xbb\x04\x00\x00", "192.0.2.1:56324 198.51.100.1:443")
	f(v2+"\x21\x12\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x01\xdc\x04\x01\xbb", "192.0.2.1:56324 198.51.100.1:443")
	f(v2+"\x20\x00\x00\x00", "local")
	f(v2+"\x20\x11\x00\x02ab", "local")
	f(v2+"\x21\x31\x00\x04abcd", "local") // a Unix socket
}

func TestBadProxyHeadersAreRefused(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if _, n, err := ParseProxy([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v; want %q", in, n, err, want)
		}
	}
	f("GET / HTTP/1.1\r\n", "there is none")
	f("PROXX", "there is none")
	f("PROXY TCP4 192.0.2.1 198.51.100.1 56324\r\n", "bad version 1 line")
	f("PROXY TCP4 192.0.2.1 198.51.100.1 56324 443 \r\n", "bad version 1 line")
	f("PROXY TCP4  192.0.2.1 198.51.100.1 56324 443\r\n", "bad version 1 line")
	f("PROXY TCP4 192.0.2.1 198.51.100.1 56324 65536\r\n", "bad version 1 line")
	f("PROXY TCP4 192.0.2.1 198.51.100.1 056 443\r\n", "bad version 1 line")
	f("PROXY TCP4 ::1 ::1 1 2\r\n", "bad version 1 line")
	f("PROXY TCP6 192.0.2.1 198.51.100.1 1 2\r\n", "bad version 1 line")
	f("PROXY TCP5 192.0.2.1 198.51.100.1 1 2\r\n", "bad version 1 line")
	f("PROXY \r\n", "bad version 1 line")
	f("PROXY TCP4 "+strings.Repeat("1", 200), "longer than any")
	f(v2+"\x11", "unknown version")
	f(v2+"\x22\x11\x00\x0c", "unknown version")
	f(v2+"\x21\x11\x00\x0b", "longer than the header")
	f(v2+"\x21\x21\x00\x0c", "longer than the header")
	f(v2+"\x21\x11\xff\xff", "longer than any")
}

// Any cut of a header is "not yet", and what comes after it changes nothing.
func FuzzParseProxy(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n"))
	f.Add([]byte("PROXY TCP6 2001:db8::1 ::ffff:1.2.3.4 0 65535\r\n"))
	f.Add([]byte("PROXY UNKNOWN x\r\n"))
	f.Add([]byte(v2 + "\x21\x11\x00\x0f\xc0\x00\x02\x01\xc6\x33\x64\x01\xdc\x04\x01\xbb\x04\x00\x00"))
	f.Add([]byte(v2 + "\x21\x21\x00\x24" + strings.Repeat("\x20", 36)))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseProxy(b)
		if err != nil || n == 0 {
			return
		}
		for i := range n {
			if _, k, err := ParseProxy(b[:i]); err != nil || k != 0 {
				t.Fatalf("%q cut at %d: %d, %v", b, i, k, err)
			}
		}
		if h2, k, err := ParseProxy(append(b[:n:n], "PROXY \r\n"...)); h2 != h || k != n || err != nil {
			t.Fatalf("%q with more: %+v, %d, %v", b, h2, k, err)
		}
		for _, version := range []uint8{1, 2} {
			h.Version = version
			out := appendProxy(nil, h)
			if again, k, err := ParseProxy(out); again != h || k != len(out) || err != nil {
				t.Fatalf("%+v → %q → %+v, %v", h, out, again, err)
			}
		}
	})
}

// appendProxy is what a proxy writes: h in its Version, 1 or else 2.
func appendProxy(dst []byte, h ProxyHeader) []byte {
	source, destination := h.Source.Addr().Unmap().WithZone(""), h.Destination.Addr().Unmap().WithZone("")
	local := h.Local || !source.IsValid() || !destination.IsValid()
	v4 := source.Is4() && destination.Is4()
	if h.Version == 1 {
		switch {
		case local:
			return append(dst, "PROXY UNKNOWN\r\n"...)
		case v4:
			dst = append(dst, "PROXY TCP4 "...)
		default:
			dst = append(dst, "PROXY TCP6 "...)
			source, destination = netip.AddrFrom16(source.As16()), netip.AddrFrom16(destination.As16())
		}
		dst = append(source.AppendTo(dst), ' ')
		dst = append(destination.AppendTo(dst), ' ')
		dst = append(strconv.AppendUint(dst, uint64(h.Source.Port()), 10), ' ')
		dst = strconv.AppendUint(dst, uint64(h.Destination.Port()), 10)
		return append(dst, "\r\n"...)
	}
	dst = append(dst, proxyV2...)
	switch {
	case local:
		return append(dst, 0x20, 0x00, 0, 0)
	case v4:
		dst = append(dst, 0x21, 0x11, 0, 12)
		a, b := source.As4(), destination.As4()
		dst = append(append(dst, a[:]...), b[:]...)
	default:
		dst = append(dst, 0x21, 0x21, 0, 36)
		a, b := source.As16(), destination.As16()
		dst = append(append(dst, a[:]...), b[:]...)
	}
	dst = binary.BigEndian.AppendUint16(dst, h.Source.Port())
	return binary.BigEndian.AppendUint16(dst, h.Destination.Port())
}
