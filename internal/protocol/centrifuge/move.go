package centrifuge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Moving to another process: a client keeps its ids, so that others see it all the time, and
// each of its subscriptions continues where it was.

// The fields of a session's state. Their meaning does not change; see takeover.State.
const (
	moveKind     = iota + 1 // see kinds.moving
	moveClient              // the id that others see, 16 bytes
	moveSession             // the id that commands come by, 16 bytes
	moveUser                //
	moveInfo                //
	moveMeta                //
	moveExpires             // Unix nanoseconds
	moveByProxy             // 1: the refresh proxy is asked then
	moveRead                // a pattern of the token's grants; repeated
	moveWrite               // the same
	moveGrants              // 1: it has grants to subscribe, 2: to publish
	moveProof               // auth's state
	moveHeader              // name and value, with a zero byte between; repeated
	moveDue                 // ticks until the next ping or pong; two's complement, 16 bits
	movePong                // 1: a ping was sent, 2: and answered
	moveSub                 // a subscription's state; repeated
	moveUnlogged            // frames of messages that are in no log, to be sent first
	moveBudget              // of the rate: thousandths of a message, plus 1
	movePings               // nanoseconds between pings, if the client's back-off says how many
	moveJTI                 // jti of the token
	moveIssued              // its iat, Unix milliseconds
)

// The fields of a subscription's state.
const (
	subChannel = iota + 1 // of the hub
	subFlags              // planFlags
	subPosition
	subProof
	subExpires
	subByProxy
	subInfo
	subFilter // as JSON
	subDelta  // 1: it gets differences
	subJTI    // jti of its token
)

// movedIDs are the ids of a client from another process.
type movedIDs struct{ client, session [16]byte }

// movedClients are the clients from other processes, by their ids: there is no way back from
// those to a transport. Any goroutine.
type movedClients struct {
	mu        sync.Mutex
	byClient  map[[16]byte]*session
	bySession map[[16]byte]*session
}

func (m *movedClients) add(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byClient == nil {
		m.byClient, m.bySession = map[[16]byte]*session{}, map[[16]byte]*session{}
	}
	m.byClient[s.account.moved.client], m.bySession[s.account.moved.session] = s, s
}

func (m *movedClients) remove(s *session) {
	if s.account.moved == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byClient, s.account.moved.client)
	delete(m.bySession, s.account.moved.session)
}

// client returns the one that others see by id, or nil.
func (m *movedClients) client(id string) *session { return m.find(id, false) }

// session returns the one that sends commands by id, or nil.
func (m *movedClients) session(id string) *session { return m.find(id, true) }

func (m *movedClients) find(id string, secret bool) *session {
	raw, ok := parseUUID(id)
	if !ok {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if secret {
		return m.bySession[raw]
	}
	return m.byClient[raw]
}

// moving are the kinds by their numbers in states: append only.
func (k *kinds) moving() []*kind {
	return []*kind{nil, k.ws[0], k.ws[1], k.stream[0], k.stream[1], k.sse, k.uniWS, k.uniSSE, k.uniStream}
}

var _ socket.Mover = (*session)(nil)

// AppendState implements socket.Mover. A client moves between two commands.
func (s *session) AppendState(dst takeover.State) (takeover.State, bool) {
	a, r, srv := s.account, s.account.extras, s.srv()
	if s.flags&(connecting|connected|refused|ended|busy|inBand) != connected || r != nil && (len(r.bufferedInput) > 0 || r.working > 0 || r.connect != nil) {
		return dst, false
	}
	for i, k := range srv.kinds.moving() {
		if k == s.kind() {
			dst = dst.MustUint(moveKind, uint64(i))
		}
	}
	client, _ := parseUUID(s.clientID())
	secret, _ := parseUUID(s.sessionID())
	dst = dst.MustBytes(moveClient, client[:]).MustBytes(moveSession, secret[:]).MustString(moveUser, a.user).Bytes(moveInfo, a.info).Bytes(moveMeta, a.meta)
	if !a.expires.IsZero() {
		dst = dst.MustUint(moveExpires, uint64(a.expires.UnixNano()))
	}
	if t := a.token; t != nil {
		dst = dst.String(moveJTI, t.JTI).Uint(moveIssued, uint64(t.Issued))
	}
	dst = dst.MustUint(moveByProxy, flag64(a.byProxy, 1)).MustUint(moveGrants, flag64(a.subscribe != nil, 1)|flag64(a.publish != nil, 2))
	for _, t := range a.subscribe.Texts() {
		dst = dst.MustString(moveRead, t)
	}
	for _, t := range a.publish.Texts() {
		dst = dst.MustString(moveWrite, t)
	}
	proof, ok := srv.conf().tokens.AppendProof(nil, a.proof)
	if !ok {
		return dst, false
	}
	dst = dst.MustBytes(moveProof, proof).Uint(moveDue, uint64(s.due-s.now())).Uint(movePong, flag64(s.flags&awaitsPong != 0, 1)|flag64(s.flags&gotPong != 0, 2))
	if r != nil {
		for name, value := range r.headers {
			dst = dst.String(moveHeader, name+"\x00"+value)
		}
		dst = dst.Uint(movePings, uint64(r.pings))
		if r.pace != nil {
			dst = dst.Uint(moveBudget, uint64(r.pace.budget*1000)+1)
		}
	}
	return appendSubscriptions(dst, s)
}

func flag64(is bool, v uint64) uint64 {
	if is {
		return v
	}
	return 0
}

// maxUnlogged bounds the messages that move because no log has them, in bytes.
const maxUnlogged = 256 << 10

// appendSubscriptions appends every subscription with its position, moved back to before what
// waits for the client.
func appendSubscriptions(dst takeover.State, s *session) (takeover.State, bool) {
	at := map[*subscription]hub.Positions{}
	var newest hub.Positions // of each log
	for x := range s.subscriptions() {
		own, ok := x.sub.Position()
		if !ok || x.pending() != nil {
			return dst, false
		}
		at[x] = own
		for _, p := range own {
			newest = withNewest(newest, p)
		}
	}
	if r := s.account.extras; r != nil && r.backlog != nil {
		var ok bool
		if newest, ok = r.backlog.Position(newest); !ok {
			return dst, false
		}
		var frames []byte
		for m := range r.backlog.Messages() {
			if x := s.find(m.Channel); m.Offset == 0 && x != nil {
				frames = append(frames, s.srv().deps.Hub.Encode(m, s.kind().format)...)
			}
		}
		if len(frames) > maxUnlogged {
			return dst, false
		}
		dst = dst.MustBytes(moveUnlogged, frames)
	}
	for x := range s.subscriptions() {
		state, ok := x.state(at[x], newest)
		if !ok {
			return dst, false
		}
		dst = dst.MustBytes(moveSub, state)
	}
	return dst, true
}

// withNewest returns list with p, if that is the newest position of its log.
func withNewest(list hub.Positions, p hub.Position) hub.Positions {
	for i := range list {
		if list[i].Epoch == p.Epoch {
			if list[i].Offset < p.Offset {
				list[i] = p
			}
			return list
		}
	}
	return append(list, p)
}

// state returns what x is. at is where it is, bounds are positions past which its client was
// not sent everything.
func (x *subscription) state(at, bounds hub.Positions) (takeover.State, bool) {
	pl := x.plan.Value()
	s := takeover.State{}.MustString(subChannel, pl.name).MustUint(subFlags, uint64(pl.flags))
	for _, p := range at {
		for _, b := range bounds {
			if b.Epoch == p.Epoch && b.Offset < p.Offset {
				p = b
			}
		}
		s = s.MustString(subPosition, p.String())
	}
	proof, ok := x.s.srv().conf().subTokens.AppendProof(nil, pl.proof)
	if !ok {
		return nil, false
	}
	s = s.MustBytes(subProof, proof)
	o := x.owned()
	if o == nil {
		return s, true
	}
	if !o.expires.IsZero() {
		s = s.MustUint(subExpires, uint64(o.expires.UnixNano()))
	}
	s = s.MustUint(subByProxy, flag64(o.byProxy, 1)).Bytes(subInfo, o.info).MustUint(subDelta, flag64(o.delta != nil, 1))
	if o.token != nil {
		s = s.String(subJTI, o.token.JTI)
	}
	if o.filter != nil {
		filter, err := json.Marshal(o.filter)
		if err != nil {
			return nil, false
		}
		s = s.MustBytes(subFilter, filter)
	}
	return s, true
}

// Moved implements socket.Mover: the client's leaving is not published.
func (s *session) Moved() {
	srv := s.srv()
	s.flags |= ended
	srv.registry.remove(s)
	srv.emulated.remove(s)
	srv.moved.remove(s)
	for x := range s.subscriptions() {
		srv.counters.subscriptions.Add(-1)
		if pl := x.plan.Value(); pl.flags&tracked != 0 && srv.deps.Presence != nil {
			srv.deps.Presence.Depart(pl.name, s.clientID())
		}
	}
	if r := s.account.extras; r != nil && r.backlog != nil {
		r.backlog.Forget(&srv.waiting)
	}
}

// An arrival is a client of another process.
type arrival struct {
	account  account
	token    auth.TokenID
	ids      movedIDs
	headers  map[string]string
	due      uint16
	pings    time.Duration
	flags    sessionFlags
	subs     []arrivingSub
	unlogged []byte
	budget   uint64
}

type arrivingSub struct {
	plan   plan
	at     hub.Positions
	extras *subscriptionExtras // nil: it has none
}

// ReadState is a socket.Reader for the protocol's clients, with the keys, channels and rules of
// now.
func (s *Server) ReadState(state takeover.State) (*socket.Arriving, error) {
	a := &arrival{flags: connected}
	if err := a.read(s, state); err != nil {
		return nil, err
	}
	if a.account.kind == nil {
		return nil, fmt.Errorf("%w: a client of an unknown kind", takeover.ErrState)
	}
	a.account.moved = &a.ids
	if err := a.authorize(s); err != nil {
		return nil, err
	}
	return &socket.Arriving{MaxMessage: s.conf().cfg.MaxCommand, Open: func(t socket.Transport) socket.Session { return a.open(s, t) }}, nil
}

func (a *arrival) read(s *Server, state takeover.State) error {
	var read, write []string
	var kind, grants, due, pong, pings uint64
	var client, session, info, meta []byte
	err := state.Into([]any{
		moveKind: &kind, moveClient: &client, moveSession: &session, moveUser: &a.account.user, moveInfo: &info, moveMeta: &meta,
		moveExpires: func(f takeover.Field) error { a.account.expires = time.Unix(0, int64(f.Uint)); return nil },
		moveJTI:     &a.token.JTI, moveIssued: func(f takeover.Field) error { a.token.Issued = int64(f.Uint); return nil },
		moveByProxy: &a.account.byProxy, moveRead: &read, moveWrite: &write, moveGrants: &grants,
		moveProof: func(f takeover.Field) (err error) {
			a.account.proof, err = s.conf().tokens.RestoreProof(takeover.State(f.Bytes))
			return err
		},
		moveHeader: func(f takeover.Field) error {
			name, value, _ := strings.Cut(string(f.Bytes), "\x00")
			if a.headers == nil {
				a.headers = map[string]string{}
			}
			a.headers[name] = value
			return nil
		},
		moveDue: &due, movePong: &pong, movePings: &pings, moveUnlogged: &a.unlogged, moveBudget: &a.budget,
		moveSub: func(f takeover.Field) error { return a.readSubscription(s, takeover.State(f.Bytes)) },
	})
	if err != nil {
		return err
	}
	if kinds := s.kinds.moving(); kind < uint64(len(kinds)) {
		a.account.kind = kinds[kind]
	}
	copy(a.ids.client[:], client)
	copy(a.ids.session[:], session)
	a.account.info, a.account.meta = bytes.Clone(info), bytes.Clone(meta)
	a.due, a.pings = uint16(due), time.Duration(min(pings, uint64(time.Hour)))
	if pong&1 != 0 {
		a.flags |= awaitsPong
	}
	if pong&2 != 0 {
		a.flags |= gotPong
	}
	if a.token != (auth.TokenID{}) {
		a.account.token = &a.token
	}
	a.account.subscribe, err = patterns(read, grants&1 != 0)
	if err == nil {
		a.account.publish, err = patterns(write, grants&2 != 0)
	}
	return err
}

// patterns compiles grants; there are none if has is false.
func patterns(texts []string, has bool) (*auth.Patterns, error) {
	if !has {
		return nil, nil //nolint:nilnil // there are none
	}
	p, err := auth.CompilePatterns(texts)
	return &p, err
}

func (a *arrival) readSubscription(s *Server, state takeover.State) error {
	x := arrivingSub{}
	o := &subscriptionExtras{}
	var flags uint64
	var info []byte
	var gets bool
	err := state.Into([]any{
		subChannel: &x.plan.name, subFlags: &flags, subByProxy: &o.byProxy, subInfo: &info, subDelta: &gets,
		subPosition: func(f takeover.Field) error {
			at, err := hub.ParsePosition(string(f.Bytes))
			x.at = append(x.at, at)
			return err
		},
		subProof: func(f takeover.Field) (err error) {
			x.plan.proof, err = s.conf().subTokens.RestoreProof(takeover.State(f.Bytes))
			return err
		},
		subExpires: func(f takeover.Field) error {
			o.expires = time.Unix(0, int64(f.Uint))
			a.flags |= subsExpire
			return nil
		},
		subJTI: func(f takeover.Field) error {
			o.token = &auth.TokenID{JTI: string(f.Bytes)}
			return nil
		},
		subFilter: func(f takeover.Field) error {
			o.filter = &protocol.Filter{}
			if err := json.Unmarshal(f.Bytes, o.filter); err != nil {
				return err
			}
			return o.filter.Check()
		},
	})
	if err != nil {
		return err
	}
	if x.plan.flags, o.info = planFlags(flags), bytes.Clone(info); gets {
		o.delta = &delta{}
	}
	ns, err := s.deps.Hub.Namespace(x.plan.name)
	if err != nil {
		return err
	}
	x.plan.ns = s.namespace(ns)
	if !o.expires.IsZero() || o.info != nil || o.filter != nil || o.delta != nil || o.token != nil {
		x.extras = o
	}
	a.subs = append(a.subs, x)
	return nil
}

var errNotAllowed = errors.New("a subscription that is not allowed here")

// authorize reports whether the client may have here what it has. What a token, a proxy or the
// server API gave stays, as in a reload.
func (a *arrival) authorize(s *Server) error {
	if err := s.conf().tokens.Revoked().RefuseUser(a.account.user, a.token); err != nil {
		return err
	}
	if a.account.proof == (auth.Proof{}) && a.account.user == "" {
		if c := s.conf(); !c.cfg.Insecure && !c.cfg.AnonymousConnect && c.proxies.connect == nil {
			return errNotAllowed
		}
	}
	for i := range a.subs {
		pl := &a.subs[i].plan
		if pl.proof != (auth.Proof{}) || pl.flags&serverSide != 0 || pl.ns.SubscribeProxy {
			continue
		}
		switch a.account.decide(access.Read, pl.name, false) {
		case access.Refused:
			return fmt.Errorf("%w: %s", errNotAllowed, pl.name)
		case access.Public:
			pl.flags |= public
		}
	}
	return nil
}

// open makes the session.
func (a *arrival) open(srv *Server, t socket.Transport) socket.Session {
	s := &session{t: t, account: &a.account, flags: a.flags}
	k := s.kind()
	srv.registry.add(s, 0)
	srv.moved.add(s)
	if !k.socket && !k.uni {
		s.flags |= emulated
		srv.emulated.add(s)
	}
	if len(a.headers) > 0 {
		s.ensureExtras().headers = a.headers
	}
	if a.pings > 0 {
		s.ensureExtras().pings = a.pings
	}
	s.due = s.now() + a.due
	if len(a.unlogged) > 0 {
		t.Write(a.unlogged)
	}
	for i := range a.subs {
		if s.flags&ended != 0 {
			break
		}
		a.subs[i].rejoin(s)
	}
	if r := s.account.extras; r != nil && r.pace != nil && a.budget > 0 {
		r.pace.budget = min(r.pace.budget, float64(a.budget-1)/1000)
	}
	if s.flags&ended == 0 {
		s.schedule()
	}
	return s
}

// rejoin subscribes the client where it was.
func (a *arrivingSub) rejoin(s *session) {
	x := s.newSubscription()
	x.plan = unique.Make(a.plan)
	if a.extras != nil {
		x.setOwn(a.extras)
	}
	s.account.extras.indexed(x, s.subscriptions())
	if a.plan.ns.rate > 0 {
		s.ensureExtras().limitRate(a.plan.ns.rate, s.t.Now())
	}
	if st := s.standings(); st != nil {
		var at hub.Position
		if len(a.at) > 0 {
			at = a.at[0]
		}
		st[a.plan.name] = at
	}
	srv := s.srv()
	srv.counters.subscriptions.Add(1)
	if srv.deps.Presence != nil {
		x.present(srv.deps.Presence.Arrive)
	}
	if err := s.t.Subscribe(&x.sub, x, hub.SubscribeOptions{Channels: []string{a.plan.name}, Since: a.at}); err != nil {
		x.Failed(err)
	}
}
