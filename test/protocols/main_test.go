// Package protocols follows the real binary with the official clients of the
// protocols that it speaks, unmodified: those of Centrifugo in two languages,
// Pusher's for pages and for servers, Laravel Echo, and EventSource for Mercure.
package protocols

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }

const (
	centrifugoKey = "key-of-the-server-api"
	pusherKey     = "key-of-the-app"
	pusherSecret  = "secret-of-the-app"
	pusherID      = "7"
	hubURL        = "https://hub.example/.well-known/mercure"
)

// namespace stores, and everyone may follow it.
func namespace(name string) obj {
	return obj{"name": name, "anonymous": true, "durability": "stored", "history_size": 1_000_000, "max_message_bytes": 300_000, "queue_bytes": 1_000_000}
}

// allowed is what clients of the Centrifuge protocol may do in a namespace.
func allowed() obj {
	return obj{
		"presence": true, "join_leave": true, "allow_recovery": true, "allow_positioning": true, "allow_delta": true,
		"allow_subscribe_for_client": true, "allow_publish_for_client": true, "allow_presence_for_client": true, "allow_history_for_client": true,
	}
}

// config speaks all three protocols: Mercure in namespace mercure, Pusher in
// namespace app, Centrifuge in default. Changes are laid over the sections.
func config(changes ...obj) obj {
	c := obj{
		"namespaces": []any{namespace("default"), namespace("mercure"), namespace("app"), over(namespace("closed"), obj{"anonymous": false})},
		"centrifuge": obj{
			"enabled": true, "api_key": centrifugoKey, "recovery_limit": 10_000,
			"namespaces": obj{"default": allowed()},
		},
		"mercure": obj{"enabled": true, "anonymous": true, "subscriptions": true, "resource": hubURL},
		"pusher":  obj{"enabled": true, "apps": []any{app(nil)}},
		"cluster": obj{"heartbeat": "100ms", "lease": "1s"},
	}
	for _, change := range changes {
		c = over(c, change)
	}
	return c
}

// app is the application of Pusher's protocol.
func app(change obj) obj {
	a := obj{"id": pusherID, "key": pusherKey, "secret": pusherSecret, "namespace": "app", "client_events": true}
	maps.Copy(a, change)
	return a
}

// over lays b over a: objects are merged, everything else replaced.
func over(a, b obj) obj {
	out := maps.Clone(a)
	for k, v := range b {
		below, ok1 := out[k].(obj)
		above, ok2 := v.(obj)
		if ok1 && ok2 {
			v = over(below, above)
		}
		out[k] = v
	}
	return out
}

// serve starts the server that most tests judge.
func serve(t *testing.T, changes ...obj) *judge.Server {
	t.Helper()
	return judge.New(t, judge.Options{Build: judge.Race, Config: config(changes...)})
}

// userToken is a connection token of the Centrifuge protocol.
func userToken(user string, life time.Duration, more judge.Claims) string {
	c := judge.Claims{"sub": user, "exp": time.Now().Add(life).Unix()}
	maps.Copy(c, more)
	return judge.Token(c)
}

// post sends a body and returns the answer.
func post(t testing.TB, url, contentType, body string, header ...string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	return send(t, req, header)
}

func newGet(t testing.TB, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func send(t testing.TB, req *http.Request, header []string) (int, []byte) {
	t.Helper()
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := judge.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, bytes.TrimSpace(b)
}

// centrifugo calls the server API and returns the result.
func centrifugo(t testing.TB, s *judge.Server, method string, body obj) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	status, answer := post(t, "http://"+s.Public+"/centrifugo/api/"+method, "application/json", string(b), "X-API-Key", centrifugoKey)
	if status != http.StatusOK || !bytes.HasPrefix(answer, []byte(`{"result"`)) {
		t.Fatalf("%s %s: status %d, %s", method, b, status, answer)
	}
	return field(t, answer, "result")
}

// update publishes on the Mercure hub and returns the id.
func update(t testing.TB, s *judge.Server, token string, form url.Values) string {
	t.Helper()
	status, id := post(t, "http://"+s.Public+"/.well-known/mercure", "application/x-www-form-urlencoded", form.Encode(), "Authorization", "Bearer "+token)
	if status != http.StatusOK {
		t.Fatalf("publish %.200v: status %d, %s", form, status, id)
	}
	return string(id)
}

// restart ends the server in order and starts it again.
func restart(t testing.TB, s *judge.Server, stop func()) {
	t.Helper()
	stop()
	judge.Eventually(t, patience, "weir ends", func() bool { return !s.Alive() })
	s.Start()
}
