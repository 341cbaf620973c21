package pusher

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// topicCounts is where nodes notify each other whose counts changed.
const topicCounts = "pusher.counts"

// A countDesk sends subscribers their number, where that changed.
type countDesk struct {
	s *Server

	mu       sync.Mutex
	channels map[string]bool // true: here; false: on another node, as it said
}

// changed notes that a channel of this node has more subscribers, or fewer.
func (d *countDesk) changed(channel string) {
	d.mu.Lock()
	d.channels[channel] = true
	d.mu.Unlock()
}

func (d *countDesk) receive(from string, data []byte) {
	var names []string
	if from == d.s.deps.Cluster.Self() || json.Unmarshal(data, &names) != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range names {
		if _, there := d.channels[n]; !there && len(d.channels) < 1<<20 {
			d.channels[n] = false
		}
	}
}

// run sends it every CountInterval, until ctx ends.
func (d *countDesk) run(ctx context.Context) {
	tick := time.NewTicker(time.Duration(d.s.conf().cfg.CountInterval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.report()
		}
	}
}

func (d *countDesk) report() {
	s := d.s
	d.mu.Lock()
	dirty := d.channels
	if len(dirty) == 0 {
		d.mu.Unlock()
		return
	}
	d.channels = map[string]bool{}
	d.mu.Unlock()
	var own []string
	for channel, here := range dirty {
		if here {
			own = append(own, channel)
		}
		a, name := s.split(channel)
		if a == nil {
			continue
		}
		n := s.deps.Presence.Subscriptions(channel, presence.Pusher)
		if a.sendsCount(protocol.KindOf(name)) {
			s.news.notify(channel, &channelNews{frame: frameOf(protocol.EventCount, name, protocol.AppendCount(nil, n))})
		}
		if a.hooked[hookCount] && s.owns(channel) {
			a.hook(hookEvent{Name: hookCount, Channel: name, SubscriptionCount: &n})
		}
	}
	for part := range slices.Chunk(own, 1000) {
		if b, err := json.Marshal(part); err == nil {
			_ = s.deps.Bus.Broadcast(topicCounts, b) // lost, the next change repeats it
		}
	}
}
