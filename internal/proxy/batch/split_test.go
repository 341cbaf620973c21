package batch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/sse"
)

// A reader is a client of a stream, which notes what it gets.
type reader struct {
	heads int
	body  []byte
	ended bool
	err   *proxy.Error
}

func (r *reader) Alone()                            { r.heads += 100 } // never, in a call of several
func (r *reader) Head(*http1.Response, string, int) { r.heads++ }
func (r *reader) End()                              { r.ended = true }

func (r *reader) Body(b []byte) bool {
	r.body = append(r.body, b...)
	return true
}

func (r *reader) Fail(err *proxy.Error, _ string, _ int) { r.err = err }

// oneLoop starts an event loop that ends with the test.
func oneLoop(t testing.TB) *eventloop.Loop {
	t.Helper()
	group, err := eventloop.New(eventloop.Config{Loops: 1, Engine: "epoll"}, func(*eventloop.Conn) eventloop.Handler { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- group.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return group.Loops()[0]
}

// divided returns what clients with so many answers each get of a stream that comes in pieces
// of a length.
func divided(l *eventloop.Loop, body []byte, shares []share, piece int) []*reader {
	cfg := &policy.Batch{MaxReply: 1 << 30}
	c := &call{q: &Queue{batcher: &Batcher{log: slog.New(slog.DiscardHandler)}}, cfg: cfg, res: &http1.Response{}, x: &proxy.Exchange{}, mode: demuxes}
	var clients []*reader
	for _, s := range shares {
		r := &reader{}
		m := &Member{Request: Request{Config: cfg, Format: Completions, Loop: l, Client: r}, q: c.q, call: c, state: joined}
		m.part.share = s
		clients, c.members = append(clients, r), append(c.members, m)
		for range s.n {
			c.owners = append(c.owners, m)
		}
	}
	c.events.c, c.events.ended = c, make([]bool, len(c.owners))
	done := make(chan struct{})
	l.Post(func() {
		for b := range slices.Chunk(body, max(piece, 1)) {
			c.events.demux(b)
		}
		c.events.end()
		l.Post(func() { close(done) }) // behind what was posted to the clients
	})
	<-done
	return clients
}

// items are what a stream says, an answer each: its index, counted from a number, and the rest of it. An
// event without answers is one too.
func items(t *testing.T, body []byte, from int) (list []string) {
	t.Helper()
	var p sse.Parser
	for {
		ev, rest, ok, err := p.Next(body)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if !ok {
			return list
		}
		body = rest
		var r reply
		if r.parse(Completions, ev.Data) != nil || r.list.to == 0 {
			list = append(list, string(ev.Data))
			continue
		}
		for i := range r.answers {
			list = append(list, r.itemOf(i, from))
		}
	}
}

func (r *reply) itemOf(i, from int) string {
	a := &r.answers[i]
	return fmt.Sprintf("%d %s %s", a.target+from, r.b[a.at.from:a.index.from], r.b[a.index.to:a.at.to])
}

// wanted are the items of a stream that each of the shares is to get, by the rules one at a time.
func wanted(body []byte, shares []share) (want [][]string) {
	want = make([][]string, len(shares))
	over, ended, left := make([]bool, len(shares)), map[int]bool{}, make([]int, len(shares))
	for i, s := range shares {
		left[i] = s.n
	}
	last := func(i int) {
		want[i], over[i] = append(want[i], done), true
	}
	var p sse.Parser
	for {
		ev, rest, ok, err := p.Next(body)
		if err != nil || !ok {
			return want
		}
		if body = rest; !ev.HasData {
			continue
		}
		var r reply
		err = r.parse(Completions, ev.Data)
		if err != nil && string(ev.Data) != done {
			continue // of no client
		}
		for i, s := range shares {
			switch {
			case over[i]:
			case string(ev.Data) == done:
				if len(want[i]) > 0 {
					last(i)
				}
			case r.list.to == 0:
				want[i] = append(want[i], string(ev.Data))
			default:
				for k := range r.answers {
					n := r.answers[k].target
					if !s.has(n) {
						continue
					}
					want[i] = append(want[i], r.itemOf(k, 0))
					if r.answers[k].ended && !ended[n] {
						ended[n] = true
						left[i]--
					}
				}
				if left[i] == 0 {
					last(i)
				}
			}
		}
	}
}

// FuzzStreamsAreDivided has any stream divided, whole and in pieces: each client gets the answers with
// its indexes, in their order and until they have ended, and nothing of another one's.
func FuzzStreamsAreDivided(f *testing.F) {
	event := func(data ...string) []byte { return []byte("data: " + strings.Join(data, "\n\ndata: ") + "\n\n") }
	f.Add(event(`{"id":"x","choices":[{"index":0,"text":"a"},{"text":"c","index":2},{"index":1}]}`, "[DONE]"), uint8(0), uint8(1), uint16(9))
	f.Add(event(`{"choices":[{"index":0,"finish_reason":"stop"}]}`, `{"choices":[{"index":0},{"index":1,"finish_reason":null}]}`, `{"error":1}`), uint8(0), uint8(0), uint16(1))
	f.Add(event(`{"choices":[{"index":1,"finish_reason":"stop"},{"index":1,"finish_reason":"stop"},{"index":9}]}`, "[DONE]", `{"choices":[{"index":0}]}`), uint8(1), uint8(0), uint16(30))
	f.Add([]byte(": hello\r\nevent: e\r\ndata: {\"choices\":\r\ndata: [{\"index\":3}]}\r\n\r\ndata: {\"choices\":[]}\r\n\r\ndata: cut"), uint8(2), uint8(0), uint16(5))
	l := oneLoop(f)
	f.Fuzz(func(t *testing.T, body []byte, first, second uint8, piece uint16) {
		a, b := 1+int(first%3), 1+int(second%3)
		shares := []share{{0, a}, {a, b}}
		want := wanted(body, shares)
		whole, pieces := divided(l, body, shares, len(body)), divided(l, body, shares, int(piece))
		for i, r := range whole {
			if p := pieces[i]; string(p.body) != string(r.body) || p.ended != r.ended || p.err != r.err || p.heads != r.heads {
				t.Fatalf("client %d of %q: whole %+v, in pieces of %d %+v", i, body, r, piece, p)
			}
			if got := items(t, r.body, shares[i].from); !slices.Equal(got, want[i]) {
				t.Fatalf("client %d of %q got %q, want %q", i, body, got, want[i])
			}
			if some := len(want[i]) > 0; r.ended != some || (r.err == errPart) == some || (r.heads == 1) != some {
				t.Fatalf("client %d of %q: %+v", i, body, r)
			}
		}
	})
}
