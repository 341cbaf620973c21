package hub

import "github.com/weir-gateway/weir/internal/push/presence"

// A Member is a client that is present on a channel.
type Member struct {
	// Client is the connection's id, unique in its program.
	Client string
	// User is the user of the connection; several clients may be of one.
	User string
	// Info describes the client for the other members, to 64 KiB with the other fields.
	Info []byte
}

// Join makes m present on channel until Leave, in every program that uses the same broker. A member
// with the same Client is replaced. If this program ends without Leave, its members are removed
// after 3.5 seconds.
func (h *Hub) Join(channel string, m Member) error {
	p := h.members()
	if p == nil {
		return ErrClosed
	}
	return p.Join(channel, presence.Member{Client: m.Client, User: m.User, Info: m.Info})
}

// Leave ends the presence of client, which this program joined, on channel.
func (h *Hub) Leave(channel, client string) {
	if p := h.members(); p != nil {
		p.Leave(channel, client)
	}
}

// Members returns the members of channel in all programs, in no order.
func (h *Hub) Members(channel string) []Member {
	p := h.members()
	if p == nil {
		return nil
	}
	all := p.Members(channel, 0)
	out := make([]Member, len(all))
	for i, m := range all {
		out[i] = Member{Client: m.Client, User: m.User, Info: m.Info}
	}
	return out
}

// members returns nil before Start.
func (h *Hub) members() *presence.Presence {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.presence
}
