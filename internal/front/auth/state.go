package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"
	"unique"

	"github.com/weir-gateway/weir/internal/app/takeover"
)

// The fields of an identity's state. Their meaning does not change; see takeover.State.
const (
	idSubject   = iota + 1
	idBy        // Identity.By
	idExpires   // Unix nanoseconds
	idPurpose   // of a token
	idSubscribe // a pattern; repeated
	idPublish   // a pattern; repeated
	idScope     // repeated
	idClaim     // name and values, each ended by a zero byte; repeated
	idKey       // fingerprint of the key that signed the token
	idToken     // algorithm, issuer and audience of the token, each ended by a line feed
	idUnending  // 1: the token has no expiry
	idSum       // hash of the API key
	idJTI       // jti of the token
	idIssued    // iat of the token, Unix milliseconds
)

// AppendState appends who id is to dst, for another process. ok is false if what proves it
// is not a's, or cannot be found again there. A nil id is anonymous.
func (a *Authenticator) AppendState(dst takeover.State, id *Identity) (state takeover.State, ok bool) {
	if id == nil {
		return dst, true
	}
	s := dst.String(idSubject, id.Subject).MustString(idBy, id.By).MustUint(idPurpose, uint64(id.purpose))
	if !id.Expires.IsZero() {
		s = s.MustUint(idExpires, uint64(id.Expires.UnixNano()))
	}
	for _, p := range id.subscribe.texts() {
		s = s.MustString(idSubscribe, p)
	}
	for _, p := range id.publish.texts() {
		s = s.MustString(idPublish, p)
	}
	for _, v := range id.scopes {
		s = s.MustString(idScope, v)
	}
	for _, c := range id.claims {
		s = s.MustString(idClaim, c.name+"\x00"+strings.Join(c.values, "\x00"))
	}
	s = s.String(idJTI, id.token.JTI).Uint(idIssued, uint64(id.token.Issued))
	if id.proof == (Proof{}) {
		return s, id.By == "" || id.By == ByProgram
	}
	return a.AppendProof(s, id.proof)
}

// AppendProof appends what p rests on to dst, for another process. ok is false if p is not of
// a. The zero Proof is nothing.
func (a *Authenticator) AppendProof(dst takeover.State, of Proof) (state takeover.State, ok bool) {
	if of == (Proof{}) {
		return dst, true
	}
	p := of.Value()
	switch {
	case p.by != a:
		return dst, false
	case p.key == nil:
		return dst.MustBytes(idSum, p.sum[:]), true
	}
	print := p.key.fingerprint()
	dst = dst.MustBytes(idKey, print[:]).MustString(idToken, p.alg+"\n"+p.iss+"\n"+p.aud)
	if !p.expires {
		dst = dst.MustUint(idUnending, 1)
	}
	return dst, true
}

// Texts are the patterns as they were given. nil has none.
func (ps *Patterns) Texts() []string {
	if ps == nil {
		return nil
	}
	return ps.texts()
}

// texts are the patterns as they were given.
func (ps *Patterns) texts() (list []string) {
	for t := range ps.exact {
		list = append(list, t)
	}
	for i := range ps.wild {
		list = append(list, ps.wild[i].text)
	}
	return list
}

// fingerprint distinguishes keys, without giving one away.
func (k *key) fingerprint() [sha256.Size]byte {
	if secret, ok := k.material.([]byte); ok {
		return sha256.Sum256(append([]byte("weir takeover\x00"), secret...))
	}
	return k.print
}

// ErrProof reports that what proved an identity is not known, or not accepted any more.
var ErrProof = errors.New("what proved the identity is not accepted here")

// Restore reads the state of an identity. It holds by the keys of a, as if it had been
// verified now; nil is anonymous.
func (a *Authenticator) Restore(s takeover.State) (*Identity, error) {
	if len(s) == 0 {
		return nil, nil //nolint:nilnil // anonymous
	}
	id := &Identity{}
	p := movedProof{proof: proof{by: a, expires: true}}
	var subscribe, publish []string
	err := s.Read(func(f takeover.Field) (bool, error) {
		text := string(f.Bytes)
		switch f.Tag {
		case idSubject:
			id.Subject = text
		case idBy:
			id.By = text
		case idJTI:
			id.token.JTI = text
		case idIssued:
			id.token.Issued = int64(f.Uint)
		case idExpires:
			id.Expires = time.Unix(0, int64(f.Uint))
		case idPurpose:
			id.purpose = Purpose(f.Uint)
		case idSubscribe:
			subscribe = append(subscribe, text)
		case idPublish:
			publish = append(publish, text)
		case idScope:
			id.scopes = append(id.scopes, text)
		case idClaim:
			parts := strings.Split(text, "\x00")
			id.claims = append(id.claims, claim{name: parts[0], values: parts[1:]})
		default:
			return p.field(f)
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if id.subscribe, err = CompilePatterns(subscribe); err == nil {
		id.publish, err = CompilePatterns(publish)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", takeover.ErrState, err)
	}
	return a.prove(id, &p)
}

// RestoreProof reads what AppendProof wrote, and finds it among the keys of a.
func (a *Authenticator) RestoreProof(s takeover.State) (Proof, error) {
	if len(s) == 0 {
		return Proof{}, nil
	}
	p := movedProof{proof: proof{by: a, expires: true}}
	if err := s.Read(p.field); err != nil {
		return Proof{}, err
	}
	id, err := a.prove(&Identity{}, &p)
	if err != nil {
		return Proof{}, err
	}
	return id.proof, nil
}

// A movedProof is a proof without its key, which its fingerprint names, or the hash of an API
// key.
type movedProof struct {
	proof
	print, hash []byte
}

// field takes a field of an identity's state.
func (p *movedProof) field(f takeover.Field) (bool, error) {
	switch f.Tag {
	case idKey:
		p.print = f.Bytes
	case idToken:
		parts := strings.SplitN(string(f.Bytes), "\n", 3)
		if len(parts) != 3 {
			return true, errors.New("want an algorithm, an issuer and an audience")
		}
		p.alg, p.iss, p.aud = parts[0], parts[1], parts[2]
	case idUnending:
		p.expires = f.Uint == 0
	case idSum:
		p.hash = f.Bytes
	default:
		return false, nil
	}
	return true, nil
}

// prove gives id what it rests on: a key with that fingerprint, or the API key with that hash.
func (a *Authenticator) prove(id *Identity, p *movedProof) (*Identity, error) {
	r := a.rules.Load()
	if err := a.revoked.Refuse(id); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProof, err)
	}
	switch {
	case len(p.hash) == sha256.Size:
		if now := r.apiKey([sha256.Size]byte(p.hash)); now != nil {
			return now, nil
		}
		return nil, fmt.Errorf("%w: an API key", ErrProof)
	case len(p.print) != sha256.Size:
		if id.By == "" || id.By == ByProgram {
			return id, nil
		}
		return nil, fmt.Errorf("%w: nothing proves it", ErrProof)
	}
	for _, k := range r.keys() {
		if k.fingerprint() == [sha256.Size]byte(p.print) {
			if p.key = k; r.accepts(&p.proof) {
				id.proof = unique.Make(p.proof)
				return id, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: the key of a token", ErrProof)
}
