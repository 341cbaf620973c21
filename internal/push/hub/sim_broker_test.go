package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// simBroker is a small Broker whose every answer and delivery waits until the
// simulation says so. It is locked by nothing: the simulation runs one goroutine
// at a time, but for calls that register themselves, which sim.mu guards.
type simBroker struct {
	sim     *sim
	r       *rand.Rand
	logs    map[string]*simLog
	calls   []*simCall
	deliver func(*Message)
	closed  bool
	errs    bool // some answers are errors
	shared  bool // delivers the log's own messages, as the memory broker does
	reads   map[string]int
	steps   int
}

var errInjected = errors.New("injected")

// simLog is one namespace: all that was ever stored, by epoch, and what of it is left.
type simLog struct {
	ns         *Namespace
	epochs     []string
	stored     map[string][]*Message
	gone       map[*Message]bool // removed by retention
	last       uint64
	next       []*Message      // in flight
	known      map[string]bool // epochs delivered
	done       []*Message      // delivered
	subscribed map[string]bool
	keep       int
	firsts     bool // sets FirstRetained in snapshots
}

func (l *simLog) epoch() string { return l.epochs[len(l.epochs)-1] }

func (l *simLog) top() Position { return Position{Epoch: l.epoch(), Offset: l.last} }

// check returns what proves p, of whatever epoch.
func check(p Position) Check { return NewCheck(p.Offset, time.Unix(int64(p.Epoch[1])<<20, 0)) }

// channel returns what is retained of a channel and the newest removed offset.
func (l *simLog) channel(name string) (kept []*Message, removed uint64) {
	for _, m := range l.stored[l.epoch()] {
		switch {
		case m.Channel != name && name != Whole(l.ns.Name):
		case l.gone[m]:
			removed = m.Offset
		default:
			kept = append(kept, m)
		}
	}
	return kept, removed
}

// refuted reports whether p cannot be proved: it has the check of another message, or
// it is of an epoch that is over, which the hub may not know yet.
func (l *simLog) refuted(p Position) bool {
	return p.Check != 0 && (p.Check != check(p) || p.Epoch != l.epoch())
}

func (l *simLog) publish(channel string, data string, a *Attributes) *Message {
	wanted := l.subscribed[channel] || l.subscribed[Whole(l.ns.Name)]
	m := &Message{Channel: channel, Data: []byte(data), Attributes: a}
	if l.ns.Durability != None {
		l.last++
		m.Epoch, m.Offset = l.epoch(), l.last
		m.Check = check(m.Position())
		l.stored[m.Epoch] = append(l.stored[m.Epoch], m)
		for kept, _ := l.channel(channel); len(kept) > l.keep; kept = kept[1:] {
			l.gone[kept[0]] = true
		}
	}
	if wanted {
		l.next = append(l.next, m)
	}
	return m
}

// lose starts a new epoch. What is in flight still comes, unless its epoch would
// be seen for the first time.
func (l *simLog) lose(base uint64) {
	if old := l.epoch(); !l.known[old] {
		l.next = slices.DeleteFunc(l.next, func(m *Message) bool { return m.Epoch == old })
	}
	l.epochs = append(l.epochs, fmt.Sprintf("%.1s%d", l.ns.Name, len(l.epochs)))
	l.last = base
}

// simCall is one question: answered by take at one time, received at another.
type simCall struct {
	name    string
	take    func() error
	taken   bool
	err     error
	release chan struct{}
}

func (b *simBroker) query(ctx context.Context, name string, take func() error) error {
	c := &simCall{name: name, take: take, release: make(chan struct{})}
	b.sim.mu.Lock()
	b.calls = append(b.calls, c)
	b.sim.mu.Unlock()
	select {
	case <-c.release:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// step lets one call come a step further.
func (b *simBroker) step() {
	if len(b.calls) == 0 {
		return
	}
	// Goroutines register in any order; the same seed must give the same run.
	slices.SortStableFunc(b.calls, func(x, y *simCall) int { return strings.Compare(x.name, y.name) })
	b.steps++
	i := b.r.IntN(len(b.calls))
	c := b.calls[i]
	if !c.taken {
		c.taken = true
		if c.err = c.take(); b.errs && b.r.IntN(25) == 0 {
			c.err = errInjected
		}
		if b.r.IntN(2) == 0 {
			return
		}
	}
	b.calls = slices.Delete(b.calls, i, i+1)
	close(c.release)
}

// hand delivers the next message of l in flight, or one that came before again.
func (b *simBroker) hand(l *simLog) {
	if len(l.done) > 0 && b.r.IntN(12) == 0 && l.ns.Durability != None {
		b.deliver(b.copy(l.done[len(l.done)-1-b.r.IntN(min(len(l.done), 5))]))
		return
	}
	if len(l.next) == 0 {
		return
	}
	m := l.next[0]
	l.next = l.next[1:]
	l.done = append(l.done, m)
	l.known[m.Epoch] = true
	b.sim.delivering(m)
	b.deliver(b.copy(m))
}

// copy returns a message as it is delivered: each time another, or the log's own.
func (b *simBroker) copy(m *Message) *Message {
	if !b.shared && m.Offset != 0 {
		m = &Message{Channel: m.Channel, Data: m.Data, Attributes: m.Attributes, Epoch: m.Epoch, Offset: m.Offset, Check: m.Check}
	}
	b.sim.messages[m] = true
	return m
}

func (b *simBroker) copies(ms []*Message) []*Message {
	var out []*Message
	for _, m := range ms {
		out = append(out, b.copy(m))
	}
	return out
}

func (b *simBroker) Start(_ context.Context, ns []Namespace, deliver func(*Message)) error {
	b.deliver = deliver
	return nil
}

func (b *simBroker) Publish(_ *Namespace, _ Publication, done func(Position, error)) {
	done(Position{}, ErrUnavailable) // the simulation stores by itself
}

func (b *simBroker) Subscribe(ctx context.Context, ns *Namespace, channel string, tail int) (s Snapshot, err error) {
	l := b.logs[ns.Name]
	b.sim.mu.Lock()
	if l.subscribed[channel] {
		b.sim.fail("subscribed twice: %s", channel)
	}
	l.subscribed[channel] = true
	b.sim.mu.Unlock()
	err = b.query(ctx, "subscribe "+channel, func() error {
		if ns.Durability == None {
			return nil
		}
		kept, removed := l.channel(channel)
		from := max(0, len(kept)-tail)
		s = Snapshot{Top: l.top(), Messages: b.copies(kept[from:])}
		if from > 0 {
			s.Floor = kept[from-1].Offset
		}
		if l.firsts {
			s.FirstRetained = removed + 1
		}
		return nil
	})
	if err != nil {
		b.sim.mu.Lock()
		delete(l.subscribed, channel)
		b.sim.mu.Unlock()
	}
	return s, err
}

func (b *simBroker) Unsubscribe(ns *Namespace, channel string) {
	b.sim.mu.Lock()
	delete(b.logs[ns.Name].subscribed, channel)
	b.sim.mu.Unlock()
}

func (b *simBroker) History(ctx context.Context, ns *Namespace, channel string, since uint64, limit int) (p Page, err error) {
	l := b.logs[ns.Name]
	err = b.query(ctx, fmt.Sprint("history ", channel, since), func() error {
		b.reads[fmt.Sprint(channel, since)]++
		kept, removed := l.channel(channel)
		p = Page{Epoch: l.epoch(), Covered: l.last, FirstRetained: removed + 1}
		var ms []*Message
		for _, m := range kept {
			if m.Offset > since {
				ms = append(ms, m)
			}
		}
		if n := 1 + b.r.IntN(limit); n < len(ms) {
			ms = ms[:n]
			p.Covered = ms[n-1].Offset
		}
		p.Messages = b.copies(ms)
		return nil
	})
	return p, err
}

func (b *simBroker) Top(ctx context.Context, ns *Namespace) (p Position, err error) {
	l := b.logs[ns.Name]
	err = b.query(ctx, "top "+ns.Name, func() error { p = l.top(); return nil })
	return p, err
}

func (b *simBroker) Prove(ctx context.Context, ns *Namespace, p Position) (c Check, err error) {
	l := b.logs[ns.Name]
	err = b.query(ctx, fmt.Sprint("prove ", p), func() error {
		if p.Epoch == l.epoch() && p.Offset <= l.last {
			c = check(p)
		}
		return nil
	})
	return c, err
}

func (b *simBroker) Ready() error { return nil }

func (b *simBroker) Close() error { b.closed = true; return nil }
