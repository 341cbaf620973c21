package simulate

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

func (w *world) background() context.Context { return context.Background() }

// play runs a schedule from its first node to the end of everything.
func (w *world) play(s schedule) {
	defer func() {
		if r := recover(); r != nil {
			w.fail("panic: %v\n%s", r, debug.Stack())
		}
		for _, n := range w.nodes {
			n.stop(true)
		}
	}()
	for range w.setup.nodes {
		w.start()
	}
	for i, op := range s.ops {
		w.step = i
		r := rand.New(rand.NewPCG(op.seed, 2))
		if kinds[op.kind].do(w, r) {
			w.done[op.kind]++
		}
		w.settle()
		w.check()
		if w.failed() {
			return
		}
	}
	w.step = len(s.ops)
	w.finish(rand.New(rand.NewPCG(s.seed, 4)))
}

// start adds a node.
func (w *world) start() {
	n, err := w.boot(nil)
	if err != nil {
		w.fail("start a node: %v", err)
		return
	}
	w.nodes = append(w.nodes, n)
}

func (w *world) check() {
	for _, n := range w.nodes {
		n.check()
	}
}

// finish repairs everything, brings every stream to the end of the log, and closes it all.
func (w *world) finish(r *rand.Rand) {
	if len(w.nodes) == 0 {
		w.start()
	}
	for _, n := range w.nodes {
		n.thaw()
	}
	if w.store != nil {
		w.store.stopped = false
		for _, k := range w.store.links {
			k.cut = false
		}
	}
	w.quiet(r)
	for range 3 { // a client that was too slow is disconnected, and resumes
		for _, c := range w.clients {
			if c.sock == nil {
				c.resume(r, w.node(r))
			}
		}
		w.quiet(r)
	}
	for _, ch := range channels {
		x := w.fresh(r, ch)
		x.p.IdempotencyKey = "last " + ch
		for range 40 { // what is under way may be lost, one of five times, and is published again then
			if w.publish(w.node(r), x); !w.failed() {
				w.quiet(r)
			}
			if x.state == acknowledged {
				break
			}
		}
		if x.state != acknowledged {
			w.fail("a publication is not stored in the end: %s", x.p.Data)
		}
	}
	for _, c := range w.clients {
		if !w.failed() {
			c.settled()
		}
	}
	w.check()
	w.close()
}

// quiet advances until nothing is under way.
func (w *world) quiet(r *rand.Rand) {
	w.settle()
	for range 5000 {
		for _, c := range w.clients {
			if c.allow(1 << 30) {
				w.wait()
			}
		}
		w.settle()
		if w.failed() || !w.advance(r) {
			return
		}
	}
	w.fail("it does not come to rest")
}

// advance takes all that is under way a step further, and reports whether there was anything.
func (w *world) advance(r *rand.Rand) (busy bool) {
	for _, n := range w.nodes {
		if n.gate.pending() > 0 {
			n.gate.step(r, false)
			busy = true
		}
		if n.link == nil {
			continue
		}
		if len(n.link.requests) > 0 {
			busy = true
			w.store.step(r, n.link.requests[0])
		}
		for _, ns := range w.names() {
			for range len(n.link.next[ns]) {
				busy = true
				n.link.hand(r, ns)
			}
		}
	}
	return busy
}

// close disconnects everybody, and checks that nothing is left.
func (w *world) close() {
	if w.failed() {
		return
	}
	for _, c := range w.clients {
		c.disconnect()
	}
	w.settle()
	time.Sleep(3 * linger)
	w.wait()
	for _, n := range w.nodes {
		st := n.hub.Stats()
		if left := n.gate.left(); len(left) > 0 || st.Channels != 0 || st.QueueDepth != 0 || st.WireBytes != 0 {
			w.fail("%s: subscriptions are left: %v, %+v", n.name, left, st)
		}
		if open := n.group.Open(); open != len(n.hosts) {
			w.fail("%s: %d connections are open, of which %d are its own", n.name, open, len(n.hosts))
		}
	}
}

// node picks one that runs.
func (w *world) node(r *rand.Rand) *node { return w.nodes[r.IntN(len(w.nodes))] }

// remove takes a node off the list.
func (w *world) remove(n *node) {
	for i, x := range w.nodes {
		if x == n {
			w.nodes = append(w.nodes[:i], w.nodes[i+1:]...)
			return
		}
	}
}
