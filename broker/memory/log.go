package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A log is one namespace: its messages in order, and its channels' shares of them.
type log struct {
	// Fixed.
	maxKeys int
	budget  *budget
	deliver func(*hub.Message)
	born    time.Time // entries count their age from here, so clock jumps do not expire them

	opts atomic.Pointer[hub.Namespace] // of now; changed under mu

	mu       sync.Mutex
	closed   error  // not nil after close
	epoch    string // empty with durability none; changed by renew
	last     uint64
	bytes    int64
	order    order
	ids      ids
	whole    bool   // all channels are subscribed
	removed  uint64 // the newest offset that was removed, on any channel
	channels map[string]*channel
	empty    int    // how many of channels hold nothing and are not subscribed
	forgot   uint64 // the newest offset on any channel whose record was dropped
	keys     keys
}

// An entry is a retained message and its place in the log: one allocation.
type entry struct {
	msg hub.Message
	ch  *channel
	at  time.Duration // since log.born
}

// perMessage is what a message is counted for in HistoryBytes besides its bytes.
const perMessage = 256

func (e *entry) size() int64 {
	return int64(len(e.msg.Data)) + int64(len(e.msg.Key)) + int64(e.msg.Attributes.Size()) + perMessage
}

func newLog(ns hub.Namespace, maxKeys int, b *budget, deliver func(*hub.Message)) *log {
	l := &log{maxKeys: maxKeys, budget: b, deliver: deliver, born: time.Now(), channels: map[string]*channel{}, ids: ids{}}
	l.opts.Store(&ns)
	if ns.Durability != hub.None {
		l.epoch = ns.EpochPrefix() + newEpoch()
	}
	return l
}

// top returns the log's end. l.mu is held.
func (l *log) top() hub.Position { return hub.Position{Epoch: l.epoch, Offset: l.last} }

// publish stores p. known is the channel if the hub had it, which may have been
// forgotten since.
func (l *log) publish(p *hub.Publication, known *channel) (hub.Position, error) {
	return l.store(p, known, nil)
}

// store is publish on condition that may, if it is not nil, returns nil of the channel.
func (l *log) store(p *hub.Publication, known *channel, may func(*channel) error) (hub.Position, error) {
	switch {
	case p.Channel == "" || hub.IsWhole(p.Channel):
		return hub.Position{}, fmt.Errorf("%w: %q is not a name of a channel", hub.ErrBadChannel, p.Channel)
	case len(p.Data) > l.opts.Load().MaxMessageBytes:
		return hub.Position{}, fmt.Errorf("%w: %d bytes, at most %d in namespace %q", hub.ErrTooLarge, len(p.Data), l.opts.Load().MaxMessageBytes, l.opts.Load().Name)
	}
	now := p.Time()
	var id hub.KeyID
	var content hub.ContentID
	if p.IdempotencyKey != "" && l.opts.Load().Durability != hub.None {
		id, content = p.KeyID(), p.ContentID() // may take a while: not under the lock
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return hub.Position{}, l.closed
	}
	if known != nil && !known.subscribed {
		known = nil // only what is subscribed is in channels for certain
	}
	if l.opts.Load().Durability == hub.None {
		l.pass(p, known, now)
		return hub.Position{}, nil
	}
	age := now.Sub(l.born)
	l.expireTo(age)
	if p.IdempotencyKey != "" {
		if first, seen := l.keys.used[id]; seen {
			at := hub.Position{Epoch: l.epoch, Offset: first.offset}
			if first.content != content {
				return hub.Position{}, &hub.KeyReusedError{At: at, Channel: p.Channel}
			}
			return at, nil
		}
	}
	if known == nil {
		known = l.channel(p.Channel)
	}
	if may != nil {
		if err := may(known); err != nil {
			return hub.Position{}, err
		}
	}
	e := l.append(p, known, now.UnixMilli(), age)
	if p.IdempotencyKey != "" {
		l.keys.add(id, use{e.msg.Offset, content}, age, l.maxKeys)
	}
	l.trim(e.ch)
	if e.ch.subscribed || l.whole {
		l.deliver(&e.msg)
	}
	return l.top(), nil
}

// pass delivers p in a namespace that stores nothing. l.mu is held.
func (l *log) pass(p *hub.Publication, c *channel, now time.Time) {
	if c == nil {
		c = l.channels[p.Channel]
	}
	if !l.whole && (c == nil || !c.subscribed) {
		return
	}
	m := &hub.Message{}
	p.Fill(m)
	if m.Time = now.UnixMilli(); c != nil {
		m.Channel = c.name
	}
	l.deliver(m)
}

// append puts p at the end of the log and of c. l.mu is held.
func (l *log) append(p *hub.Publication, c *channel, unixMilli int64, age time.Duration) *entry {
	if c.idle() {
		l.empty--
	}
	l.last++
	e := &entry{ch: c, at: age}
	m := &e.msg
	p.Fill(m)
	m.Channel = c.name // not the publisher's copy of it
	m.Time, m.Epoch, m.Offset, m.Prev = unixMilli, l.epoch, l.last, c.last
	l.order.push(e)
	if m.Attributes != nil && m.Attributes.ID != "" {
		l.ids.add(m.Attributes.ID, m.Offset)
	}
	l.bytes += e.size()
	l.budget.used.Add(e.size())
	c.last = l.last
	c.ring.push(e)
	return e
}

// trim applies the bounds of size after a message was added to c. The newest
// message always stays. l.mu is held.
func (l *log) trim(c *channel) {
	for c.ring.n > l.opts.Load().HistorySize {
		l.remove(c.ring.at(0))
	}
	for l.bytes > l.opts.Load().LogBytes() && l.order.live > 1 {
		l.remove(l.order.oldest())
	}
	for l.budget.exceeded() && l.order.live > 1 {
		l.remove(l.order.oldest())
		l.budget.evicted.Add(1)
	}
}

// change gives the log other options, and removes what they retain no longer.
func (l *log) change(ns hub.Namespace) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed != nil:
		return l.closed
	case ns.Durability != l.opts.Load().Durability:
		return fmt.Errorf("memory broker: namespace %q: durability cannot change", ns.Name)
	}
	l.opts.Store(&ns)
	l.expireTo(l.age())
	for _, c := range l.channels {
		l.trim(c)
	}
	return nil
}

// remove takes the oldest entry of a channel out of the log. l.mu is held.
func (l *log) remove(e *entry) {
	l.order.remove(e.msg.Offset)
	if a := e.msg.Attributes; a != nil && a.ID != "" {
		l.ids.remove(a.ID, &l.order)
	}
	l.removed = max(l.removed, e.msg.Offset)
	l.bytes -= e.size()
	l.budget.used.Add(-e.size())
	e.ch.ring.pop()
	e.ch.removed = e.msg.Offset
	if e.ch.idle() {
		l.empty++
	}
	e.ch = nil // a reference to the message must not keep the log alive
}

func (l *log) age() time.Duration { return time.Since(l.born) }

func (l *log) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireTo(l.age())
}

// expireTo removes what is too old at age. l.mu is held.
func (l *log) expireTo(age time.Duration) {
	if before := age - time.Duration(l.opts.Load().HistoryTTL); before > 0 {
		for e := l.order.oldest(); e != nil && e.at < before; e = l.order.oldest() {
			l.remove(e)
		}
	}
	l.keys.expire(age - time.Duration(l.opts.Load().IdempotencyWindow))
	l.forget()
}

func (l *log) subscribe(name string, tail int) (hub.Snapshot, error) {
	if name == "" {
		return hub.Snapshot{}, fmt.Errorf("%w: it is empty", hub.ErrBadChannel)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return hub.Snapshot{}, l.closed
	}
	l.expireTo(l.age())
	if hub.IsWhole(name) {
		return l.subscribeWhole(name, tail)
	}
	c := l.channel(name)
	if c.subscribed {
		return hub.Snapshot{}, fmt.Errorf("subscribe %q: it is subscribed already", name)
	}
	if c.idle() {
		l.empty--
	}
	c.subscribed = true
	s := hub.Snapshot{Top: l.top(), FirstRetained: c.removed + 1, Handle: c}
	from := max(0, c.ring.n-max(0, tail))
	if from > 0 {
		s.Floor = c.ring.at(from - 1).msg.Offset
	}
	s.Messages = c.ring.messages(from, c.ring.n)
	return s, nil
}

func (l *log) unsubscribe(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if hub.IsWhole(name) {
		l.whole = false
		return
	}
	c := l.channels[name]
	if c == nil || !c.subscribed {
		return
	}
	c.subscribed = false
	if c.idle() {
		l.empty++
		l.forget()
	}
}

func (l *log) history(name string, since uint64, limit int) hub.Page {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireTo(l.age())
	p := hub.Page{Epoch: l.epoch, Covered: l.last, FirstRetained: l.forgot}
	c := l.channels[name]
	if hub.IsWhole(name) {
		p = l.historyWhole(since, limit)
	} else if c != nil {
		p.FirstRetained = c.removed
		from := c.ring.after(since)
		to := min(c.ring.n, from+max(0, limit))
		p.Messages = c.ring.messages(from, to)
		if to < c.ring.n {
			p.Covered = c.ring.at(to).msg.Offset - 1
		}
	}
	if p.FirstRetained > 0 {
		p.FirstRetained++
	}
	return p
}

func (l *log) close(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = err
	l.budget.used.Add(-l.bytes)
	l.bytes = 0
	l.order, l.ids, l.channels, l.keys = order{}, ids{}, nil, keys{}
}
