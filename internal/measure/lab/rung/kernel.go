package rung

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// kernelRungs are ladder C: a server for short connections, with one listener or
// one per CPU.
func kernelRungs() map[string]Server {
	return map[string]Server{
		"c/stock":     handlerServer(pooledReply, nil),
		"c/timeouts":  handlerServer(pooledReply, withTimeouts),
		"c/reuseport": serveReusePort,
		"c/bulk":      serveBulk,
	}
}

// serveReusePort opens the address once per CPU; the kernel spreads connections
// over the sockets, so no two CPUs share an accept queue.
func serveReusePort(ctx context.Context, env *Env) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/publish", pooledReply(&counter{}))
	s := &http.Server{Handler: mux} //nolint:gosec // withTimeouts sets them
	withTimeouts(s)
	at := env.Addr
	var listeners []net.Listener
	for range runtime.GOMAXPROCS(0) {
		fd, bound, err := sys.Listen(at, sys.ListenOptions{ReusePort: true})
		if err != nil {
			return err
		}
		at = bound
		f := os.NewFile(uintptr(fd), "listener")
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	return serveOn(ctx, env, s, listeners...)
}

// tcpCongestion is TCP_CONGESTION.
const tcpCongestion = 13

// serveBulk answers every request with bytes without end, as fast as they are taken. Setting control
// names the congestion control of its connections; without it that is the kernel's.
func serveBulk(ctx context.Context, env *Env) error {
	piece := make([]byte, 64<<10)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bulk", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	if name := env.Set["control"]; name != "" {
		// Of the socket, as a namespace's own setting may not be each that the kernel has.
		lc.Control = func(_, _ string, c syscall.RawConn) (err error) {
			var set error
			err = c.Control(func(fd uintptr) { set = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, tcpCongestion, name) })
			if set != nil {
				return fmt.Errorf("congestion control %s: %w", name, set)
			}
			return err
		}
	}
	l, err := lc.Listen(ctx, "tcp", env.Addr.String())
	if err != nil {
		return err
	}
	return serveOn(ctx, env, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, l)
}
