package upstreams

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// TestWhatFollowsARequestIsNotItsBody sends, on one connection, a GET whose token has
// to be verified and bytes that could pass for its body, were it to have one.
func TestWhatFollowsARequestIsNotItsBody(t *testing.T) {
	t.Parallel()
	g, b := governed(t, nil, map[string]any{"path": "/x", "auth": map[string]any{"required": true}})
	f := func(name, follows string, status int) {
		t.Helper()
		before := b.requested.Load()
		c, err := net.Dial("tcp", g.Public)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		token := bearer(judge.Claims{"sub": "ann", "jti": name}) // new, so that it has to be verified
		if _, err := fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\n\r\n%s", token, follows); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		for i, want := range []int{200, status} {
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Errorf("%s: answer %d: %v", name, i+1, err)
				break
			}
			_, _ = io.Copy(io.Discard, res.Body)
			if res.StatusCode != want {
				t.Errorf("%s: answer %d is %d, want %d", name, i+1, res.StatusCode, want)
			}
			if res.Close && i == 0 {
				t.Errorf("%s: the connection is not kept", name)
			}
		}
		if n := b.requested.Load() - before; n != 1 {
			t.Errorf("%s: the backend was asked %d times, want once", name, n)
		}
	}
	const evil = "GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"
	f("a request", "GET /x HTTP/1.1\r\nHost: a\r\n\r\n", 401)
	f("a chunk", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(evil), evil), 400)
}
