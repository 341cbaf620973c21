package centrifuge

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/protocol/jsontext"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// maxIdempotencyKey bounds what clients of Centrifugo send, where keys have no bound.
const maxIdempotencyKey = 512

// positionJSON is the result of a publication; one that is not stored has no position.
func positionJSON(s *Server, at hub.Position) []byte {
	if at.Offset == 0 && at.Epoch == "" {
		return []byte("{}")
	}
	b := append([]byte(`{"offset":`), strconv.FormatUint(at.Offset, 10)...)
	b = jsontext.AppendString(append(b, `,"epoch":`...), s.epoch(at.Epoch))
	return append(b, '}')
}

// publication is what a call publishes on a channel.
func (a *api) publication(c *apiCall, channel string) (hub.Publication, *protocol.Error) {
	in, ns, e := a.srv.lookup(channel)
	switch {
	case e != nil:
		return hub.Publication{}, e
	case len(c.IdempotencyKey) > maxIdempotencyKey:
		return hub.Publication{}, &protocol.ErrorBadRequest
	}
	p := hub.Publication{Channel: in, IdempotencyKey: c.IdempotencyKey, Publisher: c.publisher}
	at := hub.Attributes{Tags: c.Tags, Private: a.srv.deps.Access.Guarded(in)}
	if at.SkipHistory = c.SkipHistory && ns.log; ns.log && !c.SkipHistory {
		at.Version, at.VersionEpoch = c.Version, c.VersionEpoch
	}
	switch {
	case c.B64Data != "":
		b, err := base64.StdEncoding.DecodeString(c.B64Data)
		if err != nil {
			return p, &protocol.ErrorBadRequest
		}
		p.Data, at.Payload = b, payloadKind(b, protocol.Protobuf)
	case len(c.Data) == 0:
		return p, &protocol.ErrorBadRequest
	default:
		p.Data = c.Data
	}
	if !ns.accepts(p.Data) {
		return p, &protocol.ErrorBadRequest
	}
	if at.Tags != nil || at.Payload != hub.JSON || at.Private || at.SkipHistory || at.Version != 0 {
		if at.Validate() != nil {
			return p, &protocol.ErrorBadRequest
		}
		p.Attributes = &at
	}
	return p, nil
}

func (a *api) publish(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	p, e := a.publication(c, c.Channel)
	if e != nil {
		return nil, e
	}
	return published(a.srv, a.srv.deps.Hub.PublishAll(ctx, []hub.Publication{p})[0])
}

func (a *api) broadcast(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	if _, err := jsonOr64(nil, c.B64Data); err != nil || len(c.Channels) == 0 || len(c.Channels) > wire.MaxBroadcast {
		return nil, &protocol.ErrorBadRequest
	}
	if c.room < smallAnswer*len(c.Channels) {
		return nil, tooLarge(a.srv) // before anything is published
	}
	refused := make([]*protocol.Error, len(c.Channels))
	pubs := make([]hub.Publication, 0, len(c.Channels))
	for i, ch := range c.Channels {
		p, e := a.publication(c, ch)
		if refused[i] = e; e == nil {
			pubs = append(pubs, p)
		}
	}
	outcomes := a.srv.deps.Hub.PublishAll(ctx, pubs)
	out := []byte(`{"responses":[`)
	for i, e := range refused {
		if i > 0 {
			out = append(out, ',')
		}
		var result []byte
		if e == nil {
			result, e = published(a.srv, outcomes[0])
			outcomes = outcomes[1:]
		}
		text, _ := apiAnswer(result, e, false)
		out = append(out, text...)
	}
	return append(out, ']', '}'), nil
}

// published is the answer to a publication.
func published(s *Server, o hub.Outcome) ([]byte, *protocol.Error) {
	if o.Err != nil {
		e := refusalOf(o.Err, true)
		return nil, &e
	}
	return positionJSON(s, o.At), nil
}

// done is the answer of methods that have no result.
func (c *control) done(s *Server) ([]byte, *protocol.Error) {
	if err := c.send(s); err != nil {
		s.log.Warn("server API", "do", c.Do, "err", err)
		return nil, &protocol.ErrorInternal
	}
	return []byte("{}"), nil
}

func (a *api) subscribe(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	if _, _, e := a.srv.lookup(c.Channel); e != nil {
		return nil, e
	}
	for _, b64 := range []string{c.B64Info, c.B64Data} {
		if _, err := jsonOr64(nil, b64); err != nil {
			return nil, &protocol.ErrorBadRequest
		}
	}
	return (&control{
		Do: "subscribe", User: c.User, Client: c.Client, Session: c.Session, Channel: c.Channel,
		Sub: &subClaims{
			Info: c.Info, B64Info: c.B64Info, Data: c.Data, B64Data: c.B64Data,
			ExpireAt: c.ExpireAt, Override: c.Override, Recover: c.Recover,
		},
	}).done(a.srv)
}

func (a *api) unsubscribe(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	if c.Channel != "" {
		if _, _, e := a.srv.lookup(c.Channel); e != nil {
			return nil, e
		}
	}
	return (&control{Do: "unsubscribe", User: c.User, Client: c.Client, Session: c.Session, Channel: c.Channel}).done(a.srv)
}

func (a *api) disconnect(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	x := &control{Do: "disconnect", User: c.User, Client: c.Client, Session: c.Session, Spare: c.Whitelist}
	if d := c.Disconnect; d != nil {
		if d.Code != 0 && (d.Code < 3000 || d.Code > 4999) {
			return nil, &protocol.ErrorBadRequest
		}
		x.Code, x.Reason = d.Code, d.Reason
	}
	return x.done(a.srv)
}

func (a *api) refresh(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	return (&control{
		Do: "refresh", User: c.User, Client: c.Client, Session: c.Session,
		Expired: c.Expired, ExpireAt: c.ExpireAt, Info: c.Info,
	}).done(a.srv)
}

func (a *api) presence(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, e := a.withPresence(c)
	if e != nil {
		return nil, e
	}
	r, ok := a.srv.presenceOf(in, protocol.JSON, c.room)
	if !ok {
		return nil, tooLarge(a.srv)
	}
	return r.AppendBody(nil), nil
}

func (a *api) withPresence(c *apiCall) (string, *protocol.Error) {
	in, ns, e := a.srv.lookup(c.Channel)
	if e == nil && !ns.Presence {
		e = &protocol.ErrorNotAvailable
	}
	return in, e
}

func (a *api) presenceStats(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, e := a.withPresence(c)
	if e != nil {
		return nil, e
	}
	clients, users := a.srv.deps.Presence.Count(in)
	return (&protocol.PresenceStatsResult{Clients: uint32(clients), Users: uint32(users)}).AppendBody(nil), nil
}

func (a *api) history(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, ns, e := a.srv.lookup(c.Channel)
	switch {
	case e != nil:
		return nil, e
	case !ns.log:
		return nil, &protocol.ErrorNotAvailable
	}
	opt := hub.HistoryOptions{Limit: c.Limit, Reverse: c.Reverse}
	if c.Since != nil {
		opt.Since = a.srv.position(protocol.Position(*c.Since))
	}
	h, err := a.srv.deps.Hub.History(ctx, in, opt)
	if err != nil {
		e := errorOf(err)
		return nil, &e
	}
	return a.srv.historyOf(&h, protocol.JSON, true, c.room).AppendBody(nil), nil
}

func (a *api) historyRemove(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, ns, e := a.srv.lookup(c.Channel)
	switch {
	case e != nil:
		return nil, e
	case !ns.log:
		return nil, &protocol.ErrorNotAvailable
	}
	if err := a.srv.deps.Hub.Remove(ctx, in); err != nil {
		e := errorOf(err)
		return nil, &e
	}
	return []byte("{}"), nil
}

// rpc is for extensions of the server that Weir has none of.
func rpc(_ *api, _ context.Context, c *apiCall) ([]byte, *protocol.Error) { //nolint:revive // the signature of a method of api
	if c.Method == "" {
		return nil, &protocol.ErrorBadRequest
	}
	return nil, &errorNotFound
}

// notAvailable is for what only channels of other types have, which Weir has none of.
func (a *api) notAvailable(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	if _, _, e := a.srv.lookup(c.Channel); e != nil {
		return nil, e
	}
	return nil, &protocol.ErrorNotAvailable
}

// channels counts the subscribers of channels, those of other protocols too.
func (a *api) channels(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	n, sum := census{a.srv}, map[string]int{}
	for _, text := range n.query(ctx, topicChannels, []byte(c.Pattern), func() []byte { return n.channels(c.Pattern) }) {
		var counts map[string]int
		if json.Unmarshal(text, &counts) != nil {
			continue
		}
		for ch, count := range counts {
			sum[ch] += count
		}
	}
	if _, over := sum[tooMany]; over {
		return nil, tooLarge(a.srv)
	}
	out := []byte(`{"channels":{`)
	for i, ch := range slices.Sorted(maps.Keys(sum)) {
		if i > 0 {
			out = append(out, ',')
		}
		out = jsontext.AppendString(out, ch)
		out = append(out, `:{"num_clients":`...)
		out = strconv.AppendInt(out, int64(sum[ch]), 10)
		if out = append(out, '}'); len(out) > c.room {
			return nil, tooLarge(a.srv)
		}
	}
	return append(out, '}', '}'), nil
}

func (a *api) info(ctx context.Context, _ *apiCall) ([]byte, *protocol.Error) {
	n := census{a.srv}
	answers := n.query(ctx, topicInfo, nil, n.info)
	nodes := make([]json.RawMessage, 0, len(answers))
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		if json.Valid(answers[id]) {
			nodes = append(nodes, answers[id])
		}
	}
	b, _ := json.Marshal(map[string]any{"nodes": nodes})
	return b, nil
}
