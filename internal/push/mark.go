package push

import (
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// marker marks the packets of a loop's connections by the classes of their subscriptions. A
// socket has one mark, since its bytes leave in order: that of the least important class, so that
// prices never travel as orders. A client that wants its orders first has a connection for
// them. It belongs to its loop; nil: nothing is marked.
type marker struct {
	counts *markCounts
	marks  limit.Marks
	// clients are the classes of connections of several subscriptions, and of streams; others
	// need not be remembered.
	clients map[*eventloop.Conn]limit.Class
	// sockets are by the socket the streams that it carries, by class.
	sockets map[*eventloop.Conn]*sharedSocket
}

// sharedSocket is a socket that carries streams: how many have each class.
type sharedSocket struct {
	streams [limit.Classes]int
	class   limit.Class // what it is marked as
}

// markCounts are counters of all loops.
type markCounts struct {
	marked [limit.Classes]atomic.Uint64
	failed atomic.Uint64
}

// MarkStats are counters since New.
type MarkStats struct {
	// Marked are how often a socket was given the mark of a class, by class; of Unclassed
	// how often one lost its mark.
	Marked [limit.Classes]uint64
	// Failed are how often the kernel refused a mark.
	Failed uint64
}

// MarkStats returns false if nothing is marked. Any goroutine.
func (p *Push) MarkStats() (s MarkStats, ok bool) {
	if p.marking == nil {
		return s, false
	}
	for c := range s.Marked {
		s.Marked[c] = p.marking.marked[c].Load()
	}
	s.Failed = p.marking.failed.Load()
	return s, true
}

// useMarks has connections marked from then on, if marks are configured. Before the loops run.
func (p *Push) useMarks(m limit.Marks) {
	if m == (limit.Marks{}) {
		return
	}
	p.marking = &markCounts{}
	for _, l := range p.loopStates {
		l.marker = &marker{counts: p.marking, marks: m, clients: map[*eventloop.Conn]limit.Class{}, sockets: map[*eventloop.Conn]*sharedSocket{}}
	}
}

// markOf is the class that a connection is marked for which is subscribed to channels: the least
// important one of theirs.
func (s *classes) markOf(channels []string) limit.Class {
	least := limit.Control
	for _, ch := range channels {
		if c := s.ClassOf(ch); c.Less(least) {
			least = c
		}
	}
	return least
}

// markFor marks c, whose only subscription is to channels.
func (l *LoopState) markFor(c *eventloop.Conn, channels []string) {
	if l.marker == nil {
		return
	}
	if class := l.push.markOf(channels); c.Shared() {
		l.marker.set(c, class)
	} else if class != limit.Unclassed {
		l.marker.mark(c, class)
	}
}

// markMore marks c for one more subscription, to channels.
func (l *LoopState) markMore(c *eventloop.Conn, channels []string) {
	if l.marker == nil {
		return
	}
	class := l.push.markOf(channels)
	if was, ok := l.marker.clients[c]; ok && !class.Less(was) {
		return
	}
	l.marker.set(c, class)
}

// unmark forgets c, which has no subscription any more. Its socket keeps its mark, unless it is
// shared: what is still to be sent belongs to the subscription.
func (l *LoopState) unmark(c *eventloop.Conn) {
	if l.marker != nil {
		l.marker.clear(c)
	}
}

// set gives c a class in place of the one that it has.
func (m *marker) set(c *eventloop.Conn, class limit.Class) {
	was, had := m.clients[c]
	if had && was == class {
		return
	}
	m.clients[c] = class
	on := c.Socket()
	if on == c {
		if had || class != limit.Unclassed {
			m.mark(c, class)
		}
		return
	}
	s := m.sockets[on]
	if s == nil {
		s = &sharedSocket{}
		m.sockets[on] = s
	}
	if had {
		s.streams[was]--
	}
	s.streams[class]++
	m.share(on, s)
}

func (m *marker) clear(c *eventloop.Conn) {
	was, had := m.clients[c]
	if !had {
		return
	}
	delete(m.clients, c)
	on := c.Socket()
	if s := m.sockets[on]; on != c && s != nil {
		s.streams[was]--
		m.share(on, s)
	}
}

// share gives a socket the mark of the least important class of its streams. Without streams it
// has none.
func (m *marker) share(on *eventloop.Conn, s *sharedSocket) {
	least, any := limit.Control, false
	for c := range s.streams {
		if s.streams[c] > 0 {
			any = true
			if class := limit.Class(c); class.Less(least) {
				least = class
			}
		}
	}
	if !any {
		delete(m.sockets, on)
		least = limit.Unclassed
	}
	if least != s.class {
		s.class = least
		m.mark(on, least)
	}
}

// mark has the kernel mark a socket. What it refuses, a stream of HTTP/3 for one, is counted: the
// connection is served as well without.
func (m *marker) mark(c *eventloop.Conn, class limit.Class) {
	v := m.marks.Of(class)
	if err := eventloop.SetMark(c, eventloop.Mark{DSCP: v.DSCP, Priority: v.Priority}); err != nil {
		m.counts.failed.Add(1)
		return
	}
	m.counts.marked[class].Add(1)
}
