package app

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/websocket"
)

// idOf returns the id line of a block.
func idOf(t *testing.T, block string) string {
	t.Helper()
	for line := range strings.Lines(block) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			return strings.TrimSuffix(id, "\n")
		}
	}
	t.Fatalf("block %q has no id", block)
	return ""
}

func TestResumeFromAnyPosition(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Namespaces[0].HistorySize = 50 })
	var at []hub.Position
	for i := range 100 {
		at = append(at, g.publish(t, "news", fmt.Sprint(i)))
	}
	epoch := at[0].Epoch
	// first is the first message wanted, 100 for none; gap the reason wanted.
	f := func(since, gap string, first int) {
		t.Helper()
		s := g.sse(t, "channel=news", since)
		s.block()
		w := g.ws(t, "hello=1&channel=news&since="+since, "")
		w.Frame()
		if gap != "" {
			if b := s.block(); !strings.HasPrefix(b, "event: gap\nid: "+epoch+"-") || !strings.Contains(b, `"reason":"`+gap+`"`) {
				t.Errorf("since %q: %q, want a gap of %s", since, b, gap)
			}
			if _, b := w.Frame(); !bytes.Contains(b, []byte(`{"type":"gap"`)) || !bytes.Contains(b, []byte(gap)) {
				t.Errorf("ws since %q: %s, want a gap of %s", since, b, gap)
			}
		}
		for i := first; i < 100; i++ {
			if b := s.block(); b != fmt.Sprintf("id: %s\ndata: %d\n", at[i], i) {
				t.Fatalf("since %q: %q, want %d", since, b, i)
			}
			if _, b := w.Frame(); !bytes.Contains(b, fmt.Appendf(nil, `"data":%d}`, i)) {
				t.Fatalf("ws since %q: %s, want %d", since, b, i)
			}
		}
		live := g.dial(t) // marks the end: what comes next is live
		live.Send(postHead(keyField, 32) + `{"channel":"news","data":"live"}`)
		live.Answer("POST")
		at = append(at, hub.Position{Epoch: epoch, Offset: at[len(at)-1].Offset + 1})
		if b := s.block(); !strings.HasSuffix(b, "data: \"live\"\n") {
			t.Errorf("since %q: %q, want the live one", since, b)
		}
		if _, b := w.Frame(); !bytes.Contains(b, []byte(`"data":"live"`)) {
			t.Errorf("ws since %q: %s, want the live one", since, b)
		}
		s.res.Body.Close()
	}
	f("", "", 100)
	f("!garbage?", "unknown", 100)
	f(epoch+"-999999", "unknown", 100)
	f("otherEpoch-5", "epoch", 100)
	f(strings.Repeat("e-1~", 16)+"e-1", "unknown", 100)
}

func TestResumeReplaysExactlyWhatFollows(t *testing.T) {
	g := start(t, nil)
	var at []hub.Position
	for i := range 300 {
		at = append(at, g.publish(t, "news", fmt.Sprint(i)))
	}
	f := func(query, header string, first int) {
		t.Helper()
		s := g.sse(t, "channel=news"+query, header)
		s.block()
		for i := first; i < len(at); i++ {
			if b := s.block(); b != fmt.Sprintf("id: %s\ndata: %d\n", at[i], i) {
				t.Fatalf("%s %s: %q, want %d", query, header, b, i)
			}
		}
		s.res.Body.Close()
	}
	f("", at[0].String(), 1)
	f("", at[150].String(), 151)
	f("", at[299].String(), 300)
	f("", at[0].Epoch+"-0", 0)
	f("", "0", 0)
	f("&lastEventId=0", "", 0)
	f("&lastEventId=0", at[200].String(), 201) // the header knows better
	f("&lastEventId="+at[100].String(), "", 101)
	f("&since=0", "", 0)
}

func TestAStreamOfSeveralNamespacesResumesInEach(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "fleeting", Durability: hub.None, Anonymous: true})
	})
	const query = "channel=news&channel=orders:1&channel=orders:2&channel=fleeting:x"
	s := g.sse(t, query, "")
	first := idOf(t, s.block())
	if strings.Count(first, "~") != 1 {
		t.Fatalf("first position %q, want those of two logs", first)
	}
	g.put(t, "fleeting:x", `"now"`)
	if b := s.block(); strings.Contains(b, "id: ") || strings.Contains(b, `"id"`) || !strings.Contains(b, `"channel":"fleeting:x"`) {
		t.Errorf("a message of no log has an id: %q", b)
	}
	// Enough for many pages of replay.
	pad := strings.Repeat("x", 1000)
	var ids []string
	send := func(from, to int) {
		for i := from; i < to; i++ {
			g.put(t, []string{"news", "orders:1", "orders:2"}[i%3], fmt.Sprintf(`"%d %s"`, i, pad))
		}
	}
	send(0, 30)
	for i := range 30 {
		b := s.block()
		if !strings.Contains(b, fmt.Sprintf(`"data":"%d x`, i)) {
			t.Fatalf("%.120q, want %d", b, i)
		}
		ids = append(ids, idOf(t, b))
	}
	s.res.Body.Close()
	send(30, 900)
	live, rounds := 0, 0 // messages that earlier rounds published
	for _, from := range []int{-1, 0, 7, 29} {
		last := first
		if from >= 0 {
			last = ids[from]
		}
		s := g.sse(t, query, last)
		if got := idOf(t, s.block()); got != last {
			t.Errorf("resume from %q starts at %q", last, got)
		}
		seen := map[string]int{}
		for range 899 - from + live {
			b := s.block()
			ch := b[strings.Index(b, `"channel":"`)+11:]
			ch = ch[:strings.IndexByte(ch, '"')]
			var n int
			if strings.Contains(b, `"data":"live"`) {
				live--
				continue
			}
			if _, err := fmt.Sscanf(b[strings.Index(b, `"data":"`)+8:], "%d", &n); err != nil || n <= from {
				t.Fatalf("after %d: %.120q", from, b)
			}
			// In order within each namespace, none left out.
			ns := hub.NamespaceOf(ch)
			if prev, ok := seen[ns]; ok && (ns == "default" && n != prev+3 || ns == "orders" && n != prev+1 && n != prev+2) {
				t.Fatalf("after %d of %s comes %d", prev, ns, n)
			}
			seen[ns] = n
		}
		g.put(t, "orders:2", `"live"`)
		if b := s.block(); !strings.Contains(b, `"live"`) {
			t.Fatalf("after the replay: %.120q, want the live one", b)
		}
		g.put(t, "fleeting:x", `"live"`)
		if b := s.block(); !strings.Contains(b, `"fleeting:x"`) {
			t.Fatalf("%.120q, want the fleeting one", b)
		}
		s.res.Body.Close()
		if live != 0 {
			t.Fatalf("%d messages of earlier rounds are missing", live)
		}
		rounds++
		live = rounds
	}
}

// A page of large messages is more than a subscriber may have waiting when it is
// live; replayed, it must pass.
func TestLargeMessagesAreReplayed(t *testing.T) {
	g := start(t, nil)
	const n = 150
	for i := range n {
		g.put(t, "news", fmt.Sprintf(`"%d %s"`, i, strings.Repeat("x", 60<<10)))
	}
	s := g.sse(t, "channel=news&channel=orders:a", "0")
	one := g.sse(t, "channel=news", "0")
	w := g.ws(t, "channel=news&since=0", "")
	s.block()
	one.block()
	for i := range n {
		if b := one.block(); !strings.Contains(b, fmt.Sprintf(`data: "%d x`, i)) {
			t.Fatalf("%.60q, want %d", b, i)
		}
		if b := s.block(); !strings.Contains(b, fmt.Sprintf(`"data":"%d x`, i)) {
			t.Fatalf("several: %.120q, want %d", b, i)
		}
		if op, b := w.Frame(); op != websocket.OpText || !bytes.Contains(b, fmt.Appendf(nil, `"data":"%d x`, i)) {
			t.Fatalf("WebSocket: %v %.90s, want %d", op, b, i)
		}
	}
	g.put(t, "news", `"live"`)
	if b := one.block(); !strings.Contains(b, `"live"`) {
		t.Errorf("%.60q, want the live one", b)
	}
	if st := g.push.Stats(); st.TooSlow != 0 {
		t.Errorf("%d were closed as too slow", st.TooSlow)
	}
}

func TestNamespacesOfAStreamAreBounded(t *testing.T) {
	query := ""
	g := start(t, func(c *config.Config) {
		for i := range hub.MaxPositions + 1 {
			name := fmt.Sprintf("n%d", i)
			c.Namespaces = append(c.Namespaces, hub.Namespace{Name: name, Anonymous: true})
			query += "&channel=" + name + ":a"
		}
	})
	w := g.dial(t)
	w.Send(wiretest.CRLF("GET /sse?" + query + " HTTP/1.1\nHost: a\n\n"))
	res, body := w.Answer("GET")
	wantError(t, "17 namespaces", res, body, 400)
	s := g.sse(t, query[:strings.LastIndexByte(query, '&')], "")
	last := idOf(t, s.block())
	s.res.Body.Close()
	s = g.sse(t, query[:strings.LastIndexByte(query, '&')], last)
	s.block()
	g.put(t, "n3:a", "1")
	if b := s.block(); strings.Contains(b, "gap") || !strings.Contains(b, `"data":1}`) {
		t.Errorf("%q, want the message", b)
	}
}
