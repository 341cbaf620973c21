package protocols

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/test/judge"
)

// A member is one subscription of a client and its side of the history.
type member struct {
	name, channel string
	t             testing.TB

	// Of the goroutine that reads what the agent prints.
	stream *history.Stream
	epoch  string
	last   uint64

	// Any goroutine.
	high  atomic.Uint64 // the newest offset received
	ups   atomic.Int64  // how often it was subscribed
	got   atomic.Int64  // publications
	jumps atomic.Int64  // of these, those whose offset is not the last one's plus one
	wide  atomic.Uint64 // the widest of the jumps
	fed   atomic.Int64  // subscriptions that brought publications which had been missed
}

// received records a publication.
func (m *member) received(offset uint64, payload string) {
	if m.stream == nil {
		m.t.Errorf("%s: %s at %d before it was subscribed", m.name, payload, offset)
		return
	}
	m.stream.Received(m.channel, history.Position{Epoch: m.epoch, Offset: offset}, payload)
	if m.got.Add(1) > 1 && offset != m.last+1 {
		m.jumps.Add(1)
		m.wide.Store(max(m.wide.Load(), offset-m.last))
	}
	m.last = offset
	m.high.Store(max(m.high.Load(), offset))
}

// A crew is a set of subscriptions that live through anything, and the history that
// checks them.
type crew struct {
	t       *testing.T
	checker *history.Checker
	members []*member
}

func newCrew(t *testing.T) *crew {
	return &crew{t: t, checker: history.New(history.Options{ExactlyOnce: true, NoGaps: true})}
}

func (c *crew) member(name, channel string) *member {
	m := &member{name: name, channel: channel, t: c.t}
	c.members = append(c.members, m)
	return m
}

// begins is called when m is subscribed for the first time, at a position.
func (c *crew) begins(m *member, at history.Position) {
	at.Epoch, _, _ = strings.Cut(at.Epoch, ".") // what follows is the process that it is from
	m.epoch = at.Epoch
	m.stream = c.checker.Stream(m.name, []string{m.channel}, map[string]history.Position{"default": at})
}

// centrifuge records the events of a subscription of the JavaScript or Python SDK.
func (c *crew) centrifuge(m *member) func(event) {
	return func(e event) {
		switch e.Event {
		case "subscribed":
			var ctx struct {
				Recovered                bool
				HasRecoveredPublications bool
				WasRecovering            bool
				WasRecoveringP           bool `json:"was_recovering"`
				StreamPosition           *struct {
					Offset uint64
					Epoch  string
				}
				StreamPositionP *struct {
					Offset uint64
					Epoch  string
				} `json:"stream_position"`
			}
			if err := json.Unmarshal(e.Data, &ctx); err != nil {
				m.t.Errorf("%s: %v", m.name, err)
				return
			}
			at := ctx.StreamPosition
			if at == nil {
				at = ctx.StreamPositionP
			}
			switch recovering := ctx.WasRecovering || ctx.WasRecoveringP; {
			case m.stream == nil && at == nil:
				m.t.Errorf("%s: no position in %s", m.name, e.Data)
			case m.stream == nil:
				c.begins(m, history.Position{Epoch: at.Epoch, Offset: at.Offset})
			case !recovering || !ctx.Recovered:
				m.t.Errorf("%s: not recovered: %s", m.name, e.Data)
			}
			if ctx.HasRecoveredPublications {
				m.fed.Add(1)
			}
			m.ups.Add(1)
		case "subscribing":
			if m.stream != nil {
				m.stream.Cut()
			}
		case "unsubscribed":
			m.t.Errorf("%s: unsubscribed: %s", m.name, e.Data)
		case "publication":
			pub := e.Data
			if p := field(m.t, pub, "pub"); p != nil {
				pub = p
			}
			var p struct {
				Offset uint64
				Data   any
			}
			if err := json.Unmarshal(pub, &p); err != nil {
				m.t.Errorf("%s: publication %s: %v", m.name, e.Data, err)
				return
			}
			m.received(p.Offset, fmt.Sprint(p.Data))
		}
	}
}

// counts returns how often each member was subscribed.
func (c *crew) counts() []int64 {
	var n []int64
	for _, m := range c.members {
		n = append(n, m.ups.Load())
	}
	return n
}

// up waits until every member was subscribed since the counts.
func (c *crew) up(since []int64) {
	c.t.Helper()
	judge.Eventually(c.t, 2*patience, "every client is subscribed", func() bool {
		for i, m := range c.members {
			if m.ups.Load() <= since[i] {
				return false
			}
		}
		return true
	})
}

// publish has p publish on channels until the returned function is called, which
// waits until all of it is acknowledged.
func (c *crew) publish(p *judge.Publisher, channels []string, perSecond int) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, "m", channels, perSecond, patience) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(stop)
	return stop
}

// more waits until n more publications are acknowledged.
func (c *crew) more(p *judge.Publisher, n int) {
	c.t.Helper()
	want := len(p.Acked()) + n
	judge.Eventually(c.t, 2*patience, fmt.Sprintf("%d more messages are published", n), func() bool { return len(p.Acked()) >= want })
}

// verdict waits until every member has the newest of its channel, and judges.
func (c *crew) verdict(acked []judge.Acked) {
	c.t.Helper()
	newest := map[string]uint64{}
	for _, a := range acked {
		newest[a.Channel] = max(newest[a.Channel], a.Offset)
	}
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, m := range c.members {
		for m.high.Load() < newest[m.channel] && time.Now().Before(deadline) {
			<-tick.C
		}
	}
	for _, a := range acked {
		c.checker.Published(a.Channel, history.Position{Epoch: a.Epoch, Offset: a.Offset}, short(a.Payload))
	}
	r := c.checker.Report()
	c.t.Log(r)
	if !r.OK() || r.Received == 0 || r.Published == 0 {
		c.t.Error("the history is wrong")
	}
}
