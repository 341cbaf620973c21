package auth

import (
	"context"
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// verify returns a helper that checks one token for one outcome.
func verify(t *testing.T, a *Authenticator) func(token string, want error) *Identity {
	return func(token string, want error) *Identity {
		t.Helper()
		id, err := a.Verify(context.Background(), token, now)
		if !errors.Is(err, want) {
			t.Errorf("Verify: %v (%v), want %v", err, detail(err), want)
		}
		if (err == nil) != (id != nil) {
			t.Errorf("Verify returned identity %v with error %v", id, err)
		}
		checkNoLeak(t, token, err)
		return id
	}
}

func detail(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Detail()
	}
	return ""
}

// checkNoLeak holds every refusal to its promise: the public text is that of the
// kind, and the private one has no part of the token.
func checkNoLeak(t *testing.T, token string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	switch err.Error() {
	case ErrNoToken.Error(), ErrBadToken.Error(), ErrExpired.Error(), ErrKeysUnavailable.Error():
	default:
		t.Errorf("public text %q has more than the kind", err)
	}
	for _, part := range strings.Split(token, ".") {
		if len(part) > 8 && strings.Contains(detail(err), part) {
			t.Errorf("detail %q has a segment of the token", detail(err))
		}
	}
}

func TestGoodTokenGivesIdentity(t *testing.T) {
	id := verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}}))(hs(t, claims(nil)), nil)
	if id.Subject != "ada" || id.By != ByToken {
		t.Errorf("identity %+v", id)
	}
	if want := now.Add(time.Hour + 5*time.Second); !id.Expires.Equal(want) {
		t.Errorf("expires %v, want exp and leeway %v", id.Expires, want)
	}
	f := func(got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("grant is %v, want %v", got, want)
		}
	}
	f(id.CanSubscribe("orders.1"), true)
	f(id.CanSubscribe("orders.1.items"), false)
	f(id.CanSubscribe("news"), false)
	f(id.CanPublish("orders.1.items"), true) // publish and subscribe are apart
	f(id.CanPublish("news"), false)
	f(Anonymous.CanSubscribe("orders.1"), false)
	f(Anonymous.CanPublish("orders.1"), false)
}

func TestClaims(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, Issuer: "https://issuer", Audience: []string{"weir", "push"}}})
	f := func(want error, changes jwt.MapClaims) {
		t.Helper()
		c := claims(jwt.MapClaims{"iss": "https://issuer", "aud": "weir"})
		for k, v := range changes {
			if c[k] = v; v == nil {
				delete(c, k)
			}
		}
		verify(t, a)(hs(t, c), want)
	}
	at := func(d time.Duration) any { return now.Add(d).Unix() }
	f(nil, nil)
	// exp, leeway 5s: refused from exp+5s on.
	f(ErrExpired, jwt.MapClaims{"exp": at(-time.Hour)})
	f(nil, jwt.MapClaims{"exp": at(0)})
	f(nil, jwt.MapClaims{"exp": at(-4 * time.Second)})
	f(ErrExpired, jwt.MapClaims{"exp": at(-5 * time.Second)})
	f(nil, jwt.MapClaims{"exp": float64(now.Unix()) - 4.999})
	f(ErrExpired, jwt.MapClaims{"exp": float64(now.Unix()) - 5.001})
	f(ErrExpired, jwt.MapClaims{"exp": 0})
	f(ErrBadToken, jwt.MapClaims{"exp": nil})
	f(ErrBadToken, jwt.MapClaims{"exp": "1900000000"})
	f(ErrBadToken, jwt.MapClaims{"exp": true})
	f(ErrBadToken, jwt.MapClaims{"exp": []int{1900000000}})
	f(ErrBadToken, jwt.MapClaims{"exp": -1})
	f(ErrBadToken, jwt.MapClaims{"exp": 1e300})
	f(nil, jwt.MapClaims{"exp": 253402300799})
	f(ErrBadToken, jwt.MapClaims{"exp": 253402300800})
	f(ErrBadToken, jwt.MapClaims{"exp": nil, "EXP": at(time.Hour)}) // claim names have case
	// nbf.
	f(nil, jwt.MapClaims{"nbf": at(0)})
	f(nil, jwt.MapClaims{"nbf": at(5 * time.Second)})
	f(ErrBadToken, jwt.MapClaims{"nbf": at(6 * time.Second)})
	f(ErrBadToken, jwt.MapClaims{"nbf": "soon"})
	// iat.
	f(nil, jwt.MapClaims{"iat": nil})
	f(nil, jwt.MapClaims{"iat": at(5 * time.Second)})
	f(ErrBadToken, jwt.MapClaims{"iat": at(6 * time.Second)})
	f(ErrBadToken, jwt.MapClaims{"iat": "1"})
	// iss.
	f(ErrBadToken, jwt.MapClaims{"iss": nil})
	f(ErrBadToken, jwt.MapClaims{"iss": "https://issuer/"})
	f(ErrBadToken, jwt.MapClaims{"iss": "HTTPS://ISSUER"})
	f(ErrBadToken, jwt.MapClaims{"iss": []string{"https://issuer"}})
	// aud.
	f(nil, jwt.MapClaims{"aud": []string{"other", "push"}})
	f(ErrBadToken, jwt.MapClaims{"aud": nil})
	f(ErrBadToken, jwt.MapClaims{"aud": ""})
	f(ErrBadToken, jwt.MapClaims{"aud": "other"})
	f(ErrBadToken, jwt.MapClaims{"aud": []string{}})
	f(ErrBadToken, jwt.MapClaims{"aud": []any{"weir", 1}})
	f(ErrBadToken, jwt.MapClaims{"aud": map[string]string{"weir": "weir"}})
	f(ErrBadToken, jwt.MapClaims{"aud": "WEIR"})
	// Expired is said only of what was good once.
	f(ErrBadToken, jwt.MapClaims{"exp": at(-time.Hour), "aud": "other"})
	f(ErrBadToken, jwt.MapClaims{"exp": at(-time.Hour), "weir": 1})
	// sub.
	f(nil, jwt.MapClaims{"sub": nil})
	f(nil, jwt.MapClaims{"sub": strings.Repeat("x", 255)})
	f(ErrBadToken, jwt.MapClaims{"sub": strings.Repeat("x", 256)})
	f(ErrBadToken, jwt.MapClaims{"sub": 7})
	f(ErrBadToken, jwt.MapClaims{"sub": "ada\r\nX-Admin: 1"})
	f(ErrBadToken, jwt.MapClaims{"sub": "ada\x00"})
	// weir.
	f(nil, jwt.MapClaims{"weir": nil})
	f(nil, jwt.MapClaims{"weir": map[string]any{}})
	f(nil, jwt.MapClaims{"weir": map[string]any{"subscribe": []string{}, "later": 1}})
	f(ErrBadToken, jwt.MapClaims{"weir": "orders.*"})
	f(ErrBadToken, jwt.MapClaims{"weir": map[string]any{"subscribe": "orders.*"}})
	f(ErrBadToken, jwt.MapClaims{"weir": map[string]any{"subscribe": []any{"a", 1}}})
	f(ErrBadToken, jwt.MapClaims{"weir": map[string]any{"publish": []any{""}}})
	f(ErrBadToken, jwt.MapClaims{"weir": map[string]any{"publish": nil}})
}

func TestNoWeirClaimMeansNoGrants(t *testing.T) {
	verify := verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}}))
	f := func(c jwt.MapClaims) {
		t.Helper()
		if id := verify(hs(t, c), nil); id.CanSubscribe("orders.1") || id.CanPublish("orders.1") {
			t.Errorf("claims %v grant something", c)
		}
	}
	f(claims(jwt.MapClaims{"weir": nil}))
	f(claims(jwt.MapClaims{"weir": map[string]any{"Subscribe": []string{"**"}, "PUBLISH": []string{"**"}}}))
	f(claims(jwt.MapClaims{"weir": nil, "WEIR": map[string]any{"subscribe": []string{"**"}}}))
	f(claims(jwt.MapClaims{"weir": nil, "channels": []string{"**"}}))
}

func TestNoExpiryOnlyWhereAllowed(t *testing.T) {
	c := claims(jwt.MapClaims{"exp": nil})
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}}))(hs(t, c), ErrBadToken)
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, RequireExpiry: setting.Off}})
	if id := verify(t, a)(hs(t, c), nil); !id.Expires.IsZero() || id.Expired(now.AddDate(100, 0, 0)) {
		t.Errorf("expires %v, want never", id.Expires)
	}
	verify(t, a)(hs(t, claims(jwt.MapClaims{"exp": now.Unix() - 60})), ErrExpired)
	verify(t, a)(rawHS(secret, `{"alg":"HS256"}`, `null`), ErrBadToken)
	verify(t, a)(rawHS(secret, `{"alg":"HS256"}`, `{}`), ErrBadToken)
	verify(t, a)(rawHS(secret, `{"alg":"HS256"}`, `{"sub":"ada"}`), nil)
}

func TestLeewayIsAsConfigured(t *testing.T) {
	late := hs(t, claims(jwt.MapClaims{"exp": now.Add(-30 * time.Second).Unix()}))
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, Leeway: hub.Duration(time.Minute)}}))(late, nil)
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, Leeway: hub.Duration(time.Millisecond)}}))(late, ErrExpired)
}

func TestForm(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	f := verify(t, a)
	good := hs(t, claims(nil))
	s := strings.Split(good, ".")
	body := toJSON(claims(nil))
	const head = `{"alg":"HS256","typ":"JWT"}`
	f(good, nil)
	f(rawHS(secret, head, body), nil)
	f("", ErrNoToken)
	f(" ", ErrBadToken)
	f("x", ErrBadToken)
	f("..", ErrBadToken)
	f(s[0]+"."+s[1], ErrBadToken)
	f(s[0]+"."+s[1]+".", ErrBadToken)
	f("."+s[1]+"."+s[2], ErrBadToken)
	f(s[0]+".."+s[2], ErrBadToken)
	f(good+".", ErrBadToken)
	f(good+"."+s[2], ErrBadToken)
	f(s[0]+"."+s[0]+"."+s[1]+"."+s[2], ErrBadToken)
	f(s[0]+"."+s[0]+"."+s[2], ErrBadToken)
	f(s[1]+"."+s[1]+"."+s[2], ErrBadToken)
	// One token has one spelling.
	f(good+"=", ErrBadToken)
	f(good+"\n", ErrBadToken)
	f(good[:len(good)-5]+"\r\n"+good[len(good)-5:], ErrBadToken)
	f(" "+good, ErrBadToken)
	f("Bearer "+good, ErrBadToken)
	f(good+"\x00", ErrBadToken)
	f(strings.ReplaceAll(good, ".", "%2e"), ErrBadToken)
	f(strings.ToLower(good), ErrBadToken)
	f(looseBits(good), ErrBadToken)
	// Header.
	f(rawHS(secret, `{"typ":"JWT"}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":null}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":256}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":["HS256"]}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":""}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"hs256"}`, body), ErrBadToken)
	f(rawHS(secret, `{"ALG":"HS256"}`, body), ErrBadToken)
	f(rawHS(secret, `null`, body), ErrBadToken)
	f(rawHS(secret, `[]`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256"`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256"} {}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256","crit":["b64"],"b64":false}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256","crit":[]}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256","kid":7}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256","kid":null}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256","typ":"at+jwt"}`, body), nil)
	f(rawHS(secret, `{"alg":"HS256","typ":"application/AT+JWT"}`, body), nil)
	f(rawHS(secret, `{"alg":"HS256"}`, body), nil)
	f(rawHS(secret, `{"alg":"HS256","typ":"logout+jwt"}`, body), ErrBadToken)
	f(rawHS(secret, `{"alg":"HS256","typ":1}`, body), ErrBadToken)
	// Claims.
	f(rawHS(secret, head, `null`), ErrBadToken)
	f(rawHS(secret, head, `{}`), ErrBadToken)
	f(rawHS(secret, head, `[]`), ErrBadToken)
	f(rawHS(secret, head, `"x"`), ErrBadToken)
	f(rawHS(secret, head, `{"exp":1900000000}garbage`), ErrBadToken)
	f(rawHS(secret, head, `{"exp":1900000000}`), nil)
	f(rawHS(secret, head, `{"exp":1900000000,"exp":1}`), ErrExpired) // RFC 7519 §4: the last one counts
	f(rawHS(secret, head, `{"exp":NaN}`), ErrBadToken)
	f(rawHS(secret, head, `{"exp":1e999}`), ErrBadToken)
	f(rawHS(secret, head, strings.Repeat("[", 5000)), ErrBadToken)
}

// looseBits gives the last character another value in the bits that base64 does
// not use: a lax decoder reads the same signature.
func looseBits(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	i := strings.IndexByte(alphabet, token[len(token)-1])
	return token[:len(token)-1] + alphabet[i+1:i+2]
}

func TestHugeTokenIsRefused(t *testing.T) {
	c := claims(jwt.MapClaims{"pad": strings.Repeat("x", 3000)})
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}}))(hs(t, c), nil)
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}, MaxTokenBytes: 1024}))(hs(t, c), ErrBadToken)
	c["pad"] = strings.Repeat("x", 8192)
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	verify(t, a)(hs(t, c), ErrBadToken)
	if _, ok := a.Cached(strings.Repeat("x", 100<<20)); ok {
		t.Error("a huge token is cached")
	}
}

func TestUnsignedTokenIsRefused(t *testing.T) {
	body := toJSON(claims(nil))
	for name, cfg := range map[string]Config{
		"secret": {KeySet: KeySet{HMACSecret: secret}},
		"public": {KeySet: KeySet{PublicKeys: []PublicKey{{PEM: publicPEM(edKey())}}}},
		"none":   {},
	} {
		f := verify(t, newAuth(t, cfg))
		for _, alg := range []string{"none", "None", "NONE", "nOnE", "none ", ""} {
			head := fmt.Sprintf(`{"alg":%q,"typ":"JWT"}`, alg)
			f(b64(head)+"."+b64(body)+".", ErrBadToken)
			f(b64(head)+"."+b64(body)+".AA", ErrBadToken)
			f(rawHS("", head, body), ErrBadToken)
		}
		if t.Failed() {
			t.Fatal(name)
		}
	}
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}}))(hs(t, claims(nil)), nil)
}

// A public key is known to all. If it could be an HMAC secret, all could sign.
func TestPublicKeyIsNeverASecret(t *testing.T) {
	for name, k := range map[string]crypto.Signer{"RSA": rsaKey(), "EC": p256Key(), "Ed25519": edKey()} {
		text := publicPEM(k)
		a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, PublicKeys: []PublicKey{{ID: "k", PEM: text}}}})
		f := verify(t, a)
		body := toJSON(claims(nil))
		for _, s := range []string{text, strings.TrimSpace(text), strings.ReplaceAll(text, "\n", ""), string(a.rules.Load().static[1].print[:])} {
			f(rawHS(s, `{"alg":"HS256"}`, body), ErrBadToken)
			f(rawHS(s, `{"alg":"HS256","kid":"k"}`, body), ErrBadToken)
		}
		f(rawHS(secret, `{"alg":"RS256","kid":"k"}`, body), ErrBadToken)
		f(rawHS(secret, `{"alg":"HS256"}`, body), nil)
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestEveryAlgorithm(t *testing.T) {
	f := func(alg string, signer any, pub string, want error) {
		t.Helper()
		a := newAuth(t, Config{KeySet: KeySet{PublicKeys: []PublicKey{{PEM: pub}}}})
		verify(t, a)(sign(t, alg, signer, nil, claims(nil)), want)
	}
	rsaPub, ecPub, edPub := publicPEM(rsaKey()), publicPEM(p256Key()), publicPEM(edKey())
	for _, alg := range rsaAlgs {
		f(alg, rsaKey(), rsaPub, nil)
		f(alg, rsaKey2(), rsaPub, ErrBadToken)
		f(alg, rsaKey(), ecPub, ErrBadToken)
	}
	f("ES256", p256Key(), ecPub, nil)
	f("ES384", p384Key(), publicPEM(p384Key()), nil)
	f("ES512", p521Key(), publicPEM(p521Key()), nil)
	f("EdDSA", edKey(), edPub, nil)
	f("EdDSA", otherKey(), edPub, ErrBadToken)
	f("EdDSA", edKey(), rsaPub, ErrBadToken)
	f("ES256", p256Key(), publicPEM(p384Key()), ErrBadToken)

	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret + secret}}) // 80 bytes suit all three
	for _, alg := range symmetricAlgs {
		verify(t, a)(sign(t, alg, []byte(secret+secret), nil, claims(nil)), nil)
	}
	// A secret shorter than the hash does not verify it (RFC 7518 §3.2).
	a = newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	verify(t, a)(sign(t, "HS512", []byte(secret), nil, claims(nil)), ErrBadToken)
	verify(t, a)(sign(t, "HS256", []byte(secret+"x"), nil, claims(nil)), ErrBadToken)
}

// The library would try ES256 with a key of any curve; the binding does not let
// it get that far.
func TestCurveBelongsToTheAlgorithm(t *testing.T) {
	k := p384Key()
	text := b64(`{"alg":"ES256"}`) + "." + b64(toJSON(claims(nil)))
	r, s := ecdsaSign(t, text, k)
	sig := append(fit(r, 32), fit(s, 32)...)
	a := newAuth(t, Config{KeySet: KeySet{PublicKeys: []PublicKey{{PEM: publicPEM(k)}}}})
	verify(t, a)(text+"."+base64.RawURLEncoding.EncodeToString(sig), ErrBadToken)
	if a.rules.Load().algs["ES256"] || !a.rules.Load().algs["ES384"] || len(a.rules.Load().static[0].algs) != 1 {
		t.Errorf("a P-384 key implies %v", a.rules.Load().algs)
	}
	verify(t, a)(sign(t, "ES384", k, nil, claims(nil)), nil)
}

func fit(n *big.Int, size int) []byte {
	b := n.Bytes()
	return append(make([]byte, max(0, size-len(b))), b[max(0, len(b)-size):]...)
}

func TestAlgorithmsNarrow(t *testing.T) {
	pub := []PublicKey{{PEM: publicPEM(rsaKey())}}
	a := newAuth(t, Config{KeySet: KeySet{PublicKeys: pub, Algorithms: []string{"PS256"}}})
	verify(t, a)(sign(t, "PS256", rsaKey(), nil, claims(nil)), nil)
	verify(t, a)(sign(t, "RS256", rsaKey(), nil, claims(nil)), ErrBadToken)
}

// kid chooses a key by name and is nothing else: no path, no URL, no query.
func TestKidIsOnlyAName(t *testing.T) {
	dir := t.TempDir()
	zero := filepath.Join(dir, "zero")
	if err := os.WriteFile(zero, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	a := newAuth(t, Config{KeySet: KeySet{PublicKeys: []PublicKey{
		{ID: "k1", PEM: publicPEM(edKey())},
		{ID: "../k2", PEM: publicPEM(p256Key())},
	}}})
	f := verify(t, a)
	g := func(kid string, want error) {
		t.Helper()
		f(sign(t, "EdDSA", edKey(), map[string]any{"kid": kid}, claims(nil)), want)
	}
	g("k1", nil)
	g("K1", ErrBadToken)
	g("k1 ", ErrBadToken)
	g("k1\x00", ErrBadToken)
	g("./k1", ErrBadToken)
	g("../k2", ErrBadToken) // names the other key
	g("/dev/null", ErrBadToken)
	g("../../../../../dev/null", ErrBadToken)
	g("' UNION SELECT 'k", ErrBadToken)
	g("https://evil.example/key", ErrBadToken)
	g("", nil) // no name: any key that fits
	g(strings.Repeat("k", 4000), ErrBadToken)
	f(sign(t, "ES256", p256Key(), map[string]any{"kid": "../k2"}, claims(nil)), nil)
	f(rawHS(secret, toJSON(map[string]string{"alg": "HS256", "kid": zero}), toJSON(claims(nil))), ErrBadToken)
	f(rawHS("", `{"alg":"HS256","kid":"/dev/null"}`, toJSON(claims(nil))), ErrBadToken)
}

// A token that brings its own key proves nothing.
func TestKeysInTheHeaderAreNotRead(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{PublicKeys: []PublicKey{{PEM: publicPEM(edKey())}}}})
	jwk := map[string]any{
		"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA",
		"x": base64.RawURLEncoding.EncodeToString(otherKey()[32:]),
	}
	for _, h := range []map[string]any{
		{"jwk": jwk},
		{"jku": "http://127.0.0.1:1/jwks"},
		{"x5u": "http://127.0.0.1:1/cert"},
		{"x5c": []string{"AAAA"}},
	} {
		verify(t, a)(sign(t, "EdDSA", otherKey(), h, claims(nil)), ErrBadToken)
		verify(t, a)(sign(t, "EdDSA", edKey(), h, claims(nil)), nil)
	}
}

func TestExpiredForgeryIsNotCalledExpired(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	c := claims(jwt.MapClaims{"exp": now.Add(-time.Hour).Unix()})
	verify(t, a)(sign(t, "HS256", []byte(secret+"x"), nil, c), ErrBadToken)
	verify(t, a)(hs(t, c), ErrExpired)
}

func TestPreviousSecretVerifiesButDoesNotSign(t *testing.T) {
	old := strings.ToUpper(secret)
	cfg := Config{KeySet: KeySet{HMACSecret: secret, HMACPreviousSecret: Secret(old)}}
	a := newAuth(t, cfg)
	verify(t, a)(sign(t, "HS256", []byte(old), nil, claims(nil)), nil)
	token, err := Mint(cfg, MintClaims{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}}))(token, nil)
	verify(t, newAuth(t, Config{KeySet: KeySet{HMACSecret: Secret(old)}}))(token, ErrBadToken)
}

func TestConcurrentVerify(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, PublicKeys: []PublicKey{{PEM: publicPEM(edKey())}}}, TokenCache: 8})
	tokens := make([]string, 32)
	for i := range tokens {
		c := claims(jwt.MapClaims{"sub": fmt.Sprint(i)})
		if tokens[i] = hs(t, c); i%2 == 0 {
			tokens[i] = sign(t, "EdDSA", edKey(), nil, c)
		}
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 400 {
				n := (i*7 + g) % len(tokens)
				id, err := a.Verify(context.Background(), tokens[n], now)
				if err != nil || id.Subject != fmt.Sprint(n) {
					t.Errorf("token %d gave %v, %v", n, id, err)
					return
				}
				if id, ok := a.Cached(tokens[n]); ok && id.Subject != fmt.Sprint(n) {
					t.Errorf("token %d is cached as %v", n, id.Subject)
				}
				if _, err := a.Verify(context.Background(), tokens[n]+"x", now); err == nil {
					t.Error("a longer token passed")
				}
			}
		})
	}
	wg.Wait()
	s := a.Stats()
	if s.Refused != 8*400 || s.Verified == 0 || s.CacheHits == 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestLogsNameReasonAndSubjectButNoToken(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	var log strings.Builder
	l := slog.New(slog.NewTextHandler(&log, nil))
	token := hs(t, claims(jwt.MapClaims{"nbf": now.Add(time.Hour).Unix()}))
	_, err := a.Verify(context.Background(), token, now)
	l.Info("refused", "err", err)
	l.Info("accepted", "identity", verify(t, a)(hs(t, claims(nil)), nil))
	l.Info("open", "identity", Anonymous)
	for _, want := range []string{`err="token refused: nbf is in the future"`, "identity=token:ada", "identity=anonymous"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log does not say %s:\n%s", want, &log)
		}
	}
	checkNoLeak(t, token, err)
}
