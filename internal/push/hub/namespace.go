package hub

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// DefaultNamespace holds the channels whose name has no namespace prefix.
const DefaultNamespace = "default"

// MaxChannelName bounds a channel name in bytes: there are protocols whose
// channels are URLs.
const MaxChannelName = 1024

// A Namespace is a set of channels that share options and one log, or one log for
// each of its partitions. Channel "orders:42" belongs to namespace "orders", channel
// "news" to "default".
type Namespace struct {
	// Name is 1 to 32 bytes of A-Z, a-z, 0-9, "_" and "-"; case counts.
	Name string `json:"name"`
	// Durability of an answered publish; empty means "stored". The memory broker
	// keeps "stored" and "synced" for the life of the process only and refuses
	// to start with "synced".
	Durability Durability `json:"durability" reload:"restart"`
	// HistorySize bounds the retained messages per channel; 0 means 1,000.
	// Ignored with durability none.
	HistorySize int `json:"history_size"`
	// HistoryTTL bounds the age of retained messages; 0 means 24h.
	HistoryTTL Duration `json:"history_ttl"`
	// HistoryBytes bounds the whole log of the namespace, of which each partition gets an
	// equal share; 0 means 1 GiB.
	HistoryBytes int64 `json:"history_bytes"`
	// Recent is how many of a channel's newest messages each node keeps in memory
	// while the channel has subscribers; 0 means 128.
	Recent int `json:"recent"`
	// Replicas of the log in a NATS cluster, 1 to 5; 0 means 1.
	Replicas int `json:"replicas" reload:"restart"`
	// BothSites has a publish acknowledged when both sites of broker.nats.sites have stored it, so
	// that nothing acknowledged is lost with a site. While either is out of reach publishes are
	// refused, until the other one has taken over.
	BothSites bool `json:"both_sites" reload:"restart"`
	// Partitions divides the namespace into that many logs, 1 to 8; 0 means 1. In a NATS
	// cluster each has its own leader, so that publish rate, memory and restart time are
	// shared by the servers, and one without a leader does not stop the others. Messages are
	// in order within a partition. It is fixed for the life of the logs: another number is
	// refused.
	Partitions int `json:"partitions" reload:"restart"`
	// PartitionBy is the part of a channel's name that selects the partition: "channel" is
	// the whole name, "prefix" is what comes before its first ".", so that channels with the
	// same prefix are in one log and a stream of them has one position. It is fixed like
	// Partitions. Empty means channel.
	PartitionBy PartitionBy `json:"partition_by" reload:"restart"`
	// Partition is which of the logs is meant, 0 to Partitions-1. The hub sets it in what it
	// passes to a Broker; elsewhere it is 0.
	Partition int `json:"-"`
	// MaxMessageBytes bounds a payload; 0 means 64 KiB, at most 1 MiB.
	MaxMessageBytes int `json:"max_message_bytes"`
	// IdempotencyWindow is how long a publisher's idempotency key is remembered;
	// 0 means 2m.
	IdempotencyWindow Duration `json:"idempotency_window"`
	// Policy is what happens to a subscriber that cannot keep up, at the bound of
	// its queue: "disconnect" (it is closed and resumes from the log),
	// "drop-oldest" (the oldest waiting messages are dropped and a gap is reported) or
	// "conflate" (of the waiting messages with the same key only the newest is
	// kept, except that a key which is replaced all the time keeps its place in the queue; at the
	// bound as drop-oldest). Empty means disconnect.
	Policy Policy `json:"policy"`
	// MaxRate bounds the messages per second that one subscriber is sent; what is
	// more waits in its queue, under the policy. 0 means no bound.
	MaxRate int `json:"max_rate" reload:"connection"`
	// Compress lets clients that request it have messages compressed (WebSocket
	// permessage-deflate, SSE gzip and zstd). Each message is compressed once and
	// the bytes are shared. Off by default.
	Compress bool `json:"compress" reload:"connection"`
	// CompressMinBytes is the payload size from which on compressing is tried; 0
	// means 256.
	CompressMinBytes int `json:"compress_min_bytes"`
	// QueueMessages bounds what of the namespace waits for one subscriber; 0 means 1,024.
	QueueMessages int `json:"queue_messages"`
	// QueueBytes bounds the same in bytes; 0 means 256 KiB.
	QueueBytes int `json:"queue_bytes"`
	// Class reports who goes first when there is more to do than can be done: control,
	// order, account, market or replay. Publications of a class may have to wait, and
	// are refused when they would wait for too long; with any class, requesting history
	// is replay. Empty means that they are no part of that: they are served as they come.
	Class string `json:"class"`
	// Anonymous lets clients without a token subscribe.
	Anonymous bool `json:"anonymous"`
}

// Policy reports what happens at the bound of a subscriber's queue.
type Policy string

const (
	// Disconnect closes the subscriber; it resumes later from the log.
	Disconnect Policy = "disconnect"
	// DropOldest drops the oldest waiting messages and sends a gap event.
	DropOldest Policy = "drop-oldest"
	// Conflate keeps of the waiting messages with the same key only the newest.
	Conflate Policy = "conflate"
)

// Defaults of a Namespace.
const (
	defaultHistorySize  = 1000
	defaultHistoryTTL   = Duration(24 * time.Hour)
	defaultHistoryBytes = 1 << 30
	defaultRecent       = 128
	defaultMaxMessage   = 64 << 10
	maxMaxMessage       = 1 << 20
	defaultIdempotency  = Duration(2 * time.Minute)
	defaultQueueMsgs    = 1024
	defaultQueueBytes   = 256 << 10
	defaultCompressMin  = 256
)

// WithDefaults returns n with every zero replaced by what it means.
func (n Namespace) WithDefaults() Namespace {
	n.Durability = cmp.Or(n.Durability, Stored)
	n.HistorySize = cmp.Or(n.HistorySize, defaultHistorySize)
	n.HistoryTTL = cmp.Or(n.HistoryTTL, defaultHistoryTTL)
	n.HistoryBytes = cmp.Or(n.HistoryBytes, defaultHistoryBytes)
	n.Recent = cmp.Or(n.Recent, defaultRecent)
	n.Replicas = cmp.Or(n.Replicas, 1)
	n.Partitions = cmp.Or(n.Partitions, 1)
	n.PartitionBy = cmp.Or(n.PartitionBy, ByChannel)
	n.MaxMessageBytes = cmp.Or(n.MaxMessageBytes, defaultMaxMessage)
	n.IdempotencyWindow = cmp.Or(n.IdempotencyWindow, defaultIdempotency)
	n.Policy = cmp.Or(n.Policy, Disconnect)
	n.QueueMessages = cmp.Or(n.QueueMessages, defaultQueueMsgs)
	n.QueueBytes = cmp.Or(n.QueueBytes, defaultQueueBytes)
	n.CompressMinBytes = cmp.Or(n.CompressMinBytes, defaultCompressMin)
	return n
}

// Validate returns all that is wrong with n, joined.
func (n Namespace) Validate() error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("namespace %q: "+format, append([]any{n.Name}, a...)...))
	}
	if !validNamespaceName(n.Name) {
		bad("name: want 1 to 32 bytes of A-Z, a-z, 0-9, _ and -")
	}
	d := n.WithDefaults()
	switch d.Durability {
	case None, Stored, Synced:
	default:
		bad("durability: %q is none of none, stored, synced", n.Durability)
	}
	switch d.Policy {
	case Disconnect, DropOldest, Conflate:
	default:
		bad("policy: %q is none of disconnect, drop-oldest, conflate", n.Policy)
	}
	within := func(key string, v, lo, hi int64) {
		if v < lo || v > hi {
			bad("%s: %d is not within %d..%d", key, v, lo, hi)
		}
	}
	within("history_size", int64(d.HistorySize), 1, 10_000_000)
	within("history_bytes", d.HistoryBytes, 1<<10, 1<<50)
	within("recent", int64(d.Recent), 1, 100_000)
	within("replicas", int64(d.Replicas), 1, 5)
	within("max_message_bytes", int64(d.MaxMessageBytes), 1, maxMaxMessage)
	within("queue_messages", int64(d.QueueMessages), 1, 1_000_000)
	within("max_rate", int64(d.MaxRate), 0, 1_000_000)
	within("compress_min_bytes", int64(d.CompressMinBytes), 1, maxMaxMessage)
	within("queue_bytes", int64(d.QueueBytes), 1<<10, 1<<30)
	if d.QueueBytes < 2*d.MaxMessageBytes {
		bad("queue_bytes: %d must hold at least two messages of max_message_bytes (%d)", d.QueueBytes, d.MaxMessageBytes)
	}
	if err := d.checkPartitions(); err != nil {
		bad("%w", err)
	}
	if d.HistoryTTL < Duration(time.Second) {
		bad("history_ttl: %v is under 1s", d.HistoryTTL)
	}
	if d.IdempotencyWindow < Duration(100*time.Millisecond) || d.IdempotencyWindow > d.HistoryTTL {
		bad("idempotency_window: %v is not within 100ms..history_ttl (%v)", d.IdempotencyWindow, d.HistoryTTL)
	}
	return errors.Join(errs...)
}

func validNamespaceName(s string) bool {
	if s == "" || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// NamespaceOf returns the namespace part of a channel name. It allocates nothing.
func NamespaceOf(channel string) string {
	if i := strings.IndexByte(channel, ':'); i >= 0 {
		return channel[:i]
	}
	return DefaultNamespace
}

// CheckChannel returns ErrBadChannel, in words, for a name that no channel can
// have: empty, longer than MaxChannelName, not UTF-8, with a control character, a
// space or an empty or malformed namespace prefix.
func CheckChannel(channel string) error {
	switch {
	case channel == "":
		return fmt.Errorf("%w: it is empty", ErrBadChannel)
	case len(channel) > MaxChannelName:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrBadChannel, len(channel), MaxChannelName)
	}
	for i, r := range channel {
		if r <= ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == 0xfffd {
			return fmt.Errorf("%w: %.60q: control character, space or bad UTF-8 at byte %d", ErrBadChannel, channel, i)
		}
	}
	if i := strings.IndexByte(channel, ':'); i >= 0 && (!validNamespaceName(channel[:i]) || i == len(channel)-1) {
		return fmt.Errorf("%w: %.60q: want <namespace>:<name>", ErrBadChannel, channel)
	}
	return nil
}

// Duration is a time.Duration that reads and writes as text ("30s", "24h", "7d").
type Duration time.Duration

// String returns d as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes d as text.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads, and a number of days before it:
// "7d", "1d12h", "-0.5d". A day is 24 hours.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := parseDuration(string(b))
	if err != nil {
		return fmt.Errorf("invalid duration %.40q: want for example 30s, 5m, 24h or 7d", b)
	}
	*d = Duration(v)
	return nil
}

func parseDuration(s string) (time.Duration, error) {
	number, rest, ok := strings.Cut(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	days, err := time.ParseDuration(number + "h") // a day is 24 of these
	if err != nil {
		return 0, err
	}
	if days > math.MaxInt64/24 || days < math.MinInt64/24 {
		return 0, errors.New("out of range")
	}
	days *= 24
	if rest == "" {
		return days, nil
	}
	v, err := time.ParseDuration(rest)
	switch {
	case err != nil || rest[0] == '-' || rest[0] == '+':
		return 0, errors.New("want days, then smaller units")
	case strings.HasPrefix(number, "-"):
		v = -v
	}
	if sum := days + v; (sum < days) == (v < 0) {
		return sum, nil
	}
	return 0, errors.New("out of range")
}
