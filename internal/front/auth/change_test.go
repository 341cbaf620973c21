package auth

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// changed replaces a's configuration.
func changed(t *testing.T, a *Authenticator, cfg Config) {
	t.Helper()
	c := NewChange()
	if err := c.Set(t.Context(), a, cfg); err != nil {
		t.Fatal(err)
	}
	c.Commit()
}

func identityOf(t *testing.T, a *Authenticator, token string) *Identity {
	t.Helper()
	id, err := a.Verify(t.Context(), token, now)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAnIdentityEndsWithItsKeyOrConfiguration(t *testing.T) {
	const other = "another-secret-of-thirty-two-bytes!!!"
	base := Config{KeySet: KeySet{HMACSecret: secret, PublicKeys: []PublicKey{{ID: "ed", PEM: publicPEM(edKey())}}}}
	byEd := sign(t, "EdDSA", edKey(), map[string]any{"kid": "ed"}, claims(jwt.MapClaims{"iss": "i", "aud": []string{"x", "y"}}))
	byHS := hs(t, claims(jwt.MapClaims{"iss": "i", "aud": "y"}))
	f := func(what string, change func(*Config), ed, hmac bool) {
		t.Helper()
		a := newAuth(t, base)
		ids := []*Identity{identityOf(t, a, byEd), identityOf(t, a, byHS)}
		cfg := base
		change(&cfg)
		c := NewChange()
		if err := c.Set(t.Context(), a, cfg); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for i, want := range []bool{ed, hmac} {
			if _, ok := ids[i].Current(); !ok {
				t.Errorf("%s: gone before the change", what)
			}
			if _, ok := c.Identity(ids[i]); ok != want {
				t.Errorf("%s: prepared, token %d: %v", what, i, ok)
			}
		}
		c.Commit()
		for i, want := range []bool{ed, hmac} {
			token := []string{byEd, byHS}[i]
			_, ok := ids[i].Current()
			_, cached := a.Cached(token)
			_, err := a.Verify(context.Background(), token, now)
			if ok != want || err == nil != want || cached && !want || Valid(ids[i].Proof()) != want {
				t.Errorf("%s: token %d: current %v, cached %v, verified %v; want %v", what, i, ok, cached, err, want)
			}
		}
	}
	f("nothing", func(*Config) {}, true, true)
	f("another secret", func(c *Config) { c.HMACSecret = other }, true, false)
	f("the secret is the previous one", func(c *Config) { c.HMACSecret, c.HMACPreviousSecret = other, secret }, true, true)
	f("no public key", func(c *Config) { c.PublicKeys = nil }, false, true)
	f("another public key", func(c *Config) { c.PublicKeys = []PublicKey{{ID: "ed", PEM: publicPEM(otherKey())}} }, false, true)
	f("another kid", func(c *Config) { c.PublicKeys = []PublicKey{{ID: "new", PEM: publicPEM(edKey())}} }, false, true)
	f("one algorithm", func(c *Config) { c.Algorithms = []string{"HS256"} }, false, true)
	f("its issuer", func(c *Config) { c.Issuer = "i" }, true, true)
	f("another issuer", func(c *Config) { c.Issuer = "j" }, false, false)
	f("an audience of one", func(c *Config) { c.Audience = []string{"x", "z"} }, true, false)
	f("less leeway", func(c *Config) { c.Leeway = 1 }, true, true)
}

func TestATokenWithoutEndGoesWhenOneIsRequired(t *testing.T) {
	cfg := Config{KeySet: KeySet{HMACSecret: secret, RequireExpiry: setting.Off}}
	a := newAuth(t, cfg)
	id := identityOf(t, a, hs(t, claims(jwt.MapClaims{"exp": nil})))
	cfg.RequireExpiry = setting.On
	changed(t, a, cfg)
	if _, ok := id.Current(); ok {
		t.Error("it is still there")
	}
}

func TestAnAPIKeyHasItsGrantsOfNow(t *testing.T) {
	cfg := Config{APIKeys: []APIKey{{Name: "one", Key: "0123456789abcdef", Subscribe: []string{"a", "b"}}}}
	a := newAuth(t, cfg)
	id, _ := a.APIKey([]byte("0123456789abcdef"))
	cfg.APIKeys = []APIKey{{Name: "one", Key: "0123456789abcdef", Subscribe: []string{"a"}}}
	changed(t, a, cfg)
	if got, ok := id.Current(); !ok || !got.CanSubscribe("a") || got.CanSubscribe("b") {
		t.Errorf("%v %v", got, ok)
	}
	cfg.APIKeys[0].Key = "fedcba9876543210"
	changed(t, a, cfg)
	if _, ok := id.Current(); ok {
		t.Error("the key is still there")
	}
}

func TestAnotherJWKSIsFetchedBeforeItCounts(t *testing.T) {
	first, second := newIssuer(t, jwk(edKey(), "a", nil)), newIssuer(t, jwk(edKey(), "a", nil), jwk(otherKey(), "b", nil))
	cfg := Config{KeySet: KeySet{JWKSURL: first.URL, Audience: []string{"us"}}}
	a := newAuth(t, cfg)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); _ = a.Run(ctx) }()
	defer func() { cancel(); <-done }()
	us := claims(jwt.MapClaims{"aud": "us"})
	id := identityOf(t, a, sign(t, "EdDSA", edKey(), map[string]any{"kid": "a"}, us))
	second.fail()
	cfg.JWKSURL = second.URL
	c := NewChange()
	if err := c.Set(t.Context(), a, cfg); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("the keys could not be fetched: %v", err)
	}
	c.Drop()
	if _, ok := id.Current(); !ok {
		t.Error("a change that failed took the key away")
	}
	second.publish(jwk(edKey(), "a", nil), jwk(otherKey(), "b", nil))
	changed(t, a, cfg)
	if _, ok := id.Current(); !ok {
		t.Error("a key that both publish is gone")
	}
	if _, ok := a.Cached(sign(t, "EdDSA", edKey(), map[string]any{"kid": "a"}, us)); !ok {
		t.Error("what the key verified is forgotten")
	}
	identityOf(t, a, sign(t, "EdDSA", otherKey(), map[string]any{"kid": "b"}, us))
	cfg.JWKSURL = ""
	cfg.HMACSecret = secret
	changed(t, a, cfg)
	if _, ok := id.Current(); ok {
		t.Error("the key is still there without the URL")
	}
	requested := second.requested.Load()
	cfg.JWKSURL = first.URL
	changed(t, a, cfg)
	identityOf(t, a, sign(t, "EdDSA", edKey(), map[string]any{"kid": "a"}, us))
	if n := second.requested.Load(); n != requested {
		t.Errorf("the former issuer is asked %d times more", n-requested)
	}
}

func TestKeySetsComeAndGo(t *testing.T) {
	one, two := KeySet{HMACSecret: secret}, KeySet{HMACSecret: secret + "two"}
	was, err := NewKeySets(Config{}, map[string]KeySet{"one": one, "gone": two}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer was.Close()
	id := identityOf(t, was["gone"], rawHSToken(t, secret+"two"))
	kept := identityOf(t, was["one"], rawHSToken(t, secret))
	c := NewChange()
	sets, added, err := c.KeysOf(t.Context(), was, Config{}, map[string]KeySet{"one": one, "new": two}, func(cfg Config) (*Authenticator, error) { return New(cfg, nil) })
	if err != nil || len(added) != 1 || sets["one"] != was["one"] || sets["new"] != added[0] {
		t.Fatal(sets, added, err)
	}
	defer added[0].Close()
	c.Commit()
	if _, ok := id.Current(); ok {
		t.Error("a key set that is gone still counts")
	}
	if _, ok := kept.Current(); !ok {
		t.Error("a key set that stays does not count")
	}
	if _, err := was["gone"].Verify(t.Context(), rawHSToken(t, secret+"two"), now.Add(time.Second)); err == nil {
		t.Error("a key set that is gone verifies")
	}
	bad := NewChange()
	if _, _, err := bad.KeysOf(t.Context(), sets, Config{}, map[string]KeySet{"one": {HMACSecret: "short"}}, nil); err == nil || !strings.Contains(err.Error(), "key_sets.one") || strings.Contains(err.Error(), "short") {
		t.Error(err)
	}
}

func rawHSToken(t *testing.T, secret string) string {
	t.Helper()
	return sign(t, "HS256", []byte(secret), nil, claims(nil))
}
