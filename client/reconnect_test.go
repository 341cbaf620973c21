package client

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// Time in which the program does not read is not silence of the server.
func TestSlowReaderIsNotTakenForASilentServer(t *testing.T) {
	for _, tr := range []Transport{SSE, WebSocket} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(1)
			c, stop := f.serve(t, Config{IdleTimeout: 3 * time.Second})
			defer stop()
			for range 12 {
				f.publish("a", "", "", []byte(`1`))
			}
			s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Since: "0", Transport: tr, Buffer: 1})
			defer s.Close()
			next[*State](t, s)
			for n := uint64(1); n <= 12; n++ {
				time.Sleep(5 * time.Second) // a write of the server may take 10s
				ev, err := s.Next(t.Context())
				if m, ok := ev.(*Message); !ok || m.Position.Offset != n {
					t.Fatalf("%s: instead of message %d: %+v, %v", tr, n, ev, err)
				}
			}
		})
	}
}

func TestUsefulConnectionResetsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		c, stop := f.serve(t, Config{})
		defer stop()
		s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Since: "0", Transport: WebSocket})
		defer s.Close()
		for range 10 {
			f.publish("a", "", "", []byte(`1`))
			next[*Message](t, s)
			f.cutAll()
			st := next[*State](t, s)
			if st.Connected || st.Retry > defaultMinBackoff {
				t.Fatalf("%+v", st)
			}
		}
	})
}

func TestConnectionThatIsClosedAtOnceIsTriedEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := roundTripper(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "retry: 10\nid: d1-1\n\n")
		}))
		s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
		defer s.Close()
		var waits []time.Duration
		for len(waits) < 10 {
			if st := next[*State](t, s); !st.Connected {
				waits = append(waits, st.Retry)
			}
		}
		if waits[0] > 15*time.Millisecond || waits[9] < defaultMaxBackoff/2 {
			t.Errorf("waits %v", waits)
		}
	})
}

func TestOverloadedServerIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := roundTripper(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "event: end\ndata: {\"code\":%d,\"reason\":\"overload\"}\n\n", codeTryLater)
		}))
		s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
		defer s.Close()
		next[*State](t, s)
		if st := next[*State](t, s); st.Retry < 4*defaultMinBackoff {
			t.Errorf("%v: waits only %v", st.Err, st.Retry)
		}
	})
}

// The last event id outlives the connection that set it.
func TestEventWithoutIDLeavesThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requested []string
		c := roundTripper(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requested = append(requested, r.Header.Get("Last-Event-ID"))
			w.Header().Set("Content-Type", "text/event-stream")
			if len(requested) == 1 {
				_, _ = fmt.Fprint(w, "id: d1-1\n\n")
				return
			}
			_, _ = fmt.Fprint(w, "data: {\"channel\":\"a\",\"data\":1}\n\n")
		}))
		s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
		defer s.Close()
		for range 3 {
			if m := next[*Message](t, s); s.Position() != "d1-1" || !m.Position.IsZero() {
				t.Errorf("position %q after %+v", s.Position(), m)
			}
		}
		if requested[2] != "d1-1" {
			t.Errorf("asked from %q", requested)
		}
	})
}
