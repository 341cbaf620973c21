package app

import (
	"bufio"
	"bytes"
	stdgzip "compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/websocket"
)

// slowSSE is a subscriber on a raw connection that does not read until asked. hurry opens its
// window again, which reads what waits in milliseconds instead of seconds.
func slowSSE(t *testing.T, g *gateway, query string) (r *bufio.Reader, hurry func()) {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(g.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetReadBuffer(128 << 10) // with less than a segment of loopback, each would take the sender 200 ms
	fmt.Fprintf(c, "GET /sse?%s HTTP/1.1\r\nHost: a\r\n\r\n", query)
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	res, err := http.ReadResponse(bufio.NewReaderSize(c, 4<<10), nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("subscribe: %v %v", res, err)
	}
	b := bufio.NewReader(res.Body)
	if line, err := b.ReadString('\n'); err != nil || !strings.HasPrefix(line, "retry: ") {
		t.Fatalf("first line %q %v", line, err)
	}
	return b, func() { _ = c.SetReadBuffer(4 << 20) }
}

// event reads blocks until one has data and returns its type, id and data.
func event(t *testing.T, r *bufio.Reader) (kind, id, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("stream ended: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		switch name, value, _ := strings.Cut(line, ": "); {
		case name == "event":
			kind = value
		case name == "id":
			id = value
		case name == "data":
			data = value
		case line == "" && data != "":
			return kind, id, data
		}
	}
}

func TestDropOldestReportsWhatItDropped(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true, Policy: hub.DropOldest, QueueMessages: 50, MaxMessageBytes: 20 << 10}}
		c.EventLoop.NotSentLowat = 4 << 10
	})
	r, hurry := slowSSE(t, g, "channel=a")
	pad := strings.Repeat("x", 16<<10)
	var last hub.Position
	for i := 0; i < 100 || g.push.Stats().Dropped < 100; i++ {
		last = g.publish(t, "a", fmt.Sprintf(`{"n":%d,"pad":%q}`, i, pad))
	}
	hurry()
	next, gaps := uint64(1), 0
	for {
		kind, id, data := event(t, r)
		pos, err := hub.ParsePosition(id)
		if err != nil {
			t.Fatal(err)
		}
		if kind == "gap" {
			var gap struct{ From, To, Reason string }
			if err := json.Unmarshal([]byte(data), &gap); err != nil {
				t.Fatal(err)
			}
			from, _ := hub.ParsePosition(gap.From)
			if gap.Reason != "overflow" || from.Offset != next-1 || gap.To != id {
				t.Fatalf("gap %+v, want from %d to its id %s", gap, next-1, id)
			}
			gaps++
		} else if pos.Offset != next {
			t.Fatalf("got offset %d, want %d: there was no gap event", pos.Offset, next)
		}
		next = pos.Offset + 1
		if pos == last {
			break
		}
	}
	if gaps == 0 {
		t.Error("there was no gap event, so nothing was dropped: the test is too small")
	}
	if st := g.push.Stats(); st.Dropped == 0 || st.Gaps != uint64(gaps) || st.Queued != 0 || st.QueuedBytes != 0 || st.TooSlow != 0 {
		t.Errorf("dropped %d, gaps %d of %d, held %d (%d bytes), too slow %d", st.Dropped, st.Gaps, gaps, st.Queued, st.QueuedBytes, st.TooSlow)
	}
}

func TestConflateKeepsTheNewestPerKey(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true, Policy: hub.Conflate, MaxMessageBytes: 20 << 10, QueueBytes: 1 << 20}}
		c.EventLoop.NotSentLowat = 4 << 10
	})
	r, hurry := slowSSE(t, g, "channel=a")
	pad := strings.Repeat("x", 16<<10)
	const keys = 7
	rounds := 0
	for ; g.push.Stats().Conflated < 100; rounds++ {
		for k := range keys {
			status, body := g.post(t, "/api/publish", fmt.Sprintf(`{"channel":"a","key":"k%d","data":{"k":%d,"round":%d,"pad":%q}}`, k, k, rounds, pad))
			if status != 200 {
				t.Fatalf("%d %s", status, body)
			}
		}
	}
	hurry()
	seen := map[int]int{}
	var lastOffset uint64
	events := 0
	for done := 0; done < keys; {
		kind, id, data := event(t, r)
		pos, err := hub.ParsePosition(id)
		if err != nil || kind != "" || pos.Offset <= lastOffset {
			t.Fatalf("event %q id %q after %d", kind, id, lastOffset)
		}
		lastOffset = pos.Offset
		var m struct{ K, Round int }
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			t.Fatal(err)
		}
		if old, ok := seen[m.K]; ok && m.Round <= old {
			t.Fatalf("key %d: round %d after %d", m.K, m.Round, old)
		}
		seen[m.K] = m.Round
		events++
		if m.Round == rounds-1 {
			done++
		}
	}
	if st := g.push.Stats(); st.Conflated == 0 || events == keys*rounds {
		t.Errorf("%d events, %d conflated: the test is too small", events, st.Conflated)
	}
}

func TestMaxRateHoldsBack(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true, Policy: hub.Conflate, MaxRate: 20}}
	})
	s := g.sse(t, "channel=a", "")
	s.block()
	begin := time.Now()
	for i := range 500 {
		status, body := g.post(t, "/api/publish", fmt.Sprintf(`{"channel":"a","key":"k","data":%d}`, i))
		if status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	events := 0
	for {
		events++
		if strings.HasSuffix(s.block(), "data: 499\n") {
			break
		}
	}
	if most := int(time.Since(begin).Seconds()*20) + 5; events > most {
		t.Errorf("%d events in %v at 20 a second, want at most %d", events, time.Since(begin), most)
	}
}

func TestClientsThatAskGetCompressedEvents(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true, Compress: true}, {Name: "raw", Anonymous: true}}
	})
	text := `"` + strings.Repeat("weir ", 1000) + `"`
	get := func(channel, accept string) (*http.Response, *bufio.Reader) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodGet, g.url+"/sse?channel="+channel, nil)
		req.Header.Set("Accept-Encoding", accept)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		var body io.Reader = res.Body
		if res.Header.Get("Content-Encoding") == "gzip" {
			if body, err = stdgzip.NewReader(res.Body); err != nil {
				t.Fatal(err)
			}
		}
		r := bufio.NewReader(body)
		if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "retry: ") {
			t.Fatalf("%s: first line %q, %v", accept, line, err)
		}
		return res, r
	}
	f := func(channel, accept, want string) *bufio.Reader {
		t.Helper()
		res, r := get(channel, accept)
		if got := res.Header.Get("Content-Encoding"); got != want {
			t.Errorf("%s with Accept-Encoding %q: Content-Encoding %q, want %q", channel, accept, got, want)
		}
		return r
	}
	zipped, as := f("a", "gzip", "gzip"), f("a", "identity", "")
	f("raw:a", "gzip", "")
	conn, res, err := websocket.Dial(t.Context(), strings.Replace(g.url, "http", "ws", 1)+"/ws?channel=a",
		websocket.DialOptions{Config: websocket.Config{Deflate: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if !strings.Contains(res.Header.Get("Sec-WebSocket-Extensions"), "permessage-deflate") {
		t.Errorf("websocket extensions %q", res.Header)
	}
	for _, data := range []string{text, `"short"`, text} {
		g.publish(t, "a", data)
		for _, r := range []*bufio.Reader{zipped, as} {
			if _, _, got := event(t, r); got != data {
				t.Errorf("got %.60s, want %.60s", got, data)
			}
		}
		if _, b, err := conn.Read(t.Context()); err != nil || !bytes.Contains(b, []byte(`"data":`+data)) {
			t.Errorf("websocket: %.80s %v", b, err)
		}
	}
}
