package hub

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

var _ Bus = (*LocalBus)(nil)

// A LocalBus is a Bus of one node: what is sent comes back to this process. Brokers
// that have no other nodes use it. See NewLocalBus.
type LocalBus struct {
	node string
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	topics map[string][]*listener
}

// listener is one Listen: what waits for it, and a goroutine while something does.
type listener struct {
	f func(from string, data []byte)

	// Guarded by the bus's lock.
	queue   [][]byte
	bytes   int
	running bool
	over    bool
}

// Bounds of a Bus.
const (
	maxBusData   = 512 << 10
	maxBusQueue  = 1 << 16  // sent and not yet received by one listener
	maxBusQueued = 64 << 20 // and their bytes
)

// NewLocalBus returns a bus with a node id of its own. Close it.
func NewLocalBus() *LocalBus { return &LocalBus{node: rand.Text(), topics: map[string][]*listener{}} }

// CheckBus returns what is wrong with a topic and data for Bus.Tell.
func CheckBus(topic string, data []byte) error {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	switch {
	case topic == "" || len(topic) > 64 || strings.Trim(topic, allowed) != "":
		return fmt.Errorf("bus topic %.80q: want 1 to 64 bytes of A-Z, a-z, 0-9, \".\", \"_\" and \"-\"", topic)
	case len(data) > maxBusData:
		return fmt.Errorf("%w: bus topic %q: %d bytes, at most %d", ErrTooLarge, topic, len(data), maxBusData)
	}
	return nil
}

// Node implements Bus.
func (b *LocalBus) Node() string { return b.node }

// Broadcast implements Bus. A listener that is too far behind makes it ErrOverloaded; the
// others receive it.
func (b *LocalBus) Broadcast(topic string, data []byte) error {
	if err := CheckBus(topic, data); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	var err error
	data = bytes.Clone(data)
	for _, l := range b.topics[topic] {
		if len(l.queue) >= maxBusQueue || l.bytes+len(data) > maxBusQueued {
			err = fmt.Errorf("%w: a listener to bus topic %q is behind", ErrOverloaded, topic)
			continue
		}
		l.queue = append(l.queue, data)
		l.bytes += len(data)
		if !l.running {
			l.running = true
			b.work.Go(func() { b.receive(l) })
		}
	}
	return err
}

// receive calls l until nothing waits for it.
func (b *LocalBus) receive(l *listener) {
	for {
		b.mu.Lock()
		if len(l.queue) == 0 || l.over {
			l.queue, l.running = nil, false
			b.mu.Unlock()
			return
		}
		data := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		l.bytes -= len(data)
		b.mu.Unlock()
		l.f(b.node, data)
	}
}

// SendTo implements Bus: there is one node.
func (b *LocalBus) SendTo(node, topic string, data []byte) error {
	if node != b.node {
		return CheckBus(topic, data) // another's end is not noticed either
	}
	return b.Broadcast(topic, data)
}

// Listen implements Bus. f is not called after stop has returned, but for a call
// that is under way.
func (b *LocalBus) Listen(topic string, f func(from string, data []byte)) (stop func(), err error) {
	if err := CheckBus(topic, nil); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errors.New("listen on a bus: nil callback")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	l := &listener{f: f}
	b.topics[topic] = append(b.topics[topic], l)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		l.over = true
		b.topics[topic] = slices.DeleteFunc(b.topics[topic], func(x *listener) bool { return x == l })
		if len(b.topics[topic]) == 0 {
			delete(b.topics, topic)
		}
	}, nil
}

// Close ends every Listen and waits for the calls under way; it must not be called
// from one. It is idempotent.
func (b *LocalBus) Close() {
	b.mu.Lock()
	b.closed = true
	for _, ls := range b.topics {
		for _, l := range ls {
			l.over = true
		}
	}
	b.topics = map[string][]*listener{}
	b.mu.Unlock()
	b.work.Wait()
}
