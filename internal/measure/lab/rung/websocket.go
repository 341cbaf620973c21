package rung

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weir-gateway/weir/websocket"
)

// webSocketRungs are ladder D. Each serves an echo on /echo, and on /ws a stream
// of a channel: who reads and who writes is what differs.
func webSocketRungs() map[string]Server {
	return map[string]Server{
		"d/one":    webSocketServer(false),
		"d/writer": webSocketServer(true),
		"d/loops":  serveLoops,
	}
}

// errFull reports that a connection's queue takes no more.
var errFull = errors.New("queue is full")

// A socket is one WebSocket with a goroutine that reads.
type socket struct {
	conn *websocket.Conn
	// queue leads to the writer's goroutine; nil where there is none.
	queue chan []byte
}

// send passes on a message: to the writer, or to the socket itself, however
// long that takes.
func (s *socket) send(b []byte) error {
	if s.queue == nil {
		return s.conn.Write(websocket.OpText, b)
	}
	select {
	case s.queue <- b:
		return nil
	default:
		return errFull
	}
}

func (s *socket) deliver(m *message, _ []byte) bool { return s.send(appendEnvelope(nil, m)) == nil }

// write empties the queue until ctx ends. Its deadline is the connection's own
// (websocket.Config.WriteTimeout).
func (s *socket) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-s.queue:
			if s.conn.Write(websocket.OpText, b) != nil {
				return
			}
		}
	}
}

// webSocketServer has one goroutine per connection; with writers a second one,
// behind a channel whose capacity is the setting queue (128).
func webSocketServer(writers bool) Server {
	return func(ctx context.Context, env *Env) error {
		capacity := 128
		if n, err := strconv.Atoi(env.Set["queue"]); err == nil && n > 0 {
			capacity = n
		}
		hub := &channels{extra: &env.Extra}
		open := func(w http.ResponseWriter, r *http.Request, serve func(context.Context, *socket)) {
			c, err := websocket.Accept(w, r, websocket.AcceptOptions{Config: websocket.Config{WriteTimeout: 2 * time.Second}})
			if err != nil {
				return // it has been answered
			}
			defer c.CloseNow()
			defer context.AfterFunc(ctx, c.CloseNow)()
			s, ended := &socket{conn: c}, context.Background()
			if writers {
				var cancel context.CancelFunc
				ended, cancel = context.WithCancel(ctx)
				s.queue = make(chan []byte, capacity)
				var writer sync.WaitGroup
				writer.Go(func() { s.write(ended) })
				defer writer.Wait()
				defer cancel()
			}
			serve(ended, s)
		}
		mux := http.NewServeMux()
		mux.Handle("POST /api/publish", hub)
		mux.HandleFunc("GET /echo", func(w http.ResponseWriter, r *http.Request) { open(w, r, echo) })
		mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			open(w, r, func(ctx context.Context, s *socket) {
				defer hub.subscribe(q.Get("channel"), s)() // before hello, which says so
				if q.Get("hello") != "" && s.send(hello()) != nil {
					return
				}
				drain(ctx, s)
			})
		})
		return serveHTTP(ctx, env, &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second})
	}
}

// hello is the first frame of a stream that requests one.
func hello() []byte { return []byte(`{"type":"subscribed","id":"` + epoch + `-0"}`) }

// echo sends back what it gets.
func echo(ctx context.Context, s *socket) {
	for {
		_, b, err := s.conn.Read(ctx)
		if err != nil {
			return
		}
		if s.queue != nil {
			b = append([]byte(nil), b...) // the writer comes later
		}
		if s.send(b) != nil {
			return
		}
	}
}

// drain reads for the pings and the end.
func drain(ctx context.Context, s *socket) {
	for {
		if _, _, err := s.conn.Read(ctx); err != nil {
			return
		}
	}
}
