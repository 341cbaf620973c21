package app

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// One set verifies tokens for each protocol that names it, and for nothing else; the keys
// of auth verify those of the rest.
func TestProtocolsVerifyWithTheKeySetTheyName(t *testing.T) {
	const other = "the-secret-of-a-key-set-of-its-own-0123"
	g := start(t, func(c *config.Config) {
		withSecret(c)
		c.KeySets = map[string]auth.KeySet{"own": {HMACSecret: other}}
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "mercure"})
		c.Mercure.Enabled, c.Mercure.PublisherKeys = true, "own"
		c.Centrifuge = centrifuge.Config{Enabled: true, Keys: "own"}
	})
	sign := func(with string, claims jwt.MapClaims) string {
		claims["exp"] = time.Now().Add(time.Hour).Unix()
		s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(with))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	f := func(what, with, want string) {
		t.Helper()
		hubToken := sign(with, jwt.MapClaims{"mercure": map[string]any{"publish": []string{"*"}, "subscribe": []string{"*"}}})
		var req *http.Request
		var err error
		switch what {
		case "mercure publisher":
			req, err = http.NewRequest(http.MethodPost, g.url+"/.well-known/mercure", strings.NewReader(url.Values{"topic": {"a"}, "data": {"1"}}.Encode()))
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Header.Set("Authorization", "Bearer "+hubToken)
		case "mercure subscriber":
			req, err = http.NewRequest(http.MethodHead, g.url+"/.well-known/mercure?topic=a", nil)
			req.Header.Set("Authorization", "Bearer "+hubToken)
		case "centrifuge":
			token := sign(with, jwt.MapClaims{"sub": "u"})
			req, err = http.NewRequest(http.MethodPost, g.url+"/connection/http_stream", strings.NewReader(`{"id":1,"connect":{"token":"`+token+`"}}`))
		case "sse":
			token := sign(with, jwt.MapClaims{"sub": "u", "weir": map[string]any{"subscribe": []string{"private:a"}}})
			req, err = http.NewRequest(http.MethodGet, g.url+"/sse?channel=private:a&token="+token, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := answerOf(t, http.DefaultClient, req, 0); got != want {
			t.Errorf("%s, a token signed with %s: %s, want %s", what, with, got, want)
		}
	}
	for range 2 { // verified, then known
		f("mercure publisher", other, "200")
		f("mercure publisher", secret, "401")
		f("mercure subscriber", other, "401")
		f("mercure subscriber", secret, "200")
		f("centrifuge", other, "200")
		f("centrifuge", secret, "3500")
		f("sse", other, "401")
		f("sse", secret, "200")
	}
}
