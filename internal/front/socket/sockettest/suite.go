package sockettest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// A Front is what is under test: it serves Protocol.Endpoints in plaintext HTTP/1.1. Its
// hub has the namespace default, which every client may read.
type Front struct {
	*Protocol
	Addr string
	Hub  *hub.Hub
	// Key is an API key with the name Subject and a grant to read everything.
	Key, Subject string
	// Drain starts a drain.
	Drain func(over time.Duration)
	// Panics is how many panics of sessions were counted; Counts, the protocol's
	// connections now.
	Panics func() uint64
	Counts func() (sockets, streams int64)
}

// Run runs the suite. start makes a front of its own for each test.
func Run(t *testing.T, start func(t *testing.T) *Front) {
	for _, x := range []struct {
		name string
		run  func(*testing.T, *Front)
	}{
		{"MessagesAreWhole", messages}, {"SubscriptionsOfASession", subscriptions}, {"WhatASessionAsksFor", wishes}, {"Handshakes", handshakes},
		{"BrokenRules", brokenRules}, {"PanicsEndOneClient", panics}, {"Ends", ends}, {"SlowReaders", slowReaders}, {"AskingFasterThanReading", greedy},
		{"ClientsGoDuringWork", goneDuringWork}, {"LinesInABody", lines}, {"Events", events}, {"Requests", requests}, {"PrivateMessages", private}, {"DrainSendsAway", drain},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := start(t)
			x.run(t, f)
		})
	}
}

// Gone waits until every session was notified of its end.
func (f *Front) Gone(t *testing.T) {
	t.Helper()
	trial.Eventually(t, "every session has ended", func() bool {
		sockets, streams := f.Counts()
		return f.closed.Load() == f.opened.Load() && sockets+streams == 0 && f.began.Load() == f.ended.Load()
	})
}

// client is a WebSocket.
type client struct {
	t *testing.T
	*websocket.Conn
}

func (f *Front) dial(t *testing.T, query string, subprotocols ...string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+f.Addr+"/test/socket?"+query, websocket.DialOptions{Subprotocols: subprotocols,
		Config: websocket.Config{MaxMessage: 16 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseNow)
	return &client{t, c}
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.Write(websocket.OpText, []byte(text)); err != nil {
		c.t.Fatalf("say %q: %v", text, err)
	}
}

func (c *client) read() (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), trial.Patience)
	defer cancel()
	_, b, err := c.Read(ctx)
	return string(b), err
}

func (c *client) expect(text string) {
	c.t.Helper()
	if got, err := c.read(); err != nil || got != text {
		c.t.Fatalf("got %.80q, %v, want %q", got, err, text)
	}
}

func (c *client) roundTrip(say, want string) {
	c.t.Helper()
	c.send(say)
	c.expect(want)
}

// closes wants the end with a code.
func (c *client) closes(code uint16) {
	c.t.Helper()
	_, err := c.read()
	if e, ok := errors.AsType[*websocket.CloseError](err); !ok || e.Code != code {
		c.t.Fatalf("got %v, want a close with %d", err, code)
	}
}

func messages(t *testing.T, f *Front) {
	c := f.dial(t, "")
	c.roundTrip("hello", "hello")
	c.roundTrip(strings.Repeat("long ", 3000), strings.Repeat("long ", 3000))
	if err := c.Write(websocket.OpBinary, []byte{0, 0xff}); err != nil {
		t.Fatal(err)
	}
	c.expect("\x00\xff")

	// In pieces of a byte, and in fragments with a ping between them.
	raw, r := f.raw(t, "/test/socket")
	key := [4]byte{1, 2, 3, 4}
	var b []byte
	frame := func(op websocket.Opcode, fin bool, payload string) {
		at := len(b)
		b = websocket.AppendMaskedFrame(b, op, []byte(payload), key)
		if !fin {
			b[at] &^= 0x80
		}
	}
	frame(websocket.OpText, false, "in ")
	frame(websocket.OpPing, true, "!")
	frame(websocket.OpContinuation, false, "three ")
	frame(websocket.OpContinuation, true, "parts")
	frame(websocket.OpText, true, "and whole")
	for i := range b {
		if _, err := raw.Write(b[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	var want []byte
	want = websocket.AppendFrame(want, websocket.OpPong, []byte("!"))
	want = websocket.AppendFrame(want, websocket.OpText, []byte("in three parts"))
	want = websocket.AppendFrame(want, websocket.OpText, []byte("and whole"))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	_ = raw.Close()
	c.CloseNow()
	f.Gone(t)
}

// raw completes a handshake and leaves the rest to the test.
func (f *Front) raw(t *testing.T, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", f.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(trial.Patience))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", path)
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, %v", res, err)
	}
	return c, r
}

// Publish publishes text, and waits until it is.
func (f *Front) Publish(t *testing.T, channel, text string) {
	t.Helper()
	f.publish(t, channel, text, hub.Attributes{})
}

func (f *Front) publish(t *testing.T, channel, text string, a hub.Attributes) {
	t.Helper()
	done := make(chan error, 1)
	a.Payload = hub.Text
	f.Hub.Publish(hub.Publication{Channel: channel, Data: []byte(text), Attributes: &a}, func(_ hub.Position, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func subscriptions(t *testing.T, f *Front) {
	a, b := f.dial(t, ""), f.dial(t, "later")
	a.roundTrip("sub one", "subscribed one")
	b.roundTrip("sub one", "subscribed one")
	b.roundTrip("sub two", "subscribed two")
	b.send("sub no:such")
	if s, err := b.read(); err != nil || !strings.HasPrefix(s, "refused ") {
		t.Fatalf("%q, %v", s, err)
	}
	a.send("pub one first")
	for got := range 2 {
		if s, err := a.read(); err != nil || s != "first" && s != "published <nil>" {
			t.Fatalf("%d: %q, %v", got, s, err)
		}
	}
	b.expect("first")
	f.publish(t, "two", "second", hub.Attributes{})
	b.expect("second")
	b.roundTrip("unsub one", "unsubscribed")
	f.publish(t, "one", "third", hub.Attributes{})
	a.expect("third")
	f.publish(t, "two", "fourth", hub.Attributes{})
	b.expect("fourth")
	b.roundTrip("sub one", "subscribed one")
	for i := range 200 { // many in one write, or in many
		f.publish(t, "one", fmt.Sprint(i), hub.Attributes{})
	}
	for i := range 200 {
		a.expect(fmt.Sprint(i))
		b.expect(fmt.Sprint(i))
	}
	c := f.dial(t, "")
	for _, channel := range []string{"two", "one"} { // its first subscription, and another
		c.roundTrip("all "+channel, "subscribed "+channel)
		for s := ""; s != "live "+channel; {
			last := s
			var err error
			if s, err = c.read(); err != nil {
				t.Fatal(err)
			}
			if want := map[string]string{"two": "fourth", "one": "199"}[channel]; s == "live "+channel && last != want {
				t.Errorf("%s after %q, want it after %q", s, last, want)
			}
		}
		f.publish(t, channel, "newer", hub.Attributes{})
		c.expect("newer")
	}
	c.CloseNow()
	a.CloseNow()
	b.CloseNow()
	f.Gone(t)
}

func wishes(t *testing.T, f *Front) {
	c := f.dial(t, "", "other", "test.v1")
	c.roundTrip("who", `127.0.0.1 "test.v1" true`)
	c.roundTrip("timer", "timer")
	c.roundTrip("do", "done")
	c.roundTrip("post", "posted")
	c.roundTrip("ping", "pong")
	if c.Subprotocol() != "test.v1" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	d := f.dial(t, "", "other")
	d.roundTrip("who", `127.0.0.1 "" true`)
	if d.Subprotocol() != "" {
		t.Errorf("subprotocol %q", d.Subprotocol())
	}
	if sockets, streams := f.Counts(); sockets != 2 || streams != 0 {
		t.Errorf("%d sockets, %d streams", sockets, streams)
	}
}

func handshakes(t *testing.T, f *Front) {
	g := func(path string, want int, fields ...string) {
		t.Helper()
		if res, _ := f.do(t, "GET", path, "", fields...); res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
	}
	shake := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	g("/test/socket", 426)
	g("/test/socket", 426, append(shake[:4:4], "Sec-WebSocket-Version", "12", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")...)
	g("/test/socket", 400, shake[:6]...)
	g("/test/socket", 403, append(shake, "Origin", "https://elsewhere.example")...)
	if n := f.opened.Load(); n != 0 {
		t.Errorf("%d sessions", n)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+f.Addr+"/test/socket?any", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(shake); i += 2 {
		req.Header.Set(shake[i], shake[i+1])
	}
	req.Header.Set("Origin", "https://elsewhere.example")
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, %v: want any origin to be allowed", res, err)
	}
	_ = res.Body.Close()
	f.Gone(t)
}

func brokenRules(t *testing.T, f *Front) {
	g := func(what string, b []byte, want uint16) {
		t.Helper()
		c, r := f.raw(t, "/test/socket")
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 4)
		if _, err := io.ReadFull(r, head); err != nil || head[0] != 0x88 || uint16(head[2])<<8|uint16(head[3]) != want {
			t.Errorf("%s: got % x, %v, want a close with %d", what, head, err, want)
		}
		_ = c.Close()
	}
	key := [4]byte{9, 8, 7, 6}
	g("not masked", websocket.AppendFrame(nil, websocket.OpText, []byte("x")), 1002)
	g("too large", websocket.AppendMaskedHeader(nil, true, false, websocket.OpBinary, 16<<10+1, key), 1009)
	g("no UTF-8", websocket.AppendMaskedFrame(nil, websocket.OpText, []byte("\xff"), key), 1007)
	g("compressed", websocket.AppendMaskedHeader(nil, true, true, websocket.OpText, 5, key), 1002)
	g("close", websocket.AppendMaskedClose(nil, 4000, "so long", key), 4000)
	f.Gone(t)
}

func panics(t *testing.T, f *Front) {
	a, b, c := f.dial(t, ""), f.dial(t, ""), f.dial(t, "")
	a.roundTrip("sub one", "subscribed one")
	b.roundTrip("subpanic one", "subscribed one")
	c.roundTrip("sub one", "subscribed one")
	f.publish(t, "one", "hello", hub.Attributes{})
	a.expect("hello")
	c.expect("hello")
	b.closes(1011)
	c.send("panic")
	c.closes(1011)
	a.roundTrip("still here", "still here")
	if n := f.Panics(); n != 2 {
		t.Errorf("%d panics counted", n)
	}
	trial.Eventually(t, "two have ended", func() bool { return f.closed.Load() == 2 })
}

func ends(t *testing.T, f *Front) {
	c := f.dial(t, "")
	c.roundTrip("close 4001 enough", "closing")
	_, err := c.read()
	if e, ok := errors.AsType[*websocket.CloseError](err); !ok || e.Code != 4001 || e.Reason != "enough" {
		t.Errorf("got %v", err)
	}
	c = f.dial(t, "")
	c.roundTrip("sub one", "subscribed one")
	c.send("cut")
	if s, err := c.read(); err == nil {
		t.Errorf("after a cut: %q", s)
	}
	c = f.dial(t, "")
	if err := c.Close(1000, "done"); err != nil {
		t.Errorf("close: %v", err)
	}
	f.publish(t, "one", "to none", hub.Attributes{})
	f.Gone(t)
}

func slowReaders(t *testing.T, f *Front) {
	c := f.dial(t, "")
	const frames = 100 // of 32 KiB: less than may wait
	c.send(fmt.Sprint("flood ", frames))
	for i := range frames {
		if s, err := c.read(); err != nil || len(s) != 32<<10 {
			t.Fatalf("frame %d: %d bytes, %v", i, len(s), err)
		}
	}
	c.roundTrip("hello", "hello")
	trial.Eventually(t, "the session was notified that its queue is drained", func() bool { return f.drained.Load() > 0 })
	c.send("flood 2000") // more than may wait, and the client does not read
	f.Gone(t)
}

func greedy(t *testing.T, f *Front) {
	c, r := f.raw(t, "/test/socket")
	const n = 3000
	payload := bytes.Repeat([]byte("x"), 12<<10)
	frame := websocket.AppendMaskedFrame(nil, websocket.OpText, payload, [4]byte{1, 1, 1, 1})
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil; i++ {
			_, err = c.Write(frame)
		}
		sent <- err
	}()
	trial.Eventually(t, "answers wait", func() bool { return f.unsent.Load() > 32<<10 })
	want := websocket.AppendFrame(nil, websocket.OpText, payload)
	got := make([]byte, len(want))
	for i := range n {
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if most := f.unsent.Load(); most > 256<<10 {
		t.Errorf("%d bytes waited for a client that asked on", most)
	}
	_ = c.Close()
	f.Gone(t)
}

func goneDuringWork(t *testing.T, f *Front) {
	release := f.pause()
	defer release()
	c := f.dial(t, "")
	c.send("do")
	c.roundTrip("meanwhile", "meanwhile")
	c.CloseNow()
	f.Gone(t)
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+f.Addr+"/test/ask?do", nil)
	ctx, cancel := context.WithCancel(t.Context())
	requested := make(chan error, 1)
	go func() {
		res, err := http.DefaultTransport.RoundTrip(req.WithContext(ctx))
		if err == nil {
			_ = res.Body.Close()
		}
		requested <- err
	}()
	cancel()
	if err := <-requested; err == nil {
		t.Error("it was answered")
	}
	release()
	d := f.dial(t, "")
	d.roundTrip("do", "done")
	if n := f.thens.Load(); n > 2 {
		t.Errorf("%d calls for clients that have gone", n)
	}
	d.CloseNow()
	f.Gone(t)
}
