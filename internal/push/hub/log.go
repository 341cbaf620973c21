package hub

import (
	"slices"
	"sync"
	"sync/atomic"
)

// namespace is a Namespace in use, or one partition of it, with what this node knows
// of its log.
type namespace struct {
	name string // immutable
	// opts are its options now; immutable.
	opts atomic.Pointer[Namespace]

	// whole is the channel of everything while it has subscribers here, nil otherwise.
	// Changed under the lock of its part of the table.
	whole atomic.Pointer[channel]

	// continues is Continuer.Continues; nil if the broker has none. Fixed.
	continues func(ns *Namespace, epoch string) []Position

	mu sync.Mutex
	// from has, of the current epoch and of those in over, the epochs that each continues, with their last
	// offsets. A shard may come to an epoch when a later one is known already.
	from map[string][]Position
	// top is the newest position delivered by the broker or returned in an answer;
	// its epoch is the current one.
	top Position
	// delivered is the newest offset delivered in that epoch: every older message
	// of every active channel has come through deliver, but for late ones.
	delivered uint64
	// over are the epochs that came before, oldest first; forgotten counts those
	// that fell out at the bound.
	over      []string
	forgotten int
	// late are messages of this epoch that came after later ones, or are missing. Of untold
	// the other nodes are to be notified, which telling says is under way.
	late, untold []lateMessage
	telling      bool
	// looking reports that Top is under way, asking who waits for the next answer.
	looking bool
	asking  []func(Position, error)
	// proven are positions of this epoch that the broker has proved, up to maxProven.
	// proving are those that it was queried about, and who waits for the answer.
	proven  map[Position]bool
	proving map[Position][]func(Check, error)
}

func newNamespace(opts Namespace, broker Broker) *namespace {
	n := &namespace{name: opts.Name}
	if c, ok := broker.(Continuer); ok {
		n.continues = c.Continues
	}
	n.opts.Store(&opts)
	return n
}

// options are the namespace's options now.
func (n *namespace) options() *Namespace { return n.opts.Load() }

const (
	maxOver = 64 // epochs remembered as over

	maxProven = 1024 // proved positions remembered
)

// learn takes note of at, which the broker answered to a question asked when the
// current epoch was before. It returns false for an answer that is, or may be,
// older than what is known by now: the question must be queried again. began is
// true when at starts another epoch: table.restart must be called.
func (n *namespace) learn(before string, at Position) (known, began bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case at.Epoch == "":
		return true, false // it keeps no log
	case at.Epoch == n.top.Epoch:
		n.top.Offset = max(n.top.Offset, at.Offset)
		return true, false
	case n.top.Epoch != before || slices.Contains(n.over, at.Epoch):
		return false, false
	}
	return true, n.begin(at)
}

// accept is learn for a message that the broker delivers. It returns false for
// one of an epoch that is over.
func (n *namespace) accept(m *Message, late *bool) (ok, began bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.Epoch == n.top.Epoch {
		*late = m.Offset < n.delivered
		return true, false
	}
	if slices.Contains(n.over, m.Epoch) {
		return false, false
	}
	return true, n.begin(Position{Epoch: m.Epoch})
}

// begin makes the epoch of at the current one. n.mu is held.
func (n *namespace) begin(at Position) (again bool) {
	if again = n.top.Epoch != ""; again {
		if len(n.over) == maxOver {
			delete(n.from, n.over[0])
			n.over = slices.Delete(n.over, 0, 1)
			n.forgotten++
		}
		n.over = append(n.over, n.top.Epoch)
	}
	n.top, n.delivered, n.late, n.untold, n.proven = at, 0, nil, nil, nil
	if n.continues != nil {
		if from := n.continues(n.options(), at.Epoch); len(from) > 0 {
			if n.from == nil {
				n.from = map[string][]Position{}
			}
			n.from[at.Epoch] = from
		}
	}
	return again
}

// carriesOn returns up to which offset epoch, the current one or one that is over, has the same
// messages as old had. If it does not continue old, that is the last offset of those that it continues, after
// which its own messages are; 0 for none.
func (n *namespace) carriesOn(old, epoch string) (upTo uint64, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.from[epoch] {
		if p.Epoch == old {
			return p.Offset, true
		}
		upTo = max(upTo, p.Offset)
	}
	return upTo, false
}

// carry returns p as a position of epoch, if it is one of an epoch that this one continues.
func (n *namespace) carry(p Position, epoch string) Position {
	if p.Epoch == epoch {
		return p
	}
	if upTo, ok := n.carriesOn(p.Epoch, epoch); ok && p.Offset <= upTo {
		p.Epoch = epoch
	}
	return p
}

// passed notes that everything up to p was delivered.
func (n *namespace) passed(p Position) {
	n.mu.Lock()
	if n.top.Epoch == p.Epoch {
		n.delivered = max(n.delivered, p.Offset)
		n.top.Offset = max(n.top.Offset, p.Offset)
	}
	n.mu.Unlock()
}

// position returns the newest known position.
func (n *namespace) position() Position {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.top
}

// knows reports whether p is in the current epoch and not past what is known of it.
func (n *namespace) knows(p Position) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.top.Epoch == p.Epoch && p.Offset <= n.top.Offset
}

// isOver reports whether another epoch is known to have come after epoch.
func (n *namespace) isOver(epoch string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.over, epoch)
}

// rank orders the epochs: a later one has a higher rank, an unknown one 0.
func (n *namespace) rank(epoch string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if epoch == n.top.Epoch {
		return n.forgotten + len(n.over) + 1
	}
	if i := slices.Index(n.over, epoch); i >= 0 {
		return n.forgotten + i + 1
	}
	return 0
}

// hasDelivered reports whether everything up to p came through deliver.
func (n *namespace) hasDelivered(p Position) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.top.Epoch == p.Epoch && n.delivered >= p.Offset
}
