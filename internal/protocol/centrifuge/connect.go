package centrifuge

import (
	"maps"
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
	c := &connect{id: id, req: r, positions: map[string]*protocol.SubscribeRequest{}, subs: map[string]subClaims{}}
	r.Data = slices.Clone(r.Data)
	for i := range r.Subs {
		r.Subs[i].Data = slices.Clone(r.Subs[i].Data)
		c.positions[r.Subs[i].Channel] = &r.Subs[i]
	}
	x := s.extra()
	x.connect = c
	x.emulate(s.srv(), r.Headers)
	srv := s.srv()
	switch {
	case r.Token != "":
		s.connectByToken(c)
	case srv.conf().proxies.connect != nil:
		s.connectByProxy(c)
	case srv.conf().cfg.Insecure || srv.conf().cfg.AnonymousConnect:
		s.admit(c)
	default:
		s.disconnect(protocol.DisconnectedBadRequest)
	}
}

func (s *session) connectByToken(c *connect) {
	s.withClaims(s.srv().conf().tokens, auth.ForClient, c.req.Token, s.work, func(got *claims, err error) {
		if err == nil && !auth.Holds(got.proof) { // its key went meanwhile
			err = auth.ErrBadToken
		}
		if err != nil {
			e, d := verdict(err)
			s.refuse(c, e, d)
			return
		}
		a := s.mayChange()
		a.user, a.info, a.meta, a.expires = got.Sub, safe(got.Info), got.Meta, got.expires
		a.subscribe, a.publish, a.proof = got.subscribe, got.publish, got.proof
		for _, ch := range got.Channels {
			c.subs[ch] = subClaims{}
		}
		maps.Copy(c.subs, got.Subs)
		s.admit(c)
	})
}

// refuse ends a connect with an error, or all of it.
func (s *session) refuse(c *connect, e *protocol.Error, d *protocol.Disconnection) {
	if d != nil {
		s.disconnect(*d)
		return
	}
	c.over = true
	s.flags |= refused
	if s.kind().uni { // there are no replies to carry an error
		s.disconnect(disconnectionFor(*e))
		return
	}
	s.fail(c.id, *e)
	s.account.rare.held, s.account.rare.connect = nil, nil
	s.t.SetTimer(refusedTime)
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
func (c *connect) failed(s *session, e protocol.Error) {
	if !c.over {
		s.refuse(c, &e, nil)
	}
}

// admit takes in a client that is known now, and subscribes it to what it is to have.
func (s *session) admit(c *connect) {
	srv := s.srv()
	if !srv.registry.add(s, srv.conf().cfg.UserConnectionLimit) {
		s.disconnect(protocol.DisconnectedConnectionLimit)
		return
	}
	if srv.conf().cfg.UserPersonalChannel && s.account.user != "" {
		name := "#" + s.account.user
		if ns := srv.conf().cfg.PersonalNamespace; ns != hub.DefaultNamespace {
			name = ns + ":" + name
		}
		if _, ok := c.subs[name]; !ok {
			c.subs[name] = subClaims{}
		}
	}
	wants, e := s.serverSide(c)
	if e == nil && s.kind().uni {
		var more []want
		more, e = s.uniSubs(c)
		wants = append(wants, more...)
	}
	switch {
	case e != nil:
		s.refuse(c, e, nil)
		return
	case len(wants) > srv.conf().cfg.ChannelLimit:
		s.disconnect(protocol.DisconnectedChannelLimit)
		return
	}
	if x := s.extra(); x.resume != "" {
		resumeFrom(x.resume, wants)
	}
	c.waiting = len(wants) + 1
	for _, w := range wants {
		if c.over || s.flags&ended != 0 {
			return
		}
		s.attach(w)
	}
	c.one(s)
}

// serverSide returns the subscriptions that the client is to have.
func (s *session) serverSide(c *connect) ([]want, *protocol.Error) {
	var wants []want
	for _, name := range slices.Sorted(maps.Keys(c.subs)) {
		w, e := s.serverWant(name, c.subs[name])
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
func (s *session) serverWant(name string, o subClaims) (want, *protocol.Error) {
	in, ns, e := s.srv().channel(name)
	if e != nil {
		return want{}, e
	}
	w := want{channel: in, ns: ns}
	w.options(&protocol.SubscribeRequest{Recoverable: true, Positioned: true}, false, false)
	w.flags |= serverSide
	o.Override.apply(&w)
	var err error
	if w.info, err = jsonOr64(o.Info, o.B64Info); err == nil {
		w.data, err = jsonOr64(o.Data, o.B64Data)
	}
	if err != nil {
		return want{}, &protocol.ErrorBadRequest
	}
	w.info, w.data = safe(w.info), s.fit(w.data)
	w.expires = unixTime(o.ExpireAt)
	return w, nil
}

// fit is safe for what is sent to this client alone.
func (s *session) fit(b []byte) []byte {
	if s.kind().enc == protocol.Protobuf {
		return b
	}
	return safe(b)
}

// uniSubs returns the subscriptions that a unidirectional client asked for itself.
func (s *session) uniSubs(c *connect) ([]want, *protocol.Error) {
	var wants []want
	for i := range c.req.Subs {
		r := &c.req.Subs[i]
		if _, ok := c.subs[r.Channel]; ok || c.positions[r.Channel] != r {
			continue
		}
		in, ns, e := s.srv().channel(r.Channel)
		if e != nil {
			return nil, e
		}
		v := s.decide(access.Read, in)
		if v == access.Refused || ns.SubscribeProxy && !s.granted(in) { // the proxy decides, which only commands ask
			return nil, &protocol.ErrorPermissionDenied
		}
		w := want{channel: in, ns: ns, connect: c}
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

// one is called when one more of what the answer waits for is there.
func (c *connect) one(s *session) {
	if c.waiting--; c.waiting > 0 || c.over || s.flags&ended != 0 {
		return
	}
	c.over = true
	s.connected(c)
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
func (s *session) connected(c *connect) {
	srv, k, a := s.srv(), s.kind(), s.account
	r := &protocol.ConnectResult{
		Client: s.clientID(), Version: srv.version, Data: s.fit(c.data),
		Ping: uint32(time.Duration(srv.conf().cfg.PingInterval) / time.Second), Pong: !k.uni,
	}
	if !a.expires.IsZero() && !a.byProxy {
		r.Expires, r.TTL = true, srv.ttl(a.expires)
	}
	if !k.socket || k.uni {
		r.Session = s.sessionID()
	}
	if !k.socket && !k.uni {
		r.Node = srv.node()
		srv.emulated.add(s)
		s.flags |= emulated
	}
	var later []*subscription
	rest := map[*subscription][]*hub.Message{}
	for x := range s.subscriptions() {
		p := x.pending()
		if p == nil || p.connect != c {
			continue
		}
		if r.Subs == nil {
			r.Subs = map[string]*protocol.SubscribeResult{}
		}
		r.Subs[wireName(p.channel)], rest[x] = x.finish(p)
		later = append(later, x)
	}
	s.flags = s.flags&^connecting | connected
	s.account.rare.connect = nil
	if k.uni {
		if k.ids {
			s.t.Write(s.standings().appendID(nil))
		}
		s.push("", r.Push())
	} else {
		s.reply(c.id, r)
	}
	srv.tellConnected(s, c.req)
	for _, x := range later {
		x.sendAll(rest[x])
	}
	if s.flags&ended == 0 {
		s.startPings()
		s.done()
	}
	s.slim()
}

// slim drops what was needed only until now.
func (s *session) slim() {
	a := s.account
	if s.flags&(ended|connected) != connected {
		return
	}
	if a.rare != nil && a.rare.isEmpty() {
		a.rare = nil
	}
	if a.isNobody() {
		s.account = a.kind.nobody
	}
}

// isEmpty reports whether nothing in r is needed any more.
func (r *rare) isEmpty() bool {
	return r.plain() && r.held == nil && r.own == nil && len(r.owns) == 0 && len(r.more) == 0 && r.headers == nil && r.working == 0 && r.connect == nil
}

// emulate takes headers that the client's transport could not set.
func (r *rare) emulate(srv *Server, headers map[string]string) {
	for name, value := range headers {
		name = strings.ToLower(name)
		if _, real := r.headers[name]; real || !srv.forwards(name) || len(value) > maxHeader {
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
