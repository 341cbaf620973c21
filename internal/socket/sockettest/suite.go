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

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/websocket"
)

// A Front is what is under test: it serves Protocol.Endpoints in plaintext HTTP/1.1. Its
// hub has the namespace default, which anybody may read.
type Front struct {
	*Protocol
	Addr string
	Hub  *hub.Hub
	// Key is an API key with the name Subject.
	Key, Subject string
	// Drain begins a drain.
	Drain func(over time.Duration)
	// Panics is how many panics of sessions were counted; Counts, the protocol's
	// connections now.
	Panics func() uint64
	Counts func() (sockets, streams int64)
}

const patience = 20 * time.Second

// Run runs the suite. start makes a front of its own for each test.
func Run(t *testing.T, start func(t *testing.T) *Front) {
	for _, x := range []struct {
		name string
		run  func(*testing.T, *Front)
	}{
		{"MessagesAreWhole", messages}, {"SubscriptionsOfASession", subscriptions}, {"WhatASessionAsksFor", wishes}, {"Handshakes", handshakes},
		{"BrokenRules", brokenRules}, {"PanicsEndOneClient", panics}, {"Ends", ends}, {"SlowReaders", slowReaders}, {"AskingFasterThanReading", greedy},
		{"ClientsGoDuringWork", goneDuringWork}, {"LinesInABody", lines}, {"Events", events}, {"Requests", requests}, {"DrainSendsAway", drain},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := start(t)
			x.run(t, f)
		})
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// gone waits until every session has heard of its end.
func (f *Front) gone(t *testing.T) {
	t.Helper()
	eventually(t, "every session has ended", func() bool {
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+f.Addr+"/test/socket?"+query, websocket.DialOptions{Subprotocols: subprotocols,
		Config: websocket.Config{MaxMessage: 16 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseNow)
	return &client{t, c}
}

func (c *client) say(text string) {
	c.t.Helper()
	if err := c.Write(websocket.OpText, []byte(text)); err != nil {
		c.t.Fatalf("say %q: %v", text, err)
	}
}

func (c *client) read() (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	_, b, err := c.Read(ctx)
	return string(b), err
}

func (c *client) want(text string) {
	c.t.Helper()
	if got, err := c.read(); err != nil || got != text {
		c.t.Fatalf("got %.80q, %v, want %q", got, err, text)
	}
}

func (c *client) ask(say, want string) {
	c.t.Helper()
	c.say(say)
	c.want(want)
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
	c.ask("hello", "hello")
	c.ask(strings.Repeat("long ", 3000), strings.Repeat("long ", 3000))
	if err := c.Write(websocket.OpBinary, []byte{0, 0xff}); err != nil {
		t.Fatal(err)
	}
	c.want("\x00\xff")

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
	f.gone(t)
}

// raw completes a handshake and leaves the rest to the test.
func (f *Front) raw(t *testing.T, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", f.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
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
	a.ask("sub one", "subscribed one")
	b.ask("sub one", "subscribed one")
	b.ask("sub two", "subscribed two")
	b.say("sub no:such")
	if s, err := b.read(); err != nil || !strings.HasPrefix(s, "refused ") {
		t.Fatalf("%q, %v", s, err)
	}
	a.say("pub one first")
	for got := range 2 {
		if s, err := a.read(); err != nil || s != "first" && s != "published <nil>" {
			t.Fatalf("%d: %q, %v", got, s, err)
		}
	}
	b.want("first")
	f.publish(t, "two", "second", hub.Attributes{})
	b.want("second")
	b.ask("unsub one", "unsubscribed")
	f.publish(t, "one", "third", hub.Attributes{})
	a.want("third")
	f.publish(t, "two", "fourth", hub.Attributes{})
	b.want("fourth")
	b.ask("sub one", "subscribed one")
	for i := range 200 { // many in one write, or in many
		f.publish(t, "one", fmt.Sprint(i), hub.Attributes{})
	}
	for i := range 200 {
		a.want(fmt.Sprint(i))
		b.want(fmt.Sprint(i))
	}
	a.CloseNow()
	b.CloseNow()
	f.gone(t)
}

func wishes(t *testing.T, f *Front) {
	c := f.dial(t, "", "other", "test.v1")
	c.ask("who", `127.0.0.1 "test.v1" true`)
	c.ask("timer", "timer")
	c.ask("do", "done")
	c.ask("post", "posted")
	c.ask("ping", "pong")
	if c.Subprotocol() != "test.v1" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	d := f.dial(t, "", "other")
	d.ask("who", `127.0.0.1 "" true`)
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
	f.gone(t)
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
	f.gone(t)
}

func panics(t *testing.T, f *Front) {
	a, b, c := f.dial(t, ""), f.dial(t, ""), f.dial(t, "")
	a.ask("sub one", "subscribed one")
	b.ask("subpanic one", "subscribed one")
	c.ask("sub one", "subscribed one")
	f.publish(t, "one", "hello", hub.Attributes{})
	a.want("hello")
	c.want("hello")
	b.closes(1011)
	c.say("panic")
	c.closes(1011)
	a.ask("still here", "still here")
	if n := f.Panics(); n != 2 {
		t.Errorf("%d panics counted", n)
	}
	eventually(t, "two have ended", func() bool { return f.closed.Load() == 2 })
}

func ends(t *testing.T, f *Front) {
	c := f.dial(t, "")
	c.ask("close 4001 enough", "closing")
	_, err := c.read()
	if e, ok := errors.AsType[*websocket.CloseError](err); !ok || e.Code != 4001 || e.Reason != "enough" {
		t.Errorf("got %v", err)
	}
	c = f.dial(t, "")
	c.ask("sub one", "subscribed one")
	c.say("cut")
	if s, err := c.read(); err == nil {
		t.Errorf("after a cut: %q", s)
	}
	c = f.dial(t, "")
	if err := c.Close(1000, "done"); err != nil {
		t.Errorf("close: %v", err)
	}
	f.publish(t, "one", "to nobody", hub.Attributes{})
	f.gone(t)
}

func slowReaders(t *testing.T, f *Front) {
	c := f.dial(t, "")
	const frames = 100 // of 32 KiB: less than may wait
	c.say(fmt.Sprint("flood ", frames))
	for i := range frames {
		if s, err := c.read(); err != nil || len(s) != 32<<10 {
			t.Fatalf("frame %d: %d bytes, %v", i, len(s), err)
		}
	}
	c.ask("hello", "hello")
	eventually(t, "the session has heard that all was taken", func() bool { return f.drained.Load() > 0 })
	c.say("flood 2000") // more than may wait, and nobody reads
	f.gone(t)
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
	eventually(t, "answers wait", func() bool { return f.unsent.Load() > 32<<10 })
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
	f.gone(t)
}

func goneDuringWork(t *testing.T, f *Front) {
	release := f.hold()
	defer release()
	c := f.dial(t, "")
	c.say("do")
	c.ask("meanwhile", "meanwhile")
	c.CloseNow()
	f.gone(t)
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+f.Addr+"/test/ask?do", nil)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		res, err := http.DefaultTransport.RoundTrip(req.WithContext(ctx))
		if err == nil {
			_ = res.Body.Close()
		}
		asked <- err
	}()
	cancel()
	if err := <-asked; err == nil {
		t.Error("it was answered")
	}
	release()
	d := f.dial(t, "")
	d.ask("do", "done")
	if n := f.thens.Load(); n > 2 {
		t.Errorf("%d calls for clients that have gone", n)
	}
	d.CloseNow()
	f.gone(t)
}

func lines(t *testing.T, f *Front) {
	res, r := f.open(t, "/test/lines?channel=one")
	if h := res.Header; res.StatusCode != 200 || h.Get("Content-Type") != "application/x-lines" || h.Get("X-Test") != "yes" || h.Get("X-Bad") != "" ||
		h.Get("X-Accel-Buffering") != "no" || res.ContentLength != -1 {
		t.Errorf("head: %d %v", res.StatusCode, h)
	}
	want := func(s string) {
		t.Helper()
		if got, err := r.ReadString('\n'); err != nil || got != s+"\n" {
			t.Fatalf("got %q, %v, want %q", got, err, s)
		}
	}
	want("subscribed one")
	f.publish(t, "one", "hello", hub.Attributes{})
	want("hello")
	if sockets, streams := f.Counts(); sockets != 0 || streams != 1 {
		t.Errorf("%d sockets, %d streams", sockets, streams)
	}
	_ = res.Body.Close()
	f.gone(t)
	if res, body := f.do(t, "HEAD", "/test/lines?channel=one", ""); res.StatusCode != 200 || body != "" || f.opened.Load() != 1 {
		t.Errorf("HEAD: %d %q, %d sessions", res.StatusCode, body, f.opened.Load())
	}
	res, r = f.open(t, "/test/lines?channel=one")
	defer res.Body.Close()
	want("subscribed one")
	f.Drain(0)
	want("bye")
	if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
		t.Errorf("after the last words: %q, %v", b, err)
	}
	f.gone(t)
}

// open asks for a stream.
func (f *Front) open(t *testing.T, path string, fields ...string) (*http.Response, *bufio.Reader) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+f.Addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res, bufio.NewReader(res.Body)
}

// block reads up to an empty line.
func block(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after %q", err, b.String())
		}
		if line == "\n" {
			return b.String()
		}
		b.WriteString(line)
	}
}

func events(t *testing.T, f *Front) {
	res, r := f.open(t, "/test/events?public&unknown")
	if h := res.Header; res.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Test") != "yes" {
		t.Errorf("head: %d %v", res.StatusCode, h)
	}
	want := func(s string) {
		t.Helper()
		if got := block(t, r); got != s {
			t.Fatalf("got %q, want %q", got, s)
		}
	}
	want(": welcome\n")
	want("event: hole\ndata: unknown\n")
	f.publish(t, "news", "unwanted", hub.Attributes{})
	f.publish(t, "news", "secret", hub.Attributes{Private: true})
	f.publish(t, "news", "hello\nyou", hub.Attributes{ID: "urn:1", Event: "greeting", Retry: 7})
	want("event: greeting\nretry: 7\nid: urn:1\ndata: hello\ndata: you\n")
	if _, streams := f.Counts(); streams != 1 || f.began.Load() != 1 || f.ended.Load() != 0 {
		t.Errorf("%d streams, %d began, %d ended", streams, f.began.Load(), f.ended.Load())
	}
	_ = res.Body.Close()
	f.gone(t)

	_, r = f.open(t, "/test/events?life")
	want(": welcome\n")
	if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
		t.Errorf("at the end of its life: %q, %v", b, err)
	}
	_, r = f.open(t, "/test/events?beat")
	want(": welcome\n")
	want(":\n")
	want(":\n")
	res, r = f.open(t, "/test/events?identify", "X-API-Key", f.Key)
	want(": welcome\n")
	f.publish(t, "news", "secret", hub.Attributes{Private: true, ID: "urn:2"})
	want("id: urn:2\ndata: secret\n")
	_ = res.Body.Close()

	if res, _ := f.do(t, "GET", "/test/events?nowhere", ""); res.StatusCode != 404 {
		t.Errorf("unknown namespace: %d", res.StatusCode)
	}
	if res, body := f.do(t, "GET", "/test/events?away", ""); res.StatusCode != 200 || !strings.HasPrefix(body, "retry: ") {
		t.Errorf("sent away: %d %q", res.StatusCode, body)
	}
	_, r = f.open(t, "/test/events")
	want(": welcome\n")
	f.Drain(0)
	if s := block(t, r); !strings.HasPrefix(s, "retry: ") {
		t.Errorf("drained: %q", s)
	}
	if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
		t.Errorf("after the last words: %q, %v", b, err)
	}
	f.gone(t)
}

// do makes a request and reads the answer.
func (f *Front) do(t *testing.T, method, path, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+f.Addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return res, string(b)
}

func requests(t *testing.T, f *Front) {
	g := func(method, path, body string, status int, want string, fields ...string) *http.Response {
		t.Helper()
		res, got := f.do(t, method, path, body, fields...)
		if res.StatusCode != status || want != "" && got != want {
			t.Errorf("%s %s: %d %q, want %d %q", method, path, res.StatusCode, got, status, want)
		}
		return res
	}
	whole := func(method, path, x, origin, body string) string {
		p, q, _ := strings.Cut(path, "?")
		return fmt.Sprintf("%s %s %s host=%s x=%s origin=%s secure=false local=true body=%s", method, p, q, f.Addr, x, origin, body)
	}
	none := originOf(t, f)
	res := g("GET", "/test/ask?a=b%2Fc", "", 200, whole("GET", "/test/ask?a=b%2Fc", "1, 2", none, ""), "X-Test", "1", "X-Test", "2")
	if h := res.Header; h.Get("X-Field") != "yes" || h.Get("X-Bad") != "" || h.Get("Cache-Control") != "no-store" || h.Get("Content-Type") != "text/plain" || h.Get("Date") == "" {
		t.Errorf("fields: %v", h)
	}
	g("POST", "/test/ask", "the body", 200, whole("POST", "/test/ask", "", none, "the body"))
	g("POST", "/test/ask?do", strings.Repeat("b", 1024), 200, whole("POST", "/test/ask?do", "", none, strings.Repeat("b", 1024)))
	g("POST", "/test/ask", strings.Repeat("b", 1025), 413, "")
	if res := g("HEAD", "/test/ask", "", 200, ""); res.ContentLength <= 0 {
		t.Errorf("HEAD: length %d", res.ContentLength)
	}
	g("GET", "/test/below/a%2Fb/c", "", 200, whole("GET", "/test/below/a%2Fb/c", "", none, ""))
	g("GET", "/test/below/more/x", "", 200, "")
	g("GET", "/test/below", "", 404, "")
	if res := g("PUT", "/test/ask", "", 405, ""); res.Header.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("Allow: %v", res.Header)
	}
	if res := g("OPTIONS", "/test/ask", "", 204, "", "Origin", "http://"+f.Addr, "Access-Control-Request-Method", "POST"); res.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("preflight: %v", res.Header)
	}
	if res := g("GET", "/test/ask?fail", "", 403, "{\"error\":{\"code\":403,\"message\":\"no\",\"hint\":\"ask somebody else\"}}\n", "Origin", "http://"+f.Addr); res.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("CORS: %v", res.Header)
	}
	if res := g("GET", "/test/ask?away", "", 503, ""); res.Header.Get("Retry-After") == "" {
		t.Errorf("away: %v", res.Header)
	}
	g("GET", "/test/ask?identify", "", 200, `"" true`)
	g("GET", "/test/ask?identify", "", 200, fmt.Sprintf("%q false", f.Subject), "X-API-Key", f.Key)
	g("GET", "/test/ask?identify", "", 401, "", "X-API-Key", "wrong")
	g("GET", "/test/ask?identify", "", 401, "", "Authorization", "Bearer e30.e30.e30")
	g("POST", "/test/ask?publish", "1", 200, "true <nil> true")
	g("POST", "/test/ask?topics", "1", 200, "true <nil>")
	g("GET", "/test/ask?nothing", "", 500, "")
	pipeline(t, f)
	c, err := net.Dial("tcp", f.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET /test/ask?latepanic HTTP/1.1\r\nHost: a.example\r\n\r\n")
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("after a panic: %q, %v", b, err)
	}
}

// originOf is how the test protocol writes that no page asks.
func originOf(t *testing.T, f *Front) string {
	_, s := f.do(t, "GET", "/test/ask", "")
	_, s, _ = strings.Cut(s, "origin=")
	s, _, _ = strings.Cut(s, " ")
	if !strings.HasPrefix(s, ",") {
		t.Errorf("origin of nobody: %q", s)
	}
	return s
}

// pipeline sends requests that wait for each other, and a body in chunks and in pieces.
func pipeline(t *testing.T, f *Front) {
	c, err := net.Dial("tcp", f.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	const host = " HTTP/1.1\r\nHost: a.example\r\n"
	for _, piece := range []string{
		"GET /test/ask?do=1" + host + "\r\nGET /test/ask?n=2" + host + "\r\nPOST /test/ask?do=3" + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		"2\r\nde\r\n0\r\n\r\nPOST /test/ask?n=4" + host + "Content-Length: 6\r\n\r\nfgh", "ijkPOST /test/nobody" + host + "Content-Length: 3\r\n\r\nxyz",
	} {
		if _, err := io.WriteString(c, piece); err != nil {
			t.Fatal(err)
		}
	}
	r := bufio.NewReader(c)
	for _, want := range []string{"do=1 host=a.example x=", "n=2 host=a.example x=", "body=abcde", "body=fghijk", "body="} {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("the answer with %q: %v", want, err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || !bytes.Contains(b, []byte(want)) {
			t.Errorf("%d %q, %v, want %q", res.StatusCode, b, err, want)
		}
	}
}

func drain(t *testing.T, f *Front) {
	c := f.dial(t, "")
	c.ask("hello", "hello")
	f.Drain(0)
	c.want("bye")
	c.closes(1012)
	f.gone(t)
	res, _ := f.do(t, "GET", "/test/socket", "", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("a new one: %d %v", res.StatusCode, res.Header)
	}
	if res, body := f.do(t, "GET", "/test/events", ""); res.StatusCode != 200 || !strings.HasPrefix(body, "retry: ") {
		t.Errorf("new events: %d %q", res.StatusCode, body)
	}
	if res, _ := f.do(t, "GET", "/test/lines?channel=one", ""); res.StatusCode != 503 {
		t.Errorf("a new stream: %d", res.StatusCode)
	}
	if res, _ := f.do(t, "GET", "/test/ask", ""); res.StatusCode != 200 {
		t.Errorf("a request: %d", res.StatusCode)
	}
	if n := f.opened.Load(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}
