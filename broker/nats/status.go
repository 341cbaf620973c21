package nats

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// A LogStatus is how the log of a namespace is replicated, as its leader says.
type LogStatus struct {
	Namespace string
	// Partition is which of the namespace's Partitions it is, from 0; Partitions is 1 for
	// a namespace with one log.
	Partition, Partitions int
	Epoch                 string
	Last                  uint64 // the newest offset
	Messages              uint64
	Bytes                 uint64
	// Leader is the NATS server that leads the log; empty: none does, or a server alone.
	Leader string
	// Replicas are the other servers that store it, Wanted how many there are to be in all.
	Replicas []ReplicaStatus
	Wanted   int
	// Err is why nothing else is known; nil: it is.
	Err error
}

// A ReplicaStatus is a follower of a log.
type ReplicaStatus struct {
	Name    string
	Current bool // it has all that the leader has committed
	Offline bool
	Lag     uint64        // entries that it lacks
	Silent  time.Duration // since its last message to the leader
}

// Logs returns how the logs are replicated, in order of their namespaces; those with
// durability none have no log. It requests it from the leaders, until ctx is done.
func (b *Broker) Logs(ctx context.Context) []LogStatus {
	if b.stateErr() != nil {
		return nil
	}
	out := []LogStatus{}
	var mu sync.Mutex
	var asking sync.WaitGroup // at once: one without a leader must not use up ctx for the others
	for _, s := range b.all() {
		if !s.durable() {
			continue
		}
		asking.Go(func() {
			st := s.status(ctx)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, st)
		})
	}
	asking.Wait()
	slices.SortFunc(out, func(a, b LogStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), a.Partition-b.Partition)
	})
	return out
}

func (s *stream) status(ctx context.Context) LogStatus {
	opts := s.opts.Load()
	st := LogStatus{Namespace: opts.Name, Partition: opts.Partition, Partitions: opts.Partitions, Wanted: opts.Replicas}
	var a streamAnswer
	if st.Err = s.request(ctx, "STREAM.INFO."+s.name(), nil, &a); st.Err != nil {
		return st
	}
	st.Epoch, st.Last, st.Messages, st.Bytes = a.Config.Metadata[metaEpoch], a.State.LastSeq, a.State.Msgs, a.State.Bytes
	if c := a.Cluster; c != nil {
		st.Leader = c.Leader
		for _, r := range c.Replicas {
			st.Replicas = append(st.Replicas, ReplicaStatus{Name: r.Name, Current: r.Current, Offline: r.Offline, Lag: r.Lag, Silent: r.Active})
		}
	}
	return st
}

// Connected reports whether there is a connection to NATS, and to which server.
func (b *Broker) Connected() (server string, ok bool) {
	if b.stateErr() != nil || !b.connected.Load() {
		return "", false
	}
	return b.nc.ConnectedServerName(), true
}
