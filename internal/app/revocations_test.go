package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/observe/admin"
	pusherprotocol "github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// tokenOf is a token of every protocol for the namespace private, with further claims; nil removes one.
func tokenOf(t *testing.T, user string, more jwt.MapClaims) string {
	t.Helper()
	c := jwt.MapClaims{
		"sub": user, "exp": time.Now().Add(time.Hour).Unix(), "weir": map[string]any{"subscribe": []string{"private:*"}},
		"mercure": map[string]any{"subscribe": []string{"*"}, "publish": []string{"*"}},
	}
	for name, v := range more {
		if c[name] = v; v == nil {
			delete(c, name)
		}
	}
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString([]byte(oldSecret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// endless is a backend whose replies do not end: event streams, and sockets.
func endless(t *testing.T) upstream.Config {
	t.Helper()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: first\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		c, err := websocket.Accept(w, r, websocket.AcceptOptions{})
		if err != nil {
			return
		}
		defer c.CloseNow()
		_ = c.Write(websocket.OpText, []byte("first"))
		_, _, _ = c.Read(r.Context())
	}))
	t.Cleanup(ts.Close)
	return upstream.Config{Name: "endless", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(ts.URL, "http://")}}}
}

// startRevoking starts a node that speaks everything, on the broker at url; empty: in memory.
func startRevoking(t *testing.T, url string) *gateway {
	t.Helper()
	b := endless(t)
	return start(t, func(c *config.Config) {
		withProtocols(c)
		if url != "" {
			c.Broker = config.Broker{Kind: config.BrokerNATS}
			c.Broker.NATS.URL = url
		}
		c.Clusters = []upstream.Config{b}
		c.Routes = []policy.RouteConfig{{Path: "/backend/*", Cluster: "endless", Auth: policy.Auth{Required: true}}}
	})
}

// revocableKinds are what a token keeps open, and how a revocation ends it.
var revocableKinds = map[string]string{
	"sse": `"code":4401,"reason":"credentials revoked"`, "sse2": `"code":4401,"reason":"credentials revoked"`, "ws": "4401 credentials revoked",
	"mercure": ":", "mercure2": ":", "centrifuge": "3500 invalid token", "uni_sse": `"code":3500`, "uni_sse2": `"code":3500`,
	"proxied": "data: first", "proxied2": "data: first", "tunnel": "1008 token revoked",
}

// openRevocable opens one of revocableKinds.
func (h *holder) openRevocable(kind, token string) *held {
	h.t.Helper()
	c := &held{kind: kind, who: token, done: make(chan struct{})}
	switch kind {
	case "proxied":
		h.stream(c, h.h1, "/backend/events", token)
	case "proxied2":
		h.stream(c, h.h2, "/backend/events", token)
	case "tunnel":
		h.socket(c, "/backend/socket", token, "first")
	default:
		return h.open(kind, "private", token)
	}
	return c
}

// signIn is a client of Pusher that has signed in as user.
func (h *holder) signIn(user string) *held {
	h.t.Helper()
	c := &held{kind: "pusher", who: user, done: make(chan struct{})}
	data := fmt.Sprintf(`{"id":%q}`, user)
	c.answer = func(b []byte) string {
		var f struct{ Event, Data string }
		var hello struct {
			ID string `json:"socket_id"`
		}
		if json.Unmarshal(b, &f) != nil || f.Event != "pusher:connection_established" || json.Unmarshal([]byte(f.Data), &hello) != nil {
			return ""
		}
		text, _ := json.Marshal(data)
		return fmt.Sprintf(`{"event":"pusher:signin","data":{"auth":%q,"user_data":%s}}`, pusherprotocol.SignUser("app-key", "app-secret-0123456789", hello.ID, data), text)
	}
	h.socket(c, "/app/app-key?protocol=7", "", "")
	return c
}

// revoke calls the admin API.
func (g *gateway) revoke(t *testing.T, kind, name, query string) {
	t.Helper()
	if r, body := g.do(t, http.MethodPost, "/api/revocations/"+kind+"/"+name+query, ""); r.StatusCode != http.StatusOK {
		t.Fatalf("revoke %s: %d %s", name, r.StatusCode, body)
	}
}

// answers is the status and the body for a request with a token.
func (h *holder) answers(client *http.Client, path, token string) (int, string) {
	h.t.Helper()
	req, _ := http.NewRequestWithContext(h.ctx, http.MethodGet, h.g.url+path, nil)
	authorize(req.Header, token)
	res, err := client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return res.StatusCode, "" // it does not end
	}
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// wantAnswers checks requests with a token over both versions of HTTP, to Weir's own endpoints, the
// hub and a route.
func (h *holder) wantAnswers(token string, status int, words string) {
	h.t.Helper()
	for _, path := range []string{"/sse?channel=private:a", "/.well-known/mercure?topic=a", "/backend/events"} {
		for _, client := range []*http.Client{h.h1, h.h2} {
			got, body := h.answers(client, path, token)
			if got != status || path != "/.well-known/mercure?topic=a" && !strings.Contains(body, words) {
				h.t.Errorf("%s: %d %s, want %d %s", path, got, body, status, words)
			}
		}
	}
}

// TestARevocationEndsClientsOnAllNodes revokes a subject and a token at one node: what they have open
// ends on all three, in the words of its protocol, what others have open stays, and new requests
// are refused, also by a node that starts later.
func TestARevocationEndsClientsOnAllNodes(t *testing.T) {
	url := natstest.Server(t)
	alice, bob := tokenOf(t, "alice", nil), tokenOf(t, "bob", jwt.MapClaims{"jti": "bobs"})
	carol := tokenOf(t, "carol", jwt.MapClaims{"jti": "lost/phone"})
	var nodes []*gateway
	var holders []*holder
	var ends, stays []*held
	for range 3 {
		g := startRevoking(t, url)
		h := newHolder(t, g)
		nodes, holders = append(nodes, g), append(holders, h)
		for kind := range revocableKinds {
			ends = append(ends, h.openRevocable(kind, alice), h.openRevocable(kind, carol))
			stays = append(stays, h.openRevocable(kind, bob))
		}
		ends = append(ends, h.signIn("alice"))
		stays = append(stays, h.signIn("bob"))
		h.wantAnswers(alice, http.StatusOK, "")
	}
	nodes[0].revoke(t, "subject", "alice", "?for=1h&reason=test")
	nodes[1].revoke(t, "token", "lost%2Fphone", "")
	for _, c := range ends {
		words := revocableKinds[c.kind]
		if c.kind == "pusher" {
			words = "4009 The user was revoked"
		}
		c.wantEnd(t, words)
	}
	holders = append(holders, newHolder(t, startRevoking(t, url))) // a later node
	for _, h := range holders {
		h.wantAnswers(alice, http.StatusUnauthorized, "token revoked")
		h.wantAnswers(carol, http.StatusUnauthorized, "token revoked")
		h.wantAnswers(bob, http.StatusOK, "")
		h.signIn("alice").wantEnd(t, "4009 The user was revoked")
	}
	for _, c := range stays {
		if !c.open() {
			t.Errorf("%s of another client was closed: %s", c.kind, c.end)
		}
	}
	var list admin.Revocations
	trial.Eventually(t, "all nodes list both", func() bool {
		for _, h := range holders {
			_, body := h.g.do(t, http.MethodGet, "/api/revocations", "")
			if json.Unmarshal(body, &list) != nil || len(list.Revocations) != 2 || list.Revocations[0].Reason != "test" {
				return false
			}
		}
		return true
	})
	if s := nodes[2].revocations.state(); s.Closed != uint64(2*len(revocableKinds)+1) || s.Subjects != 1 || s.Tokens != 1 || s.Refused == 0 || !s.Shared {
		t.Errorf("counted %+v", s)
	}
	if r, body := nodes[2].do(t, http.MethodDelete, "/api/revocations/subject/alice", ""); r.StatusCode != http.StatusNoContent {
		t.Fatalf("%d %s", r.StatusCode, body)
	}
	for _, h := range holders {
		trial.Eventually(t, "alice is back", func() bool {
			got, _ := h.answers(h.h1, "/sse?channel=private:a", alice)
			return got == http.StatusOK
		})
	}
}

// natsThatComesBack starts a NATS server, which away ends and serve starts again with what it has stored.
func natsThatComesBack(t *testing.T) (url string, serve, away func()) {
	t.Helper()
	o := server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}
	var srv *server.Server
	serve = func() {
		t.Helper()
		var err error
		if srv, err = server.NewServer(&o); err != nil {
			t.Fatal(err)
		}
		srv.Start()
		if !srv.ReadyForConnections(trial.Patience) {
			t.Fatal("the NATS server is not ready")
		}
	}
	away = func() { srv.Shutdown(); srv.WaitForShutdown() }
	serve()
	t.Cleanup(func() { away() })
	o.Port = srv.Addr().(*net.TCPAddr).Port
	return srv.ClientURL(), serve, away
}

// TestARevocationIsStoredWhenNATSIsBack revokes a subject while NATS is away: the node that was asked refuses it
// at once and says that others do not, and they do when NATS is back. One that was ended by another node
// ends here when the store is read again.
func TestARevocationIsStoredWhenNATSIsBack(t *testing.T) {
	trial.Long(t)
	t.Parallel() // it mostly waits
	url, serve, away := natsThatComesBack(t)
	alice := tokenOf(t, "alice", nil)
	here, there := newHolder(t, startRevoking(t, url)), newHolder(t, startRevoking(t, url))
	away()
	if r, body := here.g.do(t, http.MethodPost, "/api/revocations/subject/alice", ""); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "this node alone until NATS is back") {
		t.Fatalf("revoke without NATS: %d %s", r.StatusCode, body)
	}
	if got, body := here.answers(here.h1, "/backend/events", alice); got != http.StatusUnauthorized {
		t.Errorf("on the node that was asked: %d %s", got, body)
	}
	if got, body := there.answers(there.h1, "/backend/events", alice); got != http.StatusOK {
		t.Errorf("on the other node, which cannot know: %d %s", got, body)
	}
	serve()
	// This waits for seconds, so not for a request every 2 ms.
	trial.Eventually(t, "the other node reads it", func() bool { return len(there.g.revocations.list.List()) == 1 })
	trial.Eventually(t, "the other node refuses it", func() bool {
		got, _ := there.answers(there.h1, "/backend/events", alice)
		return got == http.StatusUnauthorized
	})

	v := &there.g.revocations
	lost := auth.Revocation{Kind: auth.RevokedSubject, Name: "bob", Until: time.Now().Add(time.Hour)}
	v.put(lost)
	v.mu.Lock()
	v.known[revocationKey(lost.Kind, lost.Name)] = true // it was stored, and the end of it was missed
	v.mu.Unlock()
	r, err := v.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if list := v.list.List(); len(list) != 1 || list[0].Name != "alice" {
		t.Errorf("in force after the store was read again: %+v", list)
	}
}

// TestRevocationsWithoutNATS has what a node alone knows: of a subject the tokens issued before a
// time, and of a client of Centrifuge the subscription that a revoked token gave.
func TestRevocationsWithoutNATS(t *testing.T) {
	g := startRevoking(t, "")
	h := newHolder(t, g)
	now := time.Now()
	was := tokenOf(t, "dora", jwt.MapClaims{"iat": now.Add(-time.Minute).Unix()})
	unknown := tokenOf(t, "dora", nil)
	later := tokenOf(t, "dora", jwt.MapClaims{"iat": now.Add(2 * time.Second).Unix()}) // within the leeway
	ends, stays := []*held{h.open("ws", "private", was), h.open("centrifuge", "private", unknown)}, []*held{h.open("ws", "private", later), h.open("centrifuge", "private", later)}
	g.revoke(t, "subject", "dora", "?issued_before="+now.Add(time.Second).UTC().Format(time.RFC3339))
	ends[0].wantEnd(t, "4401")
	ends[1].wantEnd(t, "3500")
	h.wantAnswers(was, http.StatusUnauthorized, "token revoked")
	h.wantAnswers(unknown, http.StatusUnauthorized, "token revoked")
	h.wantAnswers(later, http.StatusOK, "")

	sub := tokenOf(t, "dora", jwt.MapClaims{"iat": now.Add(2 * time.Second).Unix(), "jti": "sub-1", "channel": "private:b", "weir": nil})
	c := &held{kind: "centrifuge", done: make(chan struct{})}
	h.socket(c, "/connection/websocket", "", `"subscribe":`, fmt.Sprintf(`{"id":1,"connect":{"token":%q}}`, later), fmt.Sprintf(`{"id":2,"subscribe":{"channel":"private:b","token":%q}}`, sub))
	g.revoke(t, "token", "sub-1", "")
	c.wantOpen(t, `"unsubscribe"`)
	for _, s := range stays {
		if !s.open() {
			t.Errorf("%s with a newer token was closed: %s", s.kind, s.end)
		}
	}
}

// TestRevocationsAreRefusedInWords sends what is not one.
func TestRevocationsAreRefusedInWords(t *testing.T) {
	g := startRevoking(t, "")
	f := func(method, path string, status int, words string) {
		t.Helper()
		if r, body := g.do(t, method, "/api/revocations/"+path, ""); r.StatusCode != status || !strings.Contains(string(body), words) {
			t.Errorf("%s %s: %d %s, want %d %s", method, path, r.StatusCode, body, status, words)
		}
	}
	f("POST", "user/alice", 400, "kind")
	f("POST", "subject/a%0ab", 400, "name")
	f("POST", "subject/"+strings.Repeat("a", 256), 400, "name")
	f("POST", "subject/a?for=400d", 400, "until")
	f("POST", "subject/a?for=-1h", 400, "until")
	f("POST", "subject/a?issued_before=yesterday", 400, "issued_before")
	f("POST", "token/a?issued_before=now", 400, "issued_before")
	f("POST", "subject/a?reason="+strings.Repeat("a", 256), 400, "reason")
	f("DELETE", "subject/a", 404, "revoked")
	if n := len(g.revocations.list.List()); n != 0 {
		t.Errorf("%d are in force", n)
	}
}

// FuzzStoredRevocation reads values of the store: nothing panics, and what is accepted is valid and
// has the key that it was stored by.
func FuzzStoredRevocation(f *testing.F) {
	until := time.Now().Add(time.Hour).UTC()
	for _, r := range []auth.Revocation{
		{Kind: auth.RevokedSubject, Name: "alice", Until: until, IssuedBefore: until, Reason: "r"},
		{Kind: auth.RevokedToken, Name: "lost/phone", Until: until},
		{Kind: "other", Name: "x", Until: until},
		{Kind: auth.RevokedToken, Name: "x", Until: until.Add(-2 * time.Hour)},
	} {
		text, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(revocationKey(r.Kind, r.Name), text)
	}
	f.Add("subject.x", []byte(`{"kind":"subject","name":"alice","until":"9999-01-01T00:00:00Z"}`))
	f.Add("", []byte(`[`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		r, err := decodeRevocation(key, value)
		if err != nil {
			return
		}
		if err := r.Validate(time.Now()); err != nil || revocationKey(r.Kind, r.Name) != key {
			t.Fatalf("%s: %+v: %v", key, r, err)
		}
		list := auth.NewRevocations()
		list.Put(r)
		if len(list.List()) != 1 || !list.Remove(r.Kind, r.Name) {
			t.Fatalf("%+v is not there", r)
		}
	})
}
