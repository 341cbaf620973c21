package presence

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// flushEvery is how long changes gather before they are sent to the other nodes.
	flushEvery = 10 * time.Millisecond
	// announceEvery is how often a node that has nothing new says so: a delta that was lost
	// with nothing after it is found that way.
	announceEvery = time.Second
	// syncTimeout is how long the next part of a whole is waited for.
	syncTimeout = 2 * time.Second
	// wishEvery is the least time between two wishes for the same whole.
	wishEvery = 200 * time.Millisecond
	// maxBehind bounds the deltas that wait for a whole.
	maxBehind = 8 << 20
	// wholeAtATime bounds what is sent of wholes between two deltas.
	wholeAtATime = 2 << 20
)

// A peer is another node, as far as its members are concerned.
type peer struct {
	// Fixed when it came.
	id     string
	number uint32

	// mu is held while shards' are taken, never the other way round.
	mu       sync.Mutex
	gone     bool
	synced   bool
	next     uint64 // the delta that comes next, when synced
	gen      uint32 // of the whole that is being read or was last
	sync     uint64 // the wish for it
	part     uint64 // the part that comes next
	lastSeen time.Time
	wished   time.Time
	waiting  [][]byte // deltas for after it
	bytes    int
}

// A syncRequest is another node's wish for our whole, and how far it is met.
type syncRequest struct {
	node    string
	sync    uint64
	base    uint64
	started bool
	shard   int
	part    uint64
}

// A sender is what the goroutine of send keeps.
type sender struct {
	seq       uint64
	announced time.Time
	ops       []op
}

// send sends the other nodes what changed, and those that requested it our whole state.
func (p *Presence) send(ctx context.Context) {
	ticker := time.NewTicker(announceEvery / 2)
	defer ticker.Stop()
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wakeOut:
		case now := <-ticker.C:
			p.overdue(now)
			if now.Sub(p.out.announced) >= announceEvery {
				p.report("", appendHeader(nil, header{kind: msgAt, seq: p.out.seq}))
			}
			continue
		}
		pause.Reset(flushEvery)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		p.flush()
		if p.serveWants() {
			p.wake()
		}
	}
}

// send drops what the bus does not accept: a node that misses it sees a number missing.
func (p *Presence) report(node string, msg []byte) {
	var err error
	if node == "" {
		p.out.announced = time.Now()
		err = p.bus.Broadcast(topic, msg)
	} else {
		err = p.bus.SendTo(node, topic, msg)
	}
	if err != nil {
		p.log.Debug("presence not sent", "err", err)
	}
}

func (p *Presence) flush() {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		p.out.ops = s.drainOps(p.out.ops)
		s.mu.Unlock()
	}
	ops := p.out.ops
	for len(ops) > 0 {
		p.out.seq++
		msg := appendHeader(nil, header{kind: msgDelta, seq: p.out.seq})
		msg, ops = fill(msg, ops)
		p.report("", msg)
		p.sent.Add(1)
	}
	clear(p.out.ops)
	if p.out.ops = p.out.ops[:0]; cap(p.out.ops) > 1<<16 {
		p.out.ops = nil
	}
}

// fill appends as many of ops to msg as a frame takes, at least one.
func fill(msg []byte, ops []op) ([]byte, []op) {
	for len(ops) > 0 && len(msg) < maxFrame-MaxMember {
		msg = appendOp(msg, &ops[0])
		ops = ops[1:]
	}
	return msg, ops
}

// serveWants sends some of our whole to those who want it. It reports whether there
// is more to send.
func (p *Presence) serveWants() bool {
	for budget := wholeAtATime; budget > 0; {
		p.mu.Lock()
		if len(p.syncRequests) == 0 {
			p.mu.Unlock()
			return false
		}
		w := p.syncRequests[0]
		p.mu.Unlock()
		if !w.started {
			w.started, w.base = true, p.out.seq
		}
		budget -= p.sendWhole(&w)
		p.mu.Lock()
		// Meanwhile the node may have gone, or wished anew.
		if i := slices.IndexFunc(p.syncRequests, func(x syncRequest) bool { return x.node == w.node }); i >= 0 && p.syncRequests[i].sync == w.sync {
			if w.shard == shards {
				p.syncRequests = slices.Delete(p.syncRequests, i, i+1)
			} else {
				p.syncRequests[i] = w
			}
		}
		p.mu.Unlock()
	}
	return true
}

// sendWhole sends shards until a frame or more is full and returns their bytes.
func (p *Presence) sendWhole(w *syncRequest) (n int) {
	var ops []op
	head := func(last bool) []byte {
		h := header{kind: msgWhole, seq: w.base, sync: w.sync, part: w.part, last: last}
		w.part++
		return appendHeader(nil, h)
	}
	room := maxFrame / 2
	for ; w.shard < shards && room > 0; w.shard++ {
		s := &p.shards[w.shard]
		s.mu.Lock()
		before := len(ops)
		ops = s.whole(ops)
		s.mu.Unlock()
		for i := range ops[before:] {
			o := &ops[before+i]
			room -= 16 + len(o.channel) + len(o.Client) + len(o.User) + len(o.Info) + len(o.ChanInfo)
		}
	}
	for {
		start := len(ops)
		h := head(false)
		msg, rest := fill(h, ops)
		if ops = rest; len(ops) == 0 && w.shard == shards {
			msg[len(h)-1] = 1
		}
		p.report(w.node, msg)
		if n += len(msg); len(ops) == 0 || len(ops) == start {
			return n
		}
	}
}

// join is called by the cluster for a node that came.
func (p *Presence) join(id string) {
	p.mu.Lock()
	if p.peers[id] != nil {
		p.mu.Unlock()
		return
	}
	p.lastPeer++
	pr := &peer{id: id, number: p.lastPeer}
	p.peers[id] = pr
	p.mu.Unlock()
	pr.mu.Lock()
	p.wish(pr)
	pr.mu.Unlock()
}

// gone is called by the cluster for a node that went.
func (p *Presence) gone(id string) {
	p.mu.Lock()
	pr := p.peers[id]
	delete(p.peers, id)
	p.syncRequests = slices.DeleteFunc(p.syncRequests, func(w syncRequest) bool { return w.node == id })
	p.mu.Unlock()
	if pr == nil {
		return
	}
	pr.mu.Lock()
	pr.gone, pr.waiting = true, nil
	pr.mu.Unlock()
	p.sweep(pr.number, 0)
}

func (p *Presence) sweep(node, keep uint32) {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.sweep(node, keep)
		s.mu.Unlock()
	}
	p.wakeEvents()
}

// wish requests pr's whole state. The caller holds pr.mu.
func (p *Presence) wish(pr *peer) {
	p.mu.Lock()
	p.lastSync++
	pr.sync = p.lastSync
	p.mu.Unlock()
	now := time.Now()
	pr.synced, pr.part, pr.lastSeen, pr.wished = false, 0, now, now
	pr.waiting, pr.bytes = nil, 0
	pr.gen++
	if err := p.bus.SendTo(pr.id, topic, appendHeader(nil, header{kind: msgWant, sync: pr.sync})); err != nil {
		p.log.Debug("presence not requested", "node", pr.id, "err", err)
	}
}

// overdue repeats requests for a whole that does not come.
func (p *Presence) overdue(now time.Time) {
	p.mu.Lock()
	peers := make([]*peer, 0, len(p.peers))
	for _, pr := range p.peers {
		peers = append(peers, pr)
	}
	p.mu.Unlock()
	for _, pr := range peers {
		pr.mu.Lock()
		if !pr.gone && !pr.synced && now.Sub(pr.lastSeen) >= syncTimeout {
			p.wish(pr)
		}
		pr.mu.Unlock()
	}
}

// onMessage is called by the bus, one call at a time.
func (p *Presence) onMessage(from string, data []byte) {
	if from == p.self {
		return
	}
	p.mu.Lock()
	pr := p.peers[from]
	p.mu.Unlock()
	h, ops, err := parseHeader(data)
	if err != nil {
		p.malformed.Add(1)
		return
	}
	if h.kind == msgWant {
		p.onWant(from, h.sync)
		return
	}
	if pr == nil {
		return // not a node that lives, or one that the cluster has yet to announce
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.gone {
		return
	}
	switch h.kind {
	case msgAt:
		if pr.synced && h.seq >= pr.next {
			p.hole(pr)
		}
	case msgDelta:
		p.onDelta(pr, h, data, ops)
	case msgWhole:
		p.onWhole(pr, h, ops)
	}
}

func (p *Presence) onWant(from string, sync uint64) {
	if !p.cluster.Alive(from) {
		// It requests again when it knows us and we know it; what it is sent before is not
		// wrong either, but the list must have a bound.
		p.mu.Lock()
		full := len(p.syncRequests) >= 1024
		p.mu.Unlock()
		if full {
			return
		}
	}
	w := syncRequest{node: from, sync: sync}
	p.mu.Lock()
	if i := slices.IndexFunc(p.syncRequests, func(w syncRequest) bool { return w.node == from }); i >= 0 {
		p.syncRequests[i] = w
	} else {
		p.syncRequests = append(p.syncRequests, w)
	}
	p.mu.Unlock()
	p.wake()
}

// hole starts anew with a node of which something is missing: at once, or when
// overdue runs next if it is lost again and again. The caller holds pr.mu.
func (p *Presence) hole(pr *peer) {
	p.holes.Add(1)
	if now := time.Now(); now.Sub(pr.wished) < wishEvery {
		pr.synced, pr.sync, pr.lastSeen = false, 0, now.Add(-syncTimeout)
		pr.waiting, pr.bytes = nil, 0
		return
	}
	p.wish(pr)
}

func (p *Presence) onDelta(pr *peer, h header, data, ops []byte) {
	switch {
	case !pr.synced:
		if pr.bytes += len(data); pr.bytes > maxBehind {
			p.hole(pr)
			return
		}
		pr.waiting = append(pr.waiting, slices.Clone(data))
	case h.seq < pr.next:
		// Received already.
	case h.seq > pr.next:
		p.hole(pr)
		// It comes after the whole, unless that has it.
		pr.waiting, pr.bytes = [][]byte{slices.Clone(data)}, len(data)
	default:
		pr.next++
		p.apply(pr, ops)
	}
}

func (p *Presence) apply(pr *peer, ops []byte) {
	err := parseOps(ops, func(o *op) {
		s := p.shard(o.channel)
		s.mu.Lock()
		s.apply(pr.number, pr.gen, pr.id, o)
		s.mu.Unlock()
	})
	if err != nil {
		p.malformed.Add(1)
		p.log.Warn("presence of a node is malformed", "node", pr.id)
	}
	p.received.Add(1)
	p.wakeEvents()
}

func (p *Presence) onWhole(pr *peer, h header, ops []byte) {
	if pr.synced || h.sync != pr.sync {
		return
	}
	if h.part != pr.part {
		if h.part > pr.part {
			pr.part = 1 << 62 // one is missing: overdue requests again
		}
		return
	}
	pr.part++
	pr.lastSeen = time.Now()
	p.apply(pr, ops)
	if !h.last {
		return
	}
	p.sweep(pr.number, pr.gen)
	p.syncs.Add(1)
	pr.synced, pr.next = true, h.seq+1
	waiting := pr.waiting
	pr.waiting, pr.bytes = nil, 0
	for _, data := range waiting {
		d, ops, err := parseHeader(data)
		if err != nil || d.seq < pr.next {
			continue
		}
		if d.seq > pr.next {
			p.hole(pr)
			return
		}
		pr.next++
		p.apply(pr, ops)
	}
}
