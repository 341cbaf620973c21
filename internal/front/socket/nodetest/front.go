package nodetest

import (
	"net/netip"
	"os"
	"time"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// LoopConfig of a front on event loops. The zero value has two, with the engine that
// trial.Engine names.
type LoopConfig struct {
	Loops eventloop.Config
	Push  push.Config
	Front downstream.Config
	// Deps adds to what the front works with, once the loops are made; nil: nothing.
	Deps func(l *Loops, d *downstream.Deps)
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
	l.Push, err = push.New(cfg.Push, push.Deps{Formats: n.Formats, Hub: n.Hub, Loops: l.Group.Loops(), Log: n.Log})
	n.Must(err)
	streams := h2.New(h2.Config{}, func(c *eventloop.Conn) eventloop.Handler { return l.Front.AcceptStream(c) }, len(l.Group.Loops()), n.Log)
	deps := downstream.Deps{Push: l.Push, Auth: n.Auth, Loops: len(l.Group.Loops()), HTTP2: streams.ServeConn, Log: n.Log}
	if cfg.Deps != nil {
		cfg.Deps(l, &deps)
	}
	l.Front, err = downstream.New(cfg.Front, deps)
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
