package downstream_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Backends break off anywhere, in the handshake, in a head, in a record, between two
// requests: what is answered with 200 and ends well is complete, and nothing stays behind.
func TestBackendsThatBreakOffAnywhereOverTLS(t *testing.T) {
	a := newAuthority(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}}
	body := strings.Repeat("whole ", 10_000)
	reply := "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	peer := wiretest.Peer(t, func(n int, c *wiretest.Conn) {
		reset := func() { _ = c.Conn.(*net.TCPConn).SetLinger(0) }
		if n%6 == 1 {
			_, _ = io.CopyN(io.Discard, c.R, int64(1+n%700))
			reset()
			return
		}
		securely(cfg, func(s *tls.Conn, r *bufio.Reader) {
			for i := 0; ; i++ {
				if _, err := http.ReadRequest(r); err != nil {
					return
				}
				switch {
				case n%6 == 2 && i == 1:
					_, _ = io.WriteString(s, reply[:n%20])
					reset()
					return
				case n%6 == 3 && i == 1:
					_, _ = io.WriteString(s, reply[:20_000])
					_, _ = s.NetConn().Write([]byte{23, 3, 3, 64, 0, 1, 2, 3})
					reset()
					return
				case n%6 == 4 && i == 2:
					_, _ = s.NetConn().Write(append([]byte{23, 3, 3, 0, 50}, make([]byte, 50)...))
					return
				case n%6 == 5 && i == 1:
					_ = s.Close() // in order, as idle connections end
					return
				}
				if _, err := io.WriteString(s, reply); err != nil {
					return
				}
			}
		})(n, c)
	})
	g := start(t, settings{cluster: upstream.Config{TLS: upstream.TLSConfig{CAFiles: []string{a.file}}, Breaker: upstream.BreakerConfig{Enabled: setting.Off}}}, "https://"+peer)
	var mu sync.Mutex
	outcomes := map[string]int{}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			for range 25 {
				res, err := http.Get(g.url("/"))
				what := "failed"
				if err == nil {
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					switch {
					case err != nil:
						what = "cut"
					case res.StatusCode == 200 && string(b) != body:
						what = "wrong"
					default:
						what = strconv.Itoa(res.StatusCode)
					}
				}
				mu.Lock()
				outcomes[what]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	t.Log(outcomes)
	if outcomes["wrong"] > 0 || outcomes["200"] == 0 {
		t.Errorf("%v", outcomes)
	}
	trial.Eventually(t, "what is open is idle", func() bool { s := g.proxy.Stats(); return s.Open == s.Idle && g.front.Waiting() == 0 })
}
