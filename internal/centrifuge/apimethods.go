package centrifuge

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/wire"
)

// The topics of questions to all nodes.
const (
	topicInfo     = "centrifuge.info"
	topicChannels = "centrifuge.channels"
)

// askTime bounds a question to all nodes.
const askTime = 3 * time.Second

// maxIdempotencyKey bounds what clients of Centrifugo send, where keys have no bound.
const maxIdempotencyKey = 512

func (s *Server) positionJSON(at hub.Position) []byte {
	b := append([]byte(`{"offset":`), strconv.FormatUint(at.Offset, 10)...)
	b = protocol.AppendString(append(b, `,"epoch":`...), s.epoch(at.Epoch))
	return append(b, '}')
}

// publication is what a call publishes on a channel.
func (s *Server) publication(c *apiCall, channel string) (hub.Publication, *protocol.Error) {
	in, ns, e := s.channel(channel)
	switch {
	case e != nil:
		return hub.Publication{}, e
	case len(c.IdempotencyKey) > maxIdempotencyKey:
		return hub.Publication{}, &protocol.ErrorBadRequest
	}
	p := hub.Publication{Channel: in, IdempotencyKey: c.IdempotencyKey, Publisher: c.publisher}
	a := hub.Attributes{Tags: c.Tags, Private: s.guarded(in)}
	if a.SkipHistory = c.SkipHistory && ns.log; ns.log && !c.SkipHistory {
		a.Version, a.VersionEpoch = c.Version, c.VersionEpoch
	}
	switch {
	case c.B64Data != "":
		b, err := base64.StdEncoding.DecodeString(c.B64Data)
		if err != nil {
			return p, &protocol.ErrorBadRequest
		}
		p.Data, a.Payload = b, payloadKind(b, protocol.Protobuf)
	case len(c.Data) == 0:
		return p, &protocol.ErrorBadRequest
	default:
		p.Data = c.Data
	}
	if a.Tags != nil || a.Payload != hub.JSON || a.Private || a.SkipHistory || a.Version != 0 {
		if a.Validate() != nil {
			return p, &protocol.ErrorBadRequest
		}
		p.Attributes = &a
	}
	return p, nil
}

func (s *Server) apiPublish(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	p, e := s.publication(c, c.Channel)
	if e != nil {
		return nil, e
	}
	return s.published(s.deps.Hub.PublishAll(ctx, []hub.Publication{p})[0])
}

func (s *Server) apiBroadcast(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	if len(c.Channels) == 0 || len(c.Channels) > wire.MaxBroadcast {
		return nil, &protocol.ErrorBadRequest
	}
	if c.room < smallAnswer*len(c.Channels) {
		return nil, s.tooLarge() // before anything is published
	}
	refused := make([]*protocol.Error, len(c.Channels))
	pubs := make([]hub.Publication, 0, len(c.Channels))
	for i, ch := range c.Channels {
		p, e := s.publication(c, ch)
		if refused[i] = e; e == nil {
			pubs = append(pubs, p)
		}
	}
	outcomes := s.deps.Hub.PublishAll(ctx, pubs)
	out := []byte(`{"responses":[`)
	for i, e := range refused {
		if i > 0 {
			out = append(out, ',')
		}
		var result []byte
		if e == nil {
			result, e = s.published(outcomes[0])
			outcomes = outcomes[1:]
		}
		text, _ := apiAnswer(result, e, false)
		out = append(out, text...)
	}
	return append(out, ']', '}'), nil
}

// published is the answer to a publication.
func (s *Server) published(o hub.Outcome) ([]byte, *protocol.Error) {
	if o.Err != nil {
		e := refusalOf(o.Err, true)
		return nil, &e
	}
	return s.positionJSON(o.At), nil
}

// done is the answer of methods that have no result.
func (s *Server) done(c *control) ([]byte, *protocol.Error) {
	if err := s.command(c); err != nil {
		s.log.Warn("server API", "do", c.Do, "err", err)
		return nil, &protocol.ErrorInternal
	}
	return []byte("{}"), nil
}

func (s *Server) apiSubscribe(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	if _, _, e := s.channel(c.Channel); e != nil {
		return nil, e
	}
	return s.done(&control{
		Do: "subscribe", User: c.User, Client: c.Client, Session: c.Session, Channel: c.Channel,
		Sub: &subClaims{
			Info: c.Info, B64Info: c.B64Info, Data: c.Data, B64Data: c.B64Data,
			ExpireAt: c.ExpireAt, Override: c.Override, Recover: c.Recover,
		},
	})
}

func (s *Server) apiUnsubscribe(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	if c.Channel != "" {
		if _, _, e := s.channel(c.Channel); e != nil {
			return nil, e
		}
	}
	return s.done(&control{Do: "unsubscribe", User: c.User, Client: c.Client, Session: c.Session, Channel: c.Channel})
}

func (s *Server) apiDisconnect(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	x := &control{Do: "disconnect", User: c.User, Client: c.Client, Session: c.Session, Spare: c.Whitelist}
	if d := c.Disconnect; d != nil {
		if d.Code != 0 && (d.Code < 3000 || d.Code > 4999) {
			return nil, &protocol.ErrorBadRequest
		}
		x.Code, x.Reason = d.Code, d.Reason
	}
	return s.done(x)
}

func (s *Server) apiRefresh(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	return s.done(&control{
		Do: "refresh", User: c.User, Client: c.Client, Session: c.Session,
		Expired: c.Expired, ExpireAt: c.ExpireAt, Info: c.Info,
	})
}

func (s *Server) apiPresence(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, e := s.withPresence(c)
	if e != nil {
		return nil, e
	}
	r, ok := s.presenceOf(in, protocol.JSON, c.room)
	if !ok {
		return nil, s.tooLarge()
	}
	return r.AppendBody(nil), nil
}

func (s *Server) withPresence(c *apiCall) (string, *protocol.Error) {
	in, ns, e := s.channel(c.Channel)
	if e == nil && !ns.Presence {
		e = &protocol.ErrorNotAvailable
	}
	return in, e
}

func (s *Server) apiPresenceStats(_ context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, e := s.withPresence(c)
	if e != nil {
		return nil, e
	}
	clients, users := s.deps.Presence.Count(in)
	return (&protocol.PresenceStatsResult{Clients: uint32(clients), Users: uint32(users)}).AppendBody(nil), nil
}

func (s *Server) apiHistory(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, ns, e := s.channel(c.Channel)
	switch {
	case e != nil:
		return nil, e
	case !ns.log:
		return nil, &protocol.ErrorNotAvailable
	}
	opt := hub.HistoryOptions{Limit: c.Limit, Reverse: c.Reverse}
	if c.Since != nil {
		opt.Since = s.position(protocol.Position(*c.Since))
	}
	h, err := s.deps.Hub.History(ctx, in, opt)
	if err != nil {
		e := errorOf(err)
		return nil, &e
	}
	return s.historyOf(&h, protocol.JSON, true, c.room).AppendBody(nil), nil
}

func (s *Server) apiHistoryRemove(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	in, ns, e := s.channel(c.Channel)
	switch {
	case e != nil:
		return nil, e
	case !ns.log:
		return nil, &protocol.ErrorNotAvailable
	}
	if err := s.deps.Hub.Remove(ctx, in); err != nil {
		e := errorOf(err)
		return nil, &e
	}
	return []byte("{}"), nil
}

// apiRPC is for extensions of the server that Weir has none of.
func (s *Server) apiRPC(context.Context, *apiCall) ([]byte, *protocol.Error) {
	return nil, &protocol.ErrorMethodNotFound
}

// ask puts a question to all nodes, this one included.
func (s *Server) ask(ctx context.Context, topic string, data []byte, local func() []byte) map[string][]byte {
	if s.deps.Cluster == nil {
		return map[string][]byte{s.node(): local()}
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	answers, missing, err := s.deps.Cluster.Ask(ctx, topic, data)
	if err != nil || len(missing) > 0 {
		s.log.Warn("ask all nodes", "topic", topic, "missing", missing, "err", err)
	}
	return answers
}

// apiChannels counts the subscribers of channels, those of other protocols too.
func (s *Server) apiChannels(ctx context.Context, c *apiCall) ([]byte, *protocol.Error) {
	sum := map[string]int{}
	for _, text := range s.ask(ctx, topicChannels, []byte(c.Pattern), func() []byte { return s.localChannels(c.Pattern) }) {
		var counts map[string]int
		if json.Unmarshal(text, &counts) != nil {
			continue
		}
		for ch, n := range counts {
			sum[ch] += n
		}
	}
	if _, over := sum[tooMany]; over {
		return nil, s.tooLarge()
	}
	out := []byte(`{"channels":{`)
	for i, ch := range slices.Sorted(maps.Keys(sum)) {
		if i > 0 {
			out = append(out, ',')
		}
		out = protocol.AppendString(out, ch)
		out = append(out, `:{"num_clients":`...)
		out = strconv.AppendInt(out, int64(sum[ch]), 10)
		if out = append(out, '}'); len(out) > c.room {
			return nil, s.tooLarge()
		}
	}
	return append(out, '}', '}'), nil
}

// tooMany is what a node counts that has more channels than fit into an answer. No
// channel has that name.
const tooMany = ""

// localChannels counts the subscribers of this node's channels, as JSON.
func (s *Server) localChannels(pattern string) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	most := min(s.conf().cfg.APIMaxAnswer, cluster.MaxAnswer-64)
	out := []byte{'{'}
	err := s.deps.Hub.Channels(ctx, func(st hub.ChannelStats) bool {
		name := wireName(st.Name)
		if st.Subscribers == 0 || hub.IsWhole(st.Name) || pattern != "" && !glob(pattern, name) {
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(protocol.AppendString(out, name), ':')
		out = strconv.AppendInt(out, int64(st.Subscribers), 10)
		return len(out) <= most
	})
	if err != nil {
		s.log.Warn("list channels", "err", err)
	}
	if len(out) > most {
		return []byte(`{"` + tooMany + `":1}`)
	}
	return append(out, '}')
}

// glob reports whether name fits a pattern, in which "*" stands for any bytes and "?"
// for one.
func glob(pattern, name string) bool {
	star, at := -1, 0 // the last star, and what it has swallowed up to
	i, j := 0, 0
	for j < len(name) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, at = i, j
			i++
		case i < len(pattern) && (pattern[i] == '?' || pattern[i] == name[j]):
			i, j = i+1, j+1
		case star >= 0:
			at++
			i, j = star+1, at
		default:
			return false
		}
	}
	return strings.Trim(pattern[i:], "*") == ""
}

// nodeInfo is what info says of a node.
type nodeInfo struct {
	UID      string `json:"uid"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	Clients  int    `json:"num_clients"`
	Users    int    `json:"num_users"`
	Channels int64  `json:"num_channels"`
	Subs     int64  `json:"num_subs"`
	Uptime   int64  `json:"uptime"`
}

func (s *Server) localInfo() []byte {
	clients, users := s.registry.count()
	b, _ := json.Marshal(nodeInfo{
		UID: s.node(), Name: s.deps.Name, Version: s.version, Clients: clients, Users: users,
		Channels: s.deps.Hub.Stats().Channels, Subs: s.counters.subscriptions.Load(),
		Uptime: int64(time.Since(s.started) / time.Second),
	})
	return b
}

func (s *Server) apiInfo(ctx context.Context, _ *apiCall) ([]byte, *protocol.Error) {
	answers := s.ask(ctx, topicInfo, nil, s.localInfo)
	nodes := make([]json.RawMessage, 0, len(answers))
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		if json.Valid(answers[id]) {
			nodes = append(nodes, answers[id])
		}
	}
	b, _ := json.Marshal(map[string]any{"nodes": nodes})
	return b, nil
}
