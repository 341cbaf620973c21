package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// What comes for a stream of several channels in one turn of its loop may be more than
// a connection may have waiting: the socket and the policy see it before that.
func TestABurstForSeveralChannelsIsUnderThePolicy(t *testing.T) {
	const n = 200 // of 60 KiB: three times eventloop.max_queue
	pad := strings.Repeat("x", 60<<10)
	for _, policy := range []hub.Policy{hub.Disconnect, hub.DropOldest} {
		g := start(t, func(c *config.Config) {
			c.Namespaces[0].Policy, c.Namespaces[0].QueueMessages, c.Namespaces[0].QueueBytes = policy, 1000, 64<<20
		})
		several := g.dial(t)
		several.Send(wiretest.CRLF("GET /sse?channel=news&channel=other HTTP/1.1\nHost: a\n\n"))
		several.Response()
		several.Block()
		socket := g.ws(t, "channel=news&channel=other", "")
		hold := make(chan struct{})
		for _, l := range g.loops.Loops() {
			l.Post(func() { <-hold })
		}
		for i := range n {
			g.put(t, []string{"news", "other"}[i%2], fmt.Sprintf(`"%d %s"`, i, pad))
		}
		close(hold)
		for i := range n {
			if got := several.Block(); !strings.Contains(got, fmt.Sprintf(`"data":"%d x`, i)) {
				t.Fatalf("%s: block %.90q, want %d", policy, got, i)
			}
			if _, b := socket.Frame(); !strings.Contains(string(b), fmt.Sprintf(`"data":"%d x`, i)) {
				t.Fatalf("%s: frame %.90q, want %d", policy, b, i)
			}
		}
		if got := g.total(func(s eventloop.Stats) uint64 { return s.QueueFull }); got != 0 {
			t.Errorf("%s: %d write queues were full", policy, got)
		}
	}
}

// Messages are compressed once with the whole window: an offer with a smaller
// one is passed over for the next, which is why clients make several (RFC 7692 §7.1).
func TestTheFirstOfferThatCanBeKeptIsTaken(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Namespaces[0].Compress = true })
	f := func(want bool, offers string) {
		t.Helper()
		w := g.dial(t)
		w.Send(wiretest.CRLF("GET /ws?channel=news HTTP/1.1\nHost: a\nConnection: Upgrade\nUpgrade: websocket\n" +
			"Sec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n" + offers + "\n"))
		if got := w.Response().Header.Get("Sec-WebSocket-Extensions"); (got != "") != want || strings.Contains(got, "window") {
			t.Errorf("%q is answered %q", offers, got)
		}
	}
	f(true, "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=10, permessage-deflate\n")
	f(true, "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=10\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\n")
	f(true, "Sec-WebSocket-Extensions: permessage-deflate; unknown, permessage-deflate; server_max_window_bits=9, x, permessage-deflate\n")
	f(false, "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=14\n")
	f(false, "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=16, permessage-deflate; server_max_window_bits\n")
}

// Answers and the end have room of their own, however full the queue is, and nothing
// comes after the end.
func TestControlFramesPassAFullQueue(t *testing.T) {
	g := start(t, func(c *config.Config) {
		small(c)
		c.Namespaces[0].Policy = hub.DropOldest
	})
	w := g.slowDial(t, "")
	w.Upgrade("/ws?channel=news", "")
	payload := `"` + strings.Repeat("x", 3000) + `"`
	n := 0
	publish := func() {
		if n++; n > 20_000 {
			t.Fatal("the reader accepts everything")
		}
		g.put(t, "news", payload)
	}
	for g.push.Stats().Dropped == 0 {
		publish()
	}
	read := g.total(func(s eventloop.Stats) uint64 { return s.Reads })
	w.SendFrame(websocket.OpPing, "are you there")
	w.SendFrame(websocket.OpText, `{"type":"ping"}`)
	trial.Eventually(t, "a ping is read", func() bool {
		return g.total(func(s eventloop.Stats) uint64 { return s.Reads }) > read
	})
	for range 200 {
		publish()
	}
	w.SendFrame(websocket.OpClose, "\x03\xe8")
	trial.Eventually(t, "the subscriber has left", func() bool { return g.push.Stats().Queued == 0 })
	for range 50 {
		g.put(t, "news", payload)
	}
	hurry(w)
	pong, answer := false, false
	for {
		op, b, err := w.ReadFrame()
		if err != nil {
			t.Fatalf("it ends without a close frame: %v", err)
		}
		pong = pong || op == websocket.OpPong && string(b) == "are you there"
		answer = answer || op == websocket.OpText && string(b) == `{"type":"pong"}`
		if op == websocket.OpClose {
			break
		}
	}
	if !pong || !answer {
		t.Errorf("the ping was answered: %v, the message: %v", pong, answer)
	}
	if _, _, err := w.ReadFrame(); err == nil {
		t.Error("a frame comes after the end")
	}
}
