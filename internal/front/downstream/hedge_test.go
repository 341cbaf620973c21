package downstream_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Whichever of two peers is queried first says nothing; the other one answers.
func TestASlowPeerIsHedged(t *testing.T) {
	var requested, left atomic.Int64
	stuck := make(chan struct{}, 10)
	peer := func() string {
		return backend(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if r.URL.Path == "/fast" {
				return
			}
			if requested.Add(1)%2 == 1 {
				stuck <- struct{}{}
				<-r.Context().Done() // the loser's connection is closed
				left.Add(1)
				return
			}
			_, _ = w.Write(append([]byte("second "), body...))
		})
	}
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{
		Hedge: upstream.HedgeConfig{After: hub.Duration(1e6), MaxShare: 1}}}, peer(), peer())
	w := g.dial()
	earn(w)
	for i := range 3 {
		w.Send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
		if res, body := w.Answer("PUT"); res.StatusCode != 200 || body != "second hello" {
			t.Errorf("request %d: %d %q", i, res.StatusCode, body)
		}
		<-stuck
	}
	trial.Eventually(t, "the slow ones were let go", func() bool { return left.Load() == 3 })
	if s := g.proxy.Stats().Clusters["main"]; s.Hedges != 3 || s.Requests["2xx"] != earned+3 || s.Canceled != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAHedgeThatFailsLeavesTheFirst(t *testing.T) {
	release := make(chan struct{})
	var dead atomic.Bool
	answerOnce := func(_ int, w *wiretest.Conn) {
		for {
			req, _, ok := w.Request()
			switch {
			case !ok:
				return
			case req.URL.Path == "/fast":
				w.TrySend("HTTP/1.1 200 OK\nContent-Length: 0\n\n")
			case dead.CompareAndSwap(false, true):
				<-release
				w.TrySend("HTTP/1.1 200 OK\nContent-Length: 2\n\nok")
			default:
				return
			}
		}
	}
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{
		Retry: upstream.RetryConfig{Attempts: 1}, Hedge: upstream.HedgeConfig{After: hub.Duration(1e6), MaxShare: 1}}},
		wiretest.Peer(t, answerOnce), wiretest.Peer(t, answerOnce))
	w := g.dial()
	earn(w)
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	trial.Eventually(t, "the second attempt has failed", func() bool { s := g.proxy.Stats(); return s.Clusters["main"].Hedges == 1 && s.Open-s.Idle == 1 })
	close(release)
	if res, body := w.Answer("GET"); res.StatusCode != 200 || body != "ok" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

const earned = 20

// earn makes requests that need no hedge: a share of them may be hedged later.
func earn(w *wiretest.Conn) {
	w.T.Helper()
	for range earned {
		w.Send("GET /fast HTTP/1.1\r\nHost: a\r\n\r\n")
		w.Answer("GET")
	}
}
