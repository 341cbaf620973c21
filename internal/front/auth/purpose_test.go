package auth

import (
	"errors"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

func TestATokenIsAcceptedForItsPurposesOnly(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	details := func(kind string) []any { return []any{map[string]any{"type": kind, "actions": []string{"publish"}}} }
	none := map[string]any{}
	f := func(what string, changes jwt.MapClaims, want Purpose) {
		t.Helper()
		if _, ok := changes["weir"]; !ok {
			changes["weir"] = nil
		}
		token := hs(t, claims(changes))
		for range 2 { // anew, and from the cache
			for _, p := range []Purpose{ForClient, ForSubscription, ForMercure} {
				id, err := a.VerifyFor(t.Context(), p, token, now)
				_, cached := a.CachedFor(p, []byte(token))
				_, payloadErr := a.Payload(t.Context(), p, token, now)
				_, done, nowErr := a.PayloadNow(p, token, now)
				ok := want&p != 0
				if ok != (err == nil) || ok != (id != nil) || ok != cached || ok != (payloadErr == nil) || !done || ok != (nowErr == nil) {
					t.Errorf("%s: for %d: %v, cached %v, payload %v, %v; want accepted: %v", what, p, err, cached, payloadErr, nowErr, ok)
				}
				if !ok && !errors.Is(err, ErrBadToken) {
					t.Errorf("%s: for %d: %v is not ErrBadToken", what, p, err)
				}
			}
		}
		if _, ok := a.CachedFor(ForAny, []byte(token)); !ok {
			t.Errorf("%s: not accepted for any purpose", what)
		}
	}
	f("a subject", jwt.MapClaims{}, ForClient)
	f("no subject", jwt.MapClaims{"sub": nil}, ForClient)
	f("grants", jwt.MapClaims{"weir": map[string]any{"subscribe": []string{"*"}}}, ForClient)
	f("a Centrifuge connection", jwt.MapClaims{"channels": []string{"news"}, "info": none, "meta": none, "subs": none}, ForClient)
	f("a Centrifuge subscription", jwt.MapClaims{"channel": "$news"}, ForSubscription)
	f("an empty channel", jwt.MapClaims{"channel": ""}, ForClient)
	f("a channel that is not a string", jwt.MapClaims{"channel": 7}, ForClient)
	f("a channel beside grants", jwt.MapClaims{"channel": "mobile", "weir": none}, ForClient|ForSubscription)
	f("Mercure", jwt.MapClaims{"mercure": map[string]any{"publish": []string{"*"}}}, ForMercure)
	f("Mercure without sub", jwt.MapClaims{"sub": nil, "mercure": none}, ForMercure)
	f("Mercure by its other name", jwt.MapClaims{"https://mercure.rocks/": none}, ForMercure)
	f("Mercure's draft 08", jwt.MapClaims{"authorization_details": details(mercureDetail)}, ForMercure)
	f("details of another type", jwt.MapClaims{"authorization_details": details("https://example.com/")}, ForClient)
	f("Mercure beside grants", jwt.MapClaims{"mercure": none, "weir": none}, ForClient|ForMercure)
	f("Mercure and a channel", jwt.MapClaims{"mercure": none, "channel": "$news"}, ForMercure|ForSubscription)
}
