package policy

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// What an upstream says reaches the client in one form: net/http reads the same
// status, our framing, and nothing of the upstream's hop.
func FuzzResponseHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 404 \r\nTransfer-Encoding: chunked\r\nTrailer: X\r\nConnection: close, x-a\r\nX-A: 1\r\n\r\n",
		"HTTP/1.0 301 Moved\r\nLocation: /x\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nX-Weir-Hold: 1\r\n\r\n",
		"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"HTTP/1.1 204 \r\nAccess-Control-Allow-Origin: *\r\nVary: *\r\nx_y: \xff\r\nDate: then\r\n\r\n",
	} {
		f.Add([]byte(s), int64(5), false)
		f.Add([]byte(s), int64(-1), true)
	}
	s := set(f, deps(f), `{"cluster": "c", "cors": {"allowed_origins": ["https://app.example"]}, "response_headers": {"set": {"X-Set": "1"}}}`)
	f.Fuzz(func(t *testing.T, input []byte, length int64, chunked bool) {
		var resp http1.Response
		n, err := http1.ParseResponse(&resp, input, http1.Limits{}, "GET")
		if err != nil || n == 0 || resp.Status < 200 || resp.Status > 599 || resp.Status == 204 || resp.Status == 304 {
			return // the others have no framing to compare
		}
		x := exchange(t, "GET /\nOrigin: https://app.example")
		if v := admit(s, x, 0); v.Action != Forward {
			t.Fatal(v)
		}
		x.Retain()
		head := x.Route.AppendResponseHead(nil, x, resp.Status, resp.Fields, Framing{Length: max(-1, length), Chunked: chunked, Date: []byte("Date: now\r\n")})
		got, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil)
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", head, err)
		}
		if got.StatusCode != resp.Status || len(got.Header["Date"]) == 0 || len(got.Header["X-Set"]) != 1 {
			t.Fatalf("%q: status %d, %v", head, got.StatusCode, got.Header)
		}
		if want := max(-1, length); chunked && (got.ContentLength != -1 || len(got.TransferEncoding) != 1) || !chunked && got.ContentLength != want {
			t.Fatalf("%q: framing %d %v", head, got.ContentLength, got.TransferEncoding)
		}
		for name := range got.Header {
			switch {
			case name == "Connection", name == "Upgrade", name == "Keep-Alive", name == "Trailer", strings.HasPrefix(name, "X-Weir-"):
				t.Fatalf("%q: field %s came through", head, name)
			case name == "Access-Control-Allow-Origin" && (len(got.Header[name]) != 1 || got.Header.Get(name) != "https://app.example"):
				t.Fatalf("%q: CORS is not ours", head)
			}
		}
	})
}
