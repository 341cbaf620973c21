package auth

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const defaultTTL = time.Hour

// MintClaims are what Mint puts in a token.
type MintClaims struct {
	// Subject is sub; empty means none.
	Subject string
	// TTL is the life of the token; 0 means 1h.
	TTL time.Duration
	// NoExpiry leaves exp out; the verifier must not have RequireExpiry.
	NoExpiry bool
	// Subscribe and Publish are channel patterns; empty means no such right.
	Subscribe, Publish []string
	// Now is the time of issue; zero means the clock's.
	Now time.Time
	// PrivateKey is a PEM (PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY) to sign
	// with; empty means the config's HMAC secret with HS256.
	PrivateKey []byte
	// KeyID is the kid header; empty means none.
	KeyID string
}

// Mint signs a token that an Authenticator with cfg, or for a private key one
// that has its public half, accepts: iss and aud are cfg's.
func Mint(cfg Config, c MintClaims) (string, error) {
	if c.TTL < 0 {
		return "", fmt.Errorf("ttl %v is negative", c.TTL)
	}
	if !validSubject(c.Subject) {
		return "", fmt.Errorf("subject: want at most %d bytes without control characters", maxSubjectBytes)
	}
	if c.NoExpiry && cfg.RequireExpiry.On() {
		return "", errors.New("auth.require_expiry is true: a token without expiry would be refused")
	}
	if c.NoExpiry && c.TTL != 0 {
		return "", errors.New("a ttl and no expiry exclude each other")
	}
	claims, err := mintClaims(cfg, c)
	if err != nil {
		return "", err
	}
	method, key, err := signingKey(cfg, c.PrivateKey)
	if err != nil {
		return "", err
	}
	t := jwt.NewWithClaims(method, claims)
	if c.KeyID != "" {
		t.Header["kid"] = c.KeyID
	}
	token, err := t.SignedString(key)
	if limit := cfg.WithDefaults().MaxTokenBytes; err == nil && len(token) > limit {
		return "", fmt.Errorf("the token has %d bytes, auth.max_token_bytes is %d", len(token), limit)
	}
	return token, err
}

func mintClaims(cfg Config, c MintClaims) (jwt.MapClaims, error) {
	now := c.Now
	if now.IsZero() {
		now = time.Now()
	}
	claims := jwt.MapClaims{"iat": now.Unix()}
	if !c.NoExpiry {
		c.TTL = cmp.Or(c.TTL, defaultTTL)
		// Rounded up, so that a token lives no shorter than asked.
		claims["exp"] = now.Add(c.TTL + time.Second - 1).Unix()
	}
	if c.Subject != "" {
		claims["sub"] = c.Subject
	}
	if cfg.Issuer != "" {
		claims["iss"] = cfg.Issuer
	}
	if len(cfg.Audience) > 0 {
		claims["aud"] = cfg.Audience
	}
	grants := make(map[string][]string)
	for name, list := range map[string][]string{"subscribe": c.Subscribe, "publish": c.Publish} {
		if _, err := CompilePatterns(list); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(list) > 0 {
			grants[name] = list
		}
	}
	if len(grants) > 0 {
		claims["weir"] = grants
	}
	return claims, nil
}

func signingKey(cfg Config, privatePEM []byte) (jwt.SigningMethod, any, error) {
	if len(privatePEM) > 0 {
		return privateKey(privatePEM)
	}
	var (
		l loaded
		p problems
	)
	cfg.HMACPreviousSecret, cfg.HMACPreviousSecretFile = "", ""
	cfg.loadSecrets(&l, &p)
	if err := p.err(); err != nil {
		return nil, nil, err
	}
	if len(l.keys) == 0 {
		return nil, nil, &ConfigError{
			Key: "auth.hmac_secret", Msg: "is not set and no private key is given",
			Fix: secretHint,
		}
	}
	return jwt.SigningMethodHS256, l.keys[0].material, nil
}

// privateKey reads a private key and chooses the algorithm of its kind.
func privateKey(text []byte) (jwt.SigningMethod, any, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, errors.New("private key: no PEM block")
	}
	var (
		k   any
		err error
	)
	switch block.Type {
	case "PRIVATE KEY":
		k, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		k, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		k, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		err = fmt.Errorf("PEM block %.40q, want PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY", block.Type)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("private key: %w", err)
	}
	signer, ok := k.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("private key of type %T cannot sign", k)
	}
	pub, err := newPublicKey("", signer.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("private key: %w", err)
	}
	switch k.(type) {
	case *rsa.PrivateKey, *ecdsa.PrivateKey, ed25519.PrivateKey:
		return jwt.GetSigningMethod(pub.algs[0]), k, nil
	}
	return nil, nil, fmt.Errorf("private key of type %T is not known", k)
}
