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
)

// AppendState appends who id is to dst, for another process. ok is false if what proves it
// is not a's, or cannot be found again there. A nil id is nobody.
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
	if id.proof == (Proof{}) {
		return s, id.By == "" || id.By == ByProgram
	}
	p := id.proof.Value()
	switch {
	case p.by != a:
		return dst, false
	case p.key == nil:
		return s.MustBytes(idSum, p.sum[:]), true
	}
	print := p.key.fingerprint()
	s = s.MustBytes(idKey, print[:]).MustString(idToken, p.alg+"\n"+p.iss+"\n"+p.aud)
	if !p.expires {
		s = s.MustUint(idUnending, 1)
	}
	return s, true
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

// fingerprint tells keys apart, without giving one away.
func (k *key) fingerprint() [sha256.Size]byte {
	if secret, ok := k.material.([]byte); ok {
		return sha256.Sum256(append([]byte("weir takeover\x00"), secret...))
	}
	return k.print
}

// ErrProof says that what proved an identity is not known, or not accepted any more.
var ErrProof = errors.New("what proved the identity is not accepted here")

// Restore reads the state of an identity. It holds by the keys of a, as if it had been
// verified now; nil is nobody.
func (a *Authenticator) Restore(s takeover.State) (*Identity, error) {
	if len(s) == 0 {
		return nil, nil //nolint:nilnil // nobody
	}
	id := &Identity{}
	p := proof{by: a, expires: true}
	var print, sum []byte
	var subscribe, publish []string
	err := s.Read(func(f takeover.Field) (bool, error) {
		text := string(f.Bytes)
		switch f.Tag {
		case idSubject:
			id.Subject = text
		case idBy:
			id.By = text
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
		case idKey:
			print = f.Bytes
		case idToken:
			parts := strings.SplitN(text, "\n", 3)
			if len(parts) != 3 {
				return true, errors.New("want an algorithm, an issuer and an audience")
			}
			p.alg, p.iss, p.aud = parts[0], parts[1], parts[2]
		case idUnending:
			p.expires = f.Uint == 0
		case idSum:
			sum = f.Bytes
		default:
			return false, nil
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
	return a.prove(id, &p, print, sum)
}

// prove gives id what it rests on: a key with that fingerprint, or the API key with that hash.
func (a *Authenticator) prove(id *Identity, p *proof, print, sum []byte) (*Identity, error) {
	r := a.rules.Load()
	switch {
	case len(sum) == sha256.Size:
		if now := r.apiKey([sha256.Size]byte(sum)); now != nil {
			return now, nil
		}
		return nil, fmt.Errorf("%w: an API key", ErrProof)
	case len(print) != sha256.Size:
		if id.By == "" || id.By == ByProgram {
			return id, nil
		}
		return nil, fmt.Errorf("%w: nothing proves it", ErrProof)
	}
	for _, k := range r.keys() {
		if k.fingerprint() == [sha256.Size]byte(print) {
			if p.key = k; r.holds(p) {
				id.proof = unique.Make(*p)
				return id, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: the key of a token", ErrProof)
}
