// Package clustertest is a net of nodes in one process that loses, delays and cuts
// what they send each other, for tests of what uses a hub.Bus.
package clustertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Net connects buses. Messages of one sender to one receiver keep their order;
// those of different senders do not. All methods may be called from any goroutine.
type Net struct {
	mu       sync.Mutex
	rand     *rand.Rand
	loss     float64
	maxDelay time.Duration
	buses    map[string]*Bus // that live
	all      []*Bus
	cut      map[[2]string]bool
	wg       sync.WaitGroup
	lost     int
}

// NewNet returns a net that loses nothing.
func NewNet(seed uint64) *Net {
	return &Net{
		rand:  rand.New(rand.NewPCG(seed, 7)),
		buses: make(map[string]*Bus),
		cut:   make(map[[2]string]bool),
	}
}

// Set makes every message be lost with probability loss, and otherwise come after up
// to maxDelay.
func (n *Net) Set(loss float64, maxDelay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss, n.maxDelay = loss, maxDelay
}

// Cut keeps two nodes from hearing each other, or lets them again.
func (n *Net) Cut(a, b string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[[2]string{min(a, b), max(a, b)}] = cut
}

// Lost is how many messages were.
func (n *Net) Lost() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost
}

// Join adds a node.
func (n *Net) Join(id string) *Bus {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.buses[id] != nil {
		panic("clustertest: two nodes called " + id)
	}
	b := &Bus{net: n, id: id, links: make(map[string]chan message), end: make(chan struct{})}
	n.buses[id] = b
	n.all = append(n.all, b)
	return b
}

// Kill ends a node in the middle of what it does: it sends nothing more and receives
// nothing. What it has sent is still in flight.
func (n *Net) Kill(id string) {
	n.mu.Lock()
	b := n.buses[id]
	delete(n.buses, id)
	n.mu.Unlock()
	b.kill()
}

func (b *Bus) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead, b.listeners = true, nil
}

// Close ends all nodes and waits for what is on its way.
func (n *Net) Close() {
	n.mu.Lock()
	all := n.all
	n.all, n.buses = nil, make(map[string]*Bus)
	n.mu.Unlock()
	for _, b := range all {
		b.kill()
		close(b.end)
	}
	n.wg.Wait()
}

type message struct {
	topic string
	data  []byte
	delay time.Duration
}

// A Bus is a node's.
type Bus struct {
	net *Net
	id  string
	end chan struct{}

	mu        sync.Mutex
	dead      bool
	listeners []*listener
	links     map[string]chan message // to each node
}

type listener struct {
	topic string
	mu    sync.Mutex
	f     func(string, []byte)
}

var _ hub.Bus = (*Bus)(nil)

// Node is the node's id.
func (b *Bus) Node() string { return b.id }

// Broadcast implements hub.Bus.
func (b *Bus) Broadcast(topic string, data []byte) error {
	b.net.mu.Lock()
	ids := make([]string, 0, len(b.net.buses))
	for id := range b.net.buses {
		ids = append(ids, id)
	}
	b.net.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		if err := b.SendTo(id, topic, data); err != nil {
			return err
		}
	}
	return nil
}

// SendTo is hub.Bus's.
func (b *Bus) SendTo(node, topic string, data []byte) error {
	if len(data) > 512<<10 {
		return fmt.Errorf("%d bytes: %w", len(data), hub.ErrTooLarge)
	}
	n := b.net
	n.mu.Lock()
	to := n.buses[node]
	delay := time.Duration(0)
	if n.maxDelay > 0 && node != b.id {
		delay = time.Duration(n.rand.Int64N(int64(n.maxDelay)))
	}
	lost := node != b.id && (n.rand.Float64() < n.loss || n.cut[[2]string{min(b.id, node), max(b.id, node)}])
	if lost {
		n.lost++
	}
	n.mu.Unlock()
	if to == nil || lost {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return hub.ErrClosed
	}
	link := b.links[node]
	if link == nil {
		link = make(chan message, 1<<14)
		b.links[node] = link
		n.wg.Go(func() { b.carry(to, link) })
	}
	select {
	case link <- message{topic, slices.Clone(data), delay}:
	default:
	}
	return nil
}

func (b *Bus) carry(to *Bus, link chan message) {
	for {
		select {
		case <-b.end:
			return
		case <-to.end:
			return
		case m := <-link:
			if m.delay > 0 {
				time.Sleep(m.delay)
			}
			to.deliver(b.id, m)
		}
	}
}

func (b *Bus) deliver(from string, m message) {
	b.mu.Lock()
	ls := slices.Clone(b.listeners)
	b.mu.Unlock()
	for _, l := range ls {
		if l.topic != m.topic {
			continue
		}
		l.mu.Lock()
		if l.f != nil {
			l.f(from, m.data)
		}
		l.mu.Unlock()
	}
}

// Listen is hub.Bus's.
func (b *Bus) Listen(topic string, f func(from string, data []byte)) (stop func(), err error) {
	l := &listener{topic: topic, f: f}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return nil, hub.ErrClosed
	}
	b.listeners = append(b.listeners, l)
	return func() {
		l.mu.Lock()
		l.f = nil
		l.mu.Unlock()
		b.mu.Lock()
		b.listeners = slices.DeleteFunc(b.listeners, func(x *listener) bool { return x == l })
		b.mu.Unlock()
	}, nil
}
