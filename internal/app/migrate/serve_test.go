package migrate_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/migrate"
	"github.com/weir-gateway/weir/websocket"
)

// serve translates a configuration and serves it, but for the addresses, which are
// free ones. It returns the server's address.
func serve(t *testing.T, kind migrate.Kind, file, text string) string {
	t.Helper()
	r, err := migrate.Translate(kind, file, []byte(text), migrate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(name, r.YAML, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Sources{File: name, Flags: []config.Override{
		{Flag: "--set", Key: "listen", Value: "127.0.0.1:0"}, {Flag: "--set", Key: "admin.listen", Value: "off"},
		{Flag: "--set", Key: "broker.nats.dir", Value: filepath.Join(dir, "data")}, {Flag: "--set", Key: "shutdown.drain", Value: "100ms"},
	}})
	if err != nil {
		t.Fatalf("%v\n%s", err, r.YAML)
	}
	a, err := app.New(cfg, app.Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- a.Run(ctx, context.Background(), func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("run: %v", err)
	}
	return a.Addr().String()
}

func sign(t *testing.T, secret string, claims jwt.MapClaims) string {
	t.Helper()
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A socket is a WebSocket connection of a test.
type socket struct {
	t *testing.T
	*websocket.Conn
}

func dial(t *testing.T, address string) socket {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), address, websocket.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(1000, "") })
	return socket{t, c}
}

func (s socket) send(text string) {
	s.t.Helper()
	if err := s.Write(websocket.OpText, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

// until reads messages until one has want in it.
func (s socket) until(want string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	for {
		_, b, err := s.Read(ctx)
		if err != nil {
			s.t.Fatalf("no %q: %v", want, err)
		}
		if strings.Contains(string(b), want) {
			return string(b)
		}
	}
}

func post(t *testing.T, address, contentType, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// A client with a token of before, and without exp, and a backend with the key of
// before meet on a channel of the translated namespace.
func TestCentrifugoClientsAreServed(t *testing.T) {
	const secret, key = "8f2b6c0d-4f6e-4a35-9e1a-2f5d3c7b9a10", "a-key-of-the-backend-0123456789"
	const weak, short = "secret", "api_key"
	for _, c := range []struct{ file, text string }{
		{".env", "CENTRIFUGO_CLIENT_TOKEN_HMAC_SECRET_KEY=" + weak + "\nCENTRIFUGO_HTTP_API_KEY=" + short + "\nCENTRIFUGO_HTTP_SERVER_ADDRESS=127.0.0.1\n" +
			"CENTRIFUGO_CHANNEL_NAMESPACES_CHAT_ALLOW_SUBSCRIBE_FOR_CLIENT=true\nCENTRIFUGO_CHANNEL_NAMESPACES_CHAT_HISTORY_SIZE=10\n" +
			"CENTRIFUGO_CHANNEL_NAMESPACES_CHAT_HISTORY_TTL=60s\nCENTRIFUGO_CHANNEL_NAMESPACES_CHAT_FORCE_RECOVERY=true\nCENTRIFUGO_CHANNEL_NAMESPACES=chat chat-old\n"},
		{"6.json", `{"client":{"token":{"hmac_secret_key":"` + secret + `"}},"http_api":{"key":"` + key + `"},"channel":{"namespaces":[
			{"name":"chat","allow_subscribe_for_client":true,"history_size":10,"history_ttl":"60s","force_recovery":true}]}}`},
		{"5.toml", "token_hmac_secret_key = \"" + secret + "\"\napi_key = \"" + key + "\"\n[[namespaces]]\nname = \"chat\"\nallow_subscribe_for_client = true\n" +
			"history_size = 10\nhistory_ttl = \"60s\"\nforce_recovery = true\n"},
	} {
		t.Run(c.file, func(t *testing.T) {
			secret, key := secret, key
			if c.file == ".env" {
				secret, key = weak, short
			}
			addr := serve(t, migrate.Centrifugo, c.file, c.text)
			s := dial(t, "ws://"+addr+"/connection/websocket")
			s.send(`{"id":1,"connect":{"token":"` + sign(t, secret, jwt.MapClaims{"sub": "u1"}) + `"}}`)
			s.until(`"client":`)
			s.send(`{"id":2,"subscribe":{"channel":"chat:1"}}`)
			if got := s.until(`"id":2`); !strings.Contains(got, `"recoverable":true`) {
				t.Errorf("subscribed: %s", got)
			}
			status, body := post(t, "http://"+addr+"/api/publish", "application/json", `{"channel":"chat:1","data":{"n":1}}`, "X-API-Key", key)
			if status != http.StatusOK || !strings.Contains(body, `"result"`) {
				t.Errorf("publish: %d %s", status, body)
			}
			s.until(`{"n":1}`)
			for _, method := range []string{"publish", "broadcast"} { // errors are those of Centrifugo, too
				status, body := post(t, "http://"+addr+"/api/"+method, "application/json", `{"channel":"no such:1","channels":["no such:1"],"data":1,"more":true}`, "X-API-Key", key)
				if status != http.StatusOK || !strings.Contains(body, `"code":102`) {
					t.Errorf("%s to an unknown namespace: %d %s", method, status, body)
				}
			}

			bad := dial(t, "ws://"+addr+"/connection/websocket")
			bad.send(`{"id":1,"connect":{"token":"` + sign(t, "another secret that is not configured", jwt.MapClaims{"sub": "u1"}) + `"}}`)
			if _, b, err := bad.Read(t.Context()); err == nil {
				t.Errorf("a token of another secret: %s", b)
			}
		})
	}
}

// A publisher and a subscriber with tokens of before meet on a topic.
func TestMercureClientsAreServed(t *testing.T) {
	const secret = "!ChangeThisMercureHubJWTSecretKey!"
	for _, c := range []struct{ file, text string }{
		{"Caddyfile", "http://localhost:3000 {\n\tmercure {\n\t\tpublisher_jwt " + secret + "\n\t\tsubscriber_jwt " + secret + " HS256\n\t}\n\trespond 404\n}\n"},
		{".env", "SERVER_NAME=:80\nMERCURE_PUBLISHER_JWT_KEY='" + secret + "'\nMERCURE_SUBSCRIBER_JWT_KEY='" + secret + "'\n"},
	} {
		t.Run(c.file, func(t *testing.T) {
			hub := "http://" + serve(t, migrate.Mercure, c.file, c.text) + "/.well-known/mercure"
			token := func(role string) string {
				return sign(t, secret, jwt.MapClaims{"mercure": map[string]any{role: []string{"*"}}})
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, hub+"?topic="+url.QueryEscape("https://shop.example/books/1"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("without a token: %v %v", resp, err)
			} else {
				resp.Body.Close()
			}
			req.Header.Set("Authorization", "Bearer "+token("subscribe"))
			resp, err := http.DefaultClient.Do(req)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("subscribe: %v %v", resp, err)
			}
			defer resp.Body.Close()
			form := url.Values{"topic": {"https://shop.example/books/1"}, "data": {"sold out"}, "private": {"on"}, "id": {"urn:uuid:1"}}
			status, body := post(t, hub, "application/x-www-form-urlencoded", form.Encode(), "Authorization", "Bearer "+token("publish"))
			if status != http.StatusOK || body != "urn:uuid:1" {
				t.Fatalf("publish: %d %s", status, body)
			}
			for lines := bufio.NewScanner(resp.Body); ; {
				if !lines.Scan() {
					t.Fatalf("the stream ended: %v", lines.Err())
				}
				if lines.Text() == "data: sold out" {
					break
				}
			}
		})
	}
}

// A client subscribes to a private channel with a signature by the secret of before,
// and the application triggers an event on it with one.
func TestSoketiClientsAreServed(t *testing.T) {
	const id, key, secret = "app-id", "app-key", "shop-secret-0123456789"
	for _, c := range []struct {
		kind       migrate.Kind
		file, text string
	}{
		{migrate.Soketi, "soketi.json", `{"appManager.array.apps":[{"id":"` + id + `","key":"` + key + `","secret":"` + secret + `"},{"id":"b","key":"bk","secret":"another-secret-0123456789"}]}`},
		{migrate.Soketi, ".env", "SOKETI_DEFAULT_APP_ID=" + id + "\nSOKETI_DEFAULT_APP_KEY=" + key + "\nSOKETI_DEFAULT_APP_SECRET=" + secret + "\n"},
		{migrate.Reverb, ".env", "REVERB_APP_ID=" + id + "\nREVERB_APP_KEY=" + key + "\nREVERB_APP_SECRET=" + secret + "\n"},
	} {
		t.Run(string(c.kind)+" "+c.file, func(t *testing.T) {
			addr := serve(t, c.kind, c.file, c.text)
			s := dial(t, "ws://"+addr+"/app/"+key+"?protocol=7&client=test&version=1")
			var hello struct{ Data string }
			if err := json.Unmarshal([]byte(s.until("pusher:connection_established")), &hello); err != nil {
				t.Fatal(err)
			}
			var data struct {
				Socket string `json:"socket_id"`
			}
			if err := json.Unmarshal([]byte(hello.Data), &data); err != nil {
				t.Fatal(err)
			}
			s.send(`{"event":"pusher:subscribe","data":{"channel":"private-a","auth":"` + key + ":" + mac(secret, data.Socket+":private-a") + `"}}`)
			s.until("subscription_succeeded")
			body := `{"name":"sold","channels":["private-a"],"data":"{\"n\":1}"}`
			sum := md5.Sum([]byte(body))
			query := fmt.Sprintf("auth_key=%s&auth_timestamp=%d&auth_version=1.0&body_md5=%s", key, time.Now().Unix(), hex.EncodeToString(sum[:]))
			query += "&auth_signature=" + mac(secret, "POST\n/apps/"+id+"/events\n"+query)
			if status, answer := post(t, "http://"+addr+"/apps/"+id+"/events?"+query, "application/json", body); status != http.StatusOK {
				t.Fatalf("trigger: %d %s", status, answer)
			}
			s.until(`"sold"`)
		})
	}
}

func mac(secret, text string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(text))
	return hex.EncodeToString(h.Sum(nil))
}
