package app

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
)

// startPatience is how long connections wait in the kernel for a start before they are
// answered that it takes longer: less would refuse clients that wait for a restart.
const startPatience = time.Second

// namesTime bounds how long a process that starts waits until it has tried each host name of its backends: requests for
// them would be answered that there are no peers. In a takeover the old process serves until then.
const namesTime = 5 * time.Second

// awaitNames waits for that.
func (a *App) awaitNames(ctx context.Context) {
	late := time.NewTimer(namesTime)
	defer late.Stop()
	select {
	case <-a.wing.upstreams.Ready():
	case <-ctx.Done():
	case <-late.C:
		a.log.Warn("host names of backends are not resolved yet; their requests are answered 503 until then",
			"names", a.wing.upstreams.Unresolved(), "waited", namesTime)
	}
}

// waitingRoom is where clients are while names are resolved and the broker is not ready.
type waitingRoom struct{ *App }

// start waits for the host names of backends, and starts the hub, which waits for servers that are not there yet.
// Meanwhile the admin listener serves, and after a short delay the public one says what it waits for.
func (a *waitingRoom) start(parts *group, ctx, background context.Context) error { //nolint:revive // background is the parts'
	if a.opt.Takeover != nil { // the old process serves
		return a.hub.Start(ctx)
	}
	a.listeners.run(parts, background)
	waiting, stop := context.WithCancel(background)
	var room sync.WaitGroup
	defer room.Wait()
	defer stop()
	room.Go(func() { a.serve(waiting) })
	a.awaitNames(ctx)
	return a.hub.Start(ctx)
}

// serve answers on the public listener until ctx is done: that the process lives,
// that it is not ready and why. TLS and the PROXY protocol are the loops' matter, which
// do not run yet: there clients wait, and the admin listener answers.
func (a *waitingRoom) serve(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(startPatience):
	}
	if names := a.wing.upstreams.Unresolved(); len(names) > 0 {
		a.log.Warn("start takes longer: host names of backends are not resolved", "names", names)
	} else {
		a.log.Warn("start takes longer: the broker is not ready", "err", a.hub.Ready())
	}
	if a.tls != nil || a.cfg.ProxyProtocol {
		return
	}
	fds, err := a.loops.Listeners()
	if err != nil {
		a.log.Warn("public listener is silent during the start", "err", err)
		return
	}
	server := &http.Server{
		Handler: http.HandlerFunc(a.answer), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		MaxHeaderBytes: 32 << 10,
	}
	server.SetKeepAlivesEnabled(false)
	slots := make(chan struct{}, startSlots)
	var serving sync.WaitGroup
	for _, fd := range fds {
		l, err := listenerOf(fd)
		if err != nil {
			a.log.Warn("public listener is silent during the start", "err", err)
			continue
		}
		serving.Go(func() {
			if err := server.Serve(&fewAtATime{l, slots, ctx.Done()}); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
				a.log.Warn("public listener during the start", "err", err)
			}
		})
	}
	<-ctx.Done()
	_ = server.Close()
	serving.Wait()
}

// startSlots bounds the connections that are answered at a time.
const startSlots = 64

// listenerOf makes a listener of fd, which it takes.
func listenerOf(fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	return net.FileListener(f)
}

// fewAtATime accepts no more than slots hold.
type fewAtATime struct {
	net.Listener
	slots chan struct{}
	done  <-chan struct{}
}

// Accept implements net.Listener.
func (l *fewAtATime) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &slotConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

type slotConn struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *slotConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// answer serves health, and answers everything else with a 503 and Retry-After.
func (a *waitingRoom) answer(w http.ResponseWriter, r *http.Request) {
	reason := "starting"
	if err := a.push.Ready(); err != nil {
		reason = err.Error()
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	prefix := a.cfg.Downstream.BuiltinPrefix
	switch {
	case r.URL.Path == prefix+"/healthz":
		h.Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	case r.URL.Path != prefix+"/readyz" && strings.Contains(r.Header.Get("Accept"), "text/event-stream"):
		// EventSource gives up for good on any other status.
		h.Set("Content-Type", "text/event-stream")
		_, _ = w.Write(sse.AppendEnd(sse.AppendRetry(nil, int(startRetry.Milliseconds()))))
	default:
		h.Set("Content-Type", "application/json")
		h.Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(wire.AppendError(nil, &wire.Error{Status: http.StatusServiceUnavailable, Message: reason, Hint: "try again after Retry-After seconds"}))
	}
}

// startRetry is what streams are asked to wait.
const startRetry = time.Second
