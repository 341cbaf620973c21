package simulate

import (
	"math/rand/v2"
	"time"
)

// A kind is a sort of operation. do returns false when there was nothing to do it to.
type kind uint8

type operation struct {
	name   string
	weight int
	do     func(w *world, r *rand.Rand) bool
}

const numKinds = 23

// kinds are all operations. Their order is part of what a seed means.
var kinds = [numKinds]operation{
	{"publish", 22, doPublish},
	{"publish a burst", 4, doBurst},
	{"publish again", 10, doRetry},
	{"connect", 9, doConnect},
	{"disconnect", 5, doDisconnect},
	{"resume", 10, doResume},
	{"read some", 10, doRead},
	{"answer a call", 24, doAnswer},
	{"store a publication", 22, doStore},
	{"deliver", 24, doDeliver},
	{"freeze a node", 2, doFreeze},
	{"thaw a node", 4, doThaw},
	{"wait", 5, doWait},
	{"jump of the clock", 1, doJump},
	{"takeover", 5, doTakeover},
	{"takeover that fails", 3, doFailedTakeover},
	{"kill a node", 2, doKill},
	{"start a node", 4, doStart},
	{"cut a node off", 2, doCut},
	{"end of a cut", 4, doHeal},
	{"change of leader", 3, doElect},
	{"loss of power", 1, doLose},
	{"trim a channel", 2, doTrim},
}

const maxClients, maxNodes = 7, 4

func pick[T any](r *rand.Rand, list []T, ok func(T) bool) (x T, found bool) {
	var fit []T
	for _, x := range list {
		if ok(x) {
			fit = append(fit, x)
		}
	}
	if len(fit) == 0 {
		return x, false
	}
	return fit[r.IntN(len(fit))], true
}

func doPublish(w *world, r *rand.Rand) bool {
	if len(w.nodes) == 0 {
		return false
	}
	w.publish(w.node(r), w.fresh(r, channels[r.IntN(len(channels))]))
	return true
}

func doBurst(w *world, r *rand.Rand) bool {
	if len(w.nodes) == 0 {
		return false
	}
	n, ch := w.node(r), channels[r.IntN(len(channels))]
	if c, ok := pick(r, w.clients, func(c *client) bool { return connected(c) && !c.eager }); ok { // to one that reads slowly
		ch = c.channels[r.IntN(len(c.channels))]
	}
	for range 5 + r.IntN(30) {
		w.publish(n, w.fresh(r, ch))
		if n.link != nil && len(n.link.requests) > 0 {
			w.store.step(r, n.link.requests[0])
		}
	}
	for _, m := range w.nodes {
		if m.link != nil {
			for range 20 {
				m.link.hand(r, "default")
				m.link.hand(r, "o")
			}
		}
	}
	return true
}

func doRetry(w *world, r *rand.Rand) bool {
	x, ok := pick(r, w.pubs, func(x *publication) bool {
		return x.state == refused || x.state == uncertain && x.p.IdempotencyKey != ""
	})
	if !ok || len(w.nodes) == 0 {
		return false
	}
	w.publish(w.node(r), x)
	return true
}

func doConnect(w *world, r *rand.Rand) bool {
	if len(w.clients) >= maxClients || len(w.nodes) == 0 {
		return false
	}
	c := &client{w: w, name: "client" + itoa(uint64(len(w.clients)))}
	all := r.Perm(len(channels))[:1+r.IntN(2)*r.IntN(len(channels))]
	for _, i := range all {
		c.channels = append(c.channels, channels[i])
	}
	w.clients = append(w.clients, c)
	c.begin(r, w.node(r))
	return true
}

func connected(c *client) bool    { return c.sock != nil }
func disconnected(c *client) bool { return c.sock == nil }

func doDisconnect(w *world, r *rand.Rand) bool {
	c, ok := pick(r, w.clients, connected)
	if ok {
		c.disconnect()
	}
	return ok
}

func doResume(w *world, r *rand.Rand) bool {
	c, ok := pick(r, w.clients, disconnected)
	if !ok || len(w.nodes) == 0 {
		return false
	}
	if r.IntN(10) == 0 {
		c.begin(r, w.node(r))
	} else {
		c.resume(r, w.node(r))
	}
	return true
}

func doRead(w *world, r *rand.Rand) bool {
	c, ok := pick(r, w.clients, func(c *client) bool { return connected(c) && !c.eager })
	if ok {
		c.allow(r.IntN(800))
	}
	return ok
}

func doAnswer(w *world, r *rand.Rand) bool {
	n, ok := pick(r, w.nodes, func(n *node) bool { return n.gate.pending() > 0 })
	if !ok {
		return false
	}
	for range 1 + r.IntN(3) {
		n.gate.step(r, n.link != nil && (n.link.cut || w.store.stopped))
		w.wait()
	}
	return true
}

func doStore(w *world, r *rand.Rand) bool {
	n, ok := pick(r, w.nodes, func(n *node) bool { return n.link != nil && len(n.link.requests) > 0 })
	if !ok {
		return false
	}
	for range 1 + r.IntN(4) {
		if k := len(n.link.requests); k > 0 {
			w.store.step(r, n.link.requests[r.IntN(k)])
		}
	}
	return true
}

func doDeliver(w *world, r *rand.Rand) bool {
	n, ok := pick(r, w.nodes, func(n *node) bool { return n.link != nil && len(n.link.next["default"])+len(n.link.next["o"]) > 0 })
	if !ok {
		return false
	}
	for range 1 + r.IntN(4) {
		n.link.hand(r, w.names()[r.IntN(2)])
		if r.IntN(2) == 0 {
			w.wait()
		}
	}
	return true
}

func doFreeze(w *world, r *rand.Rand) bool {
	n, ok := pick(r, w.nodes, func(n *node) bool { return n.frozen == nil })
	if ok {
		n.freeze()
	}
	return ok
}

func doThaw(w *world, r *rand.Rand) bool {
	n, ok := pick(r, w.nodes, func(n *node) bool { return n.frozen != nil })
	if ok {
		n.thaw()
	}
	return ok
}

func doWait(w *world, r *rand.Rand) bool {
	time.Sleep(time.Duration(1+r.IntN(40_000)) * time.Millisecond)
	return true
}

func doJump(w *world, r *rand.Rand) bool {
	time.Sleep(time.Duration(1+r.IntN(12)) * time.Minute)
	return true
}

func doKill(w *world, r *rand.Rand) bool {
	n, ok := pick(r, w.nodes, func(*node) bool { return true })
	if ok {
		w.logf("kill %s", n.name)
		w.remove(n)
		n.stop(true)
	}
	return ok
}

func doStart(w *world, _ *rand.Rand) bool {
	if most := w.setup.nodes; len(w.nodes) >= most {
		return false
	}
	w.start()
	return true
}

func doCut(w *world, r *rand.Rand) bool {
	if w.store == nil {
		return false
	}
	if r.IntN(3) == 0 {
		w.store.stopped = true
		w.logf("the leader is frozen")
		return true
	}
	n, ok := pick(r, w.nodes, func(n *node) bool { return !n.link.cut })
	if ok {
		n.link.cut = true
		w.logf("%s is cut off", n.name)
	}
	return ok
}

func doHeal(w *world, r *rand.Rand) bool {
	n, ok := pick(r, w.nodes, func(n *node) bool { return n.link != nil && n.link.cut })
	if ok {
		n.link.cut = false
		w.logf("%s is connected again", n.name)
	}
	return ok
}

func doElect(w *world, r *rand.Rand) bool {
	if w.store == nil {
		return false
	}
	w.logf("another leader")
	w.store.elect(r)
	return true
}

func doLose(w *world, r *rand.Rand) bool {
	if w.store == nil || len(w.ledger.spaces["default"].epochs) > 3 {
		return false
	}
	ns := w.names()[r.IntN(2)]
	w.logf("loss of power: the log of %s starts anew", ns)
	w.store.lose(r, ns)
	return true
}

func doTrim(w *world, r *rand.Rand) bool {
	if w.store == nil {
		return false
	}
	ch := channels[r.IntN(len(channels))]
	l := w.store.logs[w.spaceOf(ch)]
	w.logf("trim %s", ch)
	w.store.trim(l, ch, r.IntN(4))
	return true
}
