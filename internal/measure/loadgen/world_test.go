package loadgen_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A member is a subscriber of a world.
type member struct {
	n       int
	channel string
	ch      chan []byte // what to send; closed ends it
	held    []byte
	request *http.Request
}

// A world is a small server that fans messages out, in several wires, and
// misbehaves on purpose.
type world struct {
	*httptest.Server
	mu      sync.Mutex
	members map[*member]bool
	joined  int // so far
	offset  map[string]int
	last    []string // Last-Event-ID of each that joined
	// mangle reports what member m gets instead of the n-th message (from 1) of its
	// channel; nil delivers it as it is.
	mangle func(m *member, n int, data []byte) [][]byte
	// refuse answers a publish with a status, 0 takes it.
	refuse func(n int) int
	took   int
	frame  func(channel string, offset int, data []byte) []byte // WebSocket
	greet  func(c *websocket.Conn, m *member) error
	head   string // what an event stream starts with
}

// newWorld starts a world after setup, which may be nil, has changed it.
func newWorld(t *testing.T, setup func(*world)) *world {
	w := &world{members: map[*member]bool{}, offset: map[string]int{}}
	if setup != nil {
		setup(w)
	}
	w.Server = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(func() {
		w.mu.Lock()
		for m := range w.members {
			delete(w.members, m)
			close(m.ch)
		}
		w.mu.Unlock()
		w.CloseClientConnections()
		w.Close()
	})
	return w
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	channel := r.URL.Query().Get("channel")
	if channel == "" {
		channel = strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/pub/"), "/sub/")
	}
	switch {
	case r.Method == "POST":
		b, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.took++
		if w.refuse != nil {
			if status := w.refuse(w.took); status != 0 {
				rw.WriteHeader(status)
				return
			}
		}
		w.publish(channel, b)
	case r.Header.Get("Upgrade") != "":
		w.socket(rw, r, channel)
	default:
		w.events(rw, r, channel)
	}
}

// publish sends data to the members of a channel. w.mu is held.
func (w *world) publish(channel string, data []byte) {
	w.offset[channel]++
	n := w.offset[channel]
	for m := range w.members {
		if m.channel != channel {
			continue
		}
		out := [][]byte{data}
		if w.mangle != nil {
			out = w.mangle(m, n, data)
		}
		for _, d := range out {
			if w.frame != nil {
				d = w.frame(channel, n, d)
			}
			m.ch <- d
		}
	}
}

func (w *world) join(r *http.Request, channel string) *member {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &member{n: w.joined, channel: channel, ch: make(chan []byte, 100_000), request: r}
	w.joined++
	w.last = append(w.last, r.Header.Get("Last-Event-ID"))
	w.members[m] = true
	return m
}

func (w *world) leave(m *member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.members, m)
}

// kick ends the streams of all members.
func (w *world) kick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for m := range w.members {
		delete(w.members, m)
		close(m.ch)
	}
}

// subscribed is how many members have a channel: with a protocol that names it later, fewer than are connected.
func (w *world) subscribed() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for m := range w.members {
		if m.channel != "" {
			n++
		}
	}
	return n
}

func (w *world) connected() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.members)
}

func (w *world) events(rw http.ResponseWriter, r *http.Request, channel string) {
	rw.Header().Set("Content-Type", "text/event-stream")
	m := w.join(r, channel)
	defer w.leave(m)
	io.WriteString(rw, w.head)
	rw.(http.Flusher).Flush()
	id := 0
	for {
		select {
		case data, ok := <-m.ch:
			if !ok {
				return
			}
			id++
			fmt.Fprintf(rw, "id: e-%d\ndata: %s\n\n", id, data)
			rw.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (w *world) socket(rw http.ResponseWriter, r *http.Request, channel string) {
	m := w.join(r, channel) // before the answer: anyone who has it is subscribed
	defer w.leave(m)
	c, err := websocket.Accept(rw, r, websocket.AcceptOptions{Config: websocket.Config{Deflate: true}})
	if err != nil {
		return
	}
	defer c.CloseNow()
	if w.greet != nil {
		if err := w.greet(c, m); err != nil {
			return
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // whatever comes from the client
		defer cancel()
		for {
			_, b, err := c.Read(ctx)
			if err != nil {
				return
			}
			if strings.HasPrefix(r.URL.Path, "/echo") {
				if c.Write(websocket.OpText, b) != nil {
					return
				}
			}
			if strings.HasPrefix(r.URL.Path, "/send") {
				w.mu.Lock()
				w.took++
				w.publish("room", append([]byte(nil), b...))
				w.mu.Unlock()
			}
		}
	}()
	for {
		select {
		case data, ok := <-m.ch:
			if !ok {
				_ = c.Close(websocket.CloseRestart, "drain")
				return
			}
			if c.Write(websocket.OpText, data) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (w *world) ws() string { return "ws" + strings.TrimPrefix(w.URL, "http") }

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// upgrade answers a WebSocket handshake.
func upgrade(request []byte) []byte {
	_, key, _ := strings.Cut(string(request), "Sec-WebSocket-Key: ")
	key, _, _ = strings.Cut(key, "\r\n")
	return websocket.AppendHandshakeResponse(nil, []byte(key), "", "")
}
