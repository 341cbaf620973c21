package hub

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Errors a Broker or a Hub answers with. Test with errors.Is.
var (
	ErrClosed           = errors.New("closed")
	ErrUnavailable      = errors.New("broker unavailable")   // try again later: HTTP 503
	ErrOverloaded       = errors.New("overloaded")           // a queue is at its bound: HTTP 503
	ErrStorageFull      = errors.New("storage full")         // HTTP 507
	ErrUnknownNamespace = errors.New("unknown namespace")    // HTTP 404
	ErrBadChannel       = errors.New("bad channel name")     // HTTP 400
	ErrTooLarge         = errors.New("message is too large") // HTTP 413
	ErrNoMessage        = errors.New("no such message")      // HTTP 404
	ErrBadAttributes    = errors.New("bad attributes")       // HTTP 400
	ErrBadEpoch         = errors.New("position of another epoch")
	ErrConflict         = errors.New("another message came first")
)

// An UncertainError is the answer to a publish of which it is not known whether the
// message is stored. All other errors mean that it is not.
type UncertainError struct {
	// Key makes a retry harmless, as Publication.IdempotencyKey with the same Publisher:
	// the publication's own one, or one that the broker gave it. Empty means none.
	Key string
	Err error
}

// Error returns the cause.
func (e *UncertainError) Error() string {
	return "it is not known whether the message is stored: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *UncertainError) Unwrap() error { return e.Err }

// A Broker stores messages, numbers them and brings them to every node.
// Implementations are in broker/; hub/hubtest is the suite they pass.
//
// All methods may be called from any goroutine. Publish must not block; the
// others may and are never called from an event loop.
type Broker interface {
	// Start connects, creates what the namespaces need and starts delivery.
	// For one namespace, deliver is called by one goroutine at a time and with
	// rising offsets; it does not keep its caller waiting beyond a bounded queue.
	//
	// A message that was found missing may come late, after later ones of other
	// channels, but not after one of its own. What cannot be delivered is reported by a
	// Message with Missing, at once when that is known: before the next message of the
	// channel, and before whatever else of the namespace was not delivered yet. A stream of
	// several channels has one position, and a later message of another channel takes it past
	// what is missing: the fewer do that the better. The hub sends a gap to those that were
	// taken past it before, now or when they resume. A Prev that was not delivered reports
	// the same, of a broker that does not find it out earlier. With Damaged as well it reports
	// that messages cannot be read any more which Snapshots and Pages may have left out.
	//
	// When the log starts anew, with a new epoch, every message of the new epoch
	// arrives on the channels that are subscribed. An epoch that is over never
	// comes back: deliver starts none that was over when a method was called that
	// has answered since. What is on its way of the one before may still arrive.
	// Start returns once the broker can publish.
	Start(ctx context.Context, namespaces []Namespace, deliver func(*Message)) error

	// Publish stores p as the namespace's durability promises and then calls done
	// exactly once, from any goroutine, possibly before Publish returns.
	// At a full queue done gets ErrOverloaded, without storage ErrUnavailable,
	// when the disk is full ErrStorageFull. After an UncertainError the message
	// may or may not have been stored: an idempotency key makes the retry safe. After
	// any other it was not. Keys are looked up
	// by Publication.KeyID. Whether the message that has the key is the same is evaluated
	// by Publication.ContentID while that message is retained, on every node and after
	// a restart; one that retention has removed may be taken to be the same.
	Publish(ns *Namespace, p Publication, done func(Position, error))

	// Subscribe makes every message of channel stored after the returned
	// Snapshot.Top arrive at deliver, and returns the newest messages up to tail
	// that were stored until then. Messages up to Top may arrive as well: the hub
	// drops them by offset. Subscribing twice is an error of the caller.
	//
	// Whole(ns.Name) subscribes to every channel of the namespace, those included
	// that come to be later, and may be subscribed beside channels of it: a message
	// is delivered once all the same. Its history is that of all channels together,
	// and its FirstRetained the highest of theirs.
	Subscribe(ctx context.Context, ns *Namespace, channel string, tail int) (Snapshot, error)

	// Unsubscribe ends delivery of channel.
	Unsubscribe(ns *Namespace, channel string)

	// History returns up to limit messages of channel with offset > since, oldest
	// first. Here, in Top and in Subscribe the answer is taken after the call began.
	History(ctx context.Context, ns *Namespace, channel string, since uint64, limit int) (Page, error)

	// Prove returns p.Check if it is one of the message at p.Offset, of whichever kind,
	// and otherwise the check that the message is delivered with. Of one that was removed
	// it returns p.Check, unless a message that is retained up to there was stored after
	// it. It returns 0 for another epoch, past the end of the log, and if the broker's
	// messages have no checks.
	Prove(ctx context.Context, ns *Namespace, p Position) (Check, error)

	// Top returns the namespace's current epoch and last offset.
	Top(ctx context.Context, ns *Namespace) (Position, error)

	// Ready returns nil while publishing is expected to work. It does not block.
	Ready() error

	// Close stops delivery, answers what is pending with ErrClosed and releases
	// everything. It is idempotent.
	Close() error
}

// An Opener is a Broker that may be the only one to serve its logs.
type Opener interface {
	// Opened returns when the broker opened logs that are older and that no other process
	// serves meanwhile: whatever was seen of them by clients of an earlier process was
	// stored before. The zero Time means that nothing is known of that.
	Opened() time.Time
}

// A Resumer is a Broker that reads less, or less often, if it knows where subscribers resume.
type Resumer interface {
	// SubscribeSince is Broker.Subscribe for a subscriber that resumes from since, with the positions of
	// other logs among them. It changes only what the Snapshot holds: that need not be the newest tail messages if
	// all that are after the position of ns are there.
	SubscribeSince(ctx context.Context, ns *Namespace, channel string, tail int, since Positions) (Snapshot, error)
}

// A Continuer is a Broker whose logs may continue in another epoch with the offsets that they
// have: the servers of another site took over with a complete copy.
type Continuer interface {
	// Continues returns the epochs that the log of ns continues in epoch, each with its last
	// offset: up to there both have the same messages, and positions are worth the same. It
	// does not block.
	Continues(ns *Namespace, epoch string) []Position
}

// A Snapshot is a channel currently its delivery began.
type Snapshot struct {
	// Top is the namespace's position at that time. Top.Offset is 0 for an
	// empty log and for a namespace without one (then Epoch is empty too). Its Check
	// is that of the message there, if the broker knows it.
	Top Position
	// Messages are the channel's newest, oldest first, all with Offset <= Top.Offset.
	Messages []*Message
	// Floor is such that Messages holds every retained message of the channel
	// with offset > Floor: 0 if all of them are there.
	Floor uint64
	// FirstRetained has the meaning of Page.FirstRetained, but 0 means that it is
	// not known: the hub then requests History where it matters.
	FirstRetained uint64
	// Handle is whatever spares the broker looking the channel up: publications to
	// it carry it from now on, until Unsubscribe and shortly after. May be nil.
	Handle any
}

// A Page is a stretch of a channel's log.
type Page struct {
	// Epoch the page was read in.
	Epoch string
	// Messages oldest first.
	Messages []*Message
	// Covered is how far the page reaches: every retained message of the channel
	// with since < offset <= Covered is in Messages. Without further messages it
	// is the top of the log at the time of reading.
	Covered uint64
	// FirstRetained is such that all of the channel's messages with offset >=
	// FirstRetained are still there; retention may have removed older ones. A
	// reader that continues from since < FirstRetained-1 may have missed some.
	// 0 or 1 means nothing of the channel was ever removed.
	FirstRetained uint64
}

// Durability reports what an answered publish survives.
type Durability string

const (
	// None fans out and stores nothing: no offsets, no resume.
	None Durability = "none"
	// Stored survives the end of the process (kill -9), not of the machine.
	Stored Durability = "stored"
	// Synced is on disk (fsync) before the answer: it survives the power.
	Synced Durability = "synced"
)

// Whole returns the name that means all channels of a namespace at once, in
// SubscribeOptions.Channels, Broker.Subscribe, Broker.Unsubscribe and Broker.History.
// It is not a channel: CheckChannel refuses it, and nothing can be published on it.
func Whole(namespace string) string { return namespace + ":" }

// IsWhole reports whether name is what Whole returns for some namespace.
func IsWhole(name string) bool {
	return len(name) > 1 && strings.IndexByte(name, ':') == len(name)-1
}

// Never is the newest offset of no channel: see Archive.PublishAfter.
const Never = 1 << 62

// An Archive is the part of a Broker that protocols need beyond publish and resume.
type Archive interface {
	// Lookup returns the position of the earliest retained message of the namespace
	// whose Attributes.ID is id, or ErrNoMessage. It is exact at any size of the log:
	// the answer takes in everything that was stored before the call began.
	Lookup(ctx context.Context, ns *Namespace, id string) (Position, error)
	// Remove deletes what is retained of channel. Readers of it get a gap event.
	Remove(ctx context.Context, ns *Namespace, channel string) error
	// PublishAfter is Broker.Publish for a publication that is stored only if newest is
	// the offset of the newest retained message of its channel, 0 if there is none;
	// otherwise done gets ErrConflict. It is for namespaces that keep a log. With Never
	// nothing is stored: done gets what p.IdempotencyKey says, or ErrConflict if it is new.
	PublishAfter(ns *Namespace, p Publication, newest uint64, done func(Position, error))
	// Bus connects the nodes; never nil once started.
	Bus() Bus
}
