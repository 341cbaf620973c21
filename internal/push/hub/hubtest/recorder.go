package hubtest

import (
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A Recorder is the deliver function of a test: it keeps what arrives and fails
// the test when a namespace is delivered by two goroutines at once, out of
// order, twice, or after the recorder's end, and when a message's predecessor was neither
// delivered nor reported missing before.
type Recorder struct {
	t    *testing.T
	over atomic.Bool

	mu       sync.Mutex
	changed  *sync.Cond
	messages map[string][]*hub.Message // by channel
	busy     map[string]*atomic.Bool   // by namespace
	last     map[string]hub.Position   // by namespace
	missing  map[string][]*hub.Message // by channel
	late     bool                      // messages may come after later ones of other channels
	// complete is where each channel is: all up to there was delivered or reported missing.
	// While it is not subscribed, as absent says, that is not known.
	complete map[string]hub.Position
	absent   map[string]bool
}

// NewRecorder returns an empty one.
func NewRecorder(t *testing.T) *Recorder {
	r := &Recorder{
		t:        t,
		messages: map[string][]*hub.Message{},
		busy:     map[string]*atomic.Bool{},
		last:     map[string]hub.Position{},
		missing:  map[string][]*hub.Message{},
		complete: map[string]hub.Position{},
		absent:   map[string]bool{},
	}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// Deliver is for hub.Broker's Start.
func (r *Recorder) Deliver(m *hub.Message) {
	ns := hub.NamespaceOf(m.Channel)
	r.mu.Lock()
	busy := r.busy[ns]
	if busy == nil {
		busy = new(atomic.Bool)
		r.busy[ns] = busy
	}
	r.mu.Unlock()
	if busy.Swap(true) {
		r.t.Errorf("namespace %q: delivered by two goroutines at once", ns)
	}
	defer busy.Store(false)
	if r.over.Load() {
		r.t.Errorf("%q offset %d: delivered after the end", m.Channel, m.Offset)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed.Broadcast()
	defer func() { r.complete[m.Channel] = m.Position() }()
	if r.chain(m); m.Missing {
		r.missing[m.Channel] = append(r.missing[m.Channel], m)
		return
	}
	last := r.last[ns]
	if r.late {
		last = r.complete[m.Channel]
	}
	if m.Offset != 0 && m.Epoch == last.Epoch && m.Offset <= last.Offset {
		r.t.Errorf("namespace %q: offset %d (%q) delivered after %d", ns, m.Offset, m.Channel, last.Offset)
	}
	if m.Offset == 0 != (m.Epoch == "") {
		r.t.Errorf("%q: epoch %q with offset %d", m.Channel, m.Epoch, m.Offset)
	}
	r.last[ns] = m.Position()
	r.messages[m.Channel] = append(r.messages[m.Channel], m)
}

// chain checks that all before m was delivered, or reported missing. r.mu is held.
func (r *Recorder) chain(m *hub.Message) {
	if m.Offset == 0 || r.absent[m.Channel] || r.absent[hub.Whole(hub.NamespaceOf(m.Channel))] {
		return
	}
	at, known := r.complete[m.Channel]
	if whole := r.complete[hub.Whole(hub.NamespaceOf(m.Channel))]; whole.Epoch == m.Epoch && at.Epoch == m.Epoch {
		at.Offset = max(at.Offset, whole.Offset)
	}
	switch {
	case m.Missing && known && at.Epoch == m.Epoch && m.Offset <= at.Offset:
		r.t.Errorf("%q: reported missing up to %d, and was complete up to %d", m.Channel, m.Offset, at.Offset)
	case !m.Missing && known && at.Epoch == m.Epoch && m.Prev > at.Offset:
		r.t.Errorf("%q: offset %d comes after %d, and %d was neither delivered nor reported missing", m.Channel, m.Offset, at.Offset, m.Prev)
	}
}

// AllowLate lets messages come after later ones of other channels, as those do that were lost
// on the way.
func (r *Recorder) AllowLate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = true
}

// leave notes that what comes on channel need not be all.
func (r *Recorder) leave(channel string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.absent[channel] = true
}

// join notes that all of channel comes that is stored after top.
func (r *Recorder) join(channel string, top hub.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.absent, channel)
	if hub.IsWhole(channel) {
		maps.DeleteFunc(r.complete, func(name string, _ hub.Position) bool { return hub.Whole(hub.NamespaceOf(name)) == channel })
	}
	if at := r.complete[channel]; at.Epoch != top.Epoch || at.Offset < top.Offset {
		r.complete[channel] = top
	}
}

// MissingOn returns what was reported missing on channel.
func (r *Recorder) MissingOn(channel string) []*hub.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*hub.Message(nil), r.missing[channel]...)
}

// End makes every later delivery a failure.
func (r *Recorder) End() { r.over.Store(true) }

// On returns what has arrived on channel.
func (r *Recorder) On(channel string) []*hub.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*hub.Message(nil), r.messages[channel]...)
}

// Wait blocks until ok, which is called with the recorder locked and again after
// every arrival, and fails the test after patience.
func (r *Recorder) Wait(patience time.Duration, what string, ok func() bool) {
	r.t.Helper()
	var late atomic.Bool
	timer := time.AfterFunc(patience, func() {
		late.Store(true)
		r.mu.Lock()
		r.changed.Broadcast()
		r.mu.Unlock()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() {
		if late.Load() {
			r.t.Fatalf("waited %v for %s", patience, what)
		}
		r.changed.Wait()
	}
}

// Until polls ok, for what no delivery announces, and fails the test after patience.
func Until(t *testing.T, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	trial.Within(t, patience, what, ok)
}
