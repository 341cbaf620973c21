package app

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	pusherprotocol "github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// held is a client's connection that stays open, by one protocol. What comes is read until
// the end.
type held struct {
	kind, who string
	done      chan struct{}
	answer    func(b []byte) string // what the client says to b; nil: nothing

	mu   sync.Mutex
	last string // what came last
	end  string // how it ended: a close code, or the last event
}

// heldKinds are all that clients can hold open, over both fronts.
var heldKinds = []string{"sse", "sse2", "ws", "mercure", "mercure2", "centrifuge", "uni_sse", "uni_sse2", "pusher"}

// A holder opens connections to a gateway.
type holder struct {
	t      *testing.T
	g      *gateway
	h1, h2 *http.Client
	ctx    context.Context
	// pusherKey is the key of the app; empty means app-key.
	pusherKey string
}

func newHolder(t *testing.T, g *gateway) *holder {
	ctx, cancel := context.WithCancel(context.Background())
	h := &holder{t: t, g: g, ctx: ctx, h1: &http.Client{Transport: &http.Transport{}}, h2: overHTTP2(t, nil)}
	h.h2.Timeout = 0
	t.Cleanup(func() {
		cancel()
		h.h1.CloseIdleConnections()
	})
	return h
}

// open opens a connection that reads the channel a of namespace ns (native), or news of
// the protocol's own, with a token or "".
func (h *holder) open(kind, ns, token string) *held {
	h.t.Helper()
	c := &held{kind: kind, who: token, done: make(chan struct{})}
	bare := strings.TrimSuffix(kind, "2")
	client := h.h1
	if bare != kind {
		client = h.h2
	}
	channel := ns + ":a"
	switch bare {
	case "sse":
		h.stream(c, client, "/sse?channel="+channel, token)
	case "mercure":
		h.stream(c, client, "/.well-known/mercure?topic=a", token)
	case "uni_sse":
		connect, _ := json.Marshal(map[string]any{"token": token, "subs": map[string]any{channel: map[string]any{}}})
		h.stream(c, client, "/connection/uni_sse?cf_connect="+url.QueryEscape(string(connect)), "")
	case "ws":
		h.socket(c, "/ws?hello=1&channel="+channel, token, "subscribed")
	case "centrifuge":
		h.socket(c, "/connection/websocket", "", `"id":2`,
			fmt.Sprintf(`{"id":1,"connect":{"token":%q}}`, token), fmt.Sprintf(`{"id":2,"subscribe":{"channel":%q}}`, channel))
	case "pusher":
		h.pusher(c, token)
	default:
		h.t.Fatal(kind)
	}
	return c
}

func (h *holder) stream(c *held, client *http.Client, path, token string) {
	h.t.Helper()
	req, _ := http.NewRequestWithContext(h.ctx, http.MethodGet, h.g.url+path, nil)
	req.Header.Set("Accept", "text/event-stream")
	authorize(req.Header, token)
	res, err := client.Do(req)
	if err != nil {
		h.t.Fatalf("%s: %v", c.kind, err)
	}
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		h.t.Fatalf("%s: %d %s", c.kind, res.StatusCode, b)
	}
	ready := make(chan struct{})
	go func() {
		defer close(c.done)
		defer res.Body.Close()
		in := bufio.NewReader(res.Body)
		first := sync.OnceFunc(func() { close(ready) })
		defer first()
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				c.ended("end")
				return
			}
			if line = strings.TrimSpace(line); line != "" {
				c.received(line)
			}
			if line == "" || strings.HasPrefix(c.kind, "mercure") { // a comment is all that it starts with
				first()
			}
		}
	}()
	<-ready
}

// authorize adds an API key, or a token.
func authorize(f http.Header, token string) {
	if key, ok := strings.CutPrefix(token, "key "); ok {
		f.Set("X-API-Key", key)
	} else if token != "" {
		f.Set("Authorization", "Bearer "+token)
	}
}

func (h *holder) socket(c *held, path, token, ready string, say ...string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, trial.Patience)
	defer cancel()
	o := websocket.DialOptions{Header: http.Header{}}
	authorize(o.Header, token)
	conn, _, err := websocket.Dial(ctx, strings.Replace(h.g.url, "http", "ws", 1)+path, o)
	if err != nil {
		h.t.Fatalf("%s: %v", c.kind, err)
	}
	for _, text := range say {
		if err := conn.Write(websocket.OpText, []byte(text)); err != nil {
			h.t.Fatal(err)
		}
	}
	is := make(chan struct{})
	go func() {
		defer close(c.done)
		defer conn.CloseNow()
		first := sync.OnceFunc(func() { close(is) })
		defer first()
		for {
			_, b, err := conn.Read(h.ctx)
			if err != nil {
				if e, ok := errors.AsType[*websocket.CloseError](err); ok {
					c.ended(fmt.Sprintf("%d %s", e.Code, e.Reason))
				} else {
					c.ended(err.Error())
				}
				return
			}
			if string(b) == "{}" && c.kind == "centrifuge" {
				_ = conn.Write(websocket.OpText, b) // a ping
			}
			c.received(string(b))
			if c.answer != nil {
				if say := c.answer(b); say != "" {
					_ = conn.Write(websocket.OpText, []byte(say))
				}
			}
			if strings.Contains(string(b), ready) {
				first()
			}
		}
	}()
	select {
	case <-is:
	case <-ctx.Done():
		h.t.Fatalf("%s: no %s, but %s", c.kind, ready, c.said())
	}
}

// pusher connects to an app, to the channel a, or private-a with the app's secret.
func (h *holder) pusher(c *held, secret string) {
	h.t.Helper()
	path := "/app/" + cmp.Or(h.pusherKey, "app-key") + "?protocol=7"
	if secret == "" {
		h.socket(c, path, "", "subscription_succeeded", `{"event":"pusher:subscribe","data":{"channel":"a"}}`)
		return
	}
	c.answer = func(b []byte) string {
		var f struct{ Event, Data string }
		var hello struct {
			ID string `json:"socket_id"`
		}
		if json.Unmarshal(b, &f) != nil || f.Event != "pusher:connection_established" || json.Unmarshal([]byte(f.Data), &hello) != nil {
			return ""
		}
		sign := pusherprotocol.SignSubscription(cmp.Or(h.pusherKey, "app-key"), secret, hello.ID, "private-a", "")
		return fmt.Sprintf(`{"event":"pusher:subscribe","data":{"channel":"private-a","auth":%q}}`, sign)
	}
	h.socket(c, path, "", "subscription_succeeded")
}

func (c *held) received(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = text
}

func (c *held) ended(how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end = how; how == "end" {
		c.end = c.last
	}
}

func (c *held) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// open reports whether the connection is still open.
func (c *held) open() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// wantEnd waits for the end, which has to have words in it.
func (c *held) wantEnd(t *testing.T, words string) {
	t.Helper()
	trial.Eventually(t, c.kind+" ends", func() bool { return !c.open() })
	c.mu.Lock()
	defer c.mu.Unlock()
	if !strings.Contains(c.end, words) {
		t.Errorf("%s ended with %q, want %q", c.kind, c.end, words)
	}
}

// wantOpen checks that the connection is open and still gets what is published.
func (c *held) wantOpen(t *testing.T, text string) {
	t.Helper()
	trial.Eventually(t, c.kind+" gets "+text, func() bool { return !c.open() || strings.Contains(c.said(), text) })
	if !c.open() {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.Errorf("%s was closed: %s", c.kind, c.end)
	}
}
