package centrifuge

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/protocol/jsontext"
)

// claims are those of a connection token, or of a subscription token.
type claims struct {
	Sub      string               `json:"sub"`
	Info     json.RawMessage      `json:"info"`
	B64Info  string               `json:"b64info"`
	Channels []string             `json:"channels"`
	Subs     map[string]subClaims `json:"subs"`
	Meta     json.RawMessage      `json:"meta"`
	ExpireAt *int64               `json:"expire_at"`
	Weir     *struct {
		Subscribe []string `json:"subscribe"`
		Publish   []string `json:"publish"`
	} `json:"weir"`
	// Of a subscription token.
	Channel  string    `json:"channel"`
	Client   string    `json:"client"`
	Override *override `json:"override"`

	expires            time.Time
	proof              auth.Proof
	token              *auth.TokenID // nil: neither jti nor iat
	subscribe, publish *auth.Patterns
}

// subClaims are the options of a server-side subscription.
type subClaims struct {
	Info     json.RawMessage `json:"info"`
	B64Info  string          `json:"b64info"`
	Data     json.RawMessage `json:"data"`
	B64Data  string          `json:"b64data"`
	ExpireAt int64           `json:"expire_at"`
	Override *override       `json:"override"`
	// Recover is for subscriptions by the server API.
	Recover *position `json:"recover_since"`
}

type position struct {
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
}

// override replaces options of the namespace for one subscription.
type override struct {
	Presence           *flag `json:"presence"`
	JoinLeave          *flag `json:"join_leave"`
	ForcePushJoinLeave *flag `json:"force_push_join_leave"`
	ForceRecovery      *flag `json:"force_recovery"`
	ForcePositioning   *flag `json:"force_positioning"`
}

type flag struct {
	Value bool `json:"value"`
}

// apply gives w what o overrides.
func (o *override) apply(w *subscribeOptions) {
	if o == nil {
		return
	}
	set := func(f *flag, bits planFlags, needsLog bool) {
		switch {
		case f == nil:
		case f.Value && (!needsLog || w.ns.log):
			w.flags |= bits
		default:
			w.flags &^= bits
		}
	}
	set(o.Presence, tracked, false)
	if o.JoinLeave != nil && o.JoinLeave.Value {
		w.flags |= tracked
	}
	set(o.ForcePushJoinLeave, joinLeave, false)
	set(o.ForceRecovery, recoverable, true)
	set(o.ForcePositioning, positioned, true)
}

// withClaims reads a token and continues with then: at once for one that is signed with
// a secret, otherwise by run, which is one of the session's ways to have work done. A
// token that has none of the purposes want is refused.
func withClaims(srv *Server, keys *auth.Authenticator, want auth.Purpose, token string, run func(work func(context.Context), then func()), then func(*claims, error)) {
	if payload, ok, err := keys.PayloadNow(want, token, srv.now()); ok {
		then(readClaims(payload, err))
		return
	}
	var got *claims
	var err error
	run(func(ctx context.Context) { got, err = readClaims(keys.Payload(ctx, want, token, srv.now())) }, func() { then(got, err) })
}

// readClaims reads the payload of a token that holds.
func readClaims(payload auth.Payload, err error) (*claims, error) {
	if err != nil {
		return nil, err
	}
	c := &claims{expires: payload.Expires, proof: payload.Proof}
	if payload.Token != (auth.TokenID{}) {
		c.token = &payload.Token
	}
	if err := json.Unmarshal(payload.Claims, c); err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrBadToken, err)
	}
	if c.Info, err = jsonOr64(c.Info, c.B64Info); err != nil {
		return nil, fmt.Errorf("%w: b64info: %w", auth.ErrBadToken, err)
	}
	if c.ExpireAt != nil {
		c.expires = unixTime(*c.ExpireAt)
	}
	if c.Weir != nil {
		sub, err := auth.CompilePatterns(c.Weir.Subscribe)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", auth.ErrBadToken, err)
		}
		pub, err := auth.CompilePatterns(c.Weir.Publish)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", auth.ErrBadToken, err)
		}
		c.subscribe, c.publish = &sub, &pub
	}
	return c, nil
}

// isGone reports whether the key of the token, or the token itself, was revoked since it was verified.
func (c *claims) isGone(keys *auth.Authenticator) bool {
	return !auth.Valid(c.proof) || keys.Revoked().Revokes(c.Sub, idOf(c.token), time.Now())
}

// idOf is what t points to; the zero value for nil.
func idOf(t *auth.TokenID) auth.TokenID {
	if t == nil {
		return auth.TokenID{}
	}
	return *t
}

// withJTI returns t if it has a jti, else nil.
func withJTI(t *auth.TokenID) *auth.TokenID {
	if t == nil || t.JTI == "" {
		return nil
	}
	return t
}

// unixTime is the time of a claim; 0 means never.
func unixTime(seconds int64) time.Time {
	if seconds <= 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// jsonOr64 returns the bytes of a field that comes in two forms.
func jsonOr64(raw json.RawMessage, b64 string) ([]byte, error) {
	if b64 != "" {
		return base64.StdEncoding.DecodeString(b64)
	}
	if string(raw) == "null" {
		return nil, nil
	}
	return raw, nil
}

// safeFor returns b if clients of the encoding can be sent it: what is in JSON
// must be JSON.
func safe(b []byte) []byte {
	if len(b) == 0 || protocol.Valid(b) {
		return b
	}
	return jsontext.AppendString(nil, base64.StdEncoding.EncodeToString(b))
}

// A verdict on a token that does not hold: an error for the client to act on, or the
// end of the connection.
func verdict(err error) (e *protocol.Error, d *protocol.Disconnection) {
	switch {
	case errors.Is(err, auth.ErrExpired):
		return &protocol.ErrorTokenExpired, nil
	case errors.Is(err, auth.ErrKeysUnavailable):
		return &protocol.ErrorInternal, nil
	default:
		return nil, &protocol.DisconnectedInvalidToken
	}
}
