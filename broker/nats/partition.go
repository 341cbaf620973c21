package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A partitioned namespace is several logs, each a stream of its own with its own leader,
// delivery goroutine, epoch and marks:
//
//	<prefix>_<namespace>@<partition>
//
// Whatever is said of a log elsewhere in this package is said of each of them. What is here
// is what they have together.

// partitioning returns how the namespace is divided, as the metadata of its streams has
// it: "<partitions> <by>". It is empty for a namespace with one log.
func partitioning(n *hub.Namespace) string {
	if n.Partitions <= 1 {
		return ""
	}
	return fmt.Sprintf("%d %s", n.Partitions, n.PartitionBy)
}

// checkPartitions returns an error if NATS has the namespace divided in another way. The
// metadata of the log's own stream is compared by ensure.
func (s *storedLog) checkPartitions(ctx context.Context) error {
	opts := s.opts.Load()
	if opts.Partition > 0 {
		return nil // the first one was checked
	}
	other := *opts
	if opts.Partitions > 1 {
		other.Partitions = 1
	} else {
		other.Partitions = 2 // whatever number: the first of them has the same name
	}
	var a streamAnswer
	err := s.request(ctx, "STREAM.INFO."+s.b.cfg.Prefix+"_"+other.LogName(), nil, &a)
	switch {
	case isCode(err, codeStreamNotFound), errors.Is(err, errNotPermitted):
		return nil
	case err != nil:
		return err
	}
	return errPartitions(opts, a.Config.Metadata[metaParts])
}

// errPartitions returns why n cannot be served where its streams say have.
func errPartitions(n *hub.Namespace, have string) error {
	words := func(s string) string {
		if s == "" {
			return "one log"
		}
		parts, by, _ := strings.Cut(s, " ")
		return parts + " partitions by " + by
	}
	want := "remove partitions"
	if parts, by, ok := strings.Cut(have, " "); ok {
		want = "set partitions: " + parts + " and partition_by: " + by
	}
	return fmt.Errorf("namespace %q has %s in NATS and %s in the configuration, and this cannot change: channels would be "+
		"looked up in logs that do not have their messages; %s, or use another namespace, or remove its streams and their messages",
		n.Name, words(have), words(partitioning(n)), want)
}

// A share is a log's part of the outbox. Its fields are the outbox's, but for stored.
type share struct {
	count, bytes int
	order        []*pending    // by age, answered ones among them
	known        uint64        // NATS has responded to all up to this id
	stored       atomic.Uint64 // publishes that were acknowledged
}

// exceeded returns why p cannot wait for its log, or nil. A partition gets an equal share of
// the outbox, so that one that is not answered leaves the others theirs.
func (w *share) exceeded(p *pending, cfg *Config) error {
	opts := p.s.opts.Load()
	if opts.Partitions <= 1 {
		return nil
	}
	switch {
	case w.count >= max(cfg.MaxPending/opts.Partitions, 1):
		return fmt.Errorf("%w: %d publishes of namespace %s wait for NATS", hub.ErrOverloaded, w.count, opts.Title())
	case w.count > 0 && w.bytes+p.size() > cfg.MaxPendingBytes/opts.Partitions:
		return fmt.Errorf("%w: %d bytes of namespace %s wait for NATS", hub.ErrOverloaded, w.bytes, opts.Title())
	}
	return nil
}

// oldestByLog returns for how long every log that has publishes without an answer has
// waited for one: 0 if none has. A single log may have no leader; that none is answered may be
// the connection's fault.
func (o *outbox) oldestByLog(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := map[*stream]bool{}
	var last time.Duration // of the log that has waited least
	for _, p := range o.order {
		if !p.answered && !seen[p.s] {
			seen[p.s] = true
			last = now.Sub(p.deadline) + time.Duration(o.b.cfg.AckTimeout)
		}
	}
	return last
}

// unready returns why publishes to s cannot be stored now, or nil.
func (s *stream) unready() error {
	if s.storage.full.Load() {
		return s.errStorage()
	}
	if !s.verified() {
		return fmt.Errorf("%w: namespace %s is being checked after a reconnect", hub.ErrUnavailable, s.opts.Load().Title())
	}
	return nil
}

// ready returns nil if publishes to the namespace of s can be stored, or in one of its
// partitions: a node that refuses the publishes of one serves the others.
func (b *streams) ready(s *stream) error {
	err := s.unready()
	if opts := s.opts.Load(); err != nil && opts.Partitions > 1 {
		for k := range opts.Partitions {
			of := opts.InPartition(k)
			if t := b.all()[of.LogName()]; t != nil && t.unready() == nil {
				return nil
			}
		}
	}
	return err
}

// A PartitionStatus is what this node knows of a log of a partitioned namespace.
type PartitionStatus struct {
	Namespace string
	Partition int
	// Stored counts the publishes of this node that the log has acknowledged, Waiting are
	// those without an answer.
	Stored  uint64
	Waiting int
	// Err is why publishes to it are not stored now; nil: they are.
	Err error
}

// partitionSilent is how long the oldest publish to a partition is without an answer before
// the partition counts as not serving.
const partitionSilent = resendAfter

// Partitions returns the partitions that b serves, in order. It does not wait.
func Partitions(b *Broker) []PartitionStatus {
	if b.stateErr() != nil {
		return nil
	}
	var out []PartitionStatus
	for _, s := range b.all() {
		if s.opts.Load().Partitions > 1 {
			out = append(out, statusOf(s, time.Now()))
		}
	}
	slices.SortFunc(out, func(a, b PartitionStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), a.Partition-b.Partition)
	})
	return out
}

func statusOf(s *stream, now time.Time) PartitionStatus {
	opts, o := s.opts.Load(), s.b.out
	st := PartitionStatus{Namespace: opts.Name, Partition: opts.Partition, Stored: s.share.stored.Load(), Err: s.unready()}
	o.mu.Lock()
	defer o.mu.Unlock()
	st.Waiting = s.share.count
	if st.Waiting == 0 {
		return st
	}
	for _, p := range o.order {
		if p.s != s || p.answered {
			continue
		}
		if waits := now.Sub(p.deadline) + time.Duration(o.b.cfg.AckTimeout); st.Err == nil && waits > partitionSilent {
			st.Err = fmt.Errorf("%w: namespace %s has not answered a publish for %v", hub.ErrUnavailable, opts.Title(), waits.Round(time.Second))
		}
		break
	}
	return st
}
