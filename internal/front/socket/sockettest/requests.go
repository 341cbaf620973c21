package sockettest

import (
	"bufio"
	"bytes"
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
	f.Gone(t)
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
	f.Gone(t)
}

// open requests a stream.
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
	f.Gone(t)

	_, r = f.open(t, "/test/events?life")
	want(": welcome\n")
	if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
		t.Errorf("at the end of its life: %q, %v", b, err)
	}
	_, r = f.open(t, "/test/events?pulse")
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
		t.Errorf("rejected: %d %q", res.StatusCode, body)
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
	f.Gone(t)
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
	if res := g("GET", "/test/ask?fail", "", 403, "{\"error\":{\"code\":403,\"message\":\"no\",\"hint\":\"ask another server\"}}\n", "Origin", "http://"+f.Addr); res.Header.Get("Access-Control-Allow-Origin") == "" {
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
	_ = c.SetDeadline(time.Now().Add(trial.Patience))
	fmt.Fprintf(c, "GET /test/ask?latepanic HTTP/1.1\r\nHost: a.example\r\n\r\n")
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("after a panic: %q, %v", b, err)
	}
}

// originOf is how the test protocol writes a request without an origin.
func originOf(t *testing.T, f *Front) string {
	_, s := f.do(t, "GET", "/test/ask", "")
	_, s, _ = strings.Cut(s, "origin=")
	s, _, _ = strings.Cut(s, " ")
	if !strings.HasPrefix(s, ",") {
		t.Errorf("origin of no client: %q", s)
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
	_ = c.SetDeadline(time.Now().Add(trial.Patience))
	const host = " HTTP/1.1\r\nHost: a.example\r\n"
	for _, piece := range []string{
		"GET /test/ask?do=1" + host + "\r\nGET /test/ask?n=2" + host + "\r\nPOST /test/ask?do=3" + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		"2\r\nde\r\n0\r\n\r\nPOST /test/ask?n=4" + host + "Content-Length: 6\r\n\r\nfgh", "ijkPOST /test/unread" + host + "Content-Length: 3\r\n\r\nxyz",
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
	c.roundTrip("hello", "hello")
	f.Drain(0)
	c.expect("bye")
	c.closes(1012)
	f.Gone(t)
	f.dial(t, "").closes(1012) // after the time that its client should wait
	if res, body := f.do(t, "GET", "/test/events", ""); res.StatusCode != 200 || !strings.HasPrefix(body, "retry: ") {
		t.Errorf("new events: %d %q", res.StatusCode, body)
	}
	if res, _ := f.do(t, "GET", "/test/lines?channel=one", ""); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("a new stream: %d", res.StatusCode)
	}
	if res, _ := f.do(t, "GET", "/test/ask", ""); res.StatusCode != 200 {
		t.Errorf("a request: %d", res.StatusCode)
	}
	if n := f.opened.Load(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// private is about Weir's own streams beside the protocol's: anyone who reads because everybody
// may does not get private messages.
func private(t *testing.T, f *Front) {
	next := func(r *bufio.Reader) string {
		for {
			if b := block(t, r); strings.Contains(b, "data: ") {
				_, b, _ = strings.Cut(b, "\n") // its id
				return b
			}
		}
	}
	_, open := f.open(t, "/sse?channel=news")
	_, several := f.open(t, "/sse?channel=news&channel=more")
	_, granted := f.open(t, "/sse?channel=news", "X-API-Key", f.Key)
	ws := func(fields http.Header) *client {
		c, _, err := websocket.Dial(t.Context(), "ws://"+f.Addr+"/ws?channel=news&hello=1", websocket.DialOptions{Header: fields})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.CloseNow)
		x := &client{t, c}
		if _, err := x.read(); err != nil {
			t.Fatal(err)
		}
		return x
	}
	openWS, grantedWS := ws(nil), ws(http.Header{"X-Api-Key": {f.Key}})
	for _, r := range []*bufio.Reader{open, several, granted} {
		block(t, r) // it is open
	}
	f.publish(t, "news", "secret", hub.Attributes{Private: true, Event: "tick"})
	f.publish(t, "news", "known\nto all", hub.Attributes{Event: "tick", ID: "urn:1", Tags: map[string]string{"a": "b"}})
	want := func(who, got, s string) {
		t.Helper()
		if !strings.HasSuffix(got, s) {
			t.Errorf("%s: got %q, want %q", who, got, s)
		}
	}
	const secret, known = `"event":"tick","data":"secret"}`, `"message_id":"urn:1","event":"tick","tags":{"a":"b"},"data":"known\nto all"}`
	want("open", next(open), "event: tick\ndata: known\ndata: to all\n")
	want("several", next(several), known+"\n")
	want("granted", next(granted), "event: tick\ndata: secret\n")
	want("granted", next(granted), "event: tick\ndata: known\ndata: to all\n")
	read := func(c *client) string {
		s, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want("open", read(openWS), known)
	want("granted", read(grantedWS), secret)
	want("granted", read(grantedWS), known)
	_, replayed := f.open(t, "/sse?channel=news&lastEventId=0")
	want("replayed", next(replayed), "event: tick\ndata: known\ndata: to all\n")
}
