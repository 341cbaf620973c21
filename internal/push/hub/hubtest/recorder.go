package hubtest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A Recorder is the deliver function of a test: it keeps what arrives and fails
// the test when a namespace is delivered by two goroutines at once, out of
// order, twice, or after the recorder's end.
type Recorder struct {
	t    *testing.T
	over atomic.Bool

	mu       sync.Mutex
	changed  *sync.Cond
	messages map[string][]*hub.Message // by channel
	busy     map[string]*atomic.Bool   // by namespace
	last     map[string]hub.Position   // by namespace
}

// NewRecorder returns an empty one.
func NewRecorder(t *testing.T) *Recorder {
	r := &Recorder{
		t:        t,
		messages: map[string][]*hub.Message{},
		busy:     map[string]*atomic.Bool{},
		last:     map[string]hub.Position{},
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
	if last := r.last[ns]; m.Offset != 0 && m.Epoch == last.Epoch && m.Offset <= last.Offset {
		r.t.Errorf("namespace %q: offset %d (%q) delivered after %d", ns, m.Offset, m.Channel, last.Offset)
	}
	if m.Offset == 0 != (m.Epoch == "") {
		r.t.Errorf("%q: epoch %q with offset %d", m.Channel, m.Epoch, m.Offset)
	}
	r.last[ns] = m.Position()
	r.messages[m.Channel] = append(r.messages[m.Channel], m)
	r.changed.Broadcast()
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
