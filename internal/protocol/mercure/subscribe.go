package mercure

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// An opening is a subscription that is being prepared.
type opening struct {
	ask   *protocol.Request
	cred  credential
	grant *grant
	set   *protocol.Set
	from  start
	why   *refusal
}

// serveSubscribe answers GET, HEAD and QUERY.
func (s *Server) serveSubscribe(r socket.Request) {
	body := ""
	if r.Method() == "QUERY" {
		if !isForm(r.Header("Content-Type")) {
			s.refuse(r, protocol.Draft08, &refusal{status: http.StatusUnsupportedMediaType, text: "query application/x-www-form-urlencoded"})
			return
		}
		body = string(r.Body())
	}
	serve := s.serve
	if r.Method() == "QUERY" {
		serve.Draft07 = false // it has no such method
	}
	ask, perr := protocol.ParseRequest(r.Query(), body, r.Header("Last-Event-ID"), serve)
	if perr != nil {
		d := dialectOfQuery(r, serve)
		if !s.isOpen() && !s.tokens.credential(r, queryToken(r), d, true).has {
			s.refuse(r, d, noToken) // an unauthorized client learns no more
			return
		}
		s.refuse(r, d, malformed(perr))
		return
	}
	if why := s.conf().tooMany(ask); why != nil {
		s.refuse(r, ask.Dialect, why)
		return
	}
	if !r.AdmitPage() {
		s.refuse(r, ask.Dialect, badOrigin)
		return
	}
	o := &opening{ask: ask, cred: s.tokens.credential(r, ask.Token, ask.Dialect, true)}
	if !o.cred.has && !s.isOpen() {
		s.refuse(r, ask.Dialect, noToken)
		return
	}
	if o.prepareAtOnce(s) {
		s.open(r, o)
		return
	}
	r.Do(func(ctx context.Context) { o.prepare(ctx, s) }, func() { s.open(r, o) })
}

// queryToken is draft 07's token in the query, of any request.
func queryToken(r socket.Request) string {
	pairs, err := protocol.ParseForm(r.Query())
	if err != nil {
		return ""
	}
	token, _ := protocol.Get(pairs, "authorization")
	return token
}

// dialectOfQuery is in whose words a malformed subscription is refused.
func dialectOfQuery(r socket.Request, serve protocol.Dialects) protocol.Dialect {
	pairs, err := protocol.ParseForm(r.Query())
	if err == nil && serve.Draft07 {
		if _, ok := protocol.Get(pairs, "match"); !ok {
			return protocol.Draft07
		}
	}
	if serve.Draft08 {
		return protocol.Draft08
	}
	return protocol.Draft07
}

func (x *settings) tooMany(ask *protocol.Request) *refusal {
	most := x.cfg.MaxTopics
	if ask.Dialect == protocol.Draft08 {
		most = x.cfg.MaxMatchers
	}
	if len(ask.Selectors) > most {
		return &refusal{http.StatusBadRequest, "invalid_request", "too many topics"}
	}
	return nil
}

// prepareAtOnce prepares what needs no wait: a client without a token, or with one
// that is known, for topics and for patterns that are compiled, live or from a place in
// the log.
func (o *opening) prepareAtOnce(s *Server) bool {
	if o.ask.Resumes {
		var ok bool
		if o.from, ok = s.ids.resolveAtOnce(o.ask.LastID); !ok {
			return false
		}
	}
	o.grant = anonymous
	if o.cred.has {
		var ok bool
		if o.grant, ok = s.tokens.cached(o.cred.token, subscriber); !ok {
			return false
		}
	}
	for _, sel := range o.ask.Selectors {
		if sel.Cost() > 0 && s.tokens.selectors.find(sel) == nil {
			return false
		}
	}
	o.set, o.why = s.tokens.setOf(o.ask.Selectors)
	return true
}

// prepare is called on a goroutine.
func (o *opening) prepare(ctx context.Context, s *Server) {
	o.grant = anonymous
	if o.cred.has {
		if o.grant, o.why = s.tokens.verify(ctx, o.cred.token, subscriber); o.why != nil {
			return
		}
	}
	if o.set, o.why = s.tokens.setOf(o.ask.Selectors); o.why != nil {
		return
	}
	if o.ask.Resumes {
		var err error
		if o.from, err = s.ids.resolve(ctx, o.ask.LastID, o.ask.Dialect, o.grant.read); err != nil {
			s.log.Debug("position not found out", "err", err)
			o.why = unreachable
		}
	}
}

func (v *verifier) setOf(list []protocol.Selector) (*protocol.Set, *refusal) {
	set, err := v.compileAll(list)
	switch {
	case errors.Is(err, errPatterns):
		return nil, unreachable
	case err != nil:
		return nil, &refusal{http.StatusBadRequest, "invalid_request", err.Error()}
	}
	return set, nil
}

// open starts the stream.
func (s *Server) open(r socket.Request, o *opening) {
	if o.why != nil {
		s.refuse(r, o.ask.Dialect, o.why)
		return
	}
	if s.conf().cfg.Subscriptions && s.directory.untold.full() {
		s.refuse(r, o.ask.Dialect, unreachable)
		return
	}
	var tr *tracked
	if s.conf().cfg.Subscriptions {
		tr = s.directory.track(o, newURN())
	}
	sub := s.subscription(o, tr)
	sub.Fields = o.from.fields(o.ask.Dialect)
	sub.Life = s.conf().life()
	sub.Began = func() {
		s.counts.subscribed.Add(1)
		if o.ask.Resumes {
			s.counts.resumed.Add(1)
		}
		tr.begin()
	}
	r.Subscribe(sub)
}

// subscription is what o requests, in this process or in the one that it began in. tr tracks it.
func (s *Server) subscription(o *opening, tr *tracked) *socket.Subscription {
	return &socket.Subscription{
		Options:     o.options(s),
		Format:      wire.Mercure,
		Identity:    o.grant.reader,
		Preamble:    []byte(":\n"),
		Gap:         appendGap,
		Heartbeat:   time.Duration(s.conf().cfg.Heartbeat),
		Review:      o.grant.review(s),
		AppendState: func(dst takeover.State) (takeover.State, bool) { return o.appendState(s, dst, tr) },
		Moved:       tr.depart,
		Ended:       tr.end,
	}
}

// life is how long a stream lives: spread, so that those who came together do not
// come again together.
func (x *settings) life() time.Duration {
	most := time.Duration(x.cfg.ConnectionLife)
	if most < 0 {
		return 0
	}
	return most - time.Duration(rand.Int64N(int64(most/5)+1))
}

// options say what the hub is to deliver: the channels, if each selector is a topic,
// or all of the namespace and what is wanted of it.
func (o *opening) options(s *Server) hub.SubscribeOptions {
	opt := o.from.options
	v := &view{ns: s.conf().cfg.Namespace, set: o.set, read: o.grant.read, access: s.deps.Access, who: o.grant.identity}
	topics, exact := o.set.Exact()
	if exact && len(topics) <= hub.MaxSubscriberChannels {
		v.channels = make(map[string]struct{}, len(topics))
		for _, t := range topics {
			ch, _ := channelOf(s.conf().cfg.Namespace, t)
			v.channels[ch] = struct{}{}
			v.guarded = v.guarded || s.deps.Access.Guarded(ch)
			opt.Channels = append(opt.Channels, ch)
		}
		slices.Sort(opt.Channels)
	} else {
		opt.Channels = []string{hub.Whole(s.conf().cfg.Namespace)}
	}
	opt.Public = v.read.Empty()
	if v.channels == nil || !opt.Public || v.guarded {
		opt.Select = v.matches
	}
	return opt
}

// A view is what one subscriber gets of the updates.
type view struct {
	ns       string
	set      *protocol.Set
	read     *protocol.Set       // of private ones
	channels map[string]struct{} // nil: it follows the whole namespace
	guarded  bool                // some of channels are for callers that are meant alone
	access   *access.Model
	who      *auth.Identity
}

// matches checks a message of a channel that is followed. An update on several topics is
// a message on each: one of them is wanted if the subscriber means any of its topics.
func (v *view) matches(m *hub.Message) bool {
	a := m.Attributes
	if v.hidden(m) {
		return false
	}
	if a == nil {
		return v.channels != nil || v.set.Match(topicOf(v.ns, m.Channel, nil))
	}
	if v.channels == nil {
		if a.Index > 0 {
			return false // the first copy has come, for it came to all channels
		}
		if !v.means(m, v.set) {
			return false
		}
	} else {
		for _, ch := range a.Topics[:min(a.Index, len(a.Topics))] {
			if _, ok := v.channels[ch]; ok {
				return false // a copy before this one was wanted
			}
		}
	}
	return true
}

// hidden reports whether m is not for the subscriber: private, or on a channel that is
// guarded, and not among the topics that the token grants.
func (v *view) hidden(m *hub.Message) bool {
	private := m.Attributes != nil && m.Attributes.Private
	if !private && !v.access.Guarded(m.Channel) {
		return false
	}
	c := access.Caller{Identity: v.who, Proof: v.means(m, v.read)}
	switch v.access.Decide(access.Mercure, access.Read, m.Channel, c) {
	case access.Full:
		return false
	case access.Public:
		return private
	}
	return true
}

// means reports whether one of the topics of m is in set.
func (v *view) means(m *hub.Message, set *protocol.Set) bool {
	a := m.Attributes
	switch {
	case a == nil:
		return set.Match(topicOf(v.ns, m.Channel, nil))
	case len(a.Topics) == 0:
		return set.Match(topicOf(v.ns, m.Channel, a.Tags))
	}
	return slices.ContainsFunc(a.Topics, func(ch string) bool { return set.Match(topicOf(v.ns, ch, a.Tags)) })
}
