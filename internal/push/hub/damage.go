package hub

import "slices"

// A broker may find out late that messages which it has stored cannot be read any more, after
// replays have passed them. Clients that have come from before them may lack them: those
// that are connected get a gap, and those that resume later, on whichever node, too.

// noteDamage remembers that streams of m's channel may have been replayed without messages.
func noteDamage(h *Hub, n *namespace, m *Message) {
	upTo := m.Offset
	if ch := h.lookup(m.Channel); ch != nil {
		ch.mu.Lock()
		if ch.epoch == m.Epoch {
			upTo = max(upTo, ch.last)
		}
		ch.mu.Unlock()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.top.Epoch == m.Epoch {
		n.doubt(h, lateMessage{Channel: m.Channel, UpTo: max(n.delivered, n.top.Offset, upTo), Any: true})
	}
}

// forgetDamaged forgets what was kept of ch for replays, and reports whether m is about its epoch.
// ch.mu is held.
func forgetDamaged(ch *channel, m *Message) bool {
	if m.Epoch != ch.epoch {
		return false
	}
	ch.forget()
	ch.forgetPages()
	ch.floor = max(ch.floor, ch.last)
	return true
}

// reportDamage sends a gap to all subscribers of l and those that join it.
func reportDamage(l *local) {
	l.flush()
	l.memo = replayMemo{}
	s := l.shard
	for _, j := range slices.Clone(s.joins) {
		for i := range j.spaces {
			sp := &j.spaces[i]
			if j.dead || !j.started || sp.epoch != l.epoch || !slices.Contains(sp.locals, l) {
				continue
			}
			delete(sp.pages, l)
			at := Position{Epoch: sp.epoch, Offset: sp.cur}
			s.gap(j.s.sink, Gap{Namespace: sp.ns.name, From: at.String(), To: at, At: at, Reason: GapUnknown})
			break
		}
	}
	at := Position{Epoch: l.epoch, Offset: l.last}
	g := Gap{Namespace: l.ch.ns.name, From: at.String(), To: at, At: at, Reason: GapUnknown}
	l.walk()
	for _, sub := range l.single {
		if sub != nil && sub.sink != nil {
			s.gap(sub.sink, g)
		}
	}
	for _, e := range l.filtered {
		if e.s != nil {
			had := Position{Epoch: l.epoch, Offset: e.s.reached(l, l.last)}
			s.gap(e.s.sink, Gap{Namespace: g.Namespace, From: had.String(), To: had, At: had, Reason: GapUnknown})
		}
	}
	l.walked()
}
