package hub

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxPartitions bounds Namespace.Partitions: a stream over all partitions of a namespace has a
// position for each, and proxies and browsers bound the header that carries them.
const MaxPartitions = 8

// ErrPartitioned is returned for what needs one order over all channels of a namespace that is
// divided into partitions: it has no such order.
var ErrPartitioned = errors.New("namespace is partitioned") // HTTP 400

// PartitionBy is the part of a channel's name that selects its partition.
type PartitionBy string

const (
	// ByChannel uses the whole name: channels are spread evenly.
	ByChannel PartitionBy = "channel"
	// ByPrefix uses what comes before the first "." of the name: "orders:eu.42" and
	// "orders:eu.43" are in one partition, and a stream of both has one position.
	ByPrefix PartitionBy = "prefix"
)

// PartitionOf returns the partition of n that has channel, 0 to Partitions-1. It depends on the
// name, PartitionBy and Partitions only: every node and every later version must compute the
// same, because the messages are stored there.
func (n *Namespace) PartitionOf(channel string) int {
	if n.Partitions <= 1 {
		return 0
	}
	name := channel
	if i := strings.IndexByte(name, ':'); i >= 0 {
		name = name[i+1:]
	}
	if n.PartitionBy == ByPrefix {
		name, _, _ = strings.Cut(name, ".")
	}
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return int(mix(h, 0) % uint64(n.Partitions))
}

// LogName returns the name of n's log: that of the namespace, or with partitions
// "<namespace>@<partition>", which no namespace can have.
func (n *Namespace) LogName() string {
	if n.Partitions <= 1 {
		return n.Name
	}
	return n.Name + "@" + strconv.Itoa(n.Partition)
}

// Title returns n for error messages: its quoted name, with the partition if it has several.
func (n *Namespace) Title() string {
	if n.Partitions <= 1 {
		return strconv.Quote(n.Name)
	}
	return fmt.Sprintf("%q, partition %d of %d", n.Name, n.Partition, n.Partitions)
}

// InPartition returns n as the partition k of it, the value that a Broker is passed.
func (n Namespace) InPartition(k int) Namespace {
	n.Partition = k
	return n
}

// LogBytes returns the bound of n's log in bytes: its share of HistoryBytes.
func (n *Namespace) LogBytes() int64 { return n.HistoryBytes / int64(max(n.Partitions, 1)) }

// EpochPrefix returns what an epoch of n's log starts with: empty without partitions, else
// "<partition>_". So a position names the log that it is of; see LogOf.
func (n *Namespace) EpochPrefix() string {
	if n.Partitions <= 1 {
		return ""
	}
	return strconv.Itoa(n.Partition) + "_"
}

// A Log identifies the log that a position of a namespace is of, through all of its epochs.
type Log struct {
	Namespace string
	// Partition is the prefix of its epochs: empty without partitions.
	Partition string
}

// LogOf returns the log of namespace that has epoch. It allocates nothing.
func LogOf(namespace, epoch string) Log {
	return Log{namespace, epoch[:strings.IndexByte(epoch, '_')+1]}
}

// Log returns the log that m is stored in.
func (m *Message) Log() Log { return LogOf(NamespaceOf(m.Channel), m.Epoch) }

// checkPartitions returns what is wrong with the partitions of n, which has its defaults.
func (n *Namespace) checkPartitions() error {
	switch {
	case n.Partitions < 1 || n.Partitions > MaxPartitions:
		return fmt.Errorf("partitions: %d is not within 1..%d", n.Partitions, MaxPartitions)
	case n.Partition < 0 || n.Partition >= n.Partitions:
		return fmt.Errorf("partition %d is not within 0..%d", n.Partition, n.Partitions-1)
	case n.PartitionBy != ByChannel && n.PartitionBy != ByPrefix:
		return fmt.Errorf("partition_by: %q is neither channel nor prefix", n.PartitionBy)
	case n.Partitions > 1 && n.Durability == None:
		return errors.New("partitions: with durability none there is no log to divide; remove partitions, or set durability: stored")
	}
	return nil
}

// A spaces has the logs that there have been since the start, by namespace: one for each of its
// partitions, in their order.
type spaces map[string][]*namespace

// of returns the log of channel; nil if there is no such namespace. For the Whole of a
// partitioned namespace it is the first.
func (s spaces) of(channel string) *namespace {
	logs := s[NamespaceOf(channel)]
	switch len(logs) {
	case 0:
		return nil
	case 1:
		return logs[0]
	}
	return logs[logs[0].options().PartitionOf(channel)]
}

// newLogs returns the logs of a namespace, which has its defaults.
func newLogs(n Namespace, broker Broker) []*namespace {
	logs := make([]*namespace, n.Partitions)
	for k := range logs {
		logs[k] = newNamespace(n.InPartition(k), broker)
	}
	return logs
}

// setOptions gives the logs of a namespace its options.
func setOptions(logs []*namespace, n *Namespace) {
	for k, l := range logs {
		in := n
		if k > 0 {
			of := n.InPartition(k)
			in = &of
		}
		l.opts.Store(in)
	}
}

// errPartitioned returns ErrPartitioned for a whole that has several logs.
func errPartitioned(n *Namespace) error {
	return fmt.Errorf("%w: %q has %d partitions, and no order over all of its channels; use a namespace with partitions: 1",
		ErrPartitioned, n.Name, n.Partitions)
}

// Logs returns how many logs the channels are in: a stream of them has as many positions.
// Channels of unknown namespaces do not count. Any goroutine.
func (h *Hub) Logs(channels []string) int {
	all, seen := *h.spaces.Load(), map[*namespace]bool{}
	for _, ch := range channels {
		if n := all.of(ch); n != nil {
			seen[n] = true
		}
	}
	return len(seen)
}
