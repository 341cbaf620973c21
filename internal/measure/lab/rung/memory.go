package rung

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// memoryRungs are what item E1 adds to the rungs there are (a/onewrite for
// net/http), and E6's two handlers.
func memoryRungs() map[string]Server {
	return map[string]Server{
		"e1/pool":  servePool,
		"e6/leaky": leakServer(false),
		"e6/sound": leakServer(true),
	}
}

// servePool is the bounded pool of workers: one goroutine waits in epoll and gives
// connections that are ready to one of a fixed number of workers (setting
// workers, 64). It answers any GET with the head of a stream and publish
// requests with their result.
func servePool(ctx context.Context, env *Env) error {
	workers := 64
	if n, err := strconv.Atoi(env.Set["workers"]); err == nil && n > 0 {
		workers = n
	}
	p := &pool{ready: make(chan int, 1024), conns: map[int]*pooled{}}
	ep, err := sys.EpollCreate()
	if err != nil {
		return err
	}
	defer sys.Close(ep)
	fd, at, err := sys.Listen(env.Addr, sys.ListenOptions{})
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	p.ep, p.listener = ep, fd
	if err := sys.EpollAdd(ep, fd, sys.EpollIn, uint64(fd)); err != nil {
		return err
	}
	var running sync.WaitGroup
	for range workers {
		running.Go(p.work)
	}
	env.Ready(at.String())
	p.wait(ctx)
	close(p.ready)
	running.Wait()
	for fd := range p.conns {
		sys.Close(fd)
	}
	return nil
}

// once hands a connection to one worker at a time: after an event epoll is quiet
// about it until it is armed again.
const once = sys.EpollIn | syscall.EPOLLONESHOT

type pool struct {
	ep, listener int
	ready        chan int
	counter      counter

	mu    sync.Mutex
	conns map[int]*pooled
}

// pooled is an open connection.
type pooled struct {
	// mu is free whenever a worker comes, as epoll names a connection to one at a
	// time; it hands what the last one wrote to the next.
	mu sync.Mutex
	in []byte // what of a request has come so far
}

// wait gives away what is ready until ctx ends.
func (p *pool) wait(ctx context.Context) {
	events := make([]sys.EpollEvent, 256)
	for ctx.Err() == nil {
		n, errno := sys.EpollWait(p.ep, events, 100)
		if errno != 0 && errno != syscall.EINTR {
			return
		}
		for i := range max(n, 0) {
			if fd := int(events[i].Data()); fd != p.listener {
				p.ready <- fd
				continue
			}
			p.accept()
		}
	}
}

func (p *pool) accept() {
	for {
		fd, _, errno := sys.Accept(p.listener)
		if errno != 0 {
			return
		}
		p.mu.Lock()
		p.conns[fd] = &pooled{}
		p.mu.Unlock()
		if sys.EpollAdd(p.ep, fd, once, uint64(fd)) != nil {
			p.drop(fd)
		}
	}
}

func (p *pool) drop(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, fd)
	sys.Close(fd)
}

// work serves connections until there are no more.
func (p *pool) work() {
	buf, request := make([]byte, 64<<10), http1.Request{}
	for fd := range p.ready {
		p.mu.Lock()
		c := p.conns[fd]
		p.mu.Unlock()
		if c != nil && !p.take(fd, c, buf, &request) {
			p.drop(fd)
		}
	}
}

// take reads once, answers and arms the connection again; it reports whether the
// connection stays.
func (p *pool) take(fd int, c *pooled, buf []byte, r *http1.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, errno := sys.Recv(fd, buf)
	if n == 0 || (errno != 0 && errno != sys.EAGAIN) {
		return false
	}
	c.in = append(c.in, buf[:max(n, 0)]...)
	return p.serve(fd, c, r) && sys.EpollMod(p.ep, fd, once, uint64(fd)) == nil
}

// serve answers the requests that are complete and reports whether the
// connection stays.
func (p *pool) serve(fd int, c *pooled, r *http1.Request) bool {
	for len(c.in) > 0 {
		n, err := http1.ParseRequest(r, c.in, http1.Limits{})
		body := 0
		if err == nil && n > 0 {
			body = int(max(r.ContentLength, 0))
		}
		if err != nil {
			return false
		}
		if n == 0 || len(c.in) < n+body {
			return true
		}
		var pub publication
		answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
		switch {
		case string(r.Method) == "GET":
			answer = append(answer, checkpoint()...)
		case pub.check(json.Unmarshal(c.in[n:n+body], &pub)) != nil:
			return false
		default:
			answer = http1.AppendResponse(nil, 200, true, "application/json", appendResult(nil, p.counter.offset.Add(1)))
		}
		if _, errno := sys.Send(fd, answer); errno != 0 {
			return false
		}
		c.in = c.in[n+body:]
	}
	c.in = nil // an idle connection keeps no buffer
	return true
}

// leakServer starts a helper goroutine with every request of /work. The leaky one
// waits for a result that is never sent; the sound one also for the request's end.
func leakServer(sound bool) Server {
	return func(ctx context.Context, env *Env) error {
		before, err := strconv.Atoi(cmp.Or(env.Set["leaked"], "0")) // as if it had leaked for long
		if err != nil || before < 0 || before > 1_000_000 {
			return fmt.Errorf("leaked: %q is not a number up to 1,000,000", env.Set["leaked"])
		}
		for range before {
			go ignoresItsContext(ctx, nil, make(chan int))
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /work", func(w http.ResponseWriter, r *http.Request) {
			result := make(chan int)
			var gone <-chan struct{} // nil: for ever
			if sound {
				gone = r.Context().Done()
			}
			go ignoresItsContext(ctx, gone, result)
			w.WriteHeader(http.StatusNoContent)
		})
		return serveHTTP(ctx, env, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second})
	}
}

// ignoresItsContext is the function a leak hunt must name.
func ignoresItsContext(server context.Context, request <-chan struct{}, result chan int) {
	select {
	case <-server.Done():
	case <-request:
	case <-result:
	}
}
