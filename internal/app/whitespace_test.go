package app

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// spacedBackend answers each connection once, with white space around the values of fields and
// trailers, and gives what it was sent to requests.
func spacedBackend(t *testing.T, requests chan<- string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			head := ""
			for r := bufio.NewReader(c); !strings.HasSuffix(head, "\r\n\r\n"); {
				line, err := r.ReadString('\n')
				if err != nil {
					break
				}
				head += line
			}
			requests <- head
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Reply: \t v \t\r\nTrailer: X-End\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nok\r\n0\r\nX-End:  e \t\r\n\r\n")
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// White space around a field value belongs to HTTP/1.1's syntax, not to the value (RFC 9110
// §5.5): no version passes it on, and in HTTP/2 and 3 a request that has it is malformed. Go's
// HTTP/2 client, which sends what it is given, repeats a request that is reset without an answer.
func TestNoVersionSendsWhiteSpaceAroundValues(t *testing.T) {
	requests := make(chan string, 10)
	addr := spacedBackend(t, requests)
	cert, pool := selfSigned(t, t.TempDir(), 1)
	g := start(t, func(c *config.Config) {
		c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: addr}}}}
		c.Routes = []policy.RouteConfig{{Path: "/*", Cluster: "b"}}
	})
	secure := start(t, func(c *config.Config) {
		c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: addr}}}}
		c.Routes = []policy.RouteConfig{{Path: "/*", Cluster: "b"}}
		c.TLS.Certificates, c.Downstream.HTTP3 = []tlsterm.Certificate{cert}, true
	})
	var sent atomic.Int64
	f := func(version, url string, c *http.Client, value string) (*http.Response, error) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/x", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Asked", value)
		req.Header.Set("Te", "trailers") // or there are none
		req.GetBody = func() (io.ReadCloser, error) { sent.Add(1); return io.NopCloser(strings.NewReader("body")), nil }
		res, err := c.Do(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if res.StatusCode != 200 {
			return res, err
		}
		if err != nil || string(body) != "ok" || res.Header.Get("X-Reply") != "v" || res.Trailer.Get("X-End") != "e" {
			t.Errorf("%s: %q %v, fields %q, trailer %q", version, body, err, res.Header, res.Trailer)
		}
		if head := <-requests; !strings.Contains(head, "X-Asked: a\r\n") && !strings.Contains(head, "x-asked: a\r\n") {
			t.Errorf("%s: the backend received %q", version, head)
		}
		return res, nil
	}
	one := &http.Client{Transport: &http.Transport{}, Timeout: trial.Patience}
	defer one.CloseIdleConnections()
	two, three := overHTTP2(t, nil), overHTTP3(t, pool)
	for range 2 {
		if _, err := f("HTTP/1.1", g.URL(), one, "a "); err != nil {
			t.Error(err)
		}
		if _, err := f("HTTP/2", g.URL(), two, "a"); err != nil {
			t.Error(err)
		}
		if _, err := f("HTTP/3", secure.URL(), three, "a"); err != nil {
			t.Error(err)
		}
		sent.Store(0)
		if res, err := f("HTTP/2", g.URL(), two, "a "); err != nil || res.StatusCode != 400 || sent.Load() != 0 {
			t.Errorf("HTTP/2, a space behind the value: %v, %v; sent again %d times", res, err, sent.Load())
		}
		if res, err := f("HTTP/3", secure.URL(), three, "a "); err == nil && res.StatusCode != 400 {
			t.Errorf("HTTP/3, a space behind the value: %v", res)
		}
	}
	select {
	case head := <-requests:
		t.Errorf("the backend received a malformed request: %q", head)
	default:
	}
}
