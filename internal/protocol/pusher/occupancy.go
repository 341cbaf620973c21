package pusher

import (
	"encoding/json"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// membersOf returns the users among clients, each once, in order of their ids. A client
// without a name is left out.
func membersOf(clients []presence.Member) []protocol.Member {
	seen := make(map[string]bool, len(clients))
	out := make([]protocol.Member, 0, len(clients))
	for _, m := range clients {
		if m.User != "" && !seen[m.User] {
			seen[m.User] = true
			out = append(out, memberOf(m))
		}
	}
	slices.SortFunc(out, func(a, b protocol.Member) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// memberOf reports of a client of any protocol what this one sends.
func memberOf(m presence.Member) protocol.Member {
	for _, info := range [][]byte{m.ChanInfo, m.Info} {
		if len(info) > 0 && json.Valid(info) {
			return protocol.Member{ID: m.User, Info: info}
		}
	}
	return protocol.Member{ID: m.User}
}

// watch is called by presence with what happened on a channel, on any node. Every node sees
// the same: each notifies its own subscribers, and one of them the webhooks.
func (s *Server) watch(channel string, events []presence.Event) {
	if a := s.conf().byLobby[channel]; a != nil {
		s.watchUsers(a, events)
		return
	}
	a, name := s.split(channel)
	if a == nil || strings.HasPrefix(channel, "\x00") || protocol.KindOf(name).Is(protocol.User) {
		return
	}
	for _, e := range events {
		user := e.Member.User
		switch e.Type {
		case presence.UserJoin, presence.UserLeave:
			if user == "" || !protocol.KindOf(name).Is(protocol.Presence) {
				continue
			}
			left := e.Type == presence.UserLeave
			s.news.notify(channel, memberNews(name, memberOf(e.Member), left))
			s.hookTwice(a, flap{channel: channel, user: user}, left)
		case presence.Occupied, presence.Vacated:
			if e.Kind == presence.Pusher {
				s.hookTwice(a, flap{channel: channel}, e.Type == presence.Vacated)
			}
		}
	}
}

// flap is what may come and go: a channel's subscribers, or a user on it.
type flap struct{ channel, user string }

// flaps waits with the news that something went, and takes it back together with the
// news that it came again. Any goroutine.
type flaps struct {
	delay time.Duration
	after func(flap)

	mu      sync.Mutex
	pending map[flap]*time.Timer
	ended   bool
}

func newFlaps(delay time.Duration, after func(flap)) *flaps {
	return &flaps{delay: delay, after: after, pending: map[flap]*time.Timer{}}
}

// went has after called when the delay is over, unless it comes again.
func (f *flaps) went(k flap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.pending[k] != nil {
		return
	}
	f.pending[k] = time.AfterFunc(f.delay, func() {
		f.mu.Lock()
		_, there := f.pending[k]
		delete(f.pending, k)
		f.mu.Unlock()
		if there {
			f.after(k)
		}
	})
}

// came reports whether it is news that k came.
func (f *flaps) came(k flap) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.pending[k]
	if t == nil {
		return true
	}
	t.Stop()
	delete(f.pending, k)
	return false
}

func (f *flaps) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, t := range f.pending {
		t.Stop()
	}
	clear(f.pending)
}

// settling is how long a node that has started receives what others knew before.
const settling = 3 * time.Second

// owns reports whether this node is the one to call webhooks about channel. All nodes
// see all changes, and name the same one. A node that has just started takes for
// new what it only learns: it sends nothing as long as there is one that knew.
func (s *Server) owns(channel string) bool {
	nodes := s.deps.Cluster.Nodes()
	old := func(n cluster.Node) bool { return time.Since(n.Started) > settling }
	settled := slices.ContainsFunc(nodes, old)
	best, most := "", uint64(0)
	for _, n := range nodes {
		if settled && !old(n) {
			continue
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(n.ID + "/" + channel))
		w := h.Sum64()
		w = (w ^ w>>32) * 0xd6e8feb86659fd93 // a short key's last bytes are to count, too
		if w ^= w >> 32; best == "" || w > most || w == most && n.ID < best {
			best, most = n.ID, w
		}
	}
	return best == s.deps.Cluster.Self()
}

// hookTwice notifies webhooks that something came, or, when it stays away, that it went.
// Of all nodes, which see the same, the channel's owner does it.
func (s *Server) hookTwice(a *app, k flap, left bool) {
	in, out := hookOccupied, hookVacated
	if k.user != "" {
		in, out = hookMemberAdded, hookMemberRemoved
	}
	if !a.hooked[in] && !a.hooked[out] {
		return
	}
	if left {
		s.announced.went(k)
		return
	}
	if !s.announced.came(k) || !s.owns(k.channel) {
		return
	}
	a.hook(hookEvent{Name: in, Channel: channelOf(k.channel), UserID: k.user})
}

// gone is called when something went and stayed away.
func (s *Server) gone(k flap) {
	if a := s.conf().byLobby[k.channel]; a != nil {
		s.notifyWatchers(a, k.user, "offline")
		return
	}
	a, name := s.split(k.channel)
	if a == nil || !s.owns(k.channel) {
		return
	}
	e := hookEvent{Name: hookVacated, Channel: name}
	if k.user != "" {
		e.Name, e.UserID = hookMemberRemoved, k.user
	}
	a.hook(e)
}
