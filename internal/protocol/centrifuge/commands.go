package centrifuge

import (
	"bytes"
	"context"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// do runs work on a goroutine and then then, unless the client has gone meanwhile. It
// reports false when there is too much at work.
func (s *session) do(work func(ctx context.Context), then func()) bool {
	return s.t.Do(work, func() {
		if s.flags&ended == 0 {
			then()
		}
	})
}

// A command is one of the client's that is to be answered.
type command struct {
	*session
	id uint32
}

// aside is do for a command that others may overtake.
func (s command) aside(work func(ctx context.Context), then func()) {
	r := s.ensureExtras()
	if r.working >= maxWorking {
		s.fail(protocol.ErrorTooManyRequests)
		return
	}
	r.working++
	if !s.do(work, func() { s.ensureExtras().working--; then(); s.slim() }) {
		r.working--
		s.fail(protocol.ErrorTooManyRequests)
	}
}

// inOrder is do for a command; those after it wait.
func (s command) inOrder(work func(ctx context.Context), then func()) {
	s.flags |= busy
	if !s.do(work, func() { then(); s.done() }) {
		s.flags &^= busy
		s.fail(protocol.ErrorTooManyRequests)
	}
}

// subscribe answers a subscribe command.
func (s command) subscribe(r *protocol.SubscribeRequest) {
	srv := s.srv()
	if r.Channel == "" {
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	}
	in, ns, e := srv.channel(r.Channel)
	switch {
	case e != nil:
	case r.Type != 0:
		e = &protocol.ErrorNotAvailable
	case s.find(in) != nil:
		e = &protocol.ErrorSubscribed
	case s.countSubscriptions() >= srv.conf().cfg.ChannelLimit:
		e = &protocol.ErrorLimit
	case r.Filter != nil && (!ns.AllowTagsFilter || r.Delta != "" || r.Filter.Check() != nil):
		e = &protocol.ErrorBadRequest
	}
	if e != nil {
		s.fail(*e)
		return
	}
	w := subscribeOptions{channel: in, ns: ns, id: s.id, filter: r.Filter}
	w.options(r, s.account.decide(access.History, in, true) != access.Refused, s.account.decide(access.Presence, in, true) != access.Refused)
	verdict := s.decide(access.Read, in)
	switch {
	case r.Token != "":
		s.subscribeByToken(w, r.Channel, r.Token)
	case ns.SubscribeProxy && !s.account.granted(in) && srv.deps.Access.ClassOf(in) != access.Users:
		s.subscribeByProxy(w, slices.Clone(r.Data))
	case verdict == access.Refused:
		s.fail(protocol.ErrorPermissionDenied)
	default:
		if verdict == access.Public {
			w.flags |= public
		}
		s.attach(w)
	}
}

// subscribeByToken subscribes who has a token for the channel.
func (s command) subscribeByToken(w subscribeOptions, channel, token string) {
	// isFor refuses tokens without the channel, in the way that SDKs expect.
	withClaims(s.srv(), s.srv().conf().subTokens, auth.ForAny, token, s.inOrder, func(got *claims, err error) {
		switch {
		case err != nil:
			e, _ := verdict(err)
			if e == nil {
				e = &protocol.ErrorPermissionDenied
			}
			s.fail(*e)
			return
		case !got.isFor(s.session, channel):
			s.disconnect(protocol.DisconnectedInvalidToken)
			return
		case got.isGone(s.srv().conf().subTokens): // meanwhile
			s.fail(protocol.ErrorPermissionDenied)
			return
		}
		w.info, w.expires, w.proof, w.token = safe(got.Info), got.expires, got.proof, got.token
		w.byProxy = !got.expires.IsZero() && w.ns.SubRefreshProxy
		got.Override.apply(&w)
		s.attach(w)
	})
}

// isFor reports whether a subscription token is for s and channel.
func (c *claims) isFor(s *session, channel string) bool {
	return c.Channel == channel && c.Sub == s.account.user && (c.Client == "" || c.Client == s.clientID())
}

// unsubscribe answers an unsubscribe command. It succeeds also for a channel
// that the client is not on.
func (s command) unsubscribe(channel string) {
	if channel == "" {
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	}
	if in, ok := hubName(channel); ok {
		if x := s.find(in); x != nil {
			if p := x.pending(); p != nil {
				s.flags |= busy // it has not been answered yet
				p.then = func() {
					s.flags &^= busy
					s.unsubscribe(channel)
					s.done()
				}
				return
			}
			x.drop()
			s.srv().events.unsubscribed(s.session, in, protocol.Unsubscription{Reason: "client unsubscribed"})
		}
	}
	s.reply(protocol.EmptyResult{Kind: protocol.Unsubscribe})
}

// publish answers a publish command.
func (s command) publish(c *protocol.Command) {
	srv := s.srv()
	if c.Sub.Channel == "" {
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	}
	in, ns, e := srv.channel(c.Sub.Channel)
	switch {
	case e != nil:
	case c.Type != 0:
		e = &protocol.ErrorNotAvailable
	case !ns.PublishProxy && s.decide(access.Publish, in) == access.Refused:
		e = &protocol.ErrorPermissionDenied
	case len(c.Sub.Data) == 0 || !ns.accepts(c.Sub.Data):
		e = &protocol.ErrorBadRequest
	}
	if e != nil {
		s.fail(*e)
		return
	}
	data := bytes.Clone(c.Sub.Data)
	if ns.PublishProxy {
		s.publishByProxy(in, ns, data)
		return
	}
	s.publishNow(hub.Publication{Channel: in, Data: data}, &hub.Attributes{Payload: payloadKind(data, s.kind().enc), Private: srv.deps.Access.Guarded(in)})
}

// accepts reports whether clients may publish data in n.
func (n *namespace) accepts(data []byte) bool {
	switch n.DataFormat {
	case "json":
		return protocol.Valid(data)
	case "json_object":
		return len(data) > 0 && data[0] == '{' && protocol.Valid(data)
	}
	return true
}

// publishNow publishes what the client sent, in its name.
func (s command) publishNow(p hub.Publication, a *hub.Attributes) {
	info := s.clientInfo()
	if x := s.find(p.Channel); x != nil && x.owned() != nil {
		info.Chan = x.owned().info
	}
	a.Info = info.AppendInfo(nil)
	p.Attributes = a
	if a.Validate() != nil {
		s.fail(protocol.ErrorBadRequest)
		return
	}
	s.t.Publish(p, func(_ hub.Position, err error) {
		switch {
		case s.flags&ended != 0:
		case err != nil:
			s.srv().log.Debug("publish", "channel", p.Channel, "err", err)
			s.fail(refusalOf(err, false))
		default:
			s.reply(protocol.EmptyResult{Kind: protocol.Publish})
		}
	})
}

// presence answers a presence or presence_stats command.
func (s command) presence(c *protocol.Command) {
	in, e := s.allowed(c, access.Presence, func(n *namespace) bool { return n.Presence })
	if e != nil {
		s.fail(*e)
		return
	}
	srv := s.srv()
	if c.Kind == protocol.PresenceStats {
		clients, users := srv.deps.Presence.Count(in)
		s.reply(&protocol.PresenceStatsResult{Clients: uint32(clients), Users: uint32(users)})
		return
	}
	enc := s.kind().enc
	var r *protocol.PresenceResult
	var fits bool
	s.aside(func(context.Context) { r, fits = srv.presenceOf(in, enc, srv.conf().cfg.MaxQueue) }, func() {
		if !fits {
			s.fail(protocol.ErrorLimit)
			return
		}
		s.reply(r)
	})
}

// allowed checks a question about a channel.
func (s command) allowed(c *protocol.Command, op access.Op, has func(*namespace) bool) (string, *protocol.Error) {
	if c.Sub.Channel == "" {
		s.disconnect(protocol.DisconnectedBadRequest)
		return "", &protocol.ErrorBadRequest
	}
	in, ns, e := s.srv().channel(c.Sub.Channel)
	switch {
	case e != nil:
		return "", e
	case !has(ns):
		return "", &protocol.ErrorNotAvailable
	case s.decide(op, in) == access.Refused:
		return "", &protocol.ErrorPermissionDenied
	}
	return in, nil
}

// presenceOf returns who is on a channel; false if that would take more than most bytes.
func (s *Server) presenceOf(channel string, enc protocol.Encoding, most int) (*protocol.PresenceResult, bool) {
	r := &protocol.PresenceResult{Presence: map[string]*protocol.ClientInfo{}}
	bytes := 0
	for _, m := range s.deps.Presence.Members(channel, maxPresence) {
		info := infoOf(&m, enc)
		if bytes += 2*len(m.Client) + len(info.User) + len(info.Conn) + len(info.Chan) + memberRoom; bytes > most {
			return nil, false
		}
		r.Presence[m.Client] = info
	}
	return r, true
}

// memberRoom is what the names of the fields of a member take at least.
const memberRoom = 24

// maxPresence bounds the clients of one answer.
const maxPresence = 10_000

// history answers a history command.
func (s command) history(c *protocol.Command) {
	in, e := s.allowed(c, access.History, func(n *namespace) bool { return n.log })
	if e != nil {
		s.fail(*e)
		return
	}
	srv, enc := s.srv(), s.kind().enc
	opt := srv.historyOptions(int(c.Limit), c.HasSince, c.Since, c.Reverse)
	var h hub.History
	var err error
	s.aside(func(ctx context.Context) { h, err = srv.deps.Hub.History(ctx, in, opt) }, func() {
		if err != nil {
			s.fail(errorOf(err))
			return
		}
		x := s.find(in)
		private := x != nil && x.plan.Value().flags&public == 0 || s.decide(access.History, in) == access.Full
		s.reply(srv.historyOf(&h, enc, private, srv.conf().cfg.MaxQueue))
	})
}

// historyOptions returns what the hub is asked.
func (s *Server) historyOptions(limit int, hasSince bool, since protocol.Position, reverse bool) hub.HistoryOptions {
	if limit < 0 || limit > s.conf().cfg.HistoryLimit {
		limit = s.conf().cfg.HistoryLimit
	}
	opt := hub.HistoryOptions{Limit: limit, Reverse: reverse}
	if hasSince {
		opt.Since = s.position(since)
	}
	return opt
}

// historyOf returns an answer of up to most bytes, but with at least one publication.
// For more, a client requests what follows.
func (s *Server) historyOf(h *hub.History, enc protocol.Encoding, private bool, most int) *protocol.HistoryResult {
	r := &protocol.HistoryResult{Position: protocol.Position{Offset: h.Top.Offset, Epoch: s.epoch(h.Top.Epoch)}}
	most -= historyRoom
	for _, m := range h.Messages {
		if !private && m.Attributes != nil && m.Attributes.Private {
			continue
		}
		p := publicationOf(m, enc)
		if most -= p.Size(); most < 0 && len(r.Publications) > 0 {
			break
		}
		r.Publications = append(r.Publications, &p)
	}
	return r
}

// historyRoom is what an answer takes besides its publications.
const historyRoom = 256

// rpc answers an rpc command.
func (s command) rpc(c *protocol.Command) {
	srv := s.srv()
	switch {
	case srv.conf().proxies.rpc != nil:
		s.rpcByProxy(c.Method, slices.Clone(c.Sub.Data))
	case srv.conf().cfg.RPCSubject != "" && srv.deps.Request != nil:
		s.rpcBySubject(c.Method, slices.Clone(c.Sub.Data))
	default:
		s.fail(protocol.ErrorNotAvailable)
	}
}

// rpcBySubject sends the call as a request to a subject; the answer is the result.
func (s command) rpcBySubject(method string, data []byte) {
	srv := s.srv()
	if !validMethod(method) {
		s.fail(protocol.ErrorMethodNotFound)
		return
	}
	subject := srv.conf().cfg.RPCSubject
	if method != "" {
		subject += "." + method
	}
	var out []byte
	var err error
	s.aside(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
		defer cancel()
		out, err = srv.deps.Request(ctx, subject, data)
	}, func() {
		if err != nil {
			srv.log.Debug("rpc", "subject", subject, "err", err)
			s.fail(protocol.ErrorInternal)
			return
		}
		s.reply(&protocol.RPCResult{Data: s.kind().fit(out)})
	})
}

const rpcTimeout = 5 * time.Second

// validMethod reports whether a method may appear in a subject.
func validMethod(m string) bool {
	for i := range len(m) {
		c := m[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' && i > 0 && m[i-1] != '.') {
			return false
		}
	}
	return len(m) <= 128 && (m == "" || m[len(m)-1] != '.')
}

// payloadKind reports what a client's data is: JSON if it can be, so that it reaches
// everybody as what it is.
func payloadKind(data []byte, enc protocol.Encoding) hub.Payload {
	switch {
	case enc == protocol.JSON, protocol.Valid(data):
		return hub.JSON
	case utf8.Valid(data):
		return hub.Text
	default:
		return hub.Binary
	}
}
