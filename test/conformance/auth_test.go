package conformance

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

const (
	issuer   = "https://issuer.example"
	audience = "weir-test"
)

// guarded is a server with a namespace that requires a token, and the PEM of a
// public key that it trusts.
func guarded(t *testing.T) (s *judge.Server, publicPEM string) {
	t.Helper()
	public := ed25519.NewKeyFromSeed(make([]byte, 32)).Public()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	publicPEM = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	return judge.New(t, judge.Options{Memory: true, Config: map[string]any{
		"namespaces": []any{
			map[string]any{"name": "default", "anonymous": true},
			map[string]any{"name": "private"},
		},
		"auth": map[string]any{
			"issuer": issuer, "audience": []any{audience}, "leeway": "1s",
			"public_keys":     []any{map[string]any{"id": "ed", "pem": publicPEM}},
			"allowed_origins": []any{"https://app.example.com", "https://*.shop.example.com"},
		},
	}}), publicPEM
}

// claims are good ones, changed by over; a nil value takes one away.
func claims(over judge.Claims) judge.Claims {
	now := time.Now().Unix()
	c := judge.Claims{
		"sub": "tester", "iss": issuer, "aud": audience, "iat": now, "exp": now + 600,
		"weir": judge.Grants([]string{"private:orders.*"}, []string{"private:orders.*"}),
	}
	maps.Copy(c, over)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// ask sends one request and returns its status and the beginning of its body;
// a stream is left as soon as it has started.
func ask(t *testing.T, method, address string, header http.Header, body string) (int, http.Header, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	resp, err := judge.HTTP.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") ||
		resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, resp.Header, ""
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, address, err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// upgrade is the header of a WebSocket handshake.
func upgrade() http.Header {
	return http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
}

func TestBadTokensAreRefused(t *testing.T) {
	s, publicPEM := guarded(t)
	hs := map[string]any{"alg": "HS256", "typ": "JWT"}
	good := judge.Token(claims(nil))
	parts := strings.Split(good, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	var texts []string
	f := func(name, token string, want int) {
		t.Helper()
		bearer := http.Header{"Authorization": {"Bearer " + token}}
		socket := upgrade()
		maps.Copy(socket, bearer)
		publish := http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}
		stream, _, text := ask(t, "GET", "http://"+s.Public+"/sse?channel=private:orders.1", bearer, "")
		frames, _, _ := ask(t, "GET", "http://"+s.Public+"/ws?channel=private:orders.1", socket, "")
		post, _, _ := ask(t, "POST", "http://"+s.Public+"/api/publish", publish, `{"channel":"private:orders.1","data":1}`)
		cookie, _, _ := ask(t, "GET", "http://"+s.Public+"/sse?channel=private:orders.1", http.Header{"Cookie": {"weir_token=" + token}}, "")
		query, _, _ := ask(t, "GET", "http://"+s.Public+"/sse?channel=private:orders.1&token="+url.QueryEscape(token), nil, "")
		wantSocket := want
		if want == 200 {
			wantSocket = 101
		}
		if stream != want || frames != wantSocket || post != want || cookie != want || query != want {
			t.Errorf("%s: got %d on a stream, %d on a socket, %d on publish, %d by cookie, %d by query; want %d",
				name, stream, frames, post, cookie, query, want)
		}
		if want != 200 && name != "expired" {
			texts = append(texts, text)
		}
	}
	now := time.Now().Unix()
	f("good", good, 200)
	f("expired", judge.Token(claims(judge.Claims{"exp": now - 60})), 401)
	f("not yet valid", judge.Token(claims(judge.Claims{"nbf": now + 60})), 401)
	f("issued in the future", judge.Token(claims(judge.Claims{"iat": now + 600, "nbf": now + 600})), 401)
	f("without expiry", judge.Token(claims(judge.Claims{"exp": nil})), 401)
	f("expiry as text", judge.Token(claims(judge.Claims{"exp": "tomorrow"})), 401)
	f("another issuer", judge.Token(claims(judge.Claims{"iss": "https://evil.example"})), 401)
	f("no issuer", judge.Token(claims(judge.Claims{"iss": nil})), 401)
	f("another audience", judge.Token(claims(judge.Claims{"aud": "other"})), 401)
	f("one of several audiences", judge.Token(claims(judge.Claims{"aud": []string{"other", audience}})), 200)
	f("no audience", judge.Token(claims(judge.Claims{"aud": nil})), 401)
	f("another key", judge.Sign(hs, claims(nil), "another-secret-of-thirty-two-bytes-or-more"), 401)
	f("an empty key", judge.Sign(hs, claims(nil), ""), 401)
	f("alg none", encode(`{"alg":"none"}`)+"."+parts[1]+".", 401)
	f("alg None with a signature", encode(`{"alg":"None"}`)+"."+parts[1]+"."+parts[2], 401)
	f("no alg", judge.Sign(map[string]any{"typ": "JWT"}, claims(nil), judge.HMACKey), 401)
	f("the public key as an HMAC secret", judge.Sign(map[string]any{"alg": "HS256", "kid": "ed"}, claims(nil), publicPEM), 401)
	f("an asymmetric alg with an HMAC", judge.Sign(map[string]any{"alg": "EdDSA", "kid": "ed"}, claims(nil), publicPEM), 401)
	f("RS256 without such a key", judge.Sign(map[string]any{"alg": "RS256"}, claims(nil), judge.HMACKey), 401)
	f("unknown critical header", judge.Sign(map[string]any{"alg": "HS256", "crit": []string{"x"}, "x": 1}, claims(nil), judge.HMACKey), 401)
	f("a key of its own", judge.Sign(map[string]any{"alg": "HS256", "jwk": map[string]any{"kty": "oct", "k": "AA"}}, claims(nil), "\x00"), 401)
	f("a kid that is a path", judge.Sign(map[string]any{"alg": "EdDSA", "kid": "../../../dev/null"}, claims(nil), ""), 401)
	f("changed claims", parts[0]+"."+encode(`{"exp":9999999999,"weir":{"subscribe":["**"]}}`)+"."+parts[2], 401)
	f("cut signature", good[:len(good)-4], 401)
	f("no signature", parts[0]+"."+parts[1]+".", 401)
	f("two parts", parts[0]+"."+parts[1], 401)
	f("four parts", good+"."+parts[2], 401)
	f("dots", "..", 401)
	f("no base64", "%%%."+parts[1]+"."+parts[2], 401)
	f("claims that are no object", parts[0]+"."+encode(`[]`)+"."+parts[2], 401)
	f("garbage", "garbage", 401)
	long := judge.Token(claims(judge.Claims{"pad": strings.Repeat("x", 9000)}))
	if got, _, _ := ask(t, "GET", "http://"+s.Public+"/sse?channel=private:orders.1", http.Header{"Authorization": {"Bearer " + long}}, ""); got != 401 {
		t.Errorf("a token over the limit: %d, want 401", got)
	}
	if got, _, _ := ask(t, "GET", "http://"+s.Public+"/sse?channel=private:orders.1&token="+long, nil, ""); got != 414 {
		t.Errorf("a token over the limit in the query: %d, want 414", got)
	}

	// No oracle: a forger gets the same answer whatever was wrong.
	slices.Sort(texts)
	if d := slices.Compact(texts); len(d) != 1 {
		t.Errorf("refusals differ: %q", d)
	}
	got := exchange(t, s.Public, "GET /sse?channel=private:orders.1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+good+
		"\r\nAuthorization: Bearer "+good+"\r\nConnection: close\r\n\r\n", 1, 5*time.Second)
	if !slices.Contains([]int{400, 401}, got.statuses[0]) {
		t.Errorf("two Authorization fields: %s, want 400 or 401", got)
	}
	status, _, _ := ask(t, "GET", "http://"+s.Public+"/sse?channel=private:orders.1", nil, "")
	if status != 401 {
		t.Errorf("no token: %d, want 401", status)
	}
}

func TestGrantsAreKept(t *testing.T) {
	s, _ := guarded(t)
	reader := judge.Token(claims(judge.Claims{"weir": judge.Grants([]string{"private:orders.*"}, nil)}))
	writer := judge.Token(claims(judge.Claims{"weir": judge.Grants(nil, []string{"private:orders.*"})}))
	subscribe := func(token, query string, header http.Header) (int, string) {
		t.Helper()
		h := http.Header{"Authorization": {"Bearer " + token}}
		maps.Copy(h, header)
		status, _, text := ask(t, "GET", "http://"+s.Public+"/sse?"+query, h, "")
		return status, text
	}
	f := func(query string, want ...int) {
		t.Helper()
		if got, text := subscribe(reader, query, nil); !slices.Contains(want, got) {
			t.Errorf("subscribe %s: %d %q, want %d", query, got, text, want)
		}
	}
	f("channel=private:orders.1", 200)
	f("channel=private:orders%2e1", 200) // the same name, spelt otherwise
	f("channel=news", 200)               // its namespace requires no token
	f("channel=private:orders", 403)
	f("channel=private:orders.", 403)
	f("channel=private:orders.1.2", 403)
	f("channel=private:orders.1:2", 403, 400)
	f("channel=private:orders.1/2", 403, 400)
	f("channel=private:Orders.1", 403)
	f("channel=PRIVATE:orders.1", 403, 400, 404)
	f("channel=private:xorders.1", 403)
	f("channel=private:*", 403, 400)
	f("channel=private:**", 403, 400)
	f("channel=private:orders%252e1", 403, 400)
	f("channel=private:orders%00.1", 403, 400)
	f("channel=private:orders%EF%BC%8E1", 403, 400)
	f("channel=private:orders%C0%AE1", 403, 400)
	f("channel=private:%6frders.1&channel=private:users.1", 403)
	f("channel=news&channel=private:users.1", 403)
	f("channel=private:", 403, 400)
	f("channel=", 400)
	f("", 400)
	f("channel=nowhere:orders.1", 403, 404)

	// Nothing is revealed of what is not allowed: a channel with messages and one
	// without look alike, with a position too.
	key := http.Header{"X-Api-Key": {judge.APIKey}, "Content-Type": {"application/json"}}
	if status, _, text := ask(t, "POST", "http://"+s.Public+"/api/publish", key, `{"channel":"private:users.1","data":1}`); status != 200 {
		t.Fatalf("publish with the API key: %d %s", status, text)
	}
	there, text1 := subscribe(reader, "channel=private:users.1", nil)
	absent, text2 := subscribe(reader, "channel=private:users.2", nil)
	resumed, text3 := subscribe(reader, "channel=private:users.1", http.Header{"Last-Event-Id": {"0"}})
	strip := func(text string) string { return strings.NewReplacer("users.1", "", "users.2", "").Replace(text) }
	if there != 403 || absent != 403 || resumed != 403 || strip(text1) != strip(text2) || strip(text1) != strip(text3) {
		t.Errorf("a channel with messages: %d %q; without: %d %q; with a position: %d %q", there, text1, absent, text2, resumed, text3)
	}

	publish := func(token, channel string, want ...int) {
		t.Helper()
		h := http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}
		if token == "" {
			h.Del("Authorization")
		}
		body, _ := json.Marshal(map[string]any{"channel": channel, "data": 1})
		if got, _, text := ask(t, "POST", "http://"+s.Public+"/api/publish", h, string(body)); !slices.Contains(want, got) {
			t.Errorf("publish on %q: %d %q, want %d", channel, got, text, want)
		}
	}
	publish(writer, "private:orders.1", 200)
	publish(writer, "private:users.1", 403)
	publish(writer, "news", 403) // anonymous namespaces let everybody read, not write
	publish(reader, "private:orders.1", 403)
	publish("", "news", 401, 403)
	if got, _ := subscribe(writer, "channel=private:orders.1", nil); got != 403 {
		t.Errorf("a token that may only publish subscribes: %d", got)
	}
}

// A body that comes later than its head is evaluated by its own head, whatever the
// loop has read from others in between.
func TestACredentialBelongsToItsRequestOnly(t *testing.T) {
	s, _ := guarded(t)
	post := func(key string) string {
		return "POST /api/publish HTTP/1.1\r\nHost: a\r\nX-API-Key: " + key +
			"\r\nContent-Type: application/json\r\nContent-Length: 24\r\nExpect: 100-continue\r\n\r\n"
	}
	wrong := strings.Repeat("x", len(judge.APIKey))
	f := func(mine, theirs string, want int) {
		t.Helper()
		conn := dial(t, s.Public, 1, func(int) string { return post(mine) })[0]
		got := responses(t, conn, 1, 5*time.Second)
		if slices.Equal(got.statuses, []int{want}) && want != 200 {
			return // refused before its body: better still
		}
		if !slices.Equal(got.statuses, []int{100}) {
			t.Fatalf("before the body: %s, want 100", got)
		}
		for range 32 { // on every loop
			exchange(t, s.Public, post(theirs)+body, 1, 5*time.Second)
		}
		_, _ = io.WriteString(conn, body)
		if got := responses(t, conn, 1, 5*time.Second); !slices.Equal(got.statuses, []int{want}) {
			t.Errorf("key %s, while others send %s: %s %q, want %d", mine, theirs, got, got.bodies, want)
		}
	}
	f(judge.APIKey, wrong, 200)
	f(wrong, judge.APIKey, 401)
}

// A stream ends when its token does.
func TestExpiryEndsALiveStream(t *testing.T) {
	t.Parallel() // it mostly waits
	s, _ := guarded(t)
	for _, socket := range []bool{false, true} {
		var end []byte
		begin := time.Now()
		sub := &judge.Subscriber{
			Addr: s.Public, Socket: socket, Channels: []string{"private:orders.1"},
			Token: judge.Token(claims(judge.Claims{"exp": begin.Unix() + 3})),
			On: func(e judge.Event) {
				if e.Kind == "end" {
					end = e.Data
				}
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := sub.Once(ctx)
		cancel()
		took := time.Since(begin)
		var said struct{ Code int }
		if json.Unmarshal(end, &said) != nil || said.Code != 4401 || took < time.Second || took > 8*time.Second {
			t.Errorf("socket %v: ended after %s with %q (%v); want code 4401 after 3s and the leeway of 1s", socket, took, end, err)
		}
	}
}

func TestForeignOriginsAreRefused(t *testing.T) {
	s, _ := guarded(t)
	f := func(origin string, allowed bool) {
		t.Helper()
		socket := upgrade()
		socket.Set("Origin", origin)
		frames, _, _ := ask(t, "GET", "http://"+s.Public+"/ws?channel=news", socket, "")
		stream, head, _ := ask(t, "GET", "http://"+s.Public+"/sse?channel=news", http.Header{"Origin": {origin}}, "")
		_, preflight, _ := ask(t, "OPTIONS", "http://"+s.Public+"/sse?channel=news", http.Header{
			"Origin": {origin}, "Access-Control-Request-Method": {"GET"}, "Access-Control-Request-Headers": {"last-event-id"},
		}, "")
		read, before := head.Get("Access-Control-Allow-Origin"), preflight.Get("Access-Control-Allow-Origin")
		if allowed && (frames != 101 || stream != 200 || read != origin || before != origin) {
			t.Errorf("%s: socket %d, stream %d for %q, preflight for %q; want it allowed", origin, frames, stream, read, before)
		}
		if !allowed && (frames != 403 || stream != 403 || read != "" || before != "") {
			t.Errorf("%s: socket %d, stream %d for %q, preflight for %q; want it refused", origin, frames, stream, read, before)
		}
	}
	f("https://app.example.com", true)
	f("https://a.shop.example.com", true)
	f("http://"+s.Public, true) // the same origin
	f("http://app.example.com", false)
	f("https://app.example.com:8443", false)
	f("https://app.example.com.evil.com", false)
	f("https://evilapp.example.com", false)
	f("https://evilshop.example.com", false)
	f("https://shop.example.com", false)
	f("https://a.shop.example.com.evil.com", false)
	f("https://app.example.com@evil.com", false)
	f("https://evil.com", false)
	f("https://evil.com/https://app.example.com", false)
	f("null", false)
	f("file://", false)
	f("https://", false)
	f(fmt.Sprintf("https://app.example.com%c.evil.com", '\u3002'), false)
}
