package auth

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// An issuer publishes a key set over real HTTP.
type issuer struct {
	*httptest.Server
	requested atomic.Int32
	mu        sync.Mutex
	serve     http.HandlerFunc
}

func newIssuer(t testing.TB, keys ...any) *issuer {
	i := new(issuer)
	i.publish(keys...)
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.requested.Add(1)
		i.mu.Lock()
		serve := i.serve
		i.mu.Unlock()
		serve(w, r)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) handle(f http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.serve = f
}

func (i *issuer) publish(keys ...any) {
	if keys == nil {
		keys = []any{}
	}
	i.answer(toJSON(map[string]any{"keys": keys}))
}

func (i *issuer) answer(body string) {
	i.handle(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
}

func (i *issuer) fail() {
	i.handle(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", 500) })
}

// jwk is k's public half as a JWK, with changes.
func jwk(k crypto.Signer, kid string, changes map[string]any) map[string]any {
	j := must(jwkset.NewJWKFromKey(k.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: kid}}))
	m := map[string]any{}
	if err := json.Unmarshal([]byte(toJSON(j.Marshal())), &m); err != nil {
		panic(err)
	}
	maps.Copy(m, changes)
	return m
}

// newJWKSAuth also returns the clock that paces fetches, and a helper for one
// EdDSA token by key and kid.
func newJWKSAuth(t *testing.T, i *issuer) (a *Authenticator, pass func(time.Duration), f func(k crypto.Signer, kid string, want error)) {
	a = newAuth(t, Config{KeySet: KeySet{JWKSURL: i.URL}})
	var skipped atomic.Int64
	a.rules.Load().jwks.now = func() time.Time { return now.Add(time.Duration(skipped.Load())) }
	pass = func(d time.Duration) { skipped.Add(int64(d)) }
	n := 0
	f = func(k crypto.Signer, kid string, want error) {
		t.Helper()
		n++ // each token is a new one, or the cache would answer
		verify(t, a)(sign(t, "EdDSA", k, map[string]any{"kid": kid}, claims(map[string]any{"sub": fmt.Sprint(n)})), want)
	}
	return a, pass, f
}

func (i *issuer) wasRequested(t *testing.T, want int32) {
	t.Helper()
	if got := i.requested.Load(); got != want {
		t.Errorf("issuer was asked %d times, want %d", got, want)
	}
}

func TestKeyRotation(t *testing.T) {
	i := newIssuer(t, jwk(edKey(), "old", nil))
	a, pass, f := newJWKSAuth(t, i)
	f(edKey(), "old", nil)
	i.wasRequested(t, 1)
	f(edKey(), "old", nil)
	i.wasRequested(t, 1)
	old := sign(t, "EdDSA", edKey(), map[string]any{"kid": "old"}, claims(nil))
	verify(t, a)(old, nil)

	// A new kid is fetched once, the old key stays and so does its cache.
	i.publish(jwk(edKey(), "old", nil), jwk(otherKey(), "new", nil))
	pass(time.Minute)
	f(otherKey(), "new", nil)
	f(otherKey(), "new", nil)
	f(edKey(), "old", nil)
	i.wasRequested(t, 2)
	if _, ok := a.Cached(old); !ok {
		t.Error("a token of a key that stayed is no longer cached")
	}

	// The old key is gone, and with it what it verified.
	i.publish(jwk(otherKey(), "new", nil))
	pass(time.Minute)
	f(edKey(), "other", ErrBadToken) // makes it fetch
	i.wasRequested(t, 3)
	f(edKey(), "old", ErrBadToken)
	if _, ok := a.Cached(old); ok {
		t.Error("a token of a key that is gone is still cached")
	}
	verify(t, a)(old, ErrBadToken)
	f(otherKey(), "new", nil)
	// It comes back.
	i.publish(jwk(edKey(), "old", nil))
	pass(time.Minute)
	f(edKey(), "old", nil)
	f(otherKey(), "new", ErrBadToken)
}

// The same kid with other key material is another key.
func TestKeyReplacedUnderItsName(t *testing.T) {
	i := newIssuer(t, jwk(edKey(), "k", nil))
	a, _, f := newJWKSAuth(t, i)
	token := sign(t, "EdDSA", edKey(), map[string]any{"kid": "k"}, claims(nil))
	verify(t, a)(token, nil)
	i.publish(jwk(otherKey(), "k", nil))
	if err := a.rules.Load().jwks.get(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	verify(t, a)(token, ErrBadToken)
	f(otherKey(), "k", nil)
}

func TestUnknownKidsAreFetchedAtALimitedRate(t *testing.T) {
	i := newIssuer(t, jwk(edKey(), "k", nil))
	_, pass, f := newJWKSAuth(t, i)
	for n := range 50 {
		f(otherKey(), fmt.Sprint(n), ErrBadToken)
	}
	i.wasRequested(t, 1)
	pass(9 * time.Second)
	f(otherKey(), "x", ErrBadToken)
	i.wasRequested(t, 1)
	pass(time.Second)
	f(otherKey(), "x", ErrBadToken)
	i.wasRequested(t, 2)
	f(edKey(), "k", nil)
	// A forged signature under a known kid, or no kid, causes no fetch.
	pass(time.Hour)
	f(otherKey(), "k", ErrBadToken)
	f(otherKey(), "", ErrBadToken)
	i.wasRequested(t, 2)
}

func TestIssuerDownDoesNotLockOut(t *testing.T) {
	i := newIssuer(t, jwk(edKey(), "k", nil))
	a, pass, f := newJWKSAuth(t, i)
	f(edKey(), "k", nil)
	for _, breakIt := range []func(){
		i.fail,
		func() { i.answer("<html>") },
		func() { i.answer(`{}`) },
		func() { i.answer(`{"keys":null}`) },
		func() { i.answer(`{"keys":{}}`) },
		func() { i.answer(`{"keys":[` + strings.Repeat(" ", maxJWKSBytes) + `]}`) },
		func() {
			i.handle(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://192.0.2.1/", 302) })
		},
		i.Close,
	} {
		breakIt()
		pass(time.Hour)
		f(edKey(), "k", nil)                    // at hand
		f(otherKey(), "x", ErrKeysUnavailable)  // unknown now
		f(otherKey(), "xx", ErrKeysUnavailable) // nor at once after
		f(otherKey(), "k", ErrBadToken)
	}
	if s := a.Stats(); s.Keys != 1 || s.KeyFetchErrs != 8 || s.KeyFetches != 9 {
		t.Errorf("stats %+v", s)
	}
}

func TestNeverFetchedMeansUnavailable(t *testing.T) {
	i := newIssuer(t)
	i.fail()
	a, pass, f := newJWKSAuth(t, i)
	f(edKey(), "k", ErrKeysUnavailable)
	f(edKey(), "", ErrKeysUnavailable)
	i.wasRequested(t, 1)
	// What no key could make good is refused without asking.
	verify(t, a)(hs(t, claims(nil)), ErrBadToken)
	verify(t, a)("garbage", ErrBadToken)
	i.publish(jwk(edKey(), "k", nil))
	pass(time.Minute)
	f(edKey(), "k", nil)
}

func TestIssuerTakesAllKeysBack(t *testing.T) {
	i := newIssuer(t, jwk(edKey(), "k", nil))
	_, pass, f := newJWKSAuth(t, i)
	f(edKey(), "k", nil)
	i.publish()
	pass(time.Minute)
	f(edKey(), "x", ErrBadToken)
	f(edKey(), "k", ErrBadToken)
	f(edKey(), "", ErrBadToken)
}

func TestWhichKeysOfASetAreUsed(t *testing.T) {
	f := func(want error, alg string, signer crypto.Signer, key any) {
		t.Helper()
		i := newIssuer(t, key)
		a := newAuth(t, Config{KeySet: KeySet{JWKSURL: i.URL}})
		verify(t, a)(sign(t, alg, signer, map[string]any{"kid": "k"}, claims(nil)), want)
	}
	type with = map[string]any
	f(nil, "EdDSA", edKey(), jwk(edKey(), "k", nil))
	f(nil, "RS256", rsaKey(), jwk(rsaKey(), "k", nil))
	f(nil, "PS512", rsaKey(), jwk(rsaKey(), "k", nil))
	f(nil, "ES256", p256Key(), jwk(p256Key(), "k", nil))
	f(nil, "ES384", p384Key(), jwk(p384Key(), "k", nil))
	f(nil, "ES512", p521Key(), jwk(p521Key(), "k", nil))
	// alg, use and key_ops narrow.
	f(nil, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"alg": "RS256"}))
	f(ErrBadToken, "RS384", rsaKey(), jwk(rsaKey(), "k", with{"alg": "RS256"}))
	f(ErrBadToken, "ES384", p384Key(), jwk(p384Key(), "k", with{"alg": "ES256"}))
	f(ErrBadToken, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"alg": "RSA-OAEP"}))
	f(ErrBadToken, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"alg": "none"}))
	f(nil, "EdDSA", edKey(), jwk(edKey(), "k", with{"use": "sig"}))
	f(ErrBadToken, "EdDSA", edKey(), jwk(edKey(), "k", with{"use": "enc"}))
	f(nil, "EdDSA", edKey(), jwk(edKey(), "k", with{"key_ops": []string{"verify"}}))
	f(ErrBadToken, "EdDSA", edKey(), jwk(edKey(), "k", with{"key_ops": []string{"sign"}}))
	// A published private key is everyone's.
	f(ErrBadToken, "EdDSA", edKey(), jwk(edKey(), "k", with{"d": "AAAA"}))
	f(ErrBadToken, "EdDSA", edKey(), jwk(edKey(), "k", with{"k": "AAAA"}))
	// Certificates and links in a key are not followed.
	f(nil, "EdDSA", edKey(), jwk(edKey(), "k", with{"x5u": "http://127.0.0.1:1/", "x5c": []string{"?"}}))
	// Malformed or hostile parameters.
	f(ErrBadToken, "ES256", p256Key(), jwk(p256Key(), "k", with{"x": strings.Repeat("_", 400)}))
	f(ErrBadToken, "ES256", p256Key(), jwk(p256Key(), "k", with{"y": "AQAB"})) // not on the curve
	f(ErrBadToken, "ES256", p256Key(), jwk(p256Key(), "k", with{"crv": "secp256k1"}))
	f(ErrBadToken, "EdDSA", edKey(), jwk(edKey(), "k", with{"x": "AAAA"}))
	f(ErrBadToken, "EdDSA", edKey(), jwk(edKey(), "k", with{"crv": "X25519"}))
	f(ErrBadToken, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"e": "AQ"}))
	f(ErrBadToken, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"e": b64("\x01\x00\x00\x00\x00\x00\x01\x00\x01")})) // 65537 and 2^64
	f(ErrBadToken, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"e": strings.Repeat("_", 43)}))
	f(ErrBadToken, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"n": "AQAB"}))
	f(ErrBadToken, "RS256", rsaKey(), jwk(rsaKey(), "k", with{"n": strings.Repeat("_", 4000)}))
	f(ErrBadToken, "EdDSA", edKey(), map[string]any{"kty": "what", "kid": "k"})
	f(ErrBadToken, "EdDSA", edKey(), "string")
	f(ErrBadToken, "EdDSA", edKey(), nil)
}

func TestOneBadKeyDoesNotSpoilTheSet(t *testing.T) {
	i := newIssuer(t, "bad", map[string]any{"kty": "oct", "k": "AAAA"}, jwk(edKey(), "k", nil), 7)
	_, _, f := newJWKSAuth(t, i)
	f(edKey(), "k", nil)
}

// A JWKS is public: a symmetric key in it would let everyone sign.
func TestSymmetricKeyOfAJWKSIsRefused(t *testing.T) {
	i := newIssuer(t,
		map[string]any{"kty": "oct", "kid": "k", "k": b64(secret), "alg": "HS256"},
		jwk(edKey(), "ed", map[string]any{"k": b64(secret), "alg": "HS256"}),
		jwk(edKey(), "good", nil))
	a, _, f := newJWKSAuth(t, i)
	f(edKey(), "good", nil)
	f(edKey(), "ed", ErrBadToken)
	for _, kid := range []string{"k", "ed", "good", ""} {
		verify(t, a)(rawHS(secret, toJSON(map[string]string{"alg": "HS256", "kid": kid}), toJSON(claims(nil))), ErrBadToken)
	}
	// Nor does it when HS256 is allowed for a secret of ours.
	a = newAuth(t, Config{KeySet: KeySet{JWKSURL: i.URL, HMACSecret: Secret(strings.ToUpper(secret))}})
	verify(t, a)(rawHS(secret, `{"alg":"HS256","kid":"k"}`, toJSON(claims(nil))), ErrBadToken)
	i.wasRequested(t, 1) // HS256 never causes a fetch
	verify(t, a)(rawHS(strings.ToUpper(secret), `{"alg":"HS256","kid":"k"}`, toJSON(claims(nil))), nil)
}

func TestTokenWithoutKidTriesTheSet(t *testing.T) {
	i := newIssuer(t, jwk(p256Key(), "a", nil), jwk(otherKey(), "b", nil), jwk(edKey(), "", nil))
	_, _, f := newJWKSAuth(t, i)
	f(edKey(), "", nil)
	f(otherKey(), "", nil)
	f(edKey(), "b", nil) // a key without a name answers to any
	f(otherKey(), "a", ErrBadToken)
}

func TestStormWaitsForOneFetch(t *testing.T) {
	i := newIssuer(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	body := toJSON(map[string]any{"keys": []any{jwk(edKey(), "k", nil)}})
	i.handle(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived) // twice would panic
		<-release
		fmt.Fprint(w, body)
	})
	a, _, _ := newJWKSAuth(t, i)
	var wg sync.WaitGroup
	token := func(n int) string {
		return sign(t, "EdDSA", edKey(), map[string]any{"kid": "k"}, claims(map[string]any{"sub": fmt.Sprint(n)}))
	}
	for n := range 50 {
		tok := token(n)
		wg.Go(func() {
			if _, err := a.Verify(context.Background(), tok, now); err != nil {
				t.Errorf("verify: %v (%s)", err, detail(err))
			}
		})
	}
	<-arrived
	// One who gives up leaves alone.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.Verify(ctx, token(99), now); !errors.Is(err, ErrKeysUnavailable) {
		t.Errorf("given up: %v", err)
	}
	close(release)
	wg.Wait()
	i.wasRequested(t, 1)
}

func TestSlowIssuerIsGivenUp(t *testing.T) {
	i := newIssuer(t)
	release := make(chan struct{})
	i.handle(func(_ http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	a := newAuth(t, Config{KeySet: KeySet{JWKSURL: i.URL, JWKSTimeout: hub.Duration(20 * time.Millisecond)}})
	verify(t, a)(sign(t, "EdDSA", edKey(), nil, claims(nil)), ErrKeysUnavailable)
}

func TestCloseEndsFetchAndRun(t *testing.T) {
	i := newIssuer(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	i.handle(func(_ http.ResponseWriter, r *http.Request) { close(arrived); <-release })
	defer close(release)
	a, _, f := newJWKSAuth(t, i)
	ran := make(chan error, 1)
	go func() { ran <- a.Run(context.Background()) }()
	<-arrived
	a.Close()
	a.Close()
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	f(edKey(), "k", ErrKeysUnavailable)
	if err := a.Run(context.Background()); err != nil { // ends at once
		t.Errorf("Run after Close: %v", err)
	}
}

func TestRunFetchesAtOnceAgainAndAfterFailure(t *testing.T) {
	i := newIssuer(t, jwk(edKey(), "k", nil))
	requested := make(chan struct{}, 10)
	good := toJSON(map[string]any{"keys": []any{jwk(edKey(), "k", nil)}})
	i.handle(func(w http.ResponseWriter, _ *http.Request) {
		if requested <- struct{}{}; i.requested.Load() != 2 {
			fmt.Fprint(w, good)
		}
	})
	var logged bytes.Buffer
	a, err := New(Config{KeySet: KeySet{JWKSURL: i.URL}}, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.rules.Load().jwks.refresh = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- a.Run(ctx) }()
	for range 4 {
		<-requested
	}
	cancel()
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	for _, want := range []string{"without audience", "cannot fetch keys", "keys fetched again"} {
		if strings.Count(logged.String(), want) != 1 {
			t.Errorf("log does not say %q once:\n%s", want, &logged)
		}
	}
}

func TestRunWithoutJWKSOnlyWaits(t *testing.T) {
	a := newAuth(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Error(err)
	}
	a.Close()
	if err := a.Run(context.Background()); err != nil {
		t.Error(err)
	}
}

func FuzzJWKS(f *testing.F) {
	f.Add([]byte(toJSON(map[string]any{"keys": []any{jwk(edKey(), "k", nil), jwk(p256Key(), "p", nil), jwk(rsaKey(), "r", nil)}})))
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"AQAB","y":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AQAB"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, err := parseJWKS(body, slog.New(slog.DiscardHandler))
		if err != nil {
			return
		}
		for _, k := range keys {
			if _, secret := k.material.([]byte); secret || len(k.algs) == 0 || k.algs[0][:2] == "HS" {
				t.Errorf("key %v for %v", k.material, k.algs)
			}
		}
	})
}

func TestKeysOfASetAreBounded(t *testing.T) {
	keys := make([]any, 200)
	for n := range keys {
		keys[n] = jwk(edKey(), fmt.Sprint(n), nil)
	}
	a, _, f := newJWKSAuth(t, newIssuer(t, keys...))
	f(edKey(), "0", nil)
	f(edKey(), "63", nil)
	f(edKey(), "64", ErrBadToken)
	// Without kid, a forged token costs few signatures.
	tries := 0
	for _, k := range a.rules.Load().jwks.current.Load().all {
		if k.fits("EdDSA", "") {
			tries++
		}
	}
	verify(t, a)(sign(t, "EdDSA", otherKey(), nil, claims(nil)), ErrBadToken)
	_, err := a.Verify(context.Background(), sign(t, "EdDSA", otherKey(), nil, claims(nil)), now)
	if tries != 64 || !strings.Contains(detail(err), "first 16 keys") {
		t.Errorf("%d keys fit, detail %q", tries, detail(err))
	}
}

func TestKeysAreNotFetchedInTheClear(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{JWKSURL: "https://issuer.example/"}})
	f := func(to string, hops int, ok bool) {
		t.Helper()
		r := httptest.NewRequest("GET", to, nil)
		if err := a.rules.Load().jwks.client.CheckRedirect(r, make([]*http.Request, hops)); (err == nil) != ok {
			t.Errorf("redirect %d to %s: %v, want ok %v", hops, to, err, ok)
		}
	}
	f("https://other.example/", 1, true)
	f("https://other.example/", 3, true)
	f("https://other.example/", 4, false)
	f("http://issuer.example/", 1, false)
	f("http://127.0.0.1:1/", 1, true)
}
