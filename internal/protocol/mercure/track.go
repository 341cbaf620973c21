package mercure

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// Subscriptions are members in presence, so that every node knows all of them and
// those of a node that died are gone. There is a presence channel for each selector,
// under a name that no channel of the hub can have.

// A directory knows the subscriptions of all nodes, and announces those that start and end.
// Any goroutine.
type directory struct {
	s      *Server // fixed in New
	untold untold
	// loggedUnlisted is when it was last logged, in Unix nanoseconds; 0: never.
	loggedUnlisted atomic.Int64
}

const crowdPrefix = "\x00mercure "

// crowd is the presence channel of the subscriptions by sel.
func crowd(d protocol.Dialect, sel protocol.Selector) string {
	h := sha256.New()
	h.Write([]byte{byte(d), byte(sel.Kind)})
	h.Write([]byte(sel.Text)) // a hash accepts everything
	return crowdPrefix + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// record is what presence carries of a subscription.
type record struct {
	Dialect protocol.Dialect `json:"d,omitempty"`
	Kind    protocol.Kind    `json:"k,omitempty"`
	Text    string           `json:"t"`
	Payload json.RawMessage  `json:"p,omitempty"`
}

func subscriptionOf(m presence.Member) (protocol.Subscription, bool) {
	var v record
	if json.Unmarshal(m.Info, &v) != nil {
		return protocol.Subscription{}, false
	}
	return protocol.Subscription{
		Dialect: v.Dialect, Selector: protocol.Selector{Kind: v.Kind, Text: v.Text}, Subscriber: m.Client, Active: true, Payload: v.Payload,
	}, true
}

// tracked is the subscriptions of one stream; nil tracks nothing.
type tracked struct {
	in         *directory
	subscriber string
	list       []protocol.Subscription
}

func (x *directory) track(o *opening, urn string) *tracked {
	t := &tracked{in: x, subscriber: urn}
	seen := make(map[protocol.Selector]bool, len(o.ask.Selectors))
	for _, sel := range o.ask.Selectors {
		if seen[sel] {
			continue
		}
		seen[sel] = true
		t.list = append(t.list, protocol.Subscription{
			Dialect: o.ask.Dialect, Selector: sel, Subscriber: t.subscriber, Active: true, Payload: o.grant.claims.Payload(sel, x.s.tokens.compile),
		})
	}
	return t
}

// begin and end leave word that the stream has started, or ended; arrive and depart, that it
// moved here from another process, or to one. They do not wait.
func (t *tracked) begin()  { t.later(true, false) }
func (t *tracked) end()    { t.later(false, false) }
func (t *tracked) arrive() { t.later(true, true) }
func (t *tracked) depart() { t.later(false, true) }

func (t *tracked) later(active, moved bool) {
	if t != nil {
		t.in.untold.add(change{t, active, moved})
	}
}

// A change is a stream that began, or ended: up to a thousand subscriptions.
type change struct {
	of     *tracked
	active bool
	moved  bool // no subscriber is notified
}

// untold are changes that are still to be announced, in their order: a request of a few
// kilobytes makes a thousand messages, for which loops have no time. Any goroutine.
type untold struct {
	wake chan struct{} // holds one

	mu   sync.Mutex
	list []change
	size int // subscriptions in list
}

// maxUntold is from how many subscriptions on that are untold new streams are
// refused. Those that end are announced all the same: there are no more of them than began.
const maxUntold = 20_000

func (u *untold) add(c change) {
	u.mu.Lock()
	u.list = append(u.list, c)
	u.size += len(c.of.list)
	u.mu.Unlock()
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *untold) full() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.size >= maxUntold
}

// next returns the oldest and forgets it.
func (u *untold) next() (c change, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.list) == 0 {
		u.list = nil
		return c, false
	}
	c, u.list[0] = u.list[0], change{}
	u.list = u.list[1:]
	u.size -= len(c.of.list)
	return c, true
}

// lastWords bounds how long the end may take for what is untold then.
const lastWords = 5 * time.Second

// publishAll announces changes until ctx ends, and then of those that are there.
func (x *directory) publishAll(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-x.untold.wake:
		}
		for c, ok := x.untold.next(); ok; c, ok = x.untold.next() {
			c.publish()
			if ctx.Err() != nil {
				break
			}
		}
	}
	for end := time.Now().Add(lastWords); time.Now().Before(end); {
		c, ok := x.untold.next()
		if !ok {
			return
		}
		c.publish()
	}
}

func (c change) publish() {
	if c.active {
		c.of.join(c.moved)
	} else {
		c.of.leave(c.moved)
	}
}

func (t *tracked) join(moved bool) {
	join := t.in.s.deps.Presence.Join
	if moved {
		join = t.in.s.deps.Presence.Arrive
	}
	for i := range t.list {
		sub := &t.list[i]
		info, err := json.Marshal(record{sub.Dialect, sub.Selector.Kind, sub.Selector.Text, sub.Payload})
		if err == nil {
			err = join(crowd(sub.Dialect, sub.Selector), presence.Member{Client: t.subscriber, Info: info})
		}
		if err != nil {
			t.in.unlisted(err)
		}
		if !moved {
			t.in.publish(sub, true)
		}
	}
}

// unlisted counts a subscription that presence does not take, and says so now and then:
// one request may have a thousand of them.
func (x *directory) unlisted(err error) {
	n := x.s.counts.unlisted.Add(1)
	now := time.Now().UnixNano()
	last := x.loggedUnlisted.Load()
	if now-last < int64(unlistedEvery) && last != 0 || !x.loggedUnlisted.CompareAndSwap(last, now) {
		x.s.log.Debug("a subscription is not listed", "err", err)
		return
	}
	x.s.log.Warn("subscriptions are not listed", "so_far", n, "err", err)
}

// unlistedEvery is how often it is said.
const unlistedEvery = time.Minute

func (t *tracked) leave(moved bool) {
	for i := range t.list {
		sub := &t.list[i]
		if moved {
			t.in.s.deps.Presence.Depart(crowd(sub.Dialect, sub.Selector), t.subscriber)
			continue
		}
		t.in.s.deps.Presence.Leave(crowd(sub.Dialect, sub.Selector), t.subscriber)
		t.in.publish(sub, false)
	}
}

// publish publishes that a subscription began or ended. It does not wait.
func (x *directory) publish(sub *protocol.Subscription, active bool) {
	v := *sub
	v.Active = active
	u := &protocol.Update{Topics: []string{v.Path(x.s.conf().cfg.Path)}, Data: string(v.Event(x.s.conf().cfg.Path)), Private: true}
	if v.Dialect == protocol.Draft08 {
		u.Type = protocol.EventType
	}
	channels, p := x.s.publication(u)
	p.Channel = channels[0]
	x.s.deps.Hub.Publish(p, func(_ hub.Position, err error) {
		if err != nil {
			x.s.counts.eventsLost.Add(1)
			x.s.log.Debug("a subscription event was not published", "err", err)
		}
	})
}

// watch is called by presence. The subscriptions of a node that died end without it:
// one of those that live says so.
func (x *directory) watch(channel string, events []presence.Event) {
	if len(channel) < len(crowdPrefix) || channel[:len(crowdPrefix)] != crowdPrefix {
		return
	}
	for _, e := range events {
		if e.Type != presence.Leave || x.s.deps.Cluster.Alive(e.Member.Node) || !x.s.deps.Cluster.Owns(e.Member.Client) {
			continue
		}
		if sub, ok := subscriptionOf(e.Member); ok {
			x.publish(&sub, false)
		}
	}
}
