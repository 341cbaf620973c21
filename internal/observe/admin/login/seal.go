package login

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// A sealer encrypts and authenticates what cookies hold: AES-256-GCM under a key derived
// from the session key (RFC 5869).
type sealer struct {
	aead cipher.AEAD
	// bound is authenticated with each value: a value that was sealed under another
	// provider, client or mapping of roles does not open.
	bound string
}

// newSealer derives the key from secret; an empty one is replaced by a random one.
func newSealer(secret, bound string) (*sealer, error) {
	if secret == "" {
		secret = rand.Text() + rand.Text()
	}
	key, err := hkdf.Key(sha256.New, []byte(secret), nil, "weir admin session v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the session key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("session key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("session key: %w", err)
	}
	return &sealer{aead: aead, bound: bound}, nil
}

// maxSealed bounds a cookie's value: browsers keep 4096 bytes with name and attributes
// (RFC 6265 §6.1).
const maxSealed = 3800

// seal returns v as a cookie's value. Values of one purpose do not open for another.
func (s *sealer) seal(purpose string, v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("seal: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, b, []byte(purpose+"\x00"+s.bound))), nil
}

// open decodes what seal returned into v and reports whether it is authentic.
func (s *sealer) open(purpose, value string, v any) bool {
	if value == "" || len(value) > maxSealed {
		return false
	}
	b, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		return false
	}
	plain, err := s.aead.Open(nil, nil, b, []byte(purpose+"\x00"+s.bound))
	return err == nil && json.Unmarshal(plain, v) == nil
}
