package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/websocket"
)

func TestCursorPutsEachNamespaceInItsPlace(t *testing.T) {
	c := newCursor("")
	f := func(ns, epoch string, offset uint64, want string) {
		t.Helper()
		c.move(ns, hub.Position{Epoch: epoch, Offset: offset}, false)
		if c.token != want {
			t.Errorf("position %q, want %q", c.token, want)
		}
	}
	f("default", "", 0, "") // a namespace without a log moves nothing
	f("default", "d1", 5, "d1-5")
	f("orders", "o1", 2, "d1-5~o1-2")
	f("default", "d1", 7, "d1-7~o1-2")
	f("default", "d1", 6, "d1-7~o1-2") // a repetition takes nothing back
	f("default", "d2", 1, "o1-2~d2-1")
	f("orders", "o2", 1, "d2-1~o2-1")
	c.set("d2-9~o2-9")
	f("orders", "o2", 10, "d2-9~o2-10")
	f("default", "d3", 1, "o2-10~d3-1")
}

// The partitions of a namespace are logs of their own; their epochs start with the number.
func TestCursorPutsEachPartitionInItsPlace(t *testing.T) {
	c := newCursor("0_a-4~1_b-9")
	f := func(epoch string, offset uint64, want string) {
		t.Helper()
		c.move("orders", hub.Position{Epoch: epoch, Offset: offset}, false)
		if c.token != want {
			t.Errorf("is at %q, want %q", c.token, want)
		}
	}
	f("1_b", 10, "0_a-4~1_b-10")
	f("0_a", 5, "0_a-5~1_b-10")
	f("0_c", 1, "1_b-10~0_c-1") // that partition's log has started anew
	f("2_d", 1, "1_b-10~0_c-1~2_d-1")
}

func TestTokenOfAnotherKindIsKeptUntilAPositionArrives(t *testing.T) {
	c := newCursor("0")
	if c.token != "0" {
		t.Errorf("position %q", c.token)
	}
	c.move("default", hub.Position{Epoch: "d1", Offset: 1}, false)
	if c.token != "d1-1" {
		t.Errorf("position %q", c.token)
	}
}

// frames is a server that sends text frames and then closes.
func frames(t *testing.T, texts ...string) *Client {
	srv := httptest.NewServer(websocket.Handler(websocket.AcceptOptions{}, func(_ context.Context, c *websocket.Conn) error {
		for _, text := range texts {
			if err := c.Write(websocket.OpText, []byte(text)); err != nil {
				return err
			}
		}
		return c.Close(CodeNotAllowed, "done")
	}))
	c, err := New(Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		srv.Close()
	})
	return c
}

func TestGapNoticeMovesTheStreamToWhereItLeads(t *testing.T) {
	const hello = `{"type":"subscribed","id":"d1-5~o1-7"}`
	f := func(channels []string, want string, texts ...string) {
		t.Helper()
		c := frames(t, texts...)
		s, err := c.Subscribe(t.Context(), SubscribeOptions{Channels: channels, Transport: WebSocket})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var ev Event
		for err == nil {
			if ev, err = s.Next(t.Context()); err == nil {
				if g, ok := ev.(*Gap); ok && (g.Reason != "epoch" || g.To.IsZero()) {
					t.Errorf("gap %+v", g)
				}
			}
		}
		if s.Position() != want {
			t.Errorf("position %q, want %q", s.Position(), want)
		}
	}
	gap := func(ns, from, to, id string) string {
		return fmt.Sprintf(`{"type":"gap","namespace":%q,"from":%q,"to":%q,"id":%q,"reason":"epoch"}`, ns, from, to, id)
	}
	one, two := []string{"a"}, []string{"a", "orders:1"}
	f(one, "d2-3", `{"type":"subscribed","id":"d1-5"}`, gap("default", "d1-5", "d2-3", "d2-3"))
	f(one, "d2-3", `{"type":"subscribed","id":""}`, gap("default", "x", "d2-3", "d2-3"))
	f(two, "d2-3~o1-7", hello, gap("default", "d1-5", "d2-3", "d2-3~o1-7"))
	// An id that names the one namespace only.
	f(two, "o1-7~d2-3", hello, gap("default", "d1-5", "d2-3", "d2-3"))
	f(two, "d1-5~o2-0", hello, gap("orders", "o1-7", "o2-0", ""))
	// The whole position may appear before where the gap ends: what the stream's
	// other channels still have there is yet to come.
	f(one, "d1-5", `{"type":"subscribed","id":"d1-5"}`, gap("default", "d1-5", "d1-50", "d1-5"))
	// After the notice the new epoch continues in its place.
	f(two, "d2-4~o1-7", hello, gap("default", "d1-5", "d2-3", "d2-3~o1-7"),
		`{"channel":"a","id":"d2-4","offset":4,"time":1,"data":1}`)
}

// What cannot be read must be requested again, and must not move the stream.
func TestUnreadableEventIsNotPassedOver(t *testing.T) {
	f := func(block string) {
		t.Helper()
		requested := make(chan string, 2)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case requested <- r.Header.Get("Last-Event-ID"):
			default:
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "id: d1-1\ndata: {\"channel\":\"a\",\"id\":\"d1-1\",\"data\":1}\n\n%s", block)
		}))
		defer srv.Close()
		c, _ := New(Config{URL: srv.URL, MinBackoff: time.Millisecond, MaxMessage: 200})
		defer c.Close()
		s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
		defer s.Close()
		if first, again := <-requested, <-requested; first != "" || again != "d1-1" {
			t.Errorf("%.40q: asked from %q, then from %q", block, first, again)
		}
	}
	f("id: d1-2\ndata: {\n\n")
	f("id: d1-2\ndata: {}\n\n")
	f("id: d1-2\ndata: {\"channel\":\"a\",\"id\":\"x\",\"data\":1}\n\n")
	f("id: d1-2\nevent: gap\ndata: nonsense\n\n")
	f("id: d1-2\ndata: {\"channel\":\"a\",\"id\":\"d1-2\",\"data\":1}\n")
	f(fmt.Sprintf("id: d1-2\ndata: {\"channel\":\"a\",\"id\":\"d1-2\",\"data\":\"%300d\"}\n\n", 1))
}

func TestUnknownEventMovesTheStreamAndIsNotShown(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, ": hi\nid: d1-8\nevent: weather\ndata: rain\n\nid: d1-9\n\nevent: end\ndata: {\"code\":4403,\"reason\":\"no\"}\n\n")
	}))
	defer srv.Close()
	c, _ := New(Config{URL: srv.URL})
	defer c.Close()
	s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
	defer s.Close()
	ev, err := s.Next(t.Context())
	if st, ok := ev.(*State); !ok || !st.Connected {
		t.Errorf("first %+v, %v", ev, err)
	}
	if ev, err = s.Next(t.Context()); !final(err) || s.Position() != "d1-9" {
		t.Errorf("then %+v, %v, at %s", ev, err, s.Position())
	}
}
