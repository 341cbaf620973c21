package pusher

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// trigger is the body of POST /apps/{id}/events, and one event of a batch.
type trigger struct {
	Name     string          `json:"name"`
	Data     json.RawMessage `json:"data"`
	Channels []string        `json:"channels"`
	Channel  string          `json:"channel"`
	SocketID string          `json:"socket_id"`
	Info     string          `json:"info"`

	want wanted
}

// check reads what is to be published out of t.
func (t *trigger) check(s restAPI, a *app) ([]hub.Publication, *wire.Error) {
	bad := func(format string, x ...any) ([]hub.Publication, *wire.Error) {
		return nil, &wire.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, x...)}
	}
	if t.Channel != "" && len(t.Channels) == 0 {
		t.Channels = []string{t.Channel}
	}
	text, isJSON := protocol.Text(t.Data)
	var err error
	if t.want, err = parseInfo(t.Info); err != nil {
		return bad("%s", err)
	}
	switch {
	case protocol.CheckEvent(t.Name) != nil:
		return bad("name: %s", protocol.CheckEvent(t.Name))
	case t.Data == nil:
		return bad("data is missing")
	case len(text) > s.conf().cfg.MaxEventData:
		return nil, &wire.Error{
			Status:  http.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("the data of event %q has %d bytes, at most %d are allowed", wire.Printable(t.Name, 80), len(text), s.conf().cfg.MaxEventData),
			Hint:    "raise pusher.max_event_data",
		}
	case len(t.Channels) == 0:
		return bad("channels is missing or empty")
	case len(t.Channels) > s.conf().cfg.MaxChannels:
		return bad("%d channels, at most %d are allowed at a time", len(t.Channels), s.conf().cfg.MaxChannels)
	case t.SocketID != "" && protocol.CheckSocketID(t.SocketID) != nil:
		return bad("%s", protocol.CheckSocketID(t.SocketID))
	}
	attr := hub.Attributes{Event: t.Name, Origin: t.SocketID}
	if !isJSON {
		attr.Payload = hub.Text
	}
	guarded := attr
	guarded.Private = true
	pubs := make([]hub.Publication, 0, len(t.Channels))
	for i, ch := range t.Channels {
		if err := protocol.CheckChannel(ch); err != nil {
			return bad("%s", err)
		}
		if protocol.KindOf(ch).Is(protocol.Encrypted) && len(t.Channels) > 1 {
			return bad("channel %q is encrypted with a key of its own: trigger on it alone", ch)
		}
		if slices.Contains(t.Channels[:i], ch) {
			continue
		}
		if !s.mayCall(access.Publish, a.channel(ch)) {
			return nil, &wire.Error{Status: http.StatusForbidden, Message: fmt.Sprintf("channel %q is not for this API", ch)}
		}
		p := hub.Publication{Channel: a.channel(ch), Data: text, Attributes: &attr}
		if protocol.KindOf(ch).Guarded() {
			p.Attributes = &guarded
		}
		pubs = append(pubs, p)
	}
	return pubs, nil
}

// events serves POST /apps/{id}/events.
func (s restAPI) events(c *call) {
	var t trigger
	if !c.read(&t) {
		return
	}
	pubs, bad := t.check(s, c.app)
	if bad != nil {
		c.r.Fail(bad)
		return
	}
	s.publish(c, pubs, func() {
		if t.want == (wanted{}) {
			c.answer([]byte("{}"))
			return
		}
		channels := map[string]facts{}
		for _, ch := range t.Channels {
			channels[ch] = s.facts(c.app, ch, t.want)
		}
		c.json(map[string]any{"channels": channels})
	})
}

// userEvent serves POST /apps/{id}/users/{user}/events: an event for one who has signed in,
// as SDKs send it to the user's channel.
func (s restAPI) userEvent(c *call, user string) {
	var t trigger
	if !c.read(&t) {
		return
	}
	if t.Channel != "" || len(t.Channels) > 0 {
		fail(c.r, http.StatusBadRequest, "an event for a user has no channel", "trigger on channels by POST events")
		return
	}
	t.Channel, t.Info = protocol.UserPrefix+user, ""
	pubs, bad := t.check(s, c.app)
	if bad != nil {
		c.r.Fail(bad)
		return
	}
	s.publish(c, pubs, func() { c.answer([]byte("{}")) })
}

// batch serves POST /apps/{id}/batch_events.
func (s restAPI) batch(c *call) {
	var in struct {
		Batch []trigger `json:"batch"`
	}
	if !c.read(&in) {
		return
	}
	switch {
	case len(in.Batch) == 0:
		fail(c.r, http.StatusBadRequest, "batch is missing or empty", "")
		return
	case len(in.Batch) > s.conf().cfg.MaxBatch:
		fail(c.r, http.StatusBadRequest, fmt.Sprintf("%d events, at most %d are allowed in a batch", len(in.Batch), s.conf().cfg.MaxBatch), "raise pusher.max_batch")
		return
	}
	var all []hub.Publication
	info := false
	for i := range in.Batch {
		pubs, bad := in.Batch[i].check(s, c.app)
		if bad != nil {
			bad.Message = fmt.Sprintf("batch[%d]: %s", i, bad.Message)
			c.r.Fail(bad)
			return
		}
		all = append(all, pubs...)
		info = info || in.Batch[i].want != wanted{}
	}
	s.publish(c, all, func() {
		if !info {
			c.answer([]byte("{}"))
			return
		}
		list := make([]facts, len(in.Batch))
		for i, t := range in.Batch {
			list[i] = s.facts(c.app, t.Channels[0], t.want)
		}
		c.json(map[string]any{"batch": list})
	})
}

// read reads the body of c. What is in there goes into frames of text, where bytes that
// are not UTF-8 would end every subscriber's connection.
func (c *call) read(v any) bool {
	if !utf8.Valid(c.r.Body()) {
		fail(c.r, http.StatusBadRequest, "the body is not UTF-8", "")
		return false
	}
	if err := json.Unmarshal(c.r.Body(), v); err != nil {
		fail(c.r, http.StatusBadRequest, "the body is not the JSON object that is wanted: "+wire.Printable(err.Error(), 120), "")
		return false
	}
	return true
}

// publish publishes and continues with then when everything is stored. If something
// was not, the call fails with the first reason.
func (s restAPI) publish(c *call, pubs []hub.Publication, then func()) {
	var failed error
	open := len(pubs)
	done := func(_ hub.Position, err error) {
		switch {
		case err == nil:
			s.counts.triggers.Add(1)
		case failed == nil:
			failed = err
		}
		if open--; open > 0 {
			return
		}
		if failed != nil {
			c.r.Fail(wire.ErrorOf(failed))
			return
		}
		then()
	}
	for _, p := range pubs {
		c.r.Publish(p, done)
	}
}
