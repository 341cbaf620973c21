package judge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
)

// ParsePosition reads the wire form "<epoch>-<offset>.<check>".
func ParsePosition(token string) (p history.Position, ok bool) {
	epoch, rest, ok := strings.Cut(token, "-")
	if !ok || epoch == "" {
		return p, false
	}
	offset, _, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(offset, 10, 64)
	return history.Position{Epoch: epoch, Offset: n}, err == nil
}

// A Member is one subscriber of a Fleet and its side of the history.
type Member struct {
	Name     string
	Channels []string
	Stream   *history.Stream
	session  int // of the last event
	t        testing.TB
	fleet    *Fleet

	// Any goroutine.
	High atomic.Uint64 // the newest offset received
	Ups  atomic.Int64  // sessions accepted
	// Served are the sessions that were shown to be served, ServedAt when the last one was,
	// in Unix nanoseconds; counted by Sail.
	Served, ServedAt atomic.Int64
	// UpAt is when the last session was accepted, FirstAt when its first message or gap
	// came, in Unix nanoseconds; 0 before.
	UpAt, FirstAt atomic.Int64
	// Pongs are the answers to a script's pings.
	Pongs atomic.Int64
}

// On records an event. Events of one member come from one goroutine.
func (m *Member) On(e Event) {
	if e.Session != m.session {
		if m.session != 0 {
			m.Stream.Cut()
		}
		m.session = e.Session
		m.FirstAt.Store(time.Now().UnixNano())
	}
	switch e.Kind {
	case "message":
		channel := e.Channel
		if channel == "" {
			channel = m.Channels[0]
		}
		var payload string
		at, ok := ParsePosition(e.ID)
		if err := json.Unmarshal(e.Data, &payload); err != nil || !ok {
			m.t.Errorf("%s: message %q with id %q", m.Name, e.Data, e.ID)
			return
		}
		m.Stream.Received(channel, m.fleet.place(at), payload)
		if m.High.Load() < at.Offset {
			m.High.Store(at.Offset)
		}
	case "gap":
		var gap struct{ Namespace, From, To string }
		if err := json.Unmarshal(e.Data, &gap); err != nil {
			m.t.Errorf("%s: gap %q: %v", m.Name, e.Data, err)
			return
		}
		from, _ := ParsePosition(gap.From)
		to, _ := ParsePosition(gap.To)
		from, to = m.fleet.place(from), m.fleet.place(to)
		if from.Epoch != to.Epoch {
			m.High.Store(to.Offset) // offsets start anew
		}
		m.Stream.Gap(gap.Namespace, from, to)
	}
}

// A Fleet is a set of subscribers that resume through anything, from the
// beginning of the log, and the history that checks them.
type Fleet struct {
	Checker *history.Checker
	Members []*Member
	// Wait waits for the subscribers, which end when Cancel is called.
	Wait   sync.WaitGroup
	Cancel context.CancelFunc
	// Dial makes the subscribers' connections; nil means plain ones.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Continued reports that each epoch is to continue the one before with the same offsets, so
	// that no gap is expected between them.
	Continued bool
	// Single reports that each member of Sail follows one channel; otherwise one in ten follows all.
	Single bool

	ctx context.Context // of the subscribers
	// T is the test that the fleet is of.
	T testing.TB
}

// NewFleet returns one without members.
func NewFleet(t testing.TB, o history.Options) *Fleet {
	return &Fleet{T: t, Checker: history.New(o)}
}

// Member adds a subscriber.
func (f *Fleet) Member(name string, channels []string) *Member {
	m := &Member{Name: name, Channels: channels, Stream: f.Checker.Stream(name, channels, nil), t: f.T, fleet: f}
	f.Members = append(f.Members, m)
	return m
}

// place is a position as the history sees it: of one log, if each epoch continues the one before.
func (f *Fleet) place(p history.Position) history.Position {
	if f.Continued && p.Epoch != "" {
		p.Epoch = "log"
	}
	return p
}

// Sail starts n SSE and n WebSocket subscribers at addr; it may be called again. Most follow one
// channel, one in ten follows all of them, one SSE in ten requests envelopes.
func (f *Fleet) Sail(addr string, n int, channels []string) {
	if f.Cancel == nil {
		f.ctx, f.Cancel = context.WithCancel(context.Background())
		f.T.Cleanup(f.Land)
	}
	from := len(f.Members)
	for i := range 2 * n {
		socket := i%2 == 1
		mine := channels[i/2%len(channels) : i/2%len(channels)+1]
		if i/2%10 == 0 && !f.Single {
			mine = channels
		}
		m := f.Member(fmt.Sprintf("%s %d", map[bool]string{false: "sse", true: "websocket"}[socket], from+i), mine)
		s := &Subscriber{
			Addr: addr, Socket: socket, Envelope: i/2%10 == 1, Channels: mine, Last: "0",
			On: m.On, Up: func(int) { m.UpAt.Store(time.Now().UnixNano()); m.Ups.Add(1) }, Dial: f.Dial,
			Served: func(int) { m.ServedAt.Store(time.Now().UnixNano()); m.Served.Add(1) },
		}
		f.Wait.Go(func() {
			if err := s.Run(f.ctx); err != nil {
				f.T.Errorf("%s: %v", m.Name, err)
			}
		})
	}
}

// Land ends the subscribers. It may be called twice.
func (f *Fleet) Land() {
	f.Cancel()
	f.Wait.Wait()
}

// Connected counts the members that have had a session since the counts were
// returned by Sessions.
func (f *Fleet) Connected(since []int64) int {
	n := 0
	for i, m := range f.Members {
		if m.Ups.Load() > since[i] {
			n++
		}
	}
	return n
}

// Sessions are how many sessions each member has had.
func (f *Fleet) Sessions() []int64 {
	var all []int64
	for _, m := range f.Members {
		all = append(all, m.Ups.Load())
	}
	return all
}

// CaughtUp waits until every member has the newest acknowledged message of its
// channels, in the epoch of the last answer. It does not fail the test: the history shows what is missing.
func (f *Fleet) CaughtUp(acked []Acked, within time.Duration) {
	newest := map[string]uint64{}
	for _, a := range acked {
		if a.Epoch == acked[len(acked)-1].Epoch { // offsets start anew with each
			newest[a.Channel] = max(newest[a.Channel], a.Offset)
		}
	}
	deadline := time.After(within)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, m := range f.Members {
		var want uint64
		for _, channel := range m.Channels {
			want = max(want, newest[channel])
		}
		for m.High.Load() < want {
			select {
			case <-tick.C:
			case <-deadline:
				f.T.Logf("%s has offset %d of %d after %s", m.Name, m.High.Load(), want, within)
				return
			}
		}
	}
}

// Report is the verdict on everything that was published and received.
func (f *Fleet) Report(acked []Acked) *history.Report {
	for _, a := range acked {
		f.Checker.Published(a.Channel, f.place(history.Position{Epoch: a.Epoch, Offset: a.Offset}), a.Payload)
	}
	return f.Checker.Report()
}

// Judge fails the test if the history is wrong, or empty.
func (f *Fleet) Judge(acked []Acked) {
	f.T.Helper()
	report := f.Report(acked)
	f.T.Log(report)
	if !report.OK() {
		f.T.Error("the history is wrong")
	}
	if report.Received == 0 || report.Published == 0 {
		f.T.Error("there was nothing to check")
	}
}
