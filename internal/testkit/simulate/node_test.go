package simulate

import (
	"context"
	"net/netip"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A node is one process: hub, event loops and sessions as in the product, but for the sockets.
type node struct {
	w      *world
	name   string
	gate   *gate
	link   *link          // of the store; nil with the memory broker
	memory *memory.Broker // nil with the store
	hub    *hub.Hub
	group  *eventloop.Group
	push   *push.Push
	hosts  []*host
	pipes  []*pipe
	cancel context.CancelFunc
	done   chan error
	frozen chan struct{} // closed to let the loops turn; nil: they do
	dead   bool
}

// What all nodes share: it keeps no state of a schedule.
type shared struct {
	formats  *wire.Formats
	encoders []hub.Encoder
	prover   *auth.Authenticator
}

func newShared() (*shared, error) {
	f, err := wire.NewFormats(nil)
	if err != nil {
		return nil, err
	}
	a, err := auth.New(auth.Config{}, nil)
	return &shared{f, f.Encoders(), a}, err
}

// boot starts a node. pieces are the log of a process that it takes over; nil: there is none.
func (w *world) boot(pieces [][]byte) (*node, error) {
	w.booted++
	n := &node{w: w, name: "node" + itoa(uint64(w.booted)), done: make(chan error, 1)}
	n.gate = &gate{w: w, name: n.name, followed: map[string]bool{}}
	if w.store != nil {
		n.link = w.store.connect(n.name)
		n.gate.inner = n.link
	} else {
		b, err := memory.New(memory.Config{})
		if err != nil {
			return nil, err
		}
		for _, p := range pieces {
			if err := b.Import(p); err != nil {
				return nil, err
			}
		}
		n.memory, n.gate.inner = b, b
	}
	spaces := w.setup.namespaces(w.planted(ignoreBound))
	var err error
	n.hub, err = hub.New(hub.Config{Namespaces: spaces, Encoders: w.shared.encoders, Linger: linger, RecentBudget: w.setup.recent}, n.gate)
	if err != nil {
		return nil, err
	}
	n.group, err = eventloop.NewPortable(eventloop.Config{Loops: w.setup.loops, MaxConns: 1000}, nil)
	if err != nil {
		return nil, err
	}
	n.push, err = push.New(push.Config{}, push.Deps{Formats: w.shared.formats, Hub: n.hub, Loops: n.group.Loops(), Namespaces: spaces, Prover: w.shared.prover})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if err := n.hub.Start(ctx); err != nil {
		cancel()
		n.group.Release()
		return nil, err
	}
	go func() { n.done <- n.group.Run(ctx) }()
	for _, l := range n.group.Loops() {
		h := &host{}
		n.hosts = append(n.hosts, h)
		l.Post(func() { l.CarryRoot(&h.Carried, peer, h, h) })
	}
	w.wait()
	w.learn(n)
	return n, nil
}

var peer = netip.MustParseAddrPort("192.0.2.1:4000")

// freeze stops the loops, as SIGSTOP does, until thaw.
func (n *node) freeze() {
	if n.frozen != nil {
		return
	}
	n.frozen = make(chan struct{})
	for _, l := range n.group.Loops() {
		until := n.frozen
		l.Post(func() { <-until })
	}
}

func (n *node) thaw() {
	if n.frozen != nil {
		close(n.frozen)
		n.frozen = nil
	}
}

// stop ends a node. killed says that nothing more leaves it.
func (n *node) stop(killed bool) {
	if n.dead {
		return
	}
	n.dead = true
	n.thaw()
	n.w.wait()
	if killed {
		for _, p := range n.pipes {
			p.dead.Store(true)
			p.sock.end(p)
		}
	}
	n.cancel()
	if err := <-n.done; err != nil {
		n.w.fail("%s: loops: %v", n.name, err)
	}
	n.push.Close()
	if err := n.hub.Close(); err != nil {
		n.w.fail("%s: close: %v", n.name, err)
	}
	n.w.wait()
	for _, l := range n.group.Loops() {
		if s := l.Stats(); s.Panics > 0 {
			n.w.fail("%s: %d panics on a loop", n.name, s.Panics)
		}
	}
	if s := n.push.Stats(); s.Panics > 0 || s.SSE != 0 || s.Queued != 0 || s.QueuedBytes != 0 {
		n.w.fail("%s: after its end %d panics, %d streams, %d messages in backlogs", n.name, s.Panics, s.SSE, s.Queued)
	}
}

// check holds a running node to its bounds.
func (n *node) check() {
	st, open, bound := n.push.Stats(), int64(0), int64(0)
	for _, p := range n.pipes {
		if !p.gone.Load() {
			open++
			bound += int64(p.spaces * n.w.setup.queue)
		}
	}
	// Of history one piece waits, which is bounded by rings and pages.
	bound += min(int64(n.hub.Stats().Replayed), open*int64(len(channels)*maxPiece))
	if st.Queued > bound || st.Queued < 0 {
		n.w.fail("%s: %d messages in the backlogs of %d streams, at most %d", n.name, st.Queued, open, bound)
	}
	if st.SSE > open {
		n.w.fail("%s: %d streams, %d connections", n.name, st.SSE, open)
	}
}

// A host is the connection whose socket carries the clients of one loop, as one of HTTP/2 does.
type host struct {
	eventloop.Carried
	silent
}

// silent is a handler and carrier of nothing.
type silent struct{}

func (silent) Data(_ *eventloop.Conn, b []byte) int { return len(b) }
func (silent) EndOfStream(*eventloop.Conn) bool     { return true }
func (silent) Drained(*eventloop.Conn)              {}
func (silent) Timer(*eventloop.Conn, int64)         {}
func (silent) Closed(*eventloop.Conn, error)        {}

// Send implements eventloop.Carrier.
func (silent) Send(b []byte) int { return len(b) }

// Reading implements eventloop.Carrier.
func (silent) Reading(bool) {}

// Shutdown implements eventloop.Carrier.
func (silent) Shutdown() {}

// Close implements eventloop.Carrier.
func (silent) Close(error, bool) {}
