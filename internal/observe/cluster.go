package observe

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// logPatience bounds how long the leaders of logs are waited for.
const logPatience = 3 * time.Second

// rateEvery is the shortest time that the rates of a node are of.
const rateEvery = 900 * time.Millisecond

// A load is what the rates of a node are made of, and what they were last.
type load struct {
	mu                         sync.Mutex
	at                         time.Time
	published, delivered       uint64
	publishedRate, deliverRate float64
}

// rates are messages per second, over the last span of rateEvery or more.
func (l *load) rates(now time.Time, published, delivered uint64) (in, out float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := now.Sub(l.at)
	if d >= rateEvery {
		if !l.at.IsZero() {
			l.publishedRate, l.deliverRate = float64(published-l.published)/d.Seconds(), float64(delivered-l.delivered)/d.Seconds()
		}
		l.at, l.published, l.delivered = now, published, delivered
	}
	return l.publishedRate, l.deliverRate
}

// State is the health and the load of this node, for the other nodes. Any goroutine.
func (w *Watch) State() admin.NodeState {
	h := w.Hub.Stats()
	s := admin.NodeState{Ready: "yes", Connections: w.Loops.Open(), MaxConns: w.Loops.MaxConns(), Channels: h.Channels}
	s.Published, s.Delivered = w.load.rates(time.Now(), h.Published, h.Delivered)
	if err := w.Push.Ready(); err != nil {
		s.Ready = err.Error()
	}
	for _, d := range w.degraded.list() {
		s.Degraded = append(s.Degraded, d.Mode)
	}
	if g := w.Governor.Snapshot(); g != nil {
		s.CPU, s.P99 = g.CPU.Share, g.Delivery.Second.P99
	}
	if w.SharedLimits != nil {
		if l := w.SharedLimits(); l != nil {
			s.LimitNodes = l.Nodes
		}
	}
	return s
}

// nodes are those of the cluster, or this one where there can be no other.
func (a *operatorCalls) nodes() []cluster.Node {
	if k := a.Protocols.Cluster; k != nil {
		return k.Nodes()
	}
	n := cluster.Node{Name: cluster.Config{}.WithDefaults().Name, Version: a.Version, Started: a.Started, Seen: time.Now(), Self: true}
	if bus := a.Hub.Bus(); bus != nil {
		n.ID = bus.Node()
	}
	s := a.State()
	s.Rate, s.Free = a.ReconnectRate(), max(s.MaxConns-s.Connections, 0)
	n.Stats, _ = json.Marshal(s)
	return []cluster.Node{n}
}

// cluster is what /api/cluster answers.
func (a *operatorCalls) cluster(ctx context.Context) *admin.Cluster {
	c := &admin.Cluster{Nodes: []admin.ClusterNode{}, Logs: []admin.ClusterLog{}}
	for _, n := range a.nodes() {
		v := admin.ClusterNode{
			ID: n.ID, Name: n.Name, Version: n.Version, Started: n.Started, Silent: max(time.Since(n.Seen).Seconds(), 0), Self: n.Self,
		}
		if len(n.Stats) == 0 || json.Unmarshal(n.Stats, &v.NodeState) != nil {
			v.NodeState = admin.NodeState{}
		}
		if n.Self {
			c.Node = n.ID
		}
		c.Nodes = append(c.Nodes, v)
	}
	if a.NATS != nil {
		c.Server, _ = a.NATS.Connected()
		ctx, cancel := context.WithTimeout(ctx, logPatience)
		defer cancel()
		sites := nats.SiteLogs(a.NATS)
		for _, l := range a.NATS.Logs(ctx) {
			v := admin.ClusterLog{
				Namespace: l.Namespace, Partition: l.Partition, Partitions: l.Partitions, Epoch: l.Epoch, Last: l.Last, Messages: l.Messages, Bytes: l.Bytes, Leader: l.Leader, Wanted: l.Wanted,
				Replicas: []admin.ClusterReplica{},
			}
			v.Sites = sitesOf(sites, l.Namespace, l.Partition)
			if l.Err != nil {
				v.Error = l.Err.Error()
			}
			for _, r := range l.Replicas {
				v.Replicas = append(v.Replicas, admin.ClusterReplica{Name: r.Name, Current: r.Current, Offline: r.Offline, Lag: r.Lag, Silent: r.Silent.Seconds()})
			}
			c.Logs = append(c.Logs, v)
		}
	}
	c.FindProblems()
	return c
}

// sitesOf returns how two sites have a log; nil with one site.
func sitesOf(all []nats.SiteStatus, namespace string, partition int) *admin.ClusterSites {
	for _, s := range all {
		if s.Namespace == namespace && s.Partition == partition {
			return &admin.ClusterSites{Leads: s.Leads, Term: s.Term, Copy: s.Copy, Behind: s.Behind, Whole: s.Whole, Alone: s.Alone,
				Lost: append([]string{}, s.Lost...), Kept: s.Kept}
		}
	}
	return nil
}

// promote is Promote of the admin listener.
func (a *operatorCalls) promote(ctx context.Context, namespaces []string) error {
	if a.NATS == nil {
		return errors.New("there is one site: the broker is not nats")
	}
	return nats.Promote(ctx, a.NATS, namespaces...)
}
