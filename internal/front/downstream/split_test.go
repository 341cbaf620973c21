package downstream_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// However a request and its reply are split into reads, what arrives is the same.
func TestAnySplitGivesTheSame(t *testing.T) {
	t.Parallel()
	reply := wiretest.CRLF("HTTP/1.1 103 Early\nLink: a\n\nHTTP/1.1 200 OK\nTransfer-Encoding: chunked\nX-A: b\n\n5\nhello\n6;x\n world\n0\nX-T: 1\n\n")
	request := wiretest.CRLF("POST /a?b HTTP/1.1\nHost: a\nTE: trailers\nConnection: TE\nTransfer-Encoding: chunked\n\n3\nabc\n4\ndefg\n0\nX: y\n\n")
	var cut atomic.Int64
	arrived := make(chan string, 1)
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		for {
			req, err := http.ReadRequest(w.R)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			arrived <- req.Method + req.URL.String() + fmt.Sprint(req.TransferEncoding) + string(body)
			n := min(int(cut.Load()), len(reply))
			pieces(w, reply, n)
		}
	})
	g := start(t, settings{loops: eventloop.Config{Loops: 1}}, peer)
	want := ""
	for n := 1; n < max(len(reply), len(request)); n++ {
		cut.Store(int64(n))
		w := g.dial()
		pieces(w, request, min(n, len(request)))
		hint := w.Head()
		res, body := w.Answer("POST")
		res.Header.Del("Date")
		got := fmt.Sprint(hint, res.StatusCode, res.Header, res.TransferEncoding, body, res.Trailer, <-arrived)
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("cut at %d:\n%s\nwant\n%s", n, got, want)
		}
		_ = w.Close()
	}
	if !strings.Contains(want, "hello world") || !strings.Contains(want, "abcdefg") || !strings.Contains(want, "X-T") {
		t.Errorf("what arrives is %s", want)
	}
}

// pieces writes s in two pieces, which the other side most likely reads apart.
func pieces(w *wiretest.Conn, s string, cut int) {
	_ = w.Conn.(*net.TCPConn).SetNoDelay(true)
	_, _ = io.WriteString(w, s[:cut])
	time.Sleep(300 * time.Microsecond) // for the reader to read; nothing depends on it
	_, _ = io.WriteString(w, s[cut:])
}

// Clients and backends that come, go and break at random: every answer that looks
// whole is the right one, and nothing is left over.
func TestAStormMixesNothingUp(t *testing.T) {
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{
		Outlier: upstream.OutlierConfig{Enabled: setting.Off}, Breaker: upstream.BreakerConfig{Enabled: setting.Off},
		Pool:  upstream.PoolConfig{MaxPerPeer: 6, MaxIdle: 3, PendingTimeout: 5e9},
		Retry: upstream.RetryConfig{Attempts: 3, Budget: 1, MinPerSecond: 1e6},
	}}, stormPeer(t), stormPeer(t))
	var clients sync.WaitGroup
	var whole atomic.Int64
	deadline := time.Now().Add(1500 * time.Millisecond)
	for id := range 24 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(uint64(id), 7))
			for time.Now().Before(deadline) {
				stormClient(t, g, r, id, &whole)
			}
		})
	}
	clients.Wait()
	if whole.Load() < 50 {
		t.Errorf("only %d answers were complete", whole.Load())
	}
	trial.Eventually(t, "nothing is in use", func() bool { s := g.proxy.Stats(); return s.Open == s.Idle && g.front.Waiting() == 0 })
}

// stormPeer answers with the request's id and body, and breaks now and then.
func stormPeer(t *testing.T) string {
	return wiretest.Peer(t, func(n int, w *wiretest.Conn) {
		r := rand.New(rand.NewPCG(uint64(n), 3))
		for {
			req, err := http.ReadRequest(w.R)
			if err != nil || r.IntN(40) == 0 {
				return
			}
			if r.IntN(20) == 0 { // early, and the body is not wanted
				w.TrySend("HTTP/1.1 413 No\nContent-Length: 0\n\n")
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			text := req.Header.Get("X-Id") + " " + string(body)
			switch r.IntN(6) {
			case 0:
				w.TrySend("HTTP/1.1 200 OK\nConnection: close\n\n" + text)
				return
			case 1:
				w.TrySend(fmt.Sprintf("HTTP/1.1 200 OK\nContent-Length: %d\n\n", len(text)+10) + text) // cut
				return
			case 2:
				w.TrySend("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n" + fmt.Sprintf("%x\n%s\n", len(text), text))
				if r.IntN(3) == 0 {
					return // cut
				}
				w.TrySend("0\n\n")
			case 3:
				w.TrySend("HTTP/1.1 503 No\nContent-Length: 2\n\nno")
			default:
				w.TrySend(fmt.Sprintf("HTTP/1.1 200 OK\nContent-Length: %d\n\n", len(text)) + text)
			}
		}
	})
}

func stormClient(t *testing.T, g *gateway, r *rand.Rand, id int, whole *atomic.Int64) {
	c, err := net.Dial("tcp", g.Addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	w := wiretest.On(t, c)
	for seq := range 1 + r.IntN(12) {
		name := fmt.Sprintf("%d-%d", id, seq)
		method := []string{"GET", "PUT", "POST"}[r.IntN(3)]
		body := bytes.Repeat([]byte{byte('a' + r.IntN(26))}, r.IntN(3)*r.IntN(40_000))
		var req bytes.Buffer
		fmt.Fprintf(&req, "%s / HTTP/1.1\r\nHost: a\r\nX-Id: %s\r\n", method, name)
		switch {
		case method == "GET":
			body = nil
			req.WriteString("\r\n")
		case r.IntN(2) == 0:
			req.WriteString("Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n")
			req.Write(body)
		default:
			req.WriteString("Transfer-Encoding: chunked\r\n\r\n")
			if len(body) > 0 {
				fmt.Fprintf(&req, "%x\r\n%s\r\n", len(body), body)
			}
			req.WriteString("0\r\n\r\n")
		}
		sent := req.Bytes()
		if r.IntN(15) == 0 {
			_, _ = c.Write(sent[:r.IntN(len(sent))]) // vanishes in the middle
			return
		}
		if _, err := c.Write(sent); err != nil {
			return
		}
		if r.IntN(15) == 0 {
			return // vanishes before the answer
		}
		res, err := http.ReadResponse(w.R, &http.Request{Method: method})
		if err != nil {
			return
		}
		got, err := io.ReadAll(res.Body)
		if err != nil {
			return
		}
		if res.StatusCode == 200 {
			whole.Add(1)
			if want := name + " " + string(body); string(got) != want {
				t.Errorf("%s %s: got %d bytes %.30q, want %d %.30q", method, name, len(got), got, len(want), want)
			}
		}
		if res.Close {
			return
		}
	}
}
