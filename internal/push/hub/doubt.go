package hub

import (
	"context"
	"encoding/json"
	"slices"
)

// A stream of several channels has one position. A message that was lost on its way to a node
// is found out by the next one of its channel at the latest, and meanwhile messages of other
// channels take such streams past it. Here is remembered which positions are in doubt for that:
// who resumes from one, on whichever node, gets a gap.

// lateMessage is one that came when UpTo had been delivered on other channels, or what was
// found missing after Offset then: a stream that was between Offset and UpTo claims it without
// having had it. No channel means any. With Any that is so of streams of one channel as well:
// they were replayed without it.
type lateMessage struct {
	Channel string `json:"channel,omitempty"`
	Offset  uint64 `json:"offset"`
	UpTo    uint64 `json:"up_to"`
	Any     bool   `json:"any,omitempty"`
}

const maxLate = 64 // late messages remembered per epoch

// lateTopic is where nodes notify each other of them.
const lateTopic = "hub.late"

// lateMessages are those of a log.
type lateMessages struct {
	Epoch string        `json:"epoch"`
	Late  []lateMessage `json:"late"`
}

// noteLate remembers that what n has of channel after offset came late, or is missing.
func noteLate(h *Hub, n *namespace, epoch, channel string, offset uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.top.Epoch != epoch || n.delivered <= offset {
		return
	}
	n.doubt(h, lateMessage{Channel: channel, Offset: offset, UpTo: n.delivered})
}

// doubt remembers x and has the other nodes notified. n.mu is held.
func (n *namespace) doubt(h *Hub, x lateMessage) {
	n.late, n.untold = addLate(n.late, x), addLate(n.untold, x)
	if !n.telling {
		n.telling = true
		h.goBroker(func(context.Context) { broadcastLate(h, n) })
	}
}

// broadcastLate notifies the other nodes.
func broadcastLate(h *Hub, n *namespace) {
	for {
		n.mu.Lock()
		m := lateMessages{n.top.Epoch, n.untold}
		n.untold = nil
		n.telling = len(m.Late) > 0
		n.mu.Unlock()
		if len(m.Late) == 0 {
			return
		}
		b, err := json.Marshal(m)
		if err == nil {
			err = h.bus.Broadcast(lateTopic, b)
		}
		if err != nil {
			h.log.Warn("other nodes are not notified of messages that came late", "namespace", n.name, "err", err)
		}
	}
}

// addLate returns list with x. At the bound the two oldest become one that doubts more.
func addLate(list []lateMessage, x lateMessage) []lateMessage {
	if len(list) == maxLate {
		a, b := list[0], list[1]
		list[1] = lateMessage{Offset: min(a.Offset, b.Offset), UpTo: max(a.UpTo, b.UpTo), Any: a.Any || b.Any}
		list = slices.Delete(list, 0, 1)
	}
	return append(list, x)
}

// receiveLate is called when another node notifies this one.
func receiveLate(h *Hub, from string, data []byte) {
	var m lateMessages
	if from == h.bus.Node() || json.Unmarshal(data, &m) != nil || m.Epoch == "" {
		return
	}
	for _, logs := range *h.spaces.Load() {
		for _, n := range logs {
			if n.position().Epoch == m.Epoch {
				addLateMessages(h, n, m)
			}
		}
	}
}

// addLateMessages remembers m, which another node found, and notifies those who may have come from
// there in the meantime.
func addLateMessages(h *Hub, n *namespace, m lateMessages) {
	n.mu.Lock()
	for _, x := range m.Late[:min(len(m.Late), maxLate)] {
		n.late = addLate(n.late, x)
	}
	n.mu.Unlock()
	var all []*channel
	for i := range h.table.parts {
		all = append(all, h.table.parts[i].all()...)
	}
	for _, ch := range all {
		first := ^uint64(0)
		for _, x := range m.Late {
			if x.Channel == "" || ch.whole || x.Channel == ch.name {
				first = min(first, x.Offset)
			}
		}
		if ch.ns != n || first == ^uint64(0) {
			continue
		}
		ch.mu.Lock()
		for _, l := range ch.locals {
			l.shard.post(func() { l.reportLate(m.Epoch, first) })
		}
		ch.mu.Unlock()
	}
}

// reportLate sends a gap to those who began after offset, of which what followed may have come
// late where they were before.
func (l *local) reportLate(epoch string, offset uint64) {
	if l.epoch != epoch {
		return
	}
	l.flush()
	s := l.shard
	for _, j := range slices.Clone(s.joins) {
		if !j.dead {
			j.passedHole(l, offset)
		}
	}
	l.walk()
	for _, e := range l.filtered {
		if e.s != nil && e.s.mixes(l) && e.s.more.members[e.index].after > offset {
			at := Position{Epoch: l.epoch, Offset: e.s.reached(l, l.last)}
			s.gap(e.s.sink, Gap{Namespace: l.ch.ns.name, From: at.String(), To: at, At: at, Reason: GapUnknown})
		}
	}
	l.walked()
}

// tookPast reports whether a message of l that came late, or is missing, may be claimed by a
// stream at offset.
func (n *namespace) tookPast(l *local, offset uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.claims(offset, false, func(channel string) bool { return channel == l.name })
}

// claims reports whether a stream at offset, of channels, claims what came late or is
// missing; with alone, a stream of one channel. n.mu is held.
func (n *namespace) claims(offset uint64, alone bool, channels func(string) bool) bool {
	return slices.ContainsFunc(n.late, func(x lateMessage) bool {
		return (x.Any || !alone) && x.Offset < offset && offset <= x.UpTo && (x.Channel == "" || channels(x.Channel))
	})
}

// doubtful reports whether a stream of locals at p may not have had
// a message that came late.
func (n *namespace) doubtful(p Position, locals []*local) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	whole := locals[0].whole
	if n.top.Epoch != p.Epoch {
		return false
	}
	return n.claims(p.Offset, len(locals) < 2 && !whole, func(channel string) bool {
		return whole || slices.ContainsFunc(locals, func(l *local) bool { return l.name == channel })
	})
}
