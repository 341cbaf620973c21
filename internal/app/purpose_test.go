package app

import (
	"bufio"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// signed makes a token of an issuer that signs for all protocols with one key.
func signed(t *testing.T, typ string, claims jwt.MapClaims) string {
	t.Helper()
	c := jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(c, claims)
	tok := jwt.NewWithClaims(jwt.SigningMethodHS256, c)
	tok.Header["typ"] = typ
	s, err := tok.SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answerOf is the status of a response, or the code in the first line of a Centrifuge
// stream, after skip others.
func answerOf(t *testing.T, client *http.Client, req *http.Request, skip int) string {
	t.Helper()
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if !strings.HasPrefix(req.URL.Path, "/connection/") || res.StatusCode != http.StatusOK {
		return res.Status[:3]
	}
	in := bufio.NewReader(res.Body)
	line, err := in.ReadString('\n')
	for range skip {
		line, err = in.ReadString('\n')
	}
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if code := regexp.MustCompile(`"code":(\d+)`).FindStringSubmatch(line); code != nil {
		return code[1]
	}
	return "200"
}

// TestEveryEndpointAcceptsTokensForItsPurposeOnly has each kind of token at each
// endpoint of a node where one key signs them all, over both versions of HTTP.
func TestEveryEndpointAcceptsTokensForItsPurposeOnly(t *testing.T) {
	const resource = "https://hub.example/.well-known/mercure"
	b := backend(t, "b")
	g := start(t, func(c *config.Config) {
		withSecret(c)
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "mercure"})
		c.Mercure.Enabled, c.Mercure.PublicURL = true, resource
		c.Centrifuge.Enabled = true
		c.Centrifuge.Namespaces = map[string]centrifuge.Namespace{"default": {AllowSubscribeForClient: true}}
		c.Clusters = []upstream.Config{b}
		c.Routes = []policy.RouteConfig{
			{Path: "/required/*", Cluster: "b", Auth: policy.Auth{Required: true}},
			{Path: "/forward/*", Cluster: "b", Auth: policy.Auth{Forward: true}},
		}
	})
	grants := map[string]any{"subscribe": []string{"private:*"}, "publish": []string{"private:*"}}
	hubClaim := map[string]any{"subscribe": []string{"*"}, "publish": []string{"*"}}
	details := []any{map[string]any{
		"type": "https://mercure.rocks/authorization-detail", "actions": []string{"subscribe", "publish"},
		"topics": []any{map[string]any{"match": "*"}},
	}}
	tokens := map[string]string{
		"plain":        signed(t, "JWT", jwt.MapClaims{"sub": "42"}),
		"grants":       signed(t, "JWT", jwt.MapClaims{"sub": "42", "weir": grants}),
		"no subject":   signed(t, "JWT", jwt.MapClaims{"weir": grants}),
		"connection":   signed(t, "JWT", jwt.MapClaims{"sub": "42", "channels": []string{"news"}, "info": map[string]any{"n": 1}}),
		"subscription": signed(t, "JWT", jwt.MapClaims{"sub": "42", "channel": "$news"}),
		"mercure":      signed(t, "JWT", jwt.MapClaims{"mercure": hubClaim}),
		"mercure, sub": signed(t, "JWT", jwt.MapClaims{"sub": "42", "mercure": hubClaim}),
		"mercure 08":   signed(t, "at+jwt", jwt.MapClaims{"sub": "42", "aud": resource, "authorization_details": details}),
		"both":         signed(t, "JWT", jwt.MapClaims{"sub": "42", "mercure": hubClaim, "weir": grants}),
	}
	// Each row: /sse of an open channel, /sse of a granted one, publish, a route that
	// requires a token, one that forwards it, a Centrifuge connection, a Centrifuge
	// subscription, Mercure's subscribe, publish and draft 08 subscribe.
	want := map[string]string{
		"plain":        "200 403 403 200 200 200 3500 401 401 401",
		"grants":       "200 200 200 200 200 200 3500 401 401 401",
		"no subject":   "200 200 200 401 200 200 3500 401 401 401",
		"connection":   "200 403 403 200 200 200 3500 401 401 401",
		"subscription": "401 401 401 401 401 3500 200 401 401 401",
		"mercure":      "401 401 401 401 401 3500 3500 200 200 200",
		"mercure, sub": "401 401 401 401 401 3500 3500 200 200 200",
		"mercure 08":   "401 401 401 401 401 3500 3500 200 200 200",
		"both":         "200 200 200 200 200 200 3500 200 200 200",
	}
	clients := map[string]*http.Client{"http/1.1": {Transport: &http.Transport{}, Timeout: trial.Patience}, "h2": overHTTP2(t, nil)}
	defer clients["http/1.1"].CloseIdleConnections()
	form := url.Values{"topic": {"news"}, "data": {"x"}}.Encode()
	for front, client := range clients {
		for kind, token := range tokens {
			ask := func(skip int, method, path, contentType, body string) string {
				t.Helper()
				req, err := http.NewRequestWithContext(t.Context(), method, g.url+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(path, "/connection/") {
					req.Header.Set("Authorization", "Bearer "+token)
				}
				req.Header.Set("Content-Type", contentType)
				return answerOf(t, client, req, skip)
			}
			connect := func(token string) string { return `{"id":1,"connect":{"token":"` + token + `"}}` }
			got := []string{
				ask(0, "GET", "/sse?channel=open", "", ""),
				ask(0, "GET", "/sse?channel=private:a", "", ""),
				ask(0, "POST", "/api/publish", "application/json", `{"channel":"private:a","data":1}`),
				ask(0, "GET", "/required/x", "", ""),
				ask(0, "GET", "/forward/x", "", ""),
				ask(0, "POST", "/connection/http_stream", "application/json", connect(token)),
				ask(1, "POST", "/connection/http_stream", "application/json",
					connect(tokens["plain"])+"\n"+`{"id":2,"subscribe":{"channel":"$news","token":"`+token+`"}}`),
				ask(0, "GET", "/.well-known/mercure?topic=news", "", ""),
				ask(0, "POST", "/.well-known/mercure", "application/x-www-form-urlencoded", form),
				ask(0, "GET", "/.well-known/mercure?match=news", "", ""),
			}
			if text := strings.Join(got, " "); text != want[kind] {
				t.Errorf("%s: %s:\n got %s\nwant %s", front, kind, text, want[kind])
			}
		}
	}
}
