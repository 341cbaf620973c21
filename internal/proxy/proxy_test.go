package proxy

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProxyHeadersReadBack(t *testing.T) {
	f := func(client, local string, known bool) {
		t.Helper()
		var from, to netip.AddrPort
		if client != "" {
			from = netip.MustParseAddrPort(client)
		}
		if local != "" {
			to = netip.MustParseAddrPort(local)
		}
		for version, b := range [][]byte{1: limit.AppendProxyV1(nil, from, to), 2: limit.AppendProxyV2(nil, from, to)} {
			if version == 0 {
				continue
			}
			h, n, err := limit.ParseProxy(b)
			if err != nil || n != len(b) || int(h.Version) != version || h.Local == known {
				t.Errorf("version %d of %s, %s: %q reads as %+v, %d, %v", version, client, local, b, h, n, err)
				continue
			}
			same := func(a, b netip.AddrPort) bool {
				return a.Addr().Unmap() == b.Addr().Unmap().WithZone("") && a.Port() == b.Port()
			}
			if known && (!same(h.Source, from) || !same(h.Destination, to)) {
				t.Errorf("version %d of %s, %s: reads as %+v", version, client, local, h)
			}
		}
	}
	f("192.0.2.1:1234", "192.0.2.2:80", true)
	f("[2001:db8::1]:1234", "[2001:db8::2]:80", true)
	f("[::ffff:192.0.2.1]:1234", "192.0.2.2:80", true)
	f("192.0.2.1:1234", "[2001:db8::2]:80", true)
	f("[fe80::1%eth0]:1234", "[fe80::2]:80", true)
	f("", "192.0.2.2:80", false)
	f("192.0.2.1:1234", "", false)
}

func TestAllowedTrailers(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		crlf := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
		if got := allowedTrailers([]byte(crlf(in))); string(got) != crlf(want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	f("\n", "")
	f("X-Sum: 1\n\n", "X-Sum: 1\n")
	f("X-Sum: 1\nContent-Length: 5\nX-B:\n\n", "X-Sum: 1\nX-B:\n")
	f("TRANSFER-ENCODING: chunked\nset-cookie: a\nHost: b\n\n", "")
	f("grpc-status: 0\ngrpc-message: fine\n\n", "grpc-status: 0\ngrpc-message: fine\n")
}

// Whatever a backend sends as trailers, what is passed on is a trailer section of
// whole fields, none of which says anything of framing, and the same however the
// bytes were split.
func FuzzTrailers(f *testing.F) {
	f.Add([]byte("0\r\nX: y\r\n\r\n"), 3)
	f.Add([]byte("2\r\nok\r\n0\r\nContent-Length: 5\r\nA: b\r\n\r\n"), 9)
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		whole, ok := trailersOf(body, len(body))
		if !ok {
			return
		}
		if cut = max(0, min(cut, len(body))); cut > 0 {
			if split, _ := trailersOf(body, cut); !bytes.Equal(split, whole) {
				t.Errorf("cut at %d: %q, whole %q", cut, split, whole)
			}
		}
		section := append([]byte("0\r\n"), whole...)
		section = append(section, "\r\n"...)
		var c http1.Chunked
		if _, n, done, err := c.Decode(section); err != nil || !done || n != len(section) {
			t.Errorf("%q is not a trailer section: %v", whole, err)
		}
		for line := range bytes.Lines(whole) {
			if name, _, _ := bytes.Cut(line, []byte(":")); forbidden(name) {
				t.Errorf("%q is passed on", line)
			}
		}
	})
}

// trailersOf decodes body in pieces of up to n bytes.
func trailersOf(body []byte, n int) ([]byte, bool) {
	var c http1.Chunked
	var trailer []byte
	for len(body) > 0 {
		piece := body[:min(n, len(body))]
		for len(piece) > 0 {
			_, used, done, err := c.DecodeTrailer(piece, &trailer)
			switch {
			case err != nil:
				return nil, false
			case done:
				return allowedTrailers(bytes.Clone(trailer)), true
			}
			piece, body = piece[used:], body[used:]
		}
	}
	return nil, false
}
