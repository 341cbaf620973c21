package auth

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
)

// FuzzVerify changes good tokens. Whatever comes out must not panic, and must
// not pass unless it is one of them.
func FuzzVerify(f *testing.F) {
	cfg := Config{KeySet: KeySet{HMACSecret: secret, PublicKeys: []PublicKey{{ID: "ed", PEM: publicPEM(edKey())}, {PEM: publicPEM(rsaKey())}}}}
	a := newAuth(f, cfg)
	good := map[string]bool{}
	for _, token := range []string{
		hs(f, claims(nil)),
		sign(f, "EdDSA", edKey(), map[string]any{"kid": "ed"}, claims(nil)),
		sign(f, "RS256", rsaKey(), nil, claims(nil)),
		sign(f, "PS256", rsaKey(), map[string]any{"kid": "x"}, claims(nil)),
	} {
		good[token] = true
		f.Add(token)
		s := strings.Split(token, ".")
		f.Add(s[0] + "." + s[1] + ".")
		f.Add(b64(`{"alg":"none"}`) + "." + s[1] + ".")
		f.Add(token + "\n")
		f.Add(looseBits(token))
	}
	f.Add("")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		id, err := a.Verify(context.Background(), token, now)
		if (err == nil) != good[token] || (id != nil) != good[token] {
			t.Errorf("token %q gave %v, %v", token, id, err)
		}
		checkNoLeak(t, token, err)
	})
}

// FuzzClaims signs any header and claims, as a careless issuer would.
func FuzzClaims(f *testing.F) {
	a := newAuth(f, Config{KeySet: KeySet{HMACSecret: secret}})
	f.Add(`{"alg":"HS256"}`, toJSON(claims(nil)))
	f.Add(`{"alg":"HS256","kid":"x","typ":"JWT"}`, `{"exp":1900000000,"weir":{"subscribe":["*"]}}`)
	f.Add(`{"alg":"HS256"}`, `null`)
	f.Add(`{"alg":"HS256"}`, `{"exp":1e400}`)
	f.Add(`null`, `{"exp":1900000000}`)
	f.Fuzz(func(t *testing.T, header, payload string) {
		id, err := a.Verify(context.Background(), rawHS(secret, header, payload), now)
		if err == nil && (id.Expires.IsZero() || id.Expired(now) || !validSubject(id.Subject)) {
			t.Errorf("%s %s gave %+v", header, payload, id)
		}
	})
}

// Every bit of a token counts: no other spelling of it passes.
func TestEveryBitOfATokenCounts(t *testing.T) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret, PublicKeys: []PublicKey{{PEM: publicPEM(edKey())}}}})
	for _, token := range []string{hs(t, claims(nil)), sign(t, "EdDSA", edKey(), nil, claims(nil))} {
		verify(t, a)(token, nil)
		for i := range len(token) {
			v := strings.IndexByte(alphabet, token[i])
			if v < 0 {
				continue
			}
			for bit := range 6 {
				changed := token[:i] + alphabet[v^1<<bit:v^1<<bit+1] + token[i+1:]
				if _, err := a.Verify(context.Background(), changed, now); err == nil {
					t.Fatalf("bit %d of byte %d may change", bit, i)
				}
			}
			if _, err := a.Verify(context.Background(), token[:i]+token[i+1:], now); err == nil {
				t.Fatalf("byte %d may be missing", i)
			}
		}
		if _, err := base64.RawURLEncoding.DecodeString(strings.Split(looseBits(token), ".")[2]); err != nil {
			t.Errorf("looseBits tests nothing: %v", err)
		}
	}
}
