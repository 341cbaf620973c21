package mercure

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
)

// Moving to another process: a stream is its selectors, its token's claims, and the name under
// which it is listed. Its position is kept by internal/push.

// The fields of a stream's state. Their meaning does not change; see takeover.State.
const (
	moveDialect  = iota + 1 // 0: draft 07, 1: draft 08
	moveSelector            // its kind, and its text; repeated
	moveName                // the subscriber's, if it is listed
	moveClaims              // of the token; none: it has no token
	moveToken               // dialect of the token
	moveIdentity            // auth's state
)

func (o *opening) appendState(s *Server, dst takeover.State, tr *tracked) (takeover.State, bool) {
	dst = dst.MustUint(moveDialect, uint64(o.ask.Dialect))
	for _, sel := range o.ask.Selectors {
		dst = dst.MustBytes(moveSelector, append([]byte{byte(sel.Kind)}, sel.Text...))
	}
	if tr != nil {
		dst = dst.String(moveName, tr.subscriber)
	}
	g := o.grant
	if len(g.raw) == 0 {
		return dst, true
	}
	a, ok := s.tokens.authenticator(g.dialect, g.raw, subscriber)
	if !ok {
		return dst, false
	}
	id, ok := a.AppendState(nil, g.identity)
	return dst.MustBytes(moveClaims, g.raw).MustUint(moveToken, uint64(g.dialect)).MustBytes(moveIdentity, id), ok
}

var errNotOpen = errors.New("the hub takes no anonymous subscribers here")

// ReadState is a socket.SubscriptionReader for the protocol's streams, with the keys and rules
// of now.
func (s *Server) ReadState(state takeover.State) (*socket.Subscription, error) {
	o := &opening{ask: &protocol.Request{}, grant: anonymous}
	var name string
	var claims []byte
	var dialect, tokens uint64
	var identity takeover.State
	err := state.Into([]any{
		moveDialect: &dialect, moveName: &name, moveClaims: &claims, moveToken: &tokens, moveIdentity: &identity,
		moveSelector: func(f takeover.Field) error {
			if len(f.Bytes) == 0 {
				return errors.New("a selector without a kind")
			}
			o.ask.Selectors = append(o.ask.Selectors, protocol.Selector{Kind: protocol.Kind(f.Bytes[0]), Text: string(f.Bytes[1:])})
			return nil
		},
	})
	token := protocol.Dialect(tokens)
	o.ask.Dialect = protocol.Dialect(dialect)
	switch {
	case err != nil:
		return nil, err
	case o.ask.Dialect > protocol.Draft08 || token > protocol.Draft08:
		return nil, fmt.Errorf("%w: dialect %d", takeover.ErrState, o.ask.Dialect)
	case len(claims) > 0:
		if o.grant, err = s.tokens.restore(identity, bytes.Clone(claims), token); err != nil {
			return nil, err
		}
	case !s.isOpen():
		return nil, errNotOpen
	}
	set, why := s.tokens.setOf(o.ask.Selectors)
	if why != nil {
		return nil, errors.New(why.text)
	}
	o.set = set
	var tr *tracked
	if s.conf().cfg.Subscriptions {
		if name == "" {
			name = newURN()
		}
		tr = s.directory.track(o, name)
	}
	sub := s.subscription(o, tr)
	sub.Began = tr.arrive
	return sub, nil
}

// restore makes the grant of a token's claims, if the key that proved them is still one.
func (v *verifier) restore(identity takeover.State, claims []byte, d protocol.Dialect) (*grant, error) {
	a, ok := v.authenticator(d, claims, subscriber)
	if !ok {
		return nil, errors.New("the token's issuer is not known here")
	}
	id, err := a.Restore(identity)
	if err != nil {
		return nil, err
	}
	if id == nil {
		return nil, fmt.Errorf("%w: claims without an identity", takeover.ErrState)
	}
	return v.read(id, claims, d)
}
