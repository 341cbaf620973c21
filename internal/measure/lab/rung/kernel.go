package rung

import (
	"context"
	"net"
	"net/http"
	"os"
	"runtime"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// kernelRungs are ladder C: a server for short connections, with one listener or
// one per CPU.
func kernelRungs() map[string]Server {
	return map[string]Server{
		"c/stock":     handlerServer(pooledReply, nil),
		"c/timeouts":  handlerServer(pooledReply, withTimeouts),
		"c/reuseport": serveReusePort,
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
