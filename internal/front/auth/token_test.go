package auth

import (
	"testing"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestTokenOfRequest(t *testing.T) {
	a := newAuth(t, Config{})
	f := func(authorization, cookie, query, want string, from TokenSource) {
		t.Helper()
		got, src := a.Token([]byte(authorization), []byte(cookie), []byte(query))
		if got != want || src != from {
			t.Errorf("Token(%q, %q, %q) = %q from %v, want %q from %v", authorization, cookie, query, got, src, want, from)
		}
	}
	f("", "", "", "", NoToken)
	f("Bearer t", "weir_token=c", "q", "t", FromHeader)
	f("bearer t", "", "", "t", FromHeader)
	f("BEARER   t ", "", "", "t", FromHeader)
	f("Bearer", "weir_token=c", "q", "", FromHeader)
	f("Bearer ", "weir_token=c", "q", "", FromHeader)
	f("Bearer a b", "", "", "a b", FromHeader) // for Verify to refuse
	f("Bearert", "", "q", "q", FromQuery)
	f("Bearer\tt", "", "q", "q", FromQuery)
	f("Basic dTpw", "weir_token=c", "", "c", FromCookie)
	f("", "weir_token=c", "q", "q", FromQuery)
	f("", "a=1; weir_token=c; b=2", "", "c", FromCookie)
	f("", "a=1;weir_token=c", "", "c", FromCookie)
	f("", `weir_token="c"`, "", "c", FromCookie)
	f("", "weir_token=", "", "", NoToken)
	f("", "weir_token", "", "", NoToken)
	f("", "xweir_token=c", "", "", NoToken)
	f("", "weir_tokenx=c", "", "", NoToken)
	f("", "WEIR_TOKEN=c", "", "", NoToken)
	f("", "a=weir_token=c", "", "", NoToken)
	f("", `a="; weir_token=c"`, "", `c"`, FromCookie) // cookies have no quoting; Verify refuses it
	f("", "weir_token=first; weir_token=second", "", "first", FromCookie)

	a = newAuth(t, Config{QueryToken: setting.Off, Cookie: "t"})
	f("", "weir_token=c", "q", "", NoToken)
	f("", "t=c", "q", "c", FromCookie)
}

func TestAPIKeys(t *testing.T) {
	a := newAuth(t, Config{APIKeys: []APIKey{
		{Name: "shop", Key: "0123456789abcdef"},
		{Name: "till", SHA256: sha256Hex("a key for the till"), Publish: []string{"till.*"}, Subscribe: []string{"till.*"}},
		{Name: "hash", SHA256: sha256Hex("another key of mine"), Publish: []string{"orders.*"}, Subscribe: []string{"till.*"}},
	}})
	f := func(key, want string) *Identity {
		t.Helper()
		id, ok := a.APIKey([]byte(key))
		if ok != (want != "") || ok && (id.Subject != want || id.By != ByAPIKey || !id.Expires.IsZero()) {
			t.Errorf("APIKey(%q) = %v, %v, want %q", key, id, ok, want)
		}
		return id
	}
	shop := f("0123456789abcdef", "shop")
	hash := f("another key of mine", "hash")
	f("a key for the till", "till")
	f("", "")
	f("0123456789abcde", "")
	f("0123456789abcdef ", "")
	f("0123456789ABCDEF", "")
	f("0123456789abcdef\x00", "")
	f(sha256Hex("a key for the till"), "") // the hash is not a key
	f(string(make([]byte, 1<<20)), "")
	grant := func(got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("grant is %v, want %v", got, want)
		}
	}
	grant(shop.CanPublish("any:thing.at.all"), true)
	grant(shop.CanSubscribe("any"), false)
	grant(hash.CanPublish("orders.1"), true)
	grant(hash.CanPublish("orders.1.x"), false)
	grant(hash.CanSubscribe("till.1"), true)
	grant(hash.CanSubscribe("orders.1"), false)
	if n := testing.AllocsPerRun(100, func() { a.APIKey([]byte("0123456789abcdef")) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestHasKeys(t *testing.T) {
	f := func(cfg Config, want bool) {
		t.Helper()
		if got := newAuth(t, cfg).HasKeys(); got != want {
			t.Errorf("HasKeys is %v, want %v", got, want)
		}
	}
	f(Config{}, false)
	f(Config{AllowedOrigins: []string{"*"}}, false)
	f(Config{KeySet: KeySet{HMACSecret: secret}}, true)
	f(Config{KeySet: KeySet{PublicKeys: []PublicKey{{PEM: publicPEM(edKey())}}}}, true)
	f(Config{KeySet: KeySet{JWKSURL: "https://127.0.0.1:1/"}}, true)
	f(Config{APIKeys: []APIKey{{Name: "a", Key: "0123456789abcdef"}}}, true)
}
