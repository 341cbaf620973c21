package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A reader counts what it is given.
type reader struct {
	hub.Subscriber
	live *atomic.Int64
	got  *atomic.Int64
	gaps *atomic.Int64
}

func (r *reader) Start(hub.Positions)  {}
func (r *reader) Live()                { r.live.Add(1) }
func (r *reader) Room() bool           { return true }
func (r *reader) Gap(hub.Gap)          { r.gaps.Add(1) }
func (r *reader) Failed(error)         { r.gaps.Add(1) }
func (r *reader) Deliver(b *hub.Batch) { r.got.Add(int64(len(b.Messages))) }

// readers are all that a node has.
type readers struct{ live, got, gaps atomic.Int64 }

// patience bounds every wait.
const patience = 10 * time.Minute

// until waits until ok.
func until(what string, ok func() bool) error {
	for late := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			return fmt.Errorf("waited %v for %s", patience, what)
		}
	}
	return nil
}

func channel(i int) string { return fmt.Sprint("a:user-", i) }

// subscribe follows the channels from start to end on n, and waits until all are live.
func (n *node) subscribe(begin, end int) (*readers, error) {
	all := &readers{}
	failed := make(chan error, 1)
	for i := begin; i < end; i++ {
		n.calls <- func() {
			r := &reader{live: &all.live, got: &all.got, gaps: &all.gaps}
			if err := n.shard.Subscribe(&r.Subscriber, r, hub.SubscribeOptions{Channels: []string{channel(i)}}); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		}
	}
	err := until("the subscriptions", func() bool { return all.live.Load() == int64(end-begin) || len(failed) > 0 })
	if len(failed) > 0 {
		err = <-failed
	}
	return all, err
}

// inFlight is how many publishes wait for their answer at once: not more than one of 8 partitions
// may have.
const inFlight = 1000

// publish publishes count messages on the channels that of selects, and returns how many per
// second were stored.
func (n *node) publish(o *options, count int, of func(i int) int) (float64, error) {
	room := make(chan struct{}, inFlight)
	data := make([]byte, o.payload)
	var first error
	var mu sync.Mutex
	began := time.Now()
	for i := range count {
		room <- struct{}{}
		n.Publish(hub.Publication{Channel: channel(of(i)), Data: data}, func(_ hub.Position, err error) {
			if err != nil {
				mu.Lock()
				first = err
				mu.Unlock()
			}
			<-room
		})
	}
	for range inFlight {
		room <- struct{}{}
	}
	mu.Lock()
	defer mu.Unlock()
	return float64(count) / time.Since(began).Seconds(), first
}

// rejoin: all channels are subscribed on one node, and its connection is cut.
func rejoin(o *options, partitions int) error {
	s, end, err := newServer(o)
	if err != nil {
		return err
	}
	defer end()
	addr := fmt.Sprintf("127.0.0.1:%d", s.Port)
	r, err := startRelay(addr)
	if err != nil {
		return err
	}
	defer r.close()
	ns := hub.Namespace{Name: "a", Partitions: partitions}
	n, err := startNode(r.l.Addr().String(), ns)
	if err != nil {
		return err
	}
	defer n.close()
	publisher, err := startNode(addr, ns)
	if err != nil {
		return err
	}
	defer publisher.close()
	began := time.Now()
	all, err := n.subscribe(0, o.channels)
	if err != nil {
		return err
	}
	subscribed := time.Since(began)
	began = time.Now()
	r.cut()
	if err := until("the cut to be noticed", func() bool { return n.Ready() != nil }); err != nil {
		return err
	}
	// Published while the node is away, at every hundredth channel: nothing of it may be missing.
	sample := max(o.channels/100, 1)
	if _, err := publisher.publish(o, sample, func(i int) int { return i * 100 % o.channels }); err != nil {
		return err
	}
	if err := until("the node to be ready", func() bool { return n.Ready() == nil }); err != nil {
		return err
	}
	ready := time.Since(began)
	if err := until("what was published meanwhile", func() bool { return all.got.Load() >= int64(sample) }); err != nil {
		return err
	}
	fmt.Printf("rejoin: %d channels, %d partitions: subscribed in %.2f s; after a reconnect ready in %.2f s, everything delivered in %.2f s, gaps %d\n",
		o.channels, partitions, subscribed.Seconds(), ready.Seconds(), time.Since(began).Seconds(), all.gaps.Load())
	return nil
}

// stored: a message on each channel; the publish rate before and after, the server's memory,
// and its restart.
func stored(o *options, partitions int) error {
	s, end, err := newServer(o)
	if err != nil {
		return err
	}
	defer end()
	addr := fmt.Sprintf("127.0.0.1:%d", s.Port)
	n, err := startNode(addr, hub.Namespace{Name: "a", Partitions: partitions, HistoryBytes: 1 << 36})
	if err != nil {
		return err
	}
	defer func() { n.close() }()
	one, err := n.publish(o, o.messages, func(int) int { return 0 })
	if err != nil {
		return err
	}
	before, err := program.Resident(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	filling, err := n.publish(o, o.channels, func(i int) int { return i })
	if err != nil {
		return err
	}
	// 7919 is prime: the channels come in no order that a cache could follow.
	many, err := n.publish(o, o.messages, func(i int) int { return i * 7919 % o.channels })
	if err != nil {
		return err
	}
	after, err := program.Resident(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	n.close()
	s.kill()
	restart, err := s.start()
	if err != nil {
		return err
	}
	again := time.Now()
	if n, err = startNode(addr, hub.Namespace{Name: "a", Partitions: partitions, HistoryBytes: 1 << 36}); err != nil {
		return err
	}
	reopened := time.Since(again)
	recovered, err := program.Resident(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	per := func(b int64) float64 { return float64(b) / float64(o.channels) }
	fmt.Printf("stored: %d channels, %d partitions: one channel %.0f/s, filling %.0f/s, all channels %.0f/s (%.0f %%); RSS per channel %.0f B, %.0f B after a restart; kill -9 to ready %.2f s, a node on it in %.2f s\n",
		o.channels, partitions, one, filling, many, 100*many/one, per(after-before), per(recovered), restart.Seconds(), reopened.Seconds())
	return nil
}

// interest: a message on one channel, while more and more nodes have a subscriber of it.
func interest(o *options, partitions int) error {
	s, end, err := newServer(o)
	if err != nil {
		return err
	}
	defer end()
	ns := hub.Namespace{Name: "a", Partitions: partitions, HistorySize: 1_000_000}
	var nodes []*node
	defer func() {
		for _, n := range nodes {
			n.close()
		}
	}()
	for range o.nodes + 1 {
		n, err := startNode(fmt.Sprintf("127.0.0.1:%d", s.Port), ns)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	var all []*readers
	for interested := 0; interested <= o.nodes; interested++ {
		if interested > 0 {
			r, err := nodes[interested].subscribe(0, 1)
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		want := make([]int64, len(all))
		for i, r := range all {
			want[i] = r.got.Load() + int64(o.messages)
		}
		before, err := program.CPU(s.cmd.Process.Pid)
		if err != nil {
			return err
		}
		rate, err := nodes[0].publish(o, o.messages, func(int) int { return 0 })
		if err != nil {
			return err
		}
		for i, r := range all {
			if err := until("the messages", func() bool { return r.got.Load() >= want[i] || r.gaps.Load() > 0 }); err != nil {
				return err
			}
			if n := r.gaps.Load(); n > 0 {
				return fmt.Errorf("node %d got %d gaps", i, n)
			}
		}
		after, err := program.CPU(s.cmd.Process.Pid)
		if err != nil {
			return err
		}
		fmt.Printf("interest: %d of %d nodes, %d partitions: %.0f/s, %.2f µs of the NATS server's processor time per message\n",
			interested, o.nodes, partitions, rate, float64((after-before).Microseconds())/float64(o.messages))
	}
	return nil
}
