package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// hostileRoute is a configuration with one cluster that never gives its peer up, and
// few connections to it.
func hostileRoute(addr, engine string) map[string]any {
	return map[string]any{
		"eventloop": map[string]any{"engine": engine, "loops": 2},
		"log":       map[string]any{"level": "info"},
		"routes":    []any{map[string]any{"path": "/*", "cluster": "b"}},
		"clusters": []any{map[string]any{
			"name": "b", "peers": []any{map[string]any{"address": addr}},
			"outlier": map[string]any{"enabled": false}, "breaker": map[string]any{"enabled": false},
			"pool":     map[string]any{"max_per_peer": 12, "max_pending": 1000, "pending_timeout": "5s"},
			"timeouts": map[string]any{"first_byte": "500ms", "idle": "500ms"},
		}},
	}
}

// TestNoClientGetsTheAnswerOfAnother mixes all kinds of requests of many clients over
// few connections to a backend that breaks HTTP in all ways it can. Whatever comes
// with status 200 must have the token of its request.
func TestNoClientGetsTheAnswerOfAnother(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			b := newHostile(t, "/mixed/", 1)
			s := judge.New(t, judge.Options{Memory: true, Config: hostileRoute(b.addr, engine)})
			var reported tally
			var all sync.WaitGroup
			for n := range 16 {
				all.Go(func() { mixRaw(t, s.Public, n, &reported) })
			}
			all.Go(func() { mixHTTP2(t, s.Public, &reported) })
			all.Wait()
			if reported.whole.Load() < 1000 || reported.failed.Load() == 0 {
				t.Errorf("%d answers came whole and %d did not: that is no mixture", reported.whole.Load(), reported.failed.Load())
			}
			if n := b.unasked.Load(); n > 0 {
				t.Errorf("the backend got %d requests that no client sent", n)
			}
			for i := range b.requested {
				if b.requested[i].Load() == 0 {
					t.Errorf("manner %d was never played", i)
				}
			}
			atRest(t, s)
		})
	}
}

// atRest waits until nothing is in flight: what is counted in is counted out.
func atRest(t *testing.T, s *judge.Server) {
	t.Helper()
	judge.Eventually(t, 15*time.Second, "no request is in flight and no upstream connection busy", func() bool {
		return s.Series("weir_upstream_in_flight_requests") == 0 && s.Series("weir_upstream_connections", `state="busy"`) == 0
	})
}

type tally struct{ whole, failed atomic.Int64 }

// asking is one request on its way.
type asking struct {
	method, token string
	raw           []string // pieces, with a pause before each but the first
	leaves        bool     // the client closes instead of waiting for the answer
}

// anyAsking makes a request of a random kind.
func anyAsking(dice *rand.Rand, token string) asking {
	body := strings.Repeat("b", dice.IntN(3000))
	// A body that is a request, for anyone who reads one where none is.
	if dice.IntN(2) == 0 {
		body = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	}
	line := func(method, fields string) string {
		return fmt.Sprintf("%s /mixed/%s HTTP/1.1\r\nHost: a\r\n%s\r\n", method, token, fields)
	}
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	if len(body) == 0 {
		chunk = "0\r\n\r\n"
	}
	a := asking{method: "GET", token: token}
	switch dice.IntN(14) {
	default:
		a.raw = []string{line("GET", "")}
	case 0:
		a.method, a.raw = "HEAD", []string{line("HEAD", "")}
	case 1:
		a.method, a.raw = "POST", []string{line("POST", length) + body}
	case 2:
		a.method, a.raw = "POST", []string{line("POST", "Transfer-Encoding: chunked\r\n") + chunk}
	case 3:
		a.method, a.raw = "PUT", []string{line("PUT", length), body}
	case 4: // who reports that it waits, and does not
		a.method, a.raw = "PUT", []string{line("PUT", "Expect: 100-continue\r\n"+length), body}
	case 5:
		a.method, a.raw = "POST", []string{line("POST", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n") + chunk}
	case 6: // an upgrade that is refused, and what the client takes for frames behind it
		a.raw = []string{line("GET", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")}
		a.leaves = dice.IntN(2) == 0
	case 7: // half a body
		a.method, a.raw, a.leaves = "POST", []string{line("POST", fmt.Sprintf("Content-Length: %d\r\n", len(body)+9)) + body}, true
	case 8:
		a.raw, a.leaves = []string{line("GET", "")}, true
	}
	return a
}

// mixRaw is one client after the other, each with a few pipelined requests.
func mixRaw(t *testing.T, addr string, n int, reported *tally) {
	dice := rand.New(rand.NewPCG(7, uint64(n)))
	end := time.Now().Add(4 * time.Second)
	for round := 0; time.Now().Before(end) && !t.Failed(); round++ {
		var askings []asking
		for k := range 1 + dice.IntN(4) {
			askings = append(askings, anyAsking(dice, fmt.Sprintf("t%d.%d.%d", n, round, k)))
		}
		if err := pipeline(addr, askings, reported); err != nil {
			t.Error(err)
		}
	}
}

// pipeline sends all on one connection and checks what comes back, in order. It
// returns only what must not be.
func pipeline(addr string, askings []asking, reported *tally) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	for _, a := range askings {
		for i, piece := range a.raw {
			if i > 0 {
				time.Sleep(time.Millisecond) // so that it comes apart
			}
			if _, err := io.WriteString(c, piece); err != nil {
				break // answered, and closed
			}
		}
		if a.leaves {
			break
		}
	}
	r := bufio.NewReader(c)
	for _, a := range askings {
		if a.leaves {
			return nil
		}
		res, err := http.ReadResponse(r, &http.Request{Method: a.method})
		for err == nil && res.StatusCode < 200 && res.StatusCode != 101 {
			res, err = http.ReadResponse(r, &http.Request{Method: a.method})
		}
		if err != nil {
			reported.failed.Add(1)
			return nil // closed after an answer that was cut or refused
		}
		body, err := io.ReadAll(res.Body)
		if bytes.Contains(body, []byte("planted")) || strings.Contains(fmt.Sprint(res.Header), "planted") {
			if res.StatusCode != 101 && res.Header.Get("X-Token") != a.token {
				return fmt.Errorf("%s %s: what the backend planted has come: %d %v %q", a.method, a.token, res.StatusCode, res.Header, body)
			}
		}
		if err := a.judge(res, body, err, reported); err != nil {
			return err
		}
		if err != nil || res.Close || res.StatusCode == 101 {
			return nil
		}
	}
	return nil
}

// judge returns why an answer is another request's.
func (a *asking) judge(res *http.Response, body []byte, cut error, reported *tally) error {
	token := res.Header.Get("X-Token")
	if res.StatusCode >= 400 || cut != nil || res.StatusCode == 101 {
		reported.failed.Add(1)
	} else {
		reported.whole.Add(1)
	}
	switch {
	case token != "" && token != a.token:
		return fmt.Errorf("%s %s has the answer of %s: %d %q", a.method, a.token, token, res.StatusCode, body)
	case token == "" && res.StatusCode < 400 && res.StatusCode != 101:
		return fmt.Errorf("%s %s has an answer to no request: %d %v %q", a.method, a.token, res.StatusCode, res.Header, body)
	case bytes.Contains(body, []byte("/smuggled")):
		return fmt.Errorf("%s %s: the body came back as a request", a.method, a.token)
	}
	return nil
}

// mixHTTP2 is one connection of HTTP/2 with many streams, over the same few
// connections of the other front.
func mixHTTP2(t *testing.T, addr string, reported *tally) {
	c := http2Client()
	defer c.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for n := range 8 {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(9, uint64(n)))
			for round := 0; ctx.Err() == nil && !t.Failed(); round++ {
				a := asking{method: []string{"GET", "HEAD", "POST", "PUT"}[dice.IntN(4)], token: fmt.Sprintf("h%d.%d", n, round)}
				var body io.Reader
				if a.method[0] == 'P' {
					body = io.LimitReader(strings.NewReader(strings.Repeat("x", 5000)), dice.Int64N(5000))
				}
				one, leave := context.WithTimeout(ctx, 5*time.Second)
				if dice.IntN(6) == 0 {
					one, leave = context.WithTimeout(ctx, time.Duration(dice.IntN(4))*time.Millisecond)
				}
				req, err := http.NewRequestWithContext(one, a.method, "http://"+addr+"/mixed/"+a.token, body)
				if err != nil {
					t.Error(err)
				}
				if res, err := c.Do(req); err == nil {
					b, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if err := a.judge(res, b, err, reported); err != nil {
						t.Errorf("HTTP/2: %v", err)
					}
				} else {
					reported.failed.Add(1)
				}
				leave()
			}
		})
	}
}

// http2Client speaks HTTP/2 with prior knowledge.
func http2Client() *http.Client {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: &p, DisableCompression: true}}
}
