package downstream_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
)

// recorder is a backend that keeps every byte it gets, and answers whatever ends
// like a request.
type recorder struct {
	mu  sync.Mutex
	got []byte
}

func (r *recorder) start(t *testing.T) string {
	return wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		buf, tail := make([]byte, 64<<10), []byte(nil)
		for {
			n, err := w.Conn.Read(buf)
			r.mu.Lock()
			r.got = append(r.got, buf[:n]...)
			r.mu.Unlock()
			if err != nil {
				return
			}
			tail = append(tail, buf[:n]...)
			if bytes.HasSuffix(tail, []byte("\r\n\r\n")) || bytes.HasSuffix(tail, []byte("hello")) {
				w.TrySend("HTTP/1.1 200 OK\nContent-Length: 2\n\nok")
				tail = nil
			}
		}
	})
}

func (r *recorder) consume() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := string(r.got)
	r.got = nil
	return s
}

// hidden is what an attacker hides behind a request that two servers understand
// differently. It must reach no backend.
const hidden = "GET /hidden HTTP/1.1\r\nHost: hidden\r\n\r\n"

func TestNothingIsSmuggledToABackend(t *testing.T) {
	var peer recorder
	g := start(t, settings{cluster: upstream.Config{Outlier: upstream.OutlierConfig{Enabled: setting.Off}, Breaker: upstream.BreakerConfig{Enabled: setting.Off}}}, peer.start(t))
	f := func(head, payload string) {
		t.Helper()
		for _, split := range []bool{false, true} {
			w := g.dial()
			request := wiretest.CRLF(head) + payload + hidden
			if split {
				half := len(wiretest.CRLF(head)) / 2
				w.Send(request[:half])
				request = request[half:]
			}
			_, _ = io.WriteString(w, request)
			res, err := http.ReadResponse(w.R, nil)
			if err != nil || res.StatusCode < 400 || !res.Close {
				t.Errorf("%q: %v, %v; want a refusal and the end", head, res, err)
			} else {
				_, _ = io.Copy(io.Discard, res.Body)
				if rest, _ := io.ReadAll(w.R); len(rest) > 0 {
					t.Errorf("%q: after the refusal comes %q", head, rest)
				}
			}
			_ = w.Close()
			if got := peer.consume(); strings.Contains(got, "hidden") {
				t.Errorf("%q: the backend got %q", head, got)
			}
		}
	}
	const post = "POST /a HTTP/1.1\nHost: a\n"
	f(post+"Content-Length: 5\nTransfer-Encoding: chunked\n\n", "5\r\nhello\r\n0\r\n\r\n")
	f(post+"Transfer-Encoding: chunked\nContent-Length: 5\n\n", "5\r\nhello\r\n0\r\n\r\n")
	f("POST /a HTTP/1.0\nHost: a\nTransfer-Encoding: chunked\n\n", "5\r\nhello\r\n0\r\n\r\n")
	for _, te := range []string{"xchunked", "chunked, chunked", "identity", "chunked;q=1", "gzip, chunked", "\x0bchunked", "'chunked'", ""} {
		f(post+"Transfer-Encoding: "+te+"\n\n", "5\r\nhello\r\n0\r\n\r\n")
	}
	for _, cl := range []string{"+5", "-5", "5, 5", "0x5", "", "5 5", "5;", "99999999999999999999"} {
		f(post+"Content-Length: "+cl+"\n\n", "hello")
	}
	f(post+"Content-Length: 5\nContent-Length: 6\n\n", "hello")
	f(post+"Content-Length: 5\ncontent-length: 5\n\n", "hello")
	f(post+"Content-Length : 5\n\n", "hello")
	f(post+"X: y\n Content-Length: 5\n\n", "hello")
	f("GET /a HTTP/1.1\nHost: a\nHost: b\n\n", "")
	f("GET http://b/a HTTP/1.1\nHost: a\n\n", "")
	f("GET /a\x00b HTTP/1.1\nHost: a\n\n", "")
	for _, chunks := range []string{
		"0x5\r\nhello\r\n0\r\n\r\n", "5\nhello\r\n0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "4\r\nhello\r\n0\r\n\r\n", "ffffffffffffffff5\r\nhello\r\n0\r\n\r\n",
		"5\r\nhello\r\n0\r\nX\r\n\r\n", "5\r\nhello\r\n0\r\nX: y\n\r\n", " 5\r\nhello\r\n0\r\n\r\n", "5;a\nb\r\nhello\r\n0\r\n\r\n",
	} {
		f(post+"Transfer-Encoding: chunked\n\n", chunks)
	}
}

// What is forwarded reads the same for a strict parser, however it came.
func TestWhatIsForwardedHasOneForm(t *testing.T) {
	var peer recorder
	g := start(t, settings{}, peer.start(t))
	f := func(head, payload, want string) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send(wiretest.CRLF(head) + payload)
		if res, _ := w.Answer("POST"); res.StatusCode != 200 {
			t.Errorf("%q: %d", head, res.StatusCode)
			return
		}
		got := peer.consume()
		var req http1.Request
		n, err := http1.ParseRequest(&req, []byte(got), http1.Limits{})
		if err != nil || n == 0 {
			t.Errorf("%q arrives as %q: %v", head, got, err)
			return
		}
		form := fmt.Sprintf("%s %s host %s length %d chunked %v body %q", req.Method, req.Target, req.Host, req.ContentLength, req.Chunked, got[n:])
		if form != want || !strings.HasPrefix(got, string(req.Method)+" "+string(req.Target)+" HTTP/1.1\r\n") {
			t.Errorf("%q arrives as %s, want %s", head, form, want)
		}
	}
	chunked := `POST /a host a length -1 chunked true body "5\r\nhello\r\n0\r\n\r\n"`
	length := `POST /a host a length 5 chunked false body "hello"`
	f("POST /a HTTP/1.1\nHost: a\nContent-Length: 5\n\n", "hello", length)
	f("POST /a HTTP/1.1\nhost:a\ncontent-length:\t 05 \n\n", "hello", length)
	f("POST http://a/a HTTP/1.1\nHost: a\nContent-Length: 5\n\n", "hello", length)
	f("POST /a HTTP/1.0\nHost: a\nContent-Length: 5\n\n", "hello", length)
	f("POST /%61 HTTP/1.1\nHost: a\nContent-Length: 5\n\n", "hello", length)
	f("POST /b/../a HTTP/1.1\nHost: a\nContent-Length: 5\n\n", "hello", length)
	f("POST /a HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n", "5\r\nhello\r\n0\r\n\r\n", chunked)
	f("POST /a HTTP/1.1\nHost: a\nTRANSFER-ENCODING: CHUNKED\n\n", "0005;a=\"b\"\r\nhello\r\n000;x\r\nX: y\r\nContent-Length: 1\r\n\r\n",
		`POST /a host a length -1 chunked true body "5\r\nhello\r\n0\r\nX: y\r\n\r\n"`)
	f("POST /a HTTP/1.1\nHost: a\nConnection: Transfer-Encoding, Content-Length\nContent-Length: 5\n\n", "hello", length)
}
