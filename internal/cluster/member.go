package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	heartbeatTopic = "cluster.beat"
	requestTopic   = "cluster.ask"
	replyTopic     = "cluster.reply"

	maxStatsBytes = 32 << 10
)

// A heartbeat holds a node's heartbeat: its state.
type heartbeat struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Started int64  `json:"started"` // Unix milliseconds
	Stats   []byte `json:"stats,omitempty"`
	// Hello requests a heartbeat from all receivers, to this node alone.
	Hello bool `json:"hello,omitempty"`
	// Bye reports that the node has ended in order.
	Bye bool `json:"bye,omitempty"`
}

type event struct {
	from      string
	heartbeat heartbeat
}

// Run announces this node to the others and follows them until ctx ends; then it
// announces that it leaves. Only one call.
func (c *Cluster) Run(ctx context.Context) error {
	c.mu.Lock()
	if c.running {
		c.mu.Unlock()
		return errors.New("cluster: Run called twice")
	}
	c.running = true
	c.mu.Unlock()
	stop, err := c.listen()
	if err != nil {
		return err
	}
	defer c.wg.Wait()
	defer stop()
	c.send(heartbeat{Hello: true})
	ticker := time.NewTicker(time.Duration(c.cfg.Heartbeat))
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			c.send(heartbeat{Bye: true})
			c.endPending()
			return nil
		case e := <-c.inbox:
			c.receive(e)
		case <-ticker.C:
			now := time.Now()
			if now.Sub(last) > time.Duration(c.cfg.Heartbeat+c.cfg.Lease)/2 {
				// It was this node that was stopped: what the others said in the
				// meantime may wait in a queue.
				c.prolong(now)
			}
			last = now
			c.send(heartbeat{})
			c.expire(now)
		}
	}
}

func (c *Cluster) listen() (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	for topic, f := range map[string]func(string, []byte){heartbeatTopic: c.onHeartbeat, requestTopic: c.onAsk, replyTopic: c.onReply} {
		s, err := c.bus.Listen(topic, f)
		if err != nil {
			stop()
			return nil, fmt.Errorf("listen to %s: %w", topic, err)
		}
		stops = append(stops, s)
	}
	return stop, nil
}

func (c *Cluster) encode(b heartbeat) []byte {
	n := c.selfNode()
	b.Name, b.Version, b.Started, b.Stats = n.Name, n.Version, n.Started.UnixMilli(), n.Stats
	out, err := json.Marshal(b)
	if err != nil {
		panic("cluster: encode heartbeat: " + err.Error())
	}
	return out
}

// send drops what the bus does not accept: the next heartbeat follows.
func (c *Cluster) send(b heartbeat) {
	if err := c.bus.Broadcast(heartbeatTopic, c.encode(b)); err != nil {
		c.log.Debug("heartbeat not sent", "err", err)
	}
}

// onHeartbeat is called by the bus.
func (c *Cluster) onHeartbeat(from string, data []byte) {
	if from == c.self {
		return
	}
	e := event{from: from}
	if len(data) > 2*maxStatsBytes || json.Unmarshal(data, &e.heartbeat) != nil || len(e.heartbeat.Name) > maxNameBytes {
		c.malformed.Add(1)
		return
	}
	select {
	case c.inbox <- e:
	default:
		c.dropped.Add(1)
	}
}

// receive is called by Run, as are the watchers.
func (c *Cluster) receive(e event) {
	if e.heartbeat.Bye {
		c.forget(e.from, true)
		return
	}
	now := time.Now()
	c.mu.Lock()
	if _, left := c.left[e.from]; left {
		c.mu.Unlock()
		return
	}
	n := c.nodes[e.from]
	isNew := n == nil
	if isNew {
		if len(c.nodes)+1 >= c.cfg.MaxNodes {
			c.mu.Unlock()
			c.dropped.Add(1)
			return
		}
		n = &node{}
		c.nodes[e.from] = n
		c.changed()
	}
	n.Node = Node{
		ID: e.from, Name: e.heartbeat.Name, Version: e.heartbeat.Version,
		Started: time.UnixMilli(e.heartbeat.Started), Seen: now, Stats: e.heartbeat.Stats,
	}
	n.until = now.Add(time.Duration(c.cfg.Lease))
	known, watchers := n.Node, c.watchers
	c.mu.Unlock()
	if e.heartbeat.Hello {
		if err := c.bus.SendTo(e.from, heartbeatTopic, c.encode(heartbeat{})); err != nil {
			c.log.Debug("heartbeat not sent", "node", e.from, "err", err)
		}
	}
	if !isNew {
		return
	}
	c.joined.Add(1)
	c.log.Info("node joined", "node", known.ID, "name", known.Name, "version", known.Version)
	for _, w := range watchers {
		if w.joined != nil {
			w.joined(known)
		}
	}
}

// changed makes alive anew. The caller holds mu.
func (c *Cluster) changed() {
	ids := make([]string, 0, len(c.nodes)+1)
	ids = append(ids, c.self)
	for id := range c.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	c.alive = ids
}

// forget is called by Run.
func (c *Cluster) forget(id string, bye bool) {
	c.mu.Lock()
	if bye {
		c.remember(id)
	}
	n := c.nodes[id]
	if n == nil {
		c.mu.Unlock()
		return
	}
	delete(c.nodes, id)
	c.changed()
	watchers := c.watchers
	for _, a := range c.pending {
		a.lose(id)
	}
	c.mu.Unlock()
	c.gone.Add(1)
	if !bye {
		c.expired.Add(1)
	}
	c.log.Info("node gone", "node", id, "name", n.Name, "in_order", bye)
	for _, w := range watchers {
		if w.gone != nil {
			w.gone(id)
		}
	}
}

// remember keeps the ids of nodes that left, the newest of them. The caller holds mu.
func (c *Cluster) remember(id string) {
	now := time.Now()
	if len(c.left) >= maxLeft {
		oldest, at := "", now
		for id, t := range c.left {
			if t.Before(at) || oldest == "" {
				oldest, at = id, t
			}
		}
		delete(c.left, oldest)
	}
	c.left[id] = now
}

func (c *Cluster) expire(now time.Time) {
	c.mu.Lock()
	var over []string
	for id, n := range c.nodes {
		if !now.Before(n.until) {
			over = append(over, id)
		}
	}
	c.mu.Unlock()
	slices.Sort(over)
	for _, id := range over {
		c.forget(id, false)
	}
}

func (c *Cluster) prolong(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		n.until = now.Add(time.Duration(c.cfg.Lease))
	}
}
