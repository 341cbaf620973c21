package downstream_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

func TestAProxyHeaderNamesTheClient(t *testing.T) {
	peer := backend(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	})
	behind := func(proxies ...string) *gateway {
		trust, err := limit.NewTrust(limit.Trusted{Proxies: proxies})
		if err != nil {
			t.Fatal(err)
		}
		return start(t, settings{accept: func(front *downstream.Server) func(*eventloop.Conn) eventloop.Handler {
			return front.Announced(trust, front.Accept)
		}}, peer)
	}
	g := behind("127.0.0.1")
	const request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	f := func(header, want string) {
		t.Helper()
		for cut := range len(header) {
			w := g.dial()
			w.Send(header[:cut])
			w.Send(header[cut:] + request + request)
			for range 2 {
				if _, got := w.Answer("GET"); got != want {
					t.Errorf("%q: the client is %q, want %q", header, got, want)
				}
			}
			_ = w.Close()
		}
	}
	f("PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n", "192.0.2.1")
	f("PROXY TCP6 2001:db8::1 2001:db8::2 1234 80\r\n", "2001:db8::1")
	f("PROXY UNKNOWN\r\n", "127.0.0.1")
	f("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc0\x00\x02\x08\x04\xd2\x00\x50", "192.0.2.7")
	f("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00", "127.0.0.1")

	closed := func(g *gateway, text string) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		_, _ = io.WriteString(w, text)
		if b, _ := io.ReadAll(w.R); len(b) > 0 {
			t.Errorf("%q is answered %q", text, b)
		}
	}
	closed(g, request) // without a header no other can join
	closed(g, "PROXY TCP4 192.0.2.1 192.0.2.2 1234 99999\r\n"+request)
	closed(behind("192.0.2.0/24"), "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n"+request)
}
