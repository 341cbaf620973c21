package nats

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

var _ hub.Bus = (*bus)(nil)

// headerFrom names the sending node on the bus.
const headerFrom = "Weir-From"

// Bounds of the bus. What comes past one is dropped, or refused where the sender
// can be notified, and counted.
const (
	maxBusQueue = 8192     // messages that wait to be sent, or for one listener
	maxBusBytes = 32 << 20 // and their data
)

// A bus is hub.Bus on plain NATS messages. What a node sends itself goes through
// the server as well, so that all nodes receive from one sender in the same order.
type bus struct {
	b    *Broker
	node string
	in   chan *natsgo.Msg // all subscriptions; dispatch reads
	out  busQueue

	dropped atomic.Uint64

	mu     sync.Mutex
	topics map[string]*busTopic // by token
}

// A busTopic is one that is listened to here.
type busTopic struct {
	subs      []*natsgo.Subscription
	listeners []*listener // never changed, only replaced
}

// A listener calls f on a goroutine of its own.
type listener struct {
	f     func(from string, data []byte)
	queue busQueue
	over  chan struct{} // closed by stop
}

func newBus(b *Broker) *bus {
	return &bus{
		b: b, node: newNode(), in: make(chan *natsgo.Msg, maxBusQueue),
		out: newBusQueue(), topics: map[string]*busTopic{},
	}
}

// newNode returns a name for the life of a node: 80 random bits as letters and digits.
func newNode() string { return rand.Text()[:16] }

// Node returns this node's id.
func (u *bus) Node() string { return u.node }

// Broadcast queues data for all listeners to topic. Without a connection it answers
// hub.ErrUnavailable, with too much waiting hub.ErrOverloaded.
func (u *bus) Broadcast(topic string, data []byte) error { return u.queue(topic, "", data) }

// SendTo is Broadcast for the listeners of one node. An unknown name is not an error.
func (u *bus) SendTo(node, topic string, data []byte) error {
	if node == "" || len(node) > 32 || strings.Trim(node, plain) != "" {
		return fmt.Errorf("send to node: %.40q is not 1 to 32 bytes of A-Z, a-z, 0-9 and _", node)
	}
	return u.queue(topic, node, data)
}

func (u *bus) queue(topic, node string, data []byte) error {
	if err := hub.CheckBus(topic, data); err != nil {
		return err
	}
	switch {
	case u.b.stateErr() != nil:
		return u.b.stateErr()
	case !u.b.connected.Load():
		return errDisconnected
	}
	subject := u.subject(topic)
	if node != "" {
		subject += "." + node
	}
	m := &natsgo.Msg{Subject: subject, Data: append([]byte(nil), data...), Header: natsgo.Header{headerFrom: {u.node}}}
	if !u.out.push(m) {
		u.dropped.Add(1)
		return fmt.Errorf("%w: the bus does not take more", hub.ErrOverloaded)
	}
	return nil
}

// subject returns where topic is sent to all.
func (u *bus) subject(topic string) string {
	return string(appendToken([]byte(u.b.cfg.Prefix+".bus."), topic))
}

// Listen has f called until stop is. A call that is under way then, or just about
// to begin, is not waited for.
func (u *bus) Listen(topic string, f func(from string, data []byte)) (stop func(), err error) {
	if err := hub.CheckBus(topic, nil); err != nil {
		return nil, err
	}
	if err := u.b.stateErr(); err != nil {
		return nil, err
	}
	subject := u.subject(topic)
	l := &listener{f: f, queue: newBusQueue(), over: make(chan struct{})}
	if err := u.add(subject, l); err != nil {
		return nil, fmt.Errorf("listen to %q: %w", topic, err)
	}
	return sync.OnceFunc(func() {
		close(l.over)
		u.remove(subject, l)
	}), nil
}

func (u *bus) add(subject string, l *listener) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.b.ctx.Err(); err != nil {
		return u.b.stateErr() // or its goroutine would be one too many for Close
	}
	t := u.topics[lastToken(subject)]
	if t == nil {
		t = &busTopic{}
		for _, s := range []string{subject, subject + "." + u.node} {
			sub, err := u.b.nc.ChanSubscribe(s, u.in)
			if err != nil {
				t.end()
				return fmt.Errorf("%w: %w", hub.ErrUnavailable, err)
			}
			t.subs = append(t.subs, sub)
		}
		u.topics[lastToken(subject)] = t
	}
	t.listeners = append(t.listeners[:len(t.listeners):len(t.listeners)], l)
	u.b.wg.Go(func() { u.receive(l) })
	return nil
}

func (u *bus) remove(subject string, l *listener) {
	u.mu.Lock()
	defer u.mu.Unlock()
	t := u.topics[lastToken(subject)]
	if t == nil {
		return
	}
	var rest []*listener
	for _, x := range t.listeners {
		if x != l {
			rest = append(rest, x)
		}
	}
	if t.listeners = rest; len(rest) == 0 {
		delete(u.topics, lastToken(subject))
		t.end()
	}
}

func (t *busTopic) end() {
	for _, sub := range t.subs {
		sub.Unsubscribe() //nolint:errcheck // fails only when the connection is closed, which ends it as well
	}
}

// send is the goroutine that writes to the connection.
func (u *bus) send() {
	for {
		m := u.out.pop(u.b.ctx.Done(), nil)
		if m == nil {
			return
		}
		if err := u.b.nc.PublishMsg(m); err != nil {
			u.dropped.Add(1)
		}
	}
}

// dispatch is the goroutine that gives what comes to the listeners.
func (u *bus) dispatch() {
	for {
		var m *natsgo.Msg
		select {
		case <-u.b.ctx.Done():
			return
		case m = <-u.in:
		}
		tok, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, u.b.cfg.Prefix+".bus."), ".")
		var listeners []*listener
		u.mu.Lock()
		if t := u.topics[tok]; t != nil {
			listeners = t.listeners
		}
		u.mu.Unlock()
		for _, l := range listeners {
			if !l.queue.push(m) {
				u.dropped.Add(1)
			}
		}
	}
}

// receive is l's goroutine.
func (u *bus) receive(l *listener) {
	for {
		m := l.queue.pop(u.b.ctx.Done(), l.over)
		if m == nil {
			return
		}
		l.f(m.Header.Get(headerFrom), m.Data)
	}
}

// BusDropped counts what was sent on the bus and dropped on this node because a
// listener, or the connection, did not keep up.
func (b *Broker) BusDropped() uint64 {
	n := b.bus.dropped.Load()
	b.bus.mu.Lock()
	defer b.bus.mu.Unlock()
	for _, t := range b.bus.topics {
		for _, sub := range t.subs {
			d, _ := sub.Dropped() // fails when the subscription has ended
			n += uint64(d)
		}
	}
	return n
}

// A busQueue is first in, first out, and bounded.
type busQueue struct {
	wake chan struct{} // holds a token while waiting may not be empty

	mu      sync.Mutex
	waiting []*natsgo.Msg
	bytes   int
}

func newBusQueue() busQueue { return busQueue{wake: make(chan struct{}, 1)} }

// push appends m, unless the queue is at its bound.
func (q *busQueue) push(m *natsgo.Msg) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxBusQueue || q.bytes+len(m.Data) > maxBusBytes {
		return false
	}
	q.waiting = append(q.waiting, m)
	q.bytes += len(m.Data)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// pop returns the next, or nil once one of the channels is closed. It has one caller.
func (q *busQueue) pop(end, over <-chan struct{}) *natsgo.Msg {
	for {
		select {
		case <-end:
			return nil
		case <-over:
			return nil
		default:
		}
		q.mu.Lock()
		if len(q.waiting) > 0 {
			m := q.waiting[0]
			q.waiting[0] = nil
			q.waiting = q.waiting[1:]
			q.bytes -= len(m.Data)
			q.mu.Unlock()
			return m
		}
		q.waiting = nil
		q.mu.Unlock()
		select {
		case <-end:
			return nil
		case <-over:
			return nil
		case <-q.wake:
		}
	}
}
