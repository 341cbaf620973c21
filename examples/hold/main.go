// Hold shows a backend that owns streams without holding one: it answers a request
// with what there is now and the channel to follow, and is done. The connections are
// the gateway's.
//
//	$ go run ./hold
//	curl -N http://127.0.0.1:8080/orders/42/events    # as many as you like
//	curl -X POST http://127.0.0.1:8080/orders/42 -d shipped
//	curl http://127.0.0.1:8080/open                   # requests open at the backend: this one
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/examples/internal/gateway"
)

const config = `
listen: %s
admin: {listen: "off"}
shutdown: {drain: 1s}
broker: {kind: memory}
namespaces:
  - name: orders
auth:
  api_keys: [{name: backend, key: hold-example-key-0123456789, publish: ["orders:**"]}]
clusters:
  - name: backend
    peers: [{address: "%s"}]
routes:
  - path: /*
    cluster: backend
    hold: {channels: ["orders:*"]}      # what the backend may name
`

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "where the gateway listens")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

// shop is the backend: what it knows of orders, and where it publishes.
type shop struct {
	gateway string
	open    atomic.Int64

	mu     sync.Mutex // guards orders
	orders map[string]order
}

type order struct {
	State string `json:"state"`
	// at is the position of the publication that made it so.
	at string
}

func run(ctx context.Context, addr string) error {
	ln, err := gateway.Listen()
	if err != nil {
		return err
	}
	s := &shop{gateway: "http://" + addr, orders: map[string]order{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}/events", s.events)
	mux.HandleFunc("POST /orders/{id}", s.change)
	mux.HandleFunc("GET /open", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, s.open.Load()) })
	backend := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.open.Add(1)
		defer s.open.Add(-1)
		mux.ServeHTTP(w, r)
	})}
	ended := make(chan error, 2)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ended <- backend.Serve(ln) }()
	fmt.Printf("curl -N http://%s/orders/42/events (the first start builds weir)\n", addr)
	fmt.Printf("curl -X POST http://%s/orders/42 -d shipped\n", addr)
	go func() { ended <- gateway.Run(ctx, fmt.Sprintf(config, addr, ln.Addr())) }()
	err = <-ended
	_ = backend.Close()
	cancel()
	if other := <-ended; !errors.Is(other, http.ErrServerClosed) {
		err = errors.Join(err, other)
	}
	return err
}

// events answers with the order as it is and has the gateway continue from there. The
// position of its last change as prev-id is what makes that exact: a change between
// this answer and the subscription is replayed. A client that comes back has what was
// before its Last-Event-ID, so it gets no beginning and the gateway continues there.
func (s *shop) events(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	o, known := s.orders[r.PathValue("id")]
	s.mu.Unlock()
	channel := "orders:" + r.PathValue("id")
	again := r.Header.Get("Last-Event-ID") != ""
	if known && !again {
		channel += "; prev-id=" + o.at
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Grip-Hold", "stream")
	h.Set("Grip-Channel", channel)
	h.Set("Grip-Keep-Alive", `:\n\n; format=cstring; timeout=20`)
	if known && !again {
		text, _ := json.Marshal(o)
		_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
	}
}

// change takes a new state and publishes it.
func (s *shop) change(w http.ResponseWriter, r *http.Request) {
	state, err := io.ReadAll(io.LimitReader(r.Body, 1000))
	if err != nil {
		return
	}
	s.mu.Lock() // so that the order of publications is that of the states
	defer s.mu.Unlock()
	o := order{State: string(state)}
	if o.at, err = s.publish(r.Context(), "orders:"+r.PathValue("id"), o); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	s.orders[r.PathValue("id")] = o
	_, _ = fmt.Fprintln(w, o.at)
}

func (s *shop) publish(ctx context.Context, channel string, data any) (at string, err error) {
	body, err := json.Marshal(map[string]any{"channel": channel, "data": data})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateway+"/api/publish", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("X-API-Key", "hold-example-key-0123456789")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var answer struct {
		Result struct {
			Epoch  string
			Offset uint64
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("publish: status %d, %w", res.StatusCode, err)
	}
	return fmt.Sprintf("%s-%d", answer.Result.Epoch, answer.Result.Offset), nil
}
