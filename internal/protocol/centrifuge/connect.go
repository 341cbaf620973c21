package centrifuge

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// connect is a connect command that is not answered yet.
type connect struct {
	*session
	id        uint32
	req       *protocol.ConnectRequest
	positions map[string]*protocol.SubscribeRequest // by the client's names of channels
	data      []byte
	subs      map[string]subClaims // server-side subscriptions
	waiting   int
	bytes     int // of what its subscriptions recover
	over      bool
}

// connect answers the connect command.
func (s *session) connect(id uint32, r *protocol.ConnectRequest) {
	s.flags |= connecting | busy
	c := &connect{session: s, id: id, req: r, positions: map[string]*protocol.SubscribeRequest{}, subs: map[string]subClaims{}}
	r.Data = slices.Clone(r.Data)
	for i := range r.Subs {
		r.Subs[i].Data = slices.Clone(r.Subs[i].Data)
		c.positions[r.Subs[i].Channel] = &r.Subs[i]
	}
	x := s.ensureExtras()
	x.connect = c
	x.emulate(s.srv(), r.Headers)
	srv := s.srv()
	switch {
	case r.Token != "":
		c.connectByToken()
	case x.identity != nil:
		c.connectAs(x.identity)
	case srv.conf().proxies.connect != nil:
		c.connectByProxy()
	case srv.conf().cfg.Insecure || srv.conf().cfg.AnonymousConnect:
		c.admit()
	default:
		s.disconnect(protocol.DisconnectedBadRequest)
	}
}

func (c *connect) connectByToken() {
	withClaims(c.srv(), c.srv().conf().tokens, auth.ForClient, c.req.Token, c.work, func(got *claims, err error) {
		if err == nil && got.isGone(c.srv().conf().tokens) { // meanwhile
			err = auth.ErrBadToken
		}
		if err != nil {
			e, d := verdict(err)
			c.refuse(e, d)
			return
		}
		a := c.mayChange()
		a.user, a.info, a.meta, a.expires = got.Sub, safe(got.Info), got.Meta, got.expires
		a.subscribe, a.publish, a.proof, a.token = got.subscribe, got.publish, got.proof, got.token
		for _, ch := range got.Channels {
			c.subs[ch] = subClaims{}
		}
		maps.Copy(c.subs, got.Subs)
		c.admit()
	})
}

// connectAs admits the client as an extension has decided.
func (c *connect) connectAs(id *auth.Identity) {
	a := c.mayChange()
	a.user, a.expires = id.Subject, id.Expires
	a.subscribe, a.publish = id.Patterns()
	a.extras.identity = nil
	c.admit()
}

// refuse ends a connect with an error, or all of it.
func (c *connect) refuse(e *protocol.Error, d *protocol.Disconnection) {
	if d != nil {
		c.disconnect(*d)
		return
	}
	c.over = true
	c.flags |= refused
	if c.kind().uni { // there are no replies to carry an error
		c.disconnect(disconnectionFor(*e))
		return
	}
	command{c.session, c.id}.fail(*e)
	c.account.extras.bufferedInput, c.account.extras.connect = nil, nil
	c.t.SetTimer(refusedTime)
}

// disconnectionFor says an error to a client that has no replies.
func disconnectionFor(e protocol.Error) protocol.Disconnection {
	switch {
	case e.Code == protocol.ErrorTokenExpired.Code:
		return protocol.DisconnectedExpired
	case e.Code == protocol.ErrorPermissionDenied.Code:
		return protocol.DisconnectedPermissionDenied
	case e.Temporary:
		return protocol.DisconnectedInternal
	default:
		return protocol.DisconnectedBadRequest
	}
}

// failed refuses a connect for a subscription that cannot be had.
func (c *connect) failed(e protocol.Error) {
	if !c.over {
		c.refuse(&e, nil)
	}
}

// admit takes in a client that is known now, and subscribes it to what it is to have.
func (c *connect) admit() {
	srv := c.srv()
	if a := c.account; srv.conf().tokens.Revoked().RefuseUser(a.user, idOf(a.token)) != nil {
		c.disconnect(protocol.DisconnectedInvalidToken)
		return
	}
	if !srv.registry.add(c.session, srv.conf().cfg.UserConnectionLimit) {
		c.disconnect(protocol.DisconnectedConnectionLimit)
		return
	}
	if srv.conf().cfg.UserPersonalChannel && c.account.user != "" {
		name := "#" + c.account.user
		if ns := srv.conf().cfg.PersonalNamespace; ns != hub.DefaultNamespace {
			name = ns + ":" + name
		}
		if _, ok := c.subs[name]; !ok {
			c.subs[name] = subClaims{}
		}
	}
	wants, e := c.serverSide()
	if e == nil && c.kind().uni {
		var more []subscribeOptions
		more, e = c.uniSubs()
		wants = append(wants, more...)
	}
	switch {
	case e != nil:
		c.refuse(e, nil)
		return
	case len(wants) > srv.conf().cfg.ChannelLimit:
		c.disconnect(protocol.DisconnectedChannelLimit)
		return
	}
	if x := c.ensureExtras(); x.resume != "" {
		resumeFrom(x.resume, wants)
	}
	c.waiting = len(wants) + 1
	for _, w := range wants {
		if c.over || c.flags&ended != 0 {
			return
		}
		c.attach(w)
	}
	c.one()
}

// serverSide returns the subscriptions that the client is to have.
func (c *connect) serverSide() ([]subscribeOptions, *protocol.Error) {
	var wants []subscribeOptions
	for _, name := range slices.Sorted(maps.Keys(c.subs)) {
		w, e := c.kind().serverWant(name, c.subs[name])
		if e != nil {
			return nil, e
		}
		w.connect = c
		if at := c.positions[name]; at != nil {
			w.recovery(at)
		}
		wants = append(wants, w)
	}
	return wants, nil
}

// serverWant is a subscription that the server makes.
func (k *kind) serverWant(name string, o subClaims) (subscribeOptions, *protocol.Error) {
	in, ns, e := k.srv.channel(name)
	if e != nil {
		return subscribeOptions{}, e
	}
	w := subscribeOptions{channel: in, ns: ns}
	w.options(&protocol.SubscribeRequest{Recoverable: true, Positioned: true}, false, false)
	w.flags |= serverSide
	o.Override.apply(&w)
	var err error
	if w.info, err = jsonOr64(o.Info, o.B64Info); err == nil {
		w.data, err = jsonOr64(o.Data, o.B64Data)
	}
	if err != nil {
		return subscribeOptions{}, &protocol.ErrorBadRequest
	}
	w.info, w.data = safe(w.info), k.fit(w.data)
	w.expires = unixTime(o.ExpireAt)
	return w, nil
}

// fit is safe for what is sent to this client alone.
func (k *kind) fit(b []byte) []byte {
	if k.enc == protocol.Protobuf {
		return b
	}
	return safe(b)
}

// uniSubs returns the subscriptions that a unidirectional client requested itself.
func (c *connect) uniSubs() ([]subscribeOptions, *protocol.Error) {
	var wants []subscribeOptions
	for i := range c.req.Subs {
		r := &c.req.Subs[i]
		if _, ok := c.subs[r.Channel]; ok || c.positions[r.Channel] != r {
			continue
		}
		in, ns, e := c.srv().channel(r.Channel)
		if e != nil {
			return nil, e
		}
		v := c.decide(access.Read, in)
		if v == access.Refused || ns.SubscribeProxy && !c.account.granted(in) { // the proxy decides, which only commands ask
			return nil, &protocol.ErrorPermissionDenied
		}
		w := subscribeOptions{channel: in, ns: ns, connect: c}
		r.Recoverable, r.Positioned = true, true
		w.options(r, false, false)
		w.delta = false
		w.flags |= serverSide
		if v == access.Public {
			w.flags |= public
		}
		wants = append(wants, w)
	}
	return wants, nil
}

// work is do for what the client cannot continue without.
func (c *connect) work(work func(ctx context.Context), then func()) {
	if !c.do(work, then) {
		c.disconnect(protocol.DisconnectedTooManyRequests)
	}
}

// one is called when one more of what the answer waits for is there.
func (c *connect) one() {
	if c.waiting--; c.waiting > 0 || c.over || c.flags&ended != 0 {
		return
	}
	c.over = true
	c.connected()
}

// count adds n to the bytes of got, which all subscriptions of a connect command have
// together.
func (p *pending) count(n int) {
	p.bytes += n
	if p.connect != nil {
		p.connect.bytes += n
	}
}

// together is how many bytes the answer has of which p is a part.
func (p *pending) together() int {
	if p.connect != nil {
		return p.connect.bytes
	}
	return p.bytes
}

// connected answers the connect command.
func (c *connect) connected() {
	srv, k, a := c.srv(), c.kind(), c.account
	r := &protocol.ConnectResult{
		Client: c.clientID(), Version: srv.version, Data: k.fit(c.data),
		Ping: uint32(c.account.pingEvery() / time.Second), Pong: !k.uni,
	}
	if !a.expires.IsZero() && !a.byProxy {
		r.Expires, r.TTL = true, srv.ttl(a.expires)
	}
	if !k.socket || k.uni {
		r.Session = c.sessionID()
	}
	if !k.socket && !k.uni {
		r.Node = srv.node()
		srv.emulated.add(c.session)
		c.flags |= emulated
	}
	var later []*subscription
	rest := map[*subscription][]*hub.Message{}
	for x := range c.subscriptions() {
		p := x.pending()
		if p == nil || p.connect != c {
			continue
		}
		if r.Subs == nil {
			r.Subs = map[string]*protocol.SubscribeResult{}
		}
		r.Subs[wireName(p.channel)], rest[x] = p.finish()
		later = append(later, x)
	}
	c.flags = c.flags&^connecting | connected
	c.account.extras.connect = nil
	if k.uni {
		if k.ids {
			c.t.Write(c.standings().appendID(nil))
		}
		c.push("", r.Push())
	} else {
		command{c.session, c.id}.reply(r)
	}
	srv.events.connected(c.session, c.req)
	for _, x := range later {
		x.sendAll(rest[x])
	}
	if c.flags&ended == 0 {
		c.startPings()
		c.done()
	}
	c.slim()
}

// startPings sets the first ping to a random time, so that clients who connect together
// are not pinged together.
func (c *connect) startPings() {
	every := c.account.pingEvery()
	c.due = c.now() + uint16((every/2+rand.N(every/2+1))/tick)
	c.schedule()
}

// slim drops what was needed only until now.
func (s *session) slim() {
	a := s.account
	if s.flags&(ended|connected) != connected {
		return
	}
	if a.extras != nil && a.extras.isEmpty() {
		a.extras = nil
	}
	if a.isAnonymous() {
		s.account = a.kind.anonymous
	}
}

// isEmpty reports whether nothing in r is needed any more.
func (r *sessionExtras) isEmpty() bool {
	return r.plain() && r.bufferedInput == nil && r.firstExtras == nil && len(r.otherExtras) == 0 && len(r.more) == 0 && r.headers == nil && r.pings == 0 && r.identity == nil && r.working == 0 && r.connect == nil
}

// emulate takes headers that the client's transport could not set.
func (r *sessionExtras) emulate(srv *Server, headers map[string]string) {
	for name, value := range headers {
		name = strings.ToLower(name)
		if _, real := r.headers[name]; real || !srv.conf().forwards(name) || len(value) > maxHeader {
			continue
		}
		if r.headers == nil {
			r.headers = map[string]string{}
		}
		r.headers[name] = value
	}
}

// maxHeader bounds a header field that is passed on to a backend.
const maxHeader = 8 << 10
