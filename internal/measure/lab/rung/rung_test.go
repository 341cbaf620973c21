package rung

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// start runs a rung until the test ends and returns its address.
func start(t *testing.T, name string, set map[string]string) (addr string, env *Env) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	env = &Env{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Set: set, Ready: func(at string) { ready <- at }}
	go func() { ended <- servers()[name](ctx, env) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
	})
	select {
	case addr = <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("%s did not start: %v", name, err)
	}
	return addr, env
}

// publish sends one message and returns the answer's body.
func publish(t *testing.T, addr, body string) (status int, answer string) {
	t.Helper()
	resp, err := http.Post("http://"+addr+"/api/publish", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

func named(prefix string) (names []string) {
	for _, name := range Names() {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

func TestEveryEventReachesTheSubscriberWhole(t *testing.T) {
	f := func(name string, set map[string]string) {
		t.Helper()
		addr, _ := start(t, name, set)
		resp, err := http.Get("http://" + addr + "/sse?channel=a")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); got != sse.ContentType {
			t.Errorf("%s: Content-Type %q", name, got)
		}
		r := sse.NewReader(resp.Body)
		if ev, err := r.Next(); err != nil || ev.HasData || string(ev.ID) != "r-0" {
			t.Fatalf("%s: the first block is %+v, %v", name, ev, err)
		}
		for _, want := range []struct{ body, id, data string }{
			{`{"channel":"a","data":{"n":1}}`, "r-1", `{"n":1}`},
			{`{"channel":"other","data":0}`, "", ""},
			{`{"channel":"a","data":"two"}`, "r-3", `"two"`},
		} {
			if status, answer := publish(t, addr, want.body); status != 200 {
				t.Fatalf("%s: publish answered %d %s", name, status, answer)
			}
			if want.id == "" {
				continue
			}
			if ev, err := r.Next(); err != nil || string(ev.ID) != want.id || string(ev.Data) != want.data {
				t.Errorf("%s: got id %q, data %q, %v; want %+v", name, ev.ID, ev.Data, err, want)
			}
		}
	}
	for _, name := range named("a/") {
		if name != "a/reply" { // it has no streams
			f(name, nil)
		}
	}
	f("a/fields", map[string]string{"nodelay": "off"})
	f("a/hijacked", map[string]string{"nodelay": "off"})
}

func TestPublishIsAnsweredByEveryRung(t *testing.T) {
	names := slices.Concat(named("a/"), named("b/"), named("c/"), named("d/"), []string{"e1/pool"})
	for _, name := range names {
		if name == "c/bulk" {
			continue // answers with bytes alone
		}
		if name == "b/uring" && !uring() {
			continue // the kernel has none: the rung says so when it starts, and the lab reports it
		}
		addr, _ := start(t, name, nil)
		for _, want := range []string{`{"result":{"epoch":"r","offset":1}}`, `{"result":{"epoch":"r","offset":2}}`} {
			if status, got := publish(t, addr, `{"channel":"a","data":{"n":1}}`); status != 200 || got != want {
				t.Errorf("%s answered %d %s, want %s", name, status, got, want)
			}
		}
		if name == "e1/pool" {
			continue // closes instead
		}
		if status, _ := publish(t, addr, `{"channel":"a"`); status != 400 {
			t.Errorf("%s answered %d to half a request, want 400", name, status)
		}
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	for _, name := range []string{"b/stock", "b/loop", "b/batched", "e1/pool"} {
		addr, _ := start(t, name, nil)
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		body := `{"channel":"a","data":1}`
		one := "POST /api/publish HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\n\r\n" + body
		if _, err := io.WriteString(c, strings.Repeat(one, 3)+one[:40]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, one[40:]); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		for n := 1; n <= 4; n++ {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%s, answer %d: %v", name, n, err)
			}
			var got struct{ Result struct{ Offset int } }
			if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Result.Offset != n {
				t.Errorf("%s, answer %d: %+v, %v", name, n, got, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
	}
}

func TestWebSocketRungsEchoAndDeliver(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, name := range named("d/") {
		addr, _ := start(t, name, map[string]string{"queue": "4"})
		echo, _, err := websocket.Dial(ctx, "ws://"+addr+"/echo", websocket.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer echo.CloseNow()
		for _, text := range []string{"one", strings.Repeat("x", 5000), ""} {
			if err := echo.Write(websocket.OpText, []byte(text)); err != nil {
				t.Fatal(err)
			}
			if _, got, err := echo.Read(ctx); err != nil || string(got) != text {
				t.Errorf("%s echoed %d bytes, %v; want %d", name, len(got), err, len(text))
			}
		}
		sub, _, err := websocket.Dial(ctx, "ws://"+addr+"/ws?channel=a&hello=1", websocket.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer sub.CloseNow()
		if _, got, err := sub.Read(ctx); err != nil || string(got) != `{"type":"subscribed","id":"r-0"}` {
			t.Fatalf("%s began with %s, %v", name, got, err)
		}
		publish(t, addr, `{"channel":"b","data":0}`)
		publish(t, addr, `{"channel":"a","data":{"n":1}}`)
		_, got, err := sub.Read(ctx)
		var m struct {
			Channel, ID string
			Offset      int
			Data        json.RawMessage
		}
		if err == nil {
			err = json.Unmarshal(got, &m)
		}
		if err != nil || m.Channel != "a" || m.ID != "r-2" || m.Offset != 2 || string(m.Data) != `{"n":1}` {
			t.Errorf("%s delivered %s, %v", name, got, err)
		}
		if err := echo.Close(websocket.CloseNormal, ""); err != nil {
			t.Errorf("%s does not close in order: %v", name, err)
		}
	}
}

func TestLeakyHandlerLeavesAGoroutineBehind(t *testing.T) {
	f := func(name string, wantLeft bool) {
		t.Helper()
		addr, _ := start(t, name, nil)
		left := func() bool {
			var b [1 << 20]byte
			return bytes.Contains(b[:stacks(b[:])], []byte("ignoresItsContext"))
		}
		resp, err := http.Get("http://" + addr + "/work")
		if err != nil || resp.StatusCode != http.StatusNoContent {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		if wantLeft {
			if !left() {
				t.Errorf("%s left nothing", name)
			}
			return
		}
		for end := time.Now().Add(10 * time.Second); left(); {
			if time.Now().After(end) {
				t.Fatalf("%s left a goroutine", name)
			}
		}
	}
	f("e6/sound", false)
	f("e6/leaky", true)
}

func TestServePrintsWhereItIsAndCountsSinceTheMark(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, "a/timed", "127.0.0.1:0", nil, w) }()
	var line Line
	if err := json.NewDecoder(r).Decode(&line); err != nil {
		t.Fatal(err)
	}
	stats := func() (s Stats) {
		t.Helper()
		resp, err := http.Get("http://" + line.Stats + "/stats")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for end := time.Now().Add(10 * time.Second); stats().Extra["ticks"] == 0; {
		if time.Now().After(end) {
			t.Fatal("no tick of 10 ms in 10 s")
		}
	}
	if s := stats(); s.Goroutines < 2 || s.AllocBytes <= 0 {
		t.Errorf("stats are %+v", s)
	}
	resp, err := http.Post("http://"+line.Stats+"/mark", "", nil)
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestUnknownRungNamesTheOnesThereAre(t *testing.T) {
	err := Serve(t.Context(), "a/nosuch", "127.0.0.1:0", nil, io.Discard)
	if err == nil || !strings.Contains(err.Error(), `"a/nosuch"`) || !strings.Contains(err.Error(), "a/fields") {
		t.Errorf("error is %v", err)
	}
	if err := Serve(t.Context(), "a/fields", "nowhere", nil, io.Discard); err == nil || !strings.Contains(err.Error(), `"nowhere"`) {
		t.Errorf("error is %v", err)
	}
}

func TestQuantileOfAHistogramIsItsBucketsEdge(t *testing.T) {
	m := NewMeter()
	h := m.from[5].Value.Float64Histogram()
	d := difference(h, h)
	if quantile(d, 0.99) != 0 || mean(d) != 0 {
		t.Error("an empty histogram has values")
	}
	d.Counts[3], d.Counts[10] = 98, 2
	if got := quantile(d, 0.5); got != d.Buckets[4] {
		t.Errorf("P50 is %v, want %v", got, d.Buckets[4])
	}
	if got := quantile(d, 0.99); got != d.Buckets[11] {
		t.Errorf("P99 is %v, want %v", got, d.Buckets[11])
	}
	if got, lo, hi := mean(d), d.Buckets[3], d.Buckets[11]; got <= lo || got >= hi {
		t.Errorf("mean %v is not between %v and %v", got, lo, hi)
	}
}

func TestStreamsAreHeldAndWhatTheyBringIsCounted(t *testing.T) {
	addr, _ := start(t, "a/onewrite", nil)
	_, env := start(t, "load/streams", map[string]string{
		"to": addr, "streams": "7", "from": "127.0.0.3", "request": "GET /sse?channel=idle HTTP/1.1\r\nHost: lab\r\n\r\n",
	})
	if v := env.Extra.take(true); v["streams"] != 7 || v["connect"] <= 0 || v["connect_p95"] <= 0 {
		t.Fatalf("after connecting: %v", v)
	}
	publish(t, addr, `{"channel":"idle","data":1}`)
	// 16 bytes of data at least, on each.
	for end := time.Now().Add(10 * time.Second); env.Extra.take(false)["bytes"] < 7*16; {
		if time.Now().After(end) {
			t.Fatalf("the event brought %v", env.Extra.take(false))
		}
		time.Sleep(time.Millisecond)
	}
}
