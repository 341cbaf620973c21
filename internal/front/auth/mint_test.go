package auth

import (
	"crypto"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestMintedTokenIsAccepted(t *testing.T) {
	cfg := Config{KeySet: KeySet{HMACSecret: secret, Issuer: "https://i", Audience: []string{"weir", "b"}}}
	token, err := Mint(cfg, MintClaims{Subject: "ada", Now: now, Subscribe: []string{"orders.*"}, Publish: []string{"news"}})
	if err != nil {
		t.Fatal(err)
	}
	id := verify(t, newAuth(t, cfg))(token, nil)
	if id.Subject != "ada" || !id.CanSubscribe("orders.1") || id.CanSubscribe("news") || !id.CanPublish("news") || id.CanPublish("orders.1") {
		t.Errorf("identity %+v", id)
	}
	if want := now.Add(time.Hour + 5*time.Second); !id.Expires.Equal(want) {
		t.Errorf("expires %v, want %v", id.Expires, want)
	}
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, Audience: []string{"c"}}}))(token, ErrBadToken)
}

func TestMintWithPrivateKeys(t *testing.T) {
	f := func(k crypto.Signer, text []byte) {
		t.Helper()
		token, err := Mint(Config{}, MintClaims{PrivateKey: text, KeyID: "k", Now: now, TTL: time.Minute})
		if err != nil {
			t.Error(err)
			return
		}
		verify(t, newAuth(t, Config{KeySet: KeySet{PublicKeys: []PublicKey{{ID: "k", PEM: publicPEM(k)}}}}))(token, nil)
		verify(t, newAuth(t, Config{KeySet: KeySet{PublicKeys: []PublicKey{{ID: "x", PEM: publicPEM(k)}}}}))(token, ErrBadToken)
		verify(t, newAuth(t, Config{KeySet: KeySet{PublicKeys: []PublicKey{{PEM: publicPEM(otherKey())}}}}))(token, ErrBadToken)
	}
	f(rsaKey(), privatePEM(rsaKey()))
	f(p256Key(), privatePEM(p256Key()))
	f(p384Key(), privatePEM(p384Key()))
	f(p521Key(), privatePEM(p521Key()))
	f(edKey(), privatePEM(edKey()))
	f(rsaKey(), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey())}))
	f(p256Key(), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(p256Key()))}))
}

func TestMintRefuses(t *testing.T) {
	ok := Config{KeySet: KeySet{HMACSecret: secret}}
	f := func(cfg Config, c MintClaims, want string) {
		t.Helper()
		token, err := Mint(cfg, c)
		if want == "" && err != nil || want != "" && (err == nil || token != "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("Mint: %q, %v, want %q", token, err, want)
		}
	}
	f(ok, MintClaims{}, "")
	f(Config{}, MintClaims{}, "auth.hmac_secret: is not set")
	f(Config{KeySet: KeySet{HMACSecret: "x"}}, MintClaims{}, "auth.hmac_secret: 1 bytes")
	f(ok, MintClaims{TTL: -1}, "negative")
	f(ok, MintClaims{NoExpiry: true}, "require_expiry")
	f(Config{KeySet: KeySet{HMACSecret: secret, RequireExpiry: setting.Off}}, MintClaims{NoExpiry: true}, "")
	f(Config{KeySet: KeySet{HMACSecret: secret, RequireExpiry: setting.Off}}, MintClaims{NoExpiry: true, TTL: 1}, "exclude each other")
	f(ok, MintClaims{Subject: "a\n"}, "subject")
	f(ok, MintClaims{Subscribe: []string{""}}, "subscribe: a pattern is empty")
	f(ok, MintClaims{Publish: []string{"a b"}}, "publish: a pattern has a space")
	f(ok, MintClaims{Publish: strings.Split(strings.Repeat(strings.Repeat("x", 200)+",", 60)+"x", ",")}, "max_token_bytes")
	f(ok, MintClaims{PrivateKey: []byte("x")}, "no PEM block")
	f(ok, MintClaims{PrivateKey: []byte(publicPEM(edKey()))}, `PEM block "PUBLIC KEY"`)
	f(ok, MintClaims{PrivateKey: privatePEM(must(ecdh.X25519().GenerateKey(rand.Reader)))}, "cannot sign")
}

func TestMintedTokenLivesAsLongAsRequested(t *testing.T) {
	at := now.Add(999 * time.Millisecond)
	cfg := Config{KeySet: KeySet{HMACSecret: secret, RequireExpiry: setting.Off, Leeway: 1}}
	token := must(Mint(cfg, MintClaims{Now: at, TTL: time.Second}))
	a := newAuth(t, cfg)
	verify(t, a)(token, nil)
	id, _ := a.Cached(token)
	if id.Expires.Before(at.Add(time.Second)) || id.Expires.After(at.Add(2*time.Second)) {
		t.Errorf("lives until %v, issued %v", id.Expires, at)
	}
	if id := verify(t, a)(must(Mint(cfg, MintClaims{Now: at, NoExpiry: true})), nil); !id.Expires.IsZero() {
		t.Errorf("expires %v", id.Expires)
	}
}
