package e2e

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
	"github.com/weir-gateway/weir/test/judge"
)

// position reads the wire form "<epoch>-<offset>.<check>".
func position(token string) (p history.Position, ok bool) {
	epoch, rest, ok := strings.Cut(token, "-")
	if !ok || epoch == "" {
		return p, false
	}
	offset, _, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(offset, 10, 64)
	return history.Position{Epoch: epoch, Offset: n}, err == nil
}

// A member is one subscriber of a fleet and its side of the history.
type member struct {
	name     string
	channels []string
	stream   *history.Stream
	session  int // of the last event
	t        testing.TB

	// Any goroutine.
	high atomic.Uint64 // the newest offset received
	ups  atomic.Int64  // sessions accepted
	// pongs are the answers to a script's pings.
	pongs atomic.Int64
}

// on records an event. Events of one member come from one goroutine.
func (m *member) on(e judge.Event) {
	if e.Session != m.session {
		if m.session != 0 {
			m.stream.Cut()
		}
		m.session = e.Session
	}
	switch e.Kind {
	case "message":
		channel := e.Channel
		if channel == "" {
			channel = m.channels[0]
		}
		var payload string
		at, ok := position(e.ID)
		if err := json.Unmarshal(e.Data, &payload); err != nil || !ok {
			m.t.Errorf("%s: message %q with id %q", m.name, e.Data, e.ID)
			return
		}
		m.stream.Received(channel, at, payload)
		if m.high.Load() < at.Offset {
			m.high.Store(at.Offset)
		}
	case "gap":
		var gap struct{ Namespace, From, To string }
		if err := json.Unmarshal(e.Data, &gap); err != nil {
			m.t.Errorf("%s: gap %q: %v", m.name, e.Data, err)
			return
		}
		from, _ := position(gap.From)
		to, _ := position(gap.To)
		m.stream.Gap(gap.Namespace, from, to)
	}
}

// A fleet is a set of subscribers that resume through anything, from the
// beginning of the log, and the history that judges them.
type fleet struct {
	t       testing.TB
	checker *history.Checker
	members []*member
	wg      sync.WaitGroup
	ctx     context.Context // of the subscribers
	cancel  context.CancelFunc
	dial    func(ctx context.Context, addr string) (net.Conn, error) // nil: plain connections
}

func newFleet(t testing.TB) *fleet {
	return &fleet{t: t, checker: history.New(history.Options{ExactlyOnce: true, NoGaps: true})}
}

func (f *fleet) member(name string, channels []string) *member {
	m := &member{name: name, channels: channels, stream: f.checker.Stream(name, channels, nil), t: f.t}
	f.members = append(f.members, m)
	return m
}

// sail starts n SSE and n WebSocket subscribers at addr; it may be called again. Most follow one
// channel, one in ten follows all of them, one SSE in ten asks for envelopes.
func (f *fleet) sail(addr string, n int, channels []string) {
	if f.cancel == nil {
		f.ctx, f.cancel = context.WithCancel(context.Background())
		f.t.Cleanup(f.land)
	}
	from := len(f.members)
	for i := range 2 * n {
		socket := i%2 == 1
		mine := channels[i/2%len(channels) : i/2%len(channels)+1]
		if i/2%10 == 0 {
			mine = channels
		}
		m := f.member(fmt.Sprintf("%s %d", map[bool]string{false: "sse", true: "websocket"}[socket], from+i), mine)
		s := &judge.Subscriber{
			Addr: addr, Socket: socket, Envelope: i/2%10 == 1, Channels: mine, Last: "0",
			On: m.on, Up: func(int) { m.ups.Add(1) }, Dial: f.dial,
		}
		f.wg.Go(func() {
			if err := s.Run(f.ctx); err != nil {
				f.t.Errorf("%s: %v", m.name, err)
			}
		})
	}
}

// land ends the subscribers. It may be called twice.
func (f *fleet) land() {
	f.cancel()
	f.wg.Wait()
}

// connected counts the members that have had a session since the counts were
// taken with sessions.
func (f *fleet) connected(since []int64) int {
	n := 0
	for i, m := range f.members {
		if m.ups.Load() > since[i] {
			n++
		}
	}
	return n
}

func (f *fleet) sessions() []int64 {
	var all []int64
	for _, m := range f.members {
		all = append(all, m.ups.Load())
	}
	return all
}

// caughtUp waits until every member has the newest acknowledged message of its
// channels. It does not fail the test: the history will say what is missing.
func (f *fleet) caughtUp(acked []judge.Acked, within time.Duration) {
	newest := map[string]uint64{}
	for _, a := range acked {
		newest[a.Channel] = max(newest[a.Channel], a.Offset)
	}
	deadline := time.After(within)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, m := range f.members {
		var want uint64
		for _, channel := range m.channels {
			want = max(want, newest[channel])
		}
		for m.high.Load() < want {
			select {
			case <-tick.C:
			case <-deadline:
				f.t.Logf("%s has offset %d of %d after %s", m.name, m.high.Load(), want, within)
				return
			}
		}
	}
}

// judge gives the verdict on everything that was published and received.
func (f *fleet) judge(acked []judge.Acked) {
	f.t.Helper()
	for _, a := range acked {
		f.checker.Published(a.Channel, history.Position{Epoch: a.Epoch, Offset: a.Offset}, a.Payload)
	}
	report := f.checker.Report()
	f.t.Log(report)
	if !report.OK() {
		f.t.Error("the history is wrong")
	}
	if report.Received == 0 || report.Published == 0 {
		f.t.Error("there was nothing to judge")
	}
}
