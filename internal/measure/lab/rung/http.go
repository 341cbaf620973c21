package rung

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// httpRungs are ladder B: the same publish request answered ever more directly.
// There are no subscribers, so what is measured is the request.
func httpRungs() map[string]Server {
	return map[string]Server{
		"b/stock":    handlerServer(marshalReply, nil),
		"b/append":   handlerServer(appendReply, nil),
		"b/pooled":   handlerServer(pooledReply, nil),
		"b/timeouts": handlerServer(pooledReply, withTimeouts),
		"b/loop":     loopServer("epoll", false),
		"b/batched":  loopServer("epoll", true),
		"b/uring":    loopServer("io_uring", true),
		"b/h2c":      handlerServer(pooledReply, withHTTP2),
	}
}

// A counter numbers publications for servers without subscribers.
type counter struct{ offset atomic.Uint64 }

// handlerServer serves net/http with the given handler and settings.
func handlerServer(reply func(*counter) http.HandlerFunc, configure func(*http.Server)) Server {
	return func(ctx context.Context, env *Env) error {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /api/publish", reply(&counter{}))
		s := &http.Server{Handler: mux} //nolint:gosec // without timeouts is what some rungs are about
		if configure != nil {
			configure(s)
		}
		return serveHTTP(ctx, env, s)
	}
}

// withTimeouts is what a server that unknown clients can reach must have.
func withTimeouts(s *http.Server) {
	s.ReadHeaderTimeout = time.Second
	s.ReadTimeout = 2 * time.Second
	s.WriteTimeout = 10 * time.Second
	s.IdleTimeout = 30 * time.Second
	s.MaxHeaderBytes = 32 << 10
}

// withHTTP2 takes HTTP/2 without TLS beside HTTP/1.1.
func withHTTP2(s *http.Server) {
	withTimeouts(s)
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
}

// marshalReply is the handler one writes first.
func marshalReply(c *counter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var p publication
		if err := p.check(json.NewDecoder(r.Body).Decode(&p)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := json.Marshal(map[string]any{"result": map[string]any{"epoch": epoch, "offset": c.offset.Add(1)}})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}
}

// appendReply writes the answer as bytes instead of describing it.
func appendReply(c *counter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var p publication
		if err := p.check(json.NewDecoder(r.Body).Decode(&p)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := appendResult(nil, c.offset.Add(1))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}
}

// exchanges are what pooledReply keeps between requests.
var exchanges = sync.Pool{New: func() any { return new(exchange) }}

type exchange struct {
	in  bytes.Buffer
	out []byte
	p   publication
}

// pooledReply also reads the request into memory that it has already.
func pooledReply(c *counter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := exchanges.Get().(*exchange)
		defer exchanges.Put(x)
		x.in.Reset()
		x.p = publication{Data: x.p.Data[:0]}
		_, err := x.in.ReadFrom(io.LimitReader(r.Body, maxBody))
		if err == nil {
			err = json.Unmarshal(x.in.Bytes(), &x.p)
		}
		if err := x.p.check(err); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		x.out = appendResult(x.out[:0], c.offset.Add(1))
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(x.out)))
		_, _ = w.Write(x.out)
	}
}

// loopServer answers on event loops, without a goroutine per connection. Batched,
// the answers to everything that one read brought leave in one write.
func loopServer(engine string, batched bool) Server {
	return func(ctx context.Context, env *Env) error {
		var c counter
		accept := func(*eventloop.Conn) eventloop.Handler { return &loopHandler{counter: &c, batched: batched} }
		return runLoops(ctx, env, eventloop.Config{Engine: engine}, accept)
	}
}

// runLoops runs event loops on the rung's address until ctx ends.
func runLoops(ctx context.Context, env *Env, cfg eventloop.Config, accept func(*eventloop.Conn) eventloop.Handler) error {
	g, err := eventloop.New(cfg, accept, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	at, err := g.Listen(env.Addr)
	if err != nil {
		g.Release()
		return err
	}
	env.Ready(at.String())
	return g.Run(ctx)
}

// A loopHandler is one connection: a parser that is called with what came, and
// its answer.
type loopHandler struct {
	counter *counter
	batched bool
	request http1.Request
	p       publication
}

// Data implements eventloop.Handler.
func (h *loopHandler) Data(c *eventloop.Conn, b []byte) int {
	used := 0
	for used < len(b) {
		n, err := http1.ParseRequest(&h.request, b[used:], http1.Limits{})
		if err != nil {
			c.Write(http1.AppendResponse(nil, 400, false, "text/plain", err.Error()))
			c.CloseAfterFlush()
			return len(b)
		}
		body := int(max(h.request.ContentLength, 0))
		if n == 0 || len(b)-used < n+body {
			return used // the rest comes later
		}
		h.answer(c, b[used+n:used+n+body])
		used += n + body
	}
	return used
}

func (h *loopHandler) answer(c *eventloop.Conn, body []byte) {
	h.p = publication{Data: h.p.Data[:0]}
	var small [128]byte
	status, text := 200, small[:0]
	if err := h.p.check(json.Unmarshal(body, &h.p)); err != nil {
		status, text = 400, append(text, err.Error()...)
	} else {
		text = appendResult(text, h.counter.offset.Add(1))
	}
	if h.batched {
		c.Write(http1.AppendResponse(nil, status, true, "application/json", text)) // leaves when Data returns
		return
	}
	c.Send(http1.AppendResponse(nil, status, true, "application/json", text)) // leaves now
}

// EndOfStream implements eventloop.Handler.
func (h *loopHandler) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (h *loopHandler) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler.
func (h *loopHandler) Timer(*eventloop.Conn, int64) {}

// Closed implements eventloop.Handler.
func (h *loopHandler) Closed(*eventloop.Conn, error) {}
