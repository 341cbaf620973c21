package centrifuge

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
)

// topicControl carries what the server API does with clients to all nodes.
const topicControl = "centrifuge.control"

// control is one such call.
type control struct {
	Do      string   `json:"do"` // subscribe, unsubscribe, disconnect, refresh
	User    string   `json:"user"`
	Client  string   `json:"client,omitempty"`
	Session string   `json:"session,omitempty"`
	Spare   []string `json:"spare,omitempty"` // clients that are left alone
	Channel string   `json:"channel,omitempty"`

	Sub      *subClaims      `json:"sub,omitempty"`
	Code     uint32          `json:"code,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Expired  bool            `json:"expired,omitempty"`
	ExpireAt int64           `json:"expire_at,omitempty"`
	Info     json.RawMessage `json:"info,omitempty"`
}

// send has all nodes do c.
func (c *control) send(s *Server) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := s.deps.Bus.Broadcast(topicControl, b); err != nil {
		return fmt.Errorf("send to all nodes: %w", err)
	}
	return nil
}

// controlled does what some node says with the clients of this one.
func (s *Server) controlled(_ string, data []byte) {
	c := &control{}
	if err := json.Unmarshal(data, c); err != nil {
		s.log.Warn("control", "err", err)
		return
	}
	for _, x := range c.sessions(s) {
		x.t.Post(func() {
			if x.flags&ended == 0 && x.flags&connected != 0 {
				c.apply(x)
			}
		})
	}
}

// sessions returns the clients of this node that c is about.
func (c *control) sessions(s *Server) []*session {
	list := s.registry.of(c.User)
	if c.Client == "" && c.Session == "" {
		spare := map[uint64]bool{}
		for _, id := range c.Spare {
			if n, ok := s.names.number(s.names.client, id); ok {
				spare[n] = true
			} else if x := s.moved.client(id); x != nil {
				spare[x.t.ID()] = true
			}
		}
		return slices.DeleteFunc(list, func(x *session) bool { return spare[x.t.ID()] })
	}
	number, ok := s.names.number(s.names.client, c.Client)
	moved := s.moved.client(c.Client)
	if c.Client == "" {
		number, ok = s.names.number(s.names.session, c.Session)
		moved = s.moved.session(c.Session)
	}
	for _, x := range list {
		if x == moved || ok && moved == nil && x.t.ID() == number {
			return []*session{x}
		}
	}
	return nil
}

// apply does c with a client.
func (c *control) apply(s *session) {
	switch c.Do {
	case "subscribe":
		c.subscribe(s)
	case "unsubscribe":
		c.unsubscribe(s)
	case "disconnect":
		s.disconnect((&farewell{Code: c.Code, Reason: c.Reason}).disconnection())
	case "refresh":
		c.refresh(s)
	}
}

func (c *control) subscribe(s *session) {
	in, _, e := s.srv().channel(c.Channel)
	if e != nil || c.Sub == nil || s.find(in) != nil {
		return
	}
	if s.countSubscriptions() >= s.srv().conf().cfg.ChannelLimit {
		s.disconnect(protocol.DisconnectedChannelLimit)
		return
	}
	w, e := s.kind().serverWant(c.Channel, *c.Sub)
	if e != nil {
		s.srv().log.Warn("subscribe by the server", "channel", c.Channel, "err", *e)
		return
	}
	w.announce = true
	if at := c.Sub.Recover; at != nil {
		w.recovery(&protocol.SubscribeRequest{Recover: true, Offset: at.Offset, Epoch: at.Epoch})
	}
	s.attach(w)
}

func (c *control) unsubscribe(s *session) {
	var list []*subscription
	if in, ok := hubName(c.Channel); ok && c.Channel != "" {
		if x := s.find(in); x != nil {
			list = append(list, x)
		}
	} else if c.Channel == "" {
		list = slices.Collect(s.subscriptions())
	}
	for _, x := range list {
		if s.flags&ended == 0 {
			x.unsubscribe(protocol.UnsubscribedByServer)
		}
	}
}

func (c *control) refresh(s *session) {
	if c.Expired {
		s.disconnect(protocol.DisconnectedExpired)
		return
	}
	a := s.mayChange()
	if len(c.Info) > 0 {
		a.info = safe(c.Info)
	}
	s.renew(unixTime(c.ExpireAt))
	if s.kind().uni {
		r := &protocol.RefreshResult{}
		if c.ExpireAt > 0 {
			r.Expires, r.TTL = true, s.srv().ttl(unixTime(c.ExpireAt))
		}
		s.push("", r.Push())
	}
}
