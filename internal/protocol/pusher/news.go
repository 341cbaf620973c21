package pusher

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/websocket"
)

// channelNews is what subscribers of a channel get by Hub.Notify.
type channelNews struct {
	frame []byte
	user  string // who came or left, empty for other news
	left  bool
	// early news is only for those who were notified of user's arrival by introduce.
	early bool
	// number rises from one to the next of this node; set before the hub gets it.
	number uint64
}

// memberNews is member_added or member_removed.
func memberNews(channel string, m protocol.Member, left bool) *channelNews {
	event := protocol.EventMemberAdded
	if left {
		event = protocol.EventMemberRemoved
	}
	return &channelNews{frame: frameOf(event, channel, protocol.AppendMember(nil, m, left)), user: m.ID, left: left}
}

// frameOf is one of the protocol's own events as a frame.
func frameOf(event, channel string, data []byte) []byte {
	return websocket.AppendFrame(nil, websocket.OpText, protocol.AppendEvent(nil, event, channel, data, ""))
}

// notice is channelNews on its way.
type notice struct {
	channel string
	news    *channelNews
}

// A newsDesk brings news of channels to their subscribers on this node, in order.
type newsDesk struct {
	// Fixed in New.
	hub     *hub.Hub
	notices chan notice
	lost    *atomic.Uint64

	// Owned by run.
	number uint64

	// Any goroutine.
	arrivals arrivals
	// introduced are the members that some session has announced, and no news yet.
	introduced *flaps
	has        func(channel, user string) bool // presence's
}

// unheardDelay is after how long a member whom a session has introduced, and of whom there
// was no news, is looked for: presence says nothing of one who came and left at once.
const unheardDelay = time.Second

func newNewsDesk(h *hub.Hub, has func(channel, user string) bool, lost *atomic.Uint64) *newsDesk {
	d := &newsDesk{hub: h, notices: make(chan notice, 4096), lost: lost, has: has}
	d.introduced = newFlaps(unheardDelay, d.unheard)
	return d
}

// unheard is called for a member of whom there was no news.
func (d *newsDesk) unheard(k flap) {
	if d.has(k.channel, k.user) {
		d.introduced.went(k) // it is on its way
		return
	}
	n := memberNews(channelOf(k.channel), protocol.Member{ID: k.user}, true)
	n.early = true
	d.notify(k.channel, n)
}

// notify has the subscribers on this node notified. It does not block.
func (d *newsDesk) notify(channel string, n *channelNews) {
	select {
	case d.notices <- notice{channel, n}:
	default:
		d.lost.Add(1)
	}
}

// run brings notices to the hub, and tries again while its queues are full.
func (d *newsDesk) run(ctx context.Context) {
	defer d.introduced.stop()
	for {
		var n notice
		select {
		case n = <-d.notices:
		case <-ctx.Done():
			return
		}
		d.number++
		n.news.number = d.number
		if n.news.user != "" {
			d.introduced.came(flap{n.channel, n.news.user})
		}
		d.arrivals.note(n.channel, n.news)
		err := d.hub.Notify(n.channel, &hub.Event{Kind: "pusher", Data: n.news})
		for wait := time.Millisecond; errors.Is(err, hub.ErrOverloaded) && wait < time.Second; wait *= 2 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			err = d.hub.Notify(n.channel, &hub.Event{Kind: "pusher", Data: n.news})
		}
		if err != nil {
			d.lost.Add(1)
			d.arrivals.forget(n.channel, n.news.user)
		}
	}
}

// arrivals are the numbers of the news of members who came within newsTime at least.
//
// What a member says comes by the broker, that the member has come by presence: the first
// may be faster. So a new member's client events say who it is, and a subscriber that has
// not been notified yet is notified before the first of them, by its own session.
type arrivals struct {
	mu     sync.Mutex
	now    map[flap]uint64
	before map[flap]uint64
	turned time.Time
}

// maxArrivals bounds each half of arrivals. Past it the older half is forgotten early, and
// a member's arrival may be announced twice.
const maxArrivals = 1 << 16

func (a *arrivals) note(channel string, n *channelNews) {
	if n.user == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := flap{channel, n.user}
	delete(a.now, k)
	delete(a.before, k)
	if n.left {
		return
	}
	if a.now == nil || len(a.now) >= maxArrivals || time.Since(a.turned) > newsTime {
		a.now, a.before, a.turned = map[flap]uint64{}, a.now, time.Now()
	}
	a.now[k] = n.number
}

func (a *arrivals) forget(channel, user string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.now, flap{channel, user})
}

// number returns the number of the news that user came; 0: the hub has not had it.
func (a *arrivals) number(channel, user string) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := flap{channel, user}
	return max(a.now[k], a.before[k])
}

// membership is a subscription's part in a presence channel.
type membership struct {
	member protocol.Member
	// came is when the user did, if this subscription was its first; 0 once everybody has
	// been notified.
	came int64
	// known are the users that the client was notified of when it came, until news of
	// them is not on its way any more.
	known map[string]bool
	until int64
	// The field is the number of the newest news of members that the client had. early are the
	// users it was notified of ahead of that; nil mostly.
	reported uint64
	early    map[string]bool
}

// newsTime is how long the news that a member came may take from node to node.
const newsTime = 10 * time.Second

// unseen reports whether news is new to the client.
func (r *membership) unseen(n *channelNews, now int64) bool {
	r.reported = n.number
	if n.user == r.member.ID {
		return false
	}
	switch {
	case r.early[n.user]:
		delete(r.early, n.user)
		if !n.left {
			return false
		}
	case n.early:
		return false
	}
	if r.known == nil {
		return true
	}
	switch {
	case now > r.until:
		r.known = nil
	case n.left:
		delete(r.known, n.user)
	case r.known[n.user]:
		return false
	}
	return true
}

// isNew reports whether the client sees user for the first time in an event that user has
// sent, and notes that it does.
func (r *membership) isNew(user string, number uint64) bool {
	if user == r.member.ID || r.known[user] || r.early[user] || number != 0 && number <= r.reported {
		return false
	}
	if r.early == nil {
		r.early = map[string]bool{}
	}
	r.early[user] = true
	return true
}

// introduction is the member who has sent m, if that one has just come; nil otherwise.
func introduction(a *hub.Attributes) *info {
	if a == nil || a.Origin == "" || len(a.Info) == 0 {
		return nil
	}
	var i info
	if json.Unmarshal(a.Info, &i) != nil || i.Member == nil {
		return nil
	}
	return &i
}

// introduce announces a member to the client before the first event that it has sent.
func (sub *subscription) introduce(m *hub.Message) {
	i, desk := introduction(m.Attributes), sub.c.s.news
	if i == nil {
		return
	}
	number := desk.arrivals.number(m.Channel, i.User)
	if !sub.rare.isNew(i.User, number) {
		return
	}
	sub.c.t.Send(frameOf(protocol.EventMemberAdded, sub.name, i.Member))
	if number == 0 {
		desk.introduced.went(flap{m.Channel, i.User})
	}
}
