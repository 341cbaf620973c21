package nodetest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/weir-gateway/weir/internal/downstream"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/trial"
	"github.com/weir-gateway/weir/internal/wire"
)

// LoopConfig of a front on event loops. The zero value has two, with the engine that
// trial.Engine names.
type LoopConfig struct {
	Loops eventloop.Config
	Push  push.Config
	Front downstream.Config
	// Accept has what accepts connections; nil: the front.
	Accept func(front *downstream.Server) func(*eventloop.Conn) eventloop.Handler
	// Panics is how many the loops are to have seen at the end.
	Panics uint64
}

// Loops are a front on event loops.
type Loops struct {
	*eventloop.Group
	Push  *push.Push
	Front *downstream.Server

	n *Node
}

// Loops makes a front for n, which does not listen yet.
func (n *Node) Loops(cfg LoopConfig) *Loops {
	n.T.Helper()
	if cfg.Loops.Loops == 0 {
		cfg.Loops.Loops = 2
	}
	if cfg.Loops.Engine == "" {
		cfg.Loops.Engine = os.Getenv(trial.Engine)
	}
	l := &Loops{n: n}
	accept := func(c *eventloop.Conn) eventloop.Handler { return l.Front.Accept(c) }
	if cfg.Accept != nil {
		accept = func(c *eventloop.Conn) eventloop.Handler { return cfg.Accept(l.Front)(c) }
	}
	var err error
	l.Group, err = eventloop.New(cfg.Loops, accept, n.Log)
	n.Must(err)
	l.Push, err = push.New(cfg.Push, n.Formats, n.Hub, l.Group.Loops(), n.Log)
	n.Must(err)
	l.Front, err = downstream.New(cfg.Front, l.Push, n.Auth, len(l.Group.Loops()), n.Log)
	n.Must(err)
	n.Drain = func(over time.Duration) { l.Push.Drain(wire.DrainPlan{Over: over}) }
	n.Run("front", l.Run)
	n.OnStop(func() {
		l.Front.Close()
		panics := uint64(0)
		for _, loop := range l.Group.Loops() {
			panics += loop.Stats().Panics
		}
		if panics != cfg.Panics {
			n.T.Errorf("%d panics", panics)
		}
	})
	return l
}

// Listen opens the node's address.
func (l *Loops) Listen() {
	l.n.T.Helper()
	at, err := l.Group.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	l.n.Must(err)
	l.n.Addr = at.String()
	l.Front.Listening(at)
}

// serveNetHTTP has net/http serve n, from now on.
func (n *Node) serveNetHTTP(endpoints []socket.Endpoint) {
	n.T.Helper()
	p := pushhttp.New(pushhttp.Config{}, n.Formats, n.Hub, n.Log)
	front := stdhttp.New(stdhttp.Config{}, stdhttp.Deps{Hub: n.Hub, Push: p, Auth: n.Auth, Ready: n.Hub.Ready, Log: n.Log})
	n.Must(front.Mount(endpoints))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	n.Must(err)
	n.Addr = l.Addr().String()
	n.Drain = func(over time.Duration) { p.Drain(wire.DrainPlan{Over: over}) }
	n.Run("front", func(ctx context.Context) error { p.Run(ctx); return nil })
	served := make(chan error, 1)
	go func() { served <- front.Serve(l) }()
	n.OnStop(func() {
		ctx, cancel := context.WithTimeout(context.Background(), trial.Patience)
		defer cancel()
		_ = front.Close(ctx)
		if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
			n.T.Errorf("serve: %v", err)
		}
	})
}
