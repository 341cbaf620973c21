package pusher

import (
	"encoding/json"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// clientEvent passes an event of the client on to the channel's other subscribers.
func (c *session) clientEvent(f protocol.Frame) {
	sub := c.subs[f.Channel]
	text, isJSON := protocol.Text(f.Data)
	var why string
	switch {
	case !c.app.ClientEvents:
		why = "To send client events, you must enable this feature: client_events of the app"
	case sub == nil || !sub.active:
		why = "Client event rejected: the connection is not subscribed to the channel"
	case !sub.kind.Talks() || !c.s.may(access.Publish, sub.hubName(), true):
		why = "Client event rejected: only supported on private and presence channels, not encrypted ones"
	case protocol.CheckEvent(f.Event) != nil:
		why = "Client event rejected: " + protocol.CheckEvent(f.Event).Error()
	case len(text) > c.s.conf().cfg.MaxEventData:
		why = "Client event rejected: the data is longer than max_event_data"
	case !c.events.allow(c.t.Now(), c.s.conf().cfg.ClientEventRate, c.s.conf().cfg.ClientEventRate):
		c.s.counts.limited.Add(1)
		why = "Client event rejected: the rate limit was exceeded"
	}
	if why != "" {
		c.complain(protocol.ErrorClient, f.Channel, why)
		return
	}
	from := info{Client: c.id}
	if r := sub.rare; r != nil {
		from.User = r.member.ID
		switch {
		case r.came == 0:
		case c.t.Now()-r.came > int64(newsTime):
			r.came = 0
		default:
			from.Member = protocol.AppendMember(nil, r.member, false)
		}
	}
	who, err := json.Marshal(from)
	if err != nil {
		return // strings always are JSON
	}
	a := &hub.Attributes{Event: f.Event, Origin: c.id, Info: who, Private: sub.kind.Guarded()}
	if !isJSON {
		a.Payload = hub.Text
	}
	event, channel := f.Event, f.Channel
	c.t.Publish(hub.Publication{Channel: sub.hubName(), Data: text, Attributes: a}, func(_ hub.Position, err error) {
		if err != nil {
			if !c.gone {
				c.complain(protocol.ErrorClient, channel, "Client event rejected: "+wire.ErrorOf(err).Message)
			}
			return
		}
		c.s.counts.clientEvents.Add(1)
		if c.app.hooked[hookClientEvent] {
			c.app.hook(hookEvent{Name: hookClientEvent, Channel: channel, Event: event, Data: string(text), SocketID: c.id, UserID: from.User})
		}
	})
}
