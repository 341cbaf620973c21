package centrifuge

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// Joins and leaves come from presence, which gathers them, and go to subscribers as
// the hub's events.

const eventKind = "centrifuge.presence"

// presenceChanged is presence's watcher.
func (s *Server) presenceChanged(channel string, events []presence.Event) {
	ns, err := s.deps.Hub.Namespace(channel)
	if err != nil || !s.namespace(ns).JoinLeave {
		return
	}
	list := make([]presence.Event, 0, len(events))
	for _, e := range events {
		if e.Type == presence.Join || e.Type == presence.Leave {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return
	}
	if err := s.deps.Hub.Notify(channel, &hub.Event{Kind: eventKind, Data: list}); err != nil {
		s.log.Debug("join and leave", "channel", channel, "err", err)
	}
}

// appendEvents writes joins and leaves, made once for all subscribers of the kind.
func (k *kind) appendEvents(dst []byte, e *hub.Event) []byte {
	list, _ := e.Data.([]presence.Event)
	for i := range list {
		info := infoOf(&list[i].Member, k.enc)
		var body protocol.PushBody = &protocol.Join{Info: info}
		if list[i].Type == presence.Leave {
			body = &protocol.Leave{Info: info}
		}
		dst = k.appendPush(dst, e.Channel, body)
	}
	return dst
}

// infoOf returns what clients are notified of a member, who may be of another protocol.
func infoOf(m *presence.Member, enc protocol.Encoding) *protocol.ClientInfo {
	i := &protocol.ClientInfo{User: m.User, Client: m.Client, Conn: m.Info, Chan: m.ChanInfo}
	if enc == protocol.JSON {
		i.Conn, i.Chan = safe(i.Conn), safe(i.Chan)
	}
	return i
}

// An eventLog publishes what clients do on the events channel.
type eventLog struct{ lost atomic.Uint64 }

// sessionEvent is what the events channel gets.
type sessionEvent struct {
	Event     string `json:"event"` // connect, disconnect, subscribe, unsubscribe
	Time      int64  `json:"time"`  // Unix milliseconds
	Node      string `json:"node"`
	User      string `json:"user"`
	Client    string `json:"client"`
	Transport string `json:"transport"`
	Protocol  string `json:"protocol"`
	Name      string `json:"name,omitempty"`
	Version   string `json:"version,omitempty"`
	Channel   string `json:"channel,omitempty"`
	Code      uint32 `json:"code,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

func (l *eventLog) connected(c *session, r *protocol.ConnectRequest) {
	l.publish(c, sessionEvent{Event: "connect", Name: r.Name, Version: r.Version})
}

func (l *eventLog) disconnected(c *session) {
	end := c.ensureExtras().end
	l.publish(c, sessionEvent{Event: "disconnect", Code: end.Code, Reason: end.Reason})
}

func (l *eventLog) subscribed(c *session, channel string) {
	l.publish(c, sessionEvent{Event: "subscribe", Channel: wireName(channel)})
}

func (l *eventLog) unsubscribed(c *session, channel string, why protocol.Unsubscription) {
	l.publish(c, sessionEvent{Event: "unsubscribe", Channel: wireName(channel), Code: why.Code, Reason: why.Reason})
}

// publish publishes an event, if there is a channel for it. The hub's queue is its bound:
// what that refuses is counted.
func (l *eventLog) publish(c *session, e sessionEvent) {
	s := c.srv()
	if s.conf().cfg.EventsChannel == "" {
		return
	}
	k := c.kind()
	e.Time, e.Node, e.User, e.Client = s.now().UnixNano()/int64(time.Millisecond), s.node(), c.account.user, c.clientID()
	e.Transport, e.Protocol = k.name, k.enc.String()
	b, err := json.Marshal(e)
	if err != nil {
		return
	}
	s.deps.Hub.Publish(hub.Publication{Channel: s.conf().cfg.EventsChannel, Data: b}, func(_ hub.Position, err error) {
		if err != nil {
			l.lost.Add(1)
		}
	})
}
