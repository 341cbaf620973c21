// Package history checks what a set of subscribers saw against what publishers
// were promised: nothing lost, repeated, reordered, altered or invented, and
// every hole reported.
//
// A test reports to the [Checker] each acknowledged publication and, per subscriber,
// each event, cut and gap notice, in the order that subscriber saw them; the
// order between publishers and subscribers does not matter, since an event may
// well overtake its own acknowledgement. [Checker.Report] gives the verdict.
//
// What costs memory is one entry per message and one bit per message and
// stream: 400 streams of 100,000 messages are evaluated in a few megabytes.
package history

import (
	"fmt"
	"strings"
	"sync"
)

// A Position is a place in a namespace's log.
type Position struct {
	Epoch  string
	Offset uint64
}

// String returns the position as it is written on the wire.
func (p Position) String() string { return fmt.Sprintf("%s-%d", p.Epoch, p.Offset) }

// A Kind is a class of fault.
type Kind uint8

// The faults.
const (
	// Lost: a message that was stored, lies in the stream's range and never came.
	Lost Kind = iota
	// Hole: a run of lost messages between two that came, or at an end. It says
	// how often a stream broke, where Lost says how much it missed.
	Hole
	// Repeated: a message that came again where it must not, or that is stored twice.
	Repeated
	// Reordered: a message that came after a later one.
	Reordered
	// Corrupted: an event at a known position with another payload.
	Corrupted
	// WrongChannel: an event on a channel that is not the message's, or that the
	// stream has not subscribed to.
	WrongChannel
	// Phantom: an event that was never published.
	Phantom
	// Epoch: a new log that no gap notice announced, a return to an old one, or a
	// position without epoch or offset.
	Epoch
	// Gap: a gap notice that gave up messages of a log that still lived, although
	// Options.NoGaps reports that nothing could expire.
	Gap
	numKinds
)

var kindNames = [numKinds]string{
	"lost", "hole", "repeated", "reordered", "corrupted", "wrong channel", "phantom", "epoch", "unexplained gap",
}

// String returns the kind in words.
func (k Kind) String() string { return kindNames[k] }

// Options say what a stream may do. The zero value allows what at-least-once
// delivery allows and trusts gap notices.
type Options struct {
	// ExactlyOnce makes any repeat a fault. Otherwise a stream may, after a cut,
	// begin again with messages it already had.
	ExactlyOnce bool
	// NoGaps makes a gap notice a fault if it gives up a message without a change
	// of epoch: for tests whose history is wide enough to keep everything.
	NoGaps bool
	// ByChannel requires the order of the log within each channel only: a stream of several channels may
	// receive a message behind a later one of another channel, as it does where a live message was
	// lost between two servers and had to be read from the log.
	ByChannel bool
}

// A Checker collects a history. Its methods may be called from any goroutine;
// those of one Stream from one goroutine at a time.
type Checker struct {
	opts Options

	mu       sync.Mutex
	channels map[string]int32
	names    []string // of channels, by number
	spaces   map[string]*space
	placed   map[string]place // payload id → where it is stored
	unknown  map[string]int32 // payload id → channel of publications without an answer
	streams  []*Stream
	acked    int
	tally    tally // faults of the log itself, not of a stream
}

// New returns an empty Checker.
func New(opts Options) *Checker {
	return &Checker{
		opts:     opts,
		channels: make(map[string]int32),
		spaces:   make(map[string]*space),
		placed:   make(map[string]place),
		unknown:  make(map[string]int32),
	}
}

type place struct {
	log    *log
	offset uint64
}

func (p place) String() string { return Position{p.log.epoch, p.offset}.String() }

// A space is a namespace: its logs in the order in which they first appeared.
type space struct {
	name string
	logs []*log
}

func (sp *space) last() int { return len(sp.logs) - 1 }

// Published records an acknowledged publication. The id names the payload and is
// unique over the test; a retry that got the same answer may be recorded again.
func (c *Checker) Published(channel string, at Position, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acked++
	if at.Epoch == "" || at.Offset == 0 {
		c.tally.add(Epoch, func() string { return fmt.Sprintf("publication %q was answered with position %v", id, at) })
		return
	}
	ch := c.channel(channel)
	l := c.log(namespaceOf(channel), at.Epoch)
	here := place{l, at.Offset}
	if first, ok := c.placed[id]; ok && first != here {
		c.tally.add(Repeated, func() string { return fmt.Sprintf("%q is stored at %v and at %v", id, first, at) })
	} else {
		c.placed[id] = here
	}
	if other, ok := l.settle(at.Offset, ch, id); !ok {
		c.tally.add(Corrupted, func() string {
			return fmt.Sprintf("%v was answered to both %q and %q", at, other, id)
		})
	}
}

// Unanswered records a publication whose outcome is not known: it may be stored
// once or not at all. If it was retried and then answered, Published settles it.
func (c *Checker) Unanswered(channel, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown[id] = c.channel(channel)
}

// Stream starts a subscriber of channels. For each namespace of these, from says
// where it starts: it must get everything after that position. A namespace that
// from does not name starts at the beginning of the log that is current then.
//
// A subscriber of live messages gives the position of its first checkpoint.
func (c *Checker) Stream(name string, channels []string, from map[string]Position) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &Stream{c: c, name: name, channels: make(map[string]subscription), views: make(map[string]*view)}
	for _, channel := range channels {
		ns := namespaceOf(channel)
		v := s.views[ns]
		if v == nil {
			v = c.view(ns, from[ns])
			s.views[ns] = v
		}
		s.channels[channel] = subscription{c.channel(channel), v}
	}
	c.streams = append(c.streams, s)
	return s
}

func (c *Checker) view(ns string, from Position) *view {
	v := &view{space: c.space(ns)}
	if from.Epoch == "" {
		v.first = max(v.space.last(), 0)
		return v
	}
	v.cur = v.segment(c.log(ns, from.Epoch))
	v.cur.from, v.cur.high = from.Offset, from.Offset
	v.first = v.cur.log.index
	v.fixed = true
	return v
}

// channel numbers a name. The caller holds mu; so for space and log.
func (c *Checker) channel(name string) int32 {
	n, ok := c.channels[name]
	if !ok {
		n = int32(len(c.names))
		c.channels[name] = n
		c.names = append(c.names, name)
	}
	return n
}

func (c *Checker) space(name string) *space {
	sp := c.spaces[name]
	if sp == nil {
		sp = &space{name: name}
		c.spaces[name] = sp
	}
	return sp
}

func (c *Checker) log(ns, epoch string) *log {
	sp := c.space(ns)
	for _, l := range sp.logs {
		if l.epoch == epoch {
			return l
		}
	}
	l := &log{epoch: epoch, index: len(sp.logs), pages: make(map[uint64]*page)}
	sp.logs = append(sp.logs, l)
	return l
}

// namespaceOf follows the hub: what is before the first colon.
func namespaceOf(channel string) string {
	if ns, _, ok := strings.Cut(channel, ":"); ok {
		return ns
	}
	return "default"
}
