package hub

import (
	"time"

	engine "github.com/weir-gateway/weir/internal/push/hub"
)

// DefaultNamespace holds the channels whose name has no namespace prefix.
const DefaultNamespace = engine.DefaultNamespace

// A Durability is what a publisher may rely on when Publish returned.
type Durability string

// The durabilities.
const (
	// None keeps no log: subscribers receive what is published while they are connected.
	None Durability = "none"
	// Stored messages are in the broker's log. It is the default.
	Stored Durability = "stored"
	// Synced messages are on disk on every replica needed. The memory broker refuses it.
	Synced Durability = "synced"
)

// A Policy is what happens when a client of hub/hubhttp reads more slowly than messages arrive and
// its queue is full.
type Policy string

// The policies.
const (
	// Disconnect closes the connection; the client resumes from the log. It is the default.
	Disconnect Policy = "disconnect"
	// DropOldest drops the oldest queued messages and reports a gap.
	DropOldest Policy = "drop-oldest"
	// Conflate keeps only the newest queued message of each key, at the bound as DropOldest.
	Conflate Policy = "conflate"
)

// A Namespace is a set of channels that share options and one log. Zero values mean the defaults.
type Namespace struct {
	// Name is 1 to 32 bytes of A-Z, a-z, 0-9, "_" and "-".
	Name string
	// Durability defaults to Stored.
	Durability Durability
	// HistorySize is the number of messages retained per channel, to 10,000,000; 0 means 1,000.
	HistorySize int
	// HistoryTTL is the age to which messages are retained; 0 means 24 hours.
	HistoryTTL time.Duration
	// HistoryBytes bounds the namespace's log; 0 means 1 GiB.
	HistoryBytes int64
	// Replicas of the log in a NATS cluster, 1 to 5; 0 means 1.
	Replicas int
	// BothSites acknowledges a publication when both sites of a nats.Broker with Sites have stored it.
	BothSites bool
	// Partitions divides the namespace into that many logs, 1 to 8; 0 means 1. It is fixed for
	// the life of the logs. Messages are in order within a partition.
	Partitions int
	// MaxMessageBytes bounds a payload, to 1 MiB; 0 means 64 KiB.
	MaxMessageBytes int
	// IdempotencyWindow is how long an idempotency key is remembered; 0 means 2 minutes.
	IdempotencyWindow time.Duration
	// Policy defaults to Disconnect.
	Policy Policy
	// MaxRate bounds the messages per second sent to a client of hub/hubhttp; 0 means no bound.
	MaxRate int
	// QueueMessages and QueueBytes bound the queue of a client of hub/hubhttp; 0 means 1,024 and
	// 256 KiB.
	QueueMessages, QueueBytes int
	// Compress enables compression for clients that accept it, for payloads from
	// CompressMinBytes on; 0 means 256.
	Compress         bool
	CompressMinBytes int
	// Anonymous lets clients without credentials subscribe through hub/hubhttp.
	Anonymous bool
}

func (n Namespace) engine() engine.Namespace {
	return engine.Namespace{
		Name: n.Name, Durability: engine.Durability(n.Durability), HistorySize: n.HistorySize, HistoryTTL: engine.Duration(n.HistoryTTL),
		HistoryBytes: n.HistoryBytes, Replicas: n.Replicas, Partitions: n.Partitions, BothSites: n.BothSites, MaxMessageBytes: n.MaxMessageBytes, IdempotencyWindow: engine.Duration(n.IdempotencyWindow),
		Policy: engine.Policy(n.Policy), MaxRate: n.MaxRate, QueueMessages: n.QueueMessages, QueueBytes: n.QueueBytes,
		Compress: n.Compress, CompressMinBytes: n.CompressMinBytes, Anonymous: n.Anonymous,
	}
}
