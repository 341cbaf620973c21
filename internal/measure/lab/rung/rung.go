// Package rung holds the servers that a tuning ladder climbs: one small server
// per rung, each as plain as its idea, one file per ladder.
//
// All speak the part of Weir's wire that a load needs, so that the same load
// fits every rung and Weir itself: GET /sse?channel=, GET /ws?channel=,
// GET /echo and POST /api/publish. None has Weir's promises: no log, no
// authentication, no limits. They are measured, not deployed.
package rung

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"time"
)

// A Server serves until ctx ends. It calls Env.Ready once it can be reached.
type Server func(ctx context.Context, env *Env) error

// An Env is what a rung's server is given.
type Env struct {
	// Addr is where to listen; port 0 picks one.
	Addr netip.AddrPort
	// Set holds the rung's own settings by name; the rung documents them.
	Set map[string]string
	// Ready reports where the server listens.
	Ready func(addr string)
	// Extra are numbers of the rung's own, which the side port shows. Any goroutine.
	Extra Extra
}

// servers are all rungs by name, "ladder/rung".
func servers() map[string]Server {
	all := map[string]Server{}
	for _, m := range []map[string]Server{sseRungs(), httpRungs(), kernelRungs(), webSocketRungs(), memoryRungs(), clientRungs()} {
		maps.Copy(all, m)
	}
	return all
}

// Names returns the names of all rungs, sorted.
func Names() []string { return slices.Sorted(maps.Keys(servers())) }

// A Line is what a rung's process prints when it can be reached, as JSON.
type Line struct {
	Addr  string `json:"addr"`
	Stats string `json:"stats"`
	// CPUs is the server's GOMAXPROCS.
	CPUs int `json:"cpus"`
}

// Serve runs the named rung and its side port until ctx ends, and prints a Line
// to out when both can be reached.
func Serve(ctx context.Context, name, listen string, set map[string]string, out io.Writer) error {
	serve, ok := servers()[name]
	if !ok {
		return fmt.Errorf("rung %q: there is none; %v", name, Names())
	}
	return Host(ctx, serve, listen, set, out)
}

// Host is Serve for a server that another program brings.
func Host(ctx context.Context, serve Server, listen string, set map[string]string, out io.Writer) error {
	addr, err := netip.ParseAddrPort(listen)
	if err != nil {
		return fmt.Errorf("listen %q: want an address like 127.0.0.1:0: %w", listen, err)
	}
	side, err := net.Listen("tcp", netip.AddrPortFrom(addr.Addr(), 0).String())
	if err != nil {
		return fmt.Errorf("side port: %w", err)
	}
	env := &Env{Addr: addr, Set: set}
	stats := &http.Server{Handler: statsHandler(&env.Extra), ReadHeaderTimeout: 5 * time.Second}
	defer func() { _ = stats.Close() }()
	go func() { _ = stats.Serve(side) }() // ends with Close
	env.Ready = func(at string) {
		_ = json.NewEncoder(out).Encode(Line{Addr: at, Stats: side.Addr().String(), CPUs: runtime.GOMAXPROCS(0)})
	}
	return serve(ctx, env)
}

// serveHTTP runs s on a listener like any Go program's, until ctx ends.
func serveHTTP(ctx context.Context, env *Env, s *http.Server) error {
	l, err := net.Listen("tcp", env.Addr.String())
	if err != nil {
		return err
	}
	return serveOn(ctx, env, s, l)
}

// serveOn runs s on listeners that share an address.
func serveOn(ctx context.Context, env *Env, s *http.Server, listeners ...net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- s.Serve(l) }()
	}
	env.Ready(listeners[0].Addr().String())
	var first error
	for range listeners {
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) && first == nil {
			first = err
			_ = s.Close()
		}
	}
	return first
}
