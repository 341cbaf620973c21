package auth

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestPayloadIsWhatTheIssuerWrote(t *testing.T) {
	const secret = "0123456789abcdef0123456789abcdef"
	a, err := New(Config{KeySet: KeySet{HMACSecret: secret, RequireExpiry: setting.Off}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	now := time.Unix(1_700_000_000, 0)
	sign := func(key string, c jwt.MapClaims) string {
		t.Helper()
		s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	f := func(token, want string, expires int64, wantErr error) {
		t.Helper()
		p, err := a.Payload(t.Context(), ForClient, token, now)
		got, exp := p.Claims, p.Expires
		if !errors.Is(err, wantErr) || string(got) != want {
			t.Errorf("%s, %v; want %s, %v", got, err, want, wantErr)
		}
		if expires != 0 && exp.Unix() != expires || expires == 0 && !exp.IsZero() {
			t.Errorf("expires %v, want %d", exp, expires)
		}
		if again, ok, err := a.PayloadNow(ForClient, token, now); ok && (string(again.Claims) != want || !again.Expires.Equal(exp) || again.Proof != p.Proof || !errors.Is(err, wantErr)) {
			t.Errorf("at once: %+v, %v", again, err)
		} else if ok != (strings.Count(token, ".") == 2 && len(token) > 9) {
			t.Errorf("at once: %v", ok)
		}
	}
	f(sign(secret, jwt.MapClaims{"sub": "7", "info": jwt.MapClaims{"n": 1}}), `{"info":{"n":1},"sub":"7"}`, 0, nil)
	f(sign(secret, jwt.MapClaims{"exp": now.Unix() + 9}), `{"exp":1700000009}`, now.Unix()+9, nil)
	f(sign(secret, jwt.MapClaims{"exp": now.Unix() - 9}), "", 0, ErrExpired)
	f(sign(secret+"!", jwt.MapClaims{"sub": "7"}), "", 0, ErrBadToken)
	f("", "", 0, ErrNoToken)
	f("a.b.c", "", 0, ErrBadToken)
}
