package simulate

import (
	"sort"
	"time"
)

// A ledger is what was really stored, by namespace and epoch. Streams are checked against it.
type ledger struct {
	spaces map[string]*space
	data   map[string]*entry // by payload: each is published once
	epochs map[string]*epoch // by the name on the wire
}

// A space is the log of a namespace through all its epochs.
type space struct {
	name   string
	keep   int           // messages retained per channel
	ttl    time.Duration // 0: messages do not expire
	window time.Duration // of idempotency keys
	epochs []*epoch
}

// An epoch is one life of a log.
type epoch struct {
	space  *space
	name   string
	number int
	list   []*entry // by offset
}

// An entry is a stored message.
type entry struct {
	epoch   *epoch
	channel string
	data    string
	offset  uint64
	prev    uint64 // offset of the channel's previous entry in the epoch; 0: there is none
	at      time.Time
	gone    bool // removed by retention
}

func newLedger() *ledger {
	return &ledger{spaces: map[string]*space{}, data: map[string]*entry{}, epochs: map[string]*epoch{}}
}

// begin starts an epoch of a namespace. One that is known already is returned.
func (l *ledger) begin(s *space, name string) *epoch {
	if e := l.epochs[name]; e != nil {
		return e
	}
	e := &epoch{space: s, name: name, number: len(s.epochs)}
	s.epochs = append(s.epochs, e)
	l.epochs[name] = e
	return e
}

// now is the current epoch.
func (s *space) now() *epoch { return s.epochs[len(s.epochs)-1] }

// last is the newest offset; 0: there is none.
func (e *epoch) last() uint64 {
	if len(e.list) == 0 {
		return 0
	}
	return e.list[len(e.list)-1].offset
}

// after returns the entries after offset.
func (e *epoch) after(offset uint64) []*entry {
	return e.list[sort.Search(len(e.list), func(i int) bool { return e.list[i].offset > offset }):]
}

// find returns the entry at offset, or nil.
func (e *epoch) find(offset uint64) *entry {
	if rest := e.after(offset - 1); offset > 0 && len(rest) > 0 && rest[0].offset == offset {
		return rest[0]
	}
	return nil
}

// add stores a message. It returns what is wrong with that, or nothing.
func (l *ledger) add(x *entry) string {
	e := x.epoch
	if other := e.find(x.offset); other != nil && other.data != x.data {
		return "two messages have one position: " + other.String() + " and " + x.String()
	}
	if first := l.data[x.data]; first != nil && first.epoch == e && x.at.Sub(first.at) < e.space.window {
		if first.offset == x.offset {
			return ""
		}
		return "a retry with its idempotency key was stored again: " + first.String() + " and " + x.String()
	}
	if x.offset <= e.last() {
		return "offsets do not rise: " + x.String()
	}
	for i := len(e.list) - 1; i >= 0 && x.prev == 0; i-- {
		if e.list[i].channel == x.channel {
			x.prev = e.list[i].offset
		}
	}
	e.list = append(e.list, x)
	l.data[x.data] = x
	return ""
}

// mayBeGone reports whether retention may have removed x by now.
func (x *entry) mayBeGone() bool {
	s := x.epoch.space
	if x.gone || s.ttl > 0 && time.Since(x.at) >= s.ttl {
		return true
	}
	newer := 0
	for _, y := range x.epoch.after(x.offset) {
		if y.channel == x.channel {
			newer++
		}
	}
	return newer >= s.keep
}

// String names an entry by what is the same in every run of a schedule.
func (x *entry) String() string {
	return x.data + " on " + x.channel + " at " + x.epoch.label() + "-" + itoa(x.offset)
}

// label is the epoch's name in traces: those on the wire may be random.
func (e *epoch) label() string { return e.space.name + "#" + itoa(uint64(e.number)) }
