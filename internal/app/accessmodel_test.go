package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	pusherprotocol "github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/protocol/pusher/pushertest"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

const (
	modelAPIKey    = "centrifuge-api-key-0123456789"
	modelAppKey    = "app-key"
	modelAppSecret = "app-secret-0123456789"
)

// modelled is a node that allows everyone all that can be allowed, with all protocols on
// one namespace, and a backend that holds streams on the channel that is asked for.
func modelled(t *testing.T, broker config.Broker, anonymous bool) *gateway {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Weir-Hold", "stream")
		w.Header().Set("Weir-Channel", r.URL.Query().Get("on"))
	}))
	t.Cleanup(backend.Close)
	key := t.TempDir() + "/key"
	if err := os.WriteFile(key, []byte(modelAPIKey), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, func(c *config.Config) {
		withSecret(c)
		c.Broker = broker
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: anonymous, HistorySize: 1000}, {Name: "shop", Anonymous: anonymous, HistorySize: 1000}}
		c.Auth.APIKeys[0].Subscribe = []string{"**"}
		rules := centrifuge.Namespace{
			Presence: true, ForceRecovery: true, AllowUserLimited: true,
			AllowSubscribeForClient: anonymous, AllowSubscribeForAnonymous: true, AllowPublishForClient: anonymous, AllowPublishForSubscriber: true,
			AllowPresenceForClient: anonymous, AllowPresenceForSubscriber: true, AllowHistoryForClient: anonymous, AllowHistoryForSubscriber: true,
		}
		c.Centrifuge.Enabled, c.Centrifuge.AnonymousConnect, c.Centrifuge.UserPersonalChannel = true, true, true
		c.Centrifuge.Namespaces = map[string]centrifuge.Namespace{"default": rules, "shop": rules}
		c.Centrifuge.APIKeyFile, c.Centrifuge.APIErrorMode = key, "transport"
		c.Mercure.Enabled, c.Mercure.Anonymous, c.Mercure.Namespace = true, anonymous, "shop"
		c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: modelAppKey, Secret: modelAppSecret, Namespace: "shop", ClientEvents: true}}
		c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(backend.URL, "http://")}}}}
		c.Routes = []policy.RouteConfig{{Path: "/hold", Cluster: "b", Hold: policy.Hold{Channels: []string{"**"}}}}
	})
}

// A prober does by a socket what a row of the table is about.
type prober struct {
	t      *testing.T
	g      *gateway
	client *http.Client
	row    access.Row
	kind   string
	token  string // of the caller
	key    string // in X-API-Key
}

// TestTheAccessTableIsWhatSocketsAnswer compares every row of the table with what a
// running node does: every class of channels, operation, protocol and kind of caller, on
// both versions of HTTP and every broker.
func TestTheAccessTableIsWhatSocketsAnswer(t *testing.T) {
	t.Parallel() // it computes while others wait
	brokers := map[string]config.Broker{"memory": {Kind: config.BrokerMemory}}
	if os.Getenv(trial.Engine) == "" && !testing.Short() { // again with the other engine, or in the quick part, one broker does
		external, embedded := config.Broker{Kind: config.BrokerNATS}, config.Broker{Kind: config.BrokerNATS}
		external.NATS.URL, embedded.NATS.Dir = natstest.Server(t), t.TempDir()
		brokers["embedded"], brokers["external"] = embedded, external
	}
	for name, broker := range brokers {
		t.Run(name, func(t *testing.T) { answersAsTheTable(t, broker) })
	}
}

func answersAsTheTable(t *testing.T, broker config.Broker) {
	for _, anonymous := range []bool{true, false} {
		if broker.NATS.Dir != "" {
			broker.NATS.Dir = t.TempDir()
		}
		broker.NATS.Prefix = fmt.Sprintf("weir%v", anonymous)
		g := modelled(t, broker, anonymous)
		rows := g.access.Table(g.cfg.Namespaces)
		for _, ns := range g.cfg.Namespaces {
			for _, ch := range g.access.Examples(ns.Name) {
				g.store(t, ch, "secret", true)
				g.store(t, ch, "open", false)
			}
		}
		g.store(t, "shop:marker", "marker", false)
		h1 := &http.Client{Transport: &http.Transport{}, Timeout: trial.Patience}
		for name, client := range map[string]*http.Client{"http/1.1": h1, "h2": overHTTP2(t, nil)} {
			requested := 0
			for _, row := range rows {
				for kind, want := range row.Verdicts {
					p := &prober{t: t, g: g, client: client, row: row, kind: kind}
					if name == "h2" && (row.By == access.Pusher || row.By == access.Hold) {
						continue // its clients speak HTTP/1.1 alone here; HTTP/2 clients are not held
					}
					got, ok := p.probe()
					if !ok {
						continue
					}
					requested++
					if got != want {
						t.Errorf("anonymous %v, %s: %s %s %s by %s: the socket says %s, the table %s", anonymous, name, kind, row.Op, row.Channel, row.By, got, want)
					}
				}
			}
			t.Logf("anonymous %v, %s: %d of the table's verdicts compared", anonymous, name, requested)
			if requested < 200 {
				t.Errorf("%s: only %d were compared", name, requested)
			}
		}
		h1.CloseIdleConnections()
	}
}

// store puts a message into the log with an API key.
func (g *gateway) store(t *testing.T, channel, text string, private bool) {
	t.Helper()
	done := make(chan error, 1)
	g.hub.Publish(hub.Publication{Channel: channel, Data: []byte(`"` + text + `"`), Attributes: &hub.Attributes{Private: private}}, func(_ hub.Position, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// probe returns what the node answers; ok is false where a socket cannot ask.
func (p *prober) probe() (v access.Verdict, ok bool) {
	p.credentials()
	switch p.row.By {
	case access.Native:
		return p.native()
	case access.Centrifuge:
		return p.centrifuge()
	case access.CentrifugeAPI:
		return p.centrifugeAPI()
	case access.Mercure:
		return p.mercure()
	case access.Pusher:
		return p.pusher()
	case access.PusherAPI:
		return p.pusherAPI()
	case access.Hold:
		return p.hold()
	}
	return 0, false
}

func (p *prober) credentials() {
	c := jwt.MapClaims{"sub": "7"}
	grant := func(pattern string) {
		c["weir"] = map[string]any{"subscribe": []string{pattern}, "publish": []string{pattern}}
	}
	switch p.kind {
	case "anonymous":
		return
	case "api key":
		p.key = testKey
		return
	case "server":
		p.key = modelAPIKey
		return
	case "user":
		c["sub"] = "42"
	case "wildcard":
		grant("**")
	case "grant":
		grant(p.row.Channel)
	}
	if p.row.By == access.Mercure {
		delete(c, "weir")
		list := []string{}
		if p.kind == "proof" {
			list = append(list, p.name())
		}
		c["mercure"] = map[string]any{"subscribe": list, "publish": list}
	}
	p.token = signed(p.t, "JWT", c)
}

// name is the channel's without its namespace.
func (p *prober) name() string { return p.row.Channel[strings.IndexByte(p.row.Channel, ':')+1:] }

func (p *prober) do(method, path, contentType, body string) *http.Response {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.g.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	if p.token != "" && !strings.HasPrefix(path, "/connection/") {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	if p.key != "" {
		req.Header.Set("X-API-Key", p.key)
	}
	req.Header.Set("Content-Type", contentType)
	res, err := p.client.Do(req)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
	p.t.Cleanup(func() { res.Body.Close() })
	return res
}

// allowed is the verdict on a call that brings no messages.
func allowed(res *http.Response) (access.Verdict, bool) {
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return access.Full, true
	}
	return access.Refused, true
}

// until reads lines to the first that has end, and says which of the stored messages came.
func (p *prober) until(res *http.Response, end string) access.Verdict {
	p.t.Helper()
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return access.Refused
	}
	var all strings.Builder
	in := bufio.NewScanner(res.Body)
	for !strings.Contains(all.String(), end) {
		if !in.Scan() {
			p.t.Fatalf("%s %s: the stream ended after %q: %v", p.kind, p.row.Channel, all.String(), in.Err())
		}
		all.WriteString(in.Text() + "\n")
	}
	return verdictOf(all.String())
}

func verdictOf(text string) access.Verdict {
	switch {
	case strings.Contains(text, "secret"):
		return access.Full
	case strings.Contains(text, "open"):
		return access.Public
	}
	return access.Refused
}

func (p *prober) native() (access.Verdict, bool) {
	switch p.row.Op {
	case access.Read:
		v := p.until(p.do("GET", "/sse?since=0&channel="+url.QueryEscape(p.row.Channel), "", ""), `"open"`)
		if p.client.Transport.(*http.Transport).Protocols == nil {
			if w := p.socket(); w != v {
				p.t.Errorf("%s %s: an event stream says %s, a WebSocket %s", p.kind, p.row.Channel, v, w)
			}
		}
		return v, true
	case access.Publish:
		return allowed(p.do("POST", "/api/publish", "application/json", fmt.Sprintf(`{"channel":%q,"data":1}`, p.row.Channel)))
	}
	return 0, false
}

// socket is native's reading by a WebSocket.
func (p *prober) socket() access.Verdict {
	fields := ""
	if p.token != "" {
		fields += "Authorization: Bearer " + p.token + "\n"
	}
	if p.key != "" {
		fields += "X-API-Key: " + p.key + "\n"
	}
	w := p.g.dial(p.t)
	defer w.Close()
	w.Send(wiretest.CRLF("GET /ws?since=0&channel=" + url.QueryEscape(p.row.Channel) + " HTTP/1.1\nHost: " + p.g.Addr().String() + "\n" + wiretest.UpgradeFields + fields + "\n"))
	if res := w.Response(); res.StatusCode != http.StatusSwitchingProtocols {
		return access.Refused
	}
	var all strings.Builder
	for !strings.Contains(all.String(), `"open"`) {
		op, b := w.Frame()
		if op == websocket.OpClose {
			return access.Refused
		}
		all.Write(b)
	}
	return verdictOf(all.String())
}

func (p *prober) hold() (access.Verdict, bool) {
	if p.row.Op != access.Read || strings.Contains(p.row.Channel, ",") {
		return 0, false
	}
	res := p.do("GET", "/hold?on="+url.QueryEscape(p.row.Channel), "", "")
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return access.Public, true
	}
	return access.Refused, true
}

// wire is what Centrifuge clients call the channel.
func (p *prober) wire() string {
	if ns, name, ok := strings.Cut(p.row.Channel, ":$"); ok {
		return "$" + ns + ":" + name
	}
	return p.row.Channel
}

func (p *prober) centrifuge() (access.Verdict, bool) {
	ch, _ := json.Marshal(p.wire())
	connect := `{"id":1,"connect":{"token":"` + p.token + `"}}`
	proof := ""
	if p.kind == "proof" || p.kind == "joined" {
		proof = `,"token":"` + signed(p.t, "JWT", jwt.MapClaims{"sub": "7", "channel": p.wire()}) + `"`
	}
	subscribe := `{"id":2,"subscribe":{"channel":` + string(ch) + `,"recover":true` + proof + `}}`
	last := map[access.Op]string{
		access.Publish: `{"id":3,"publish":{"channel":` + string(ch) + `,"data":1}}`, access.Presence: `{"id":3,"presence":{"channel":` + string(ch) + `}}`,
		access.History: `{"id":3,"history":{"channel":` + string(ch) + `,"limit":-1}}`,
	}[p.row.Op]
	commands := []string{connect}
	switch {
	case p.row.Op == access.Read:
		commands, last = append(commands, subscribe), `"id":2,`
	case p.kind == "proof":
		return 0, false // a proxy's, for which there is none
	case p.kind == "joined":
		if p.row.Class == access.Plain {
			return 0, false // joined by a token they would be meant, and otherwise they are any user
		}
		commands = append(commands, subscribe)
		fallthrough
	default:
		commands, last = append(commands, last), `"id":3,`
	}
	res := p.do("POST", "/connection/http_stream", "application/json", strings.Join(commands, "\n"))
	defer res.Body.Close()
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		switch line := in.Text(); {
		case !strings.Contains(line, last):
		case strings.Contains(line, `"code":105`):
			return access.Full, true // the server has subscribed the user
		case strings.Contains(line, `"error"`):
			if !strings.Contains(line, `"code":103`) {
				p.t.Errorf("%s %s %s: %s", p.kind, p.row.Op, p.row.Channel, line)
			}
			return access.Refused, true
		case p.row.Op == access.Read, p.row.Op == access.History:
			return verdictOf(line), true
		default:
			return access.Full, true
		}
	}
	p.t.Fatalf("%s %s %s: no answer", p.kind, p.row.Op, p.row.Channel)
	return 0, false
}

func (p *prober) centrifugeAPI() (access.Verdict, bool) {
	method := map[access.Op]string{access.Publish: "publish", access.Presence: "presence", access.History: "history"}[p.row.Op]
	if method == "" {
		return 0, false
	}
	return allowed(p.do("POST", "/centrifugo/api/"+method, "application/json", fmt.Sprintf(`{"channel":%q,"data":1,"limit":10}`, p.wire())))
}

func (p *prober) mercure() (access.Verdict, bool) {
	form := url.Values{"topic": {p.name()}, "data": {"x"}}
	if p.row.Op == access.Publish {
		if p.kind == "anonymous" {
			return 0, false
		}
		return allowed(p.do("POST", "/.well-known/mercure", "application/x-www-form-urlencoded", form.Encode()))
	}
	q := url.Values{"topic": {p.name(), "marker"}, "lastEventID": {"earliest"}}
	return p.until(p.do("GET", "/.well-known/mercure?"+q.Encode(), "", ""), "marker"), true
}

func (p *prober) pusher() (access.Verdict, bool) {
	if p.row.Op > access.Publish {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), trial.Patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(p.g.url, "http", "ws", 1)+"/app/"+modelAppKey+"?protocol=7", websocket.DialOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.CloseNow()
	next := func() (f struct {
		Event string
		Data  json.RawMessage
	}) {
		_, b, err := conn.Read(ctx)
		if err == nil {
			err = json.Unmarshal(b, &f)
		}
		if err != nil {
			p.t.Fatalf("%s: %v", b, err)
		}
		return f
	}
	var hello struct {
		ID string `json:"socket_id"`
	}
	var text string // of JSON
	err = json.Unmarshal(next().Data, &text)
	if err == nil {
		err = json.Unmarshal([]byte(text), &hello)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	in := map[string]string{"channel": p.name()}
	if p.kind == "proof" {
		if p.row.Class == access.SignedIn {
			user := `{"id":"42"}`
			b, _ := json.Marshal(map[string]any{"event": "pusher:signin", "data": map[string]string{
				"auth": pusherprotocol.SignUser(modelAppKey, modelAppSecret, hello.ID, user), "user_data": user,
			}})
			if err := conn.Write(websocket.OpText, b); err != nil {
				p.t.Fatal(err)
			}
			next()
		}
		if strings.HasPrefix(p.name(), "presence-") {
			in["channel_data"] = `{"user_id":"7"}`
		}
		in["auth"] = pusherprotocol.SignSubscription(modelAppKey, modelAppSecret, hello.ID, p.name(), in["channel_data"])
	}
	b, _ := json.Marshal(map[string]any{"event": "pusher:subscribe", "data": in})
	if err := conn.Write(websocket.OpText, b); err != nil {
		p.t.Fatal(err)
	}
	answer := next()
	subscribed := answer.Event == "pusher_internal:subscription_succeeded"
	if p.row.Op == access.Read {
		switch {
		case !subscribed:
			return access.Refused, true
		case p.row.Class == access.Plain:
			return access.Public, true
		}
		return access.Full, true
	}
	if strings.Contains(p.name(), "encrypted") {
		return 0, false // nor do the clients themselves: see Talks
	}
	b, _ = json.Marshal(map[string]any{"event": "client-x", "channel": p.name(), "data": "1"})
	if err := conn.Write(websocket.OpText, b); err != nil {
		p.t.Fatal(err)
	}
	if err := conn.Write(websocket.OpText, []byte(`{"event":"pusher:ping","data":{}}`)); err != nil {
		p.t.Fatal(err)
	}
	for {
		switch next().Event {
		case "pusher:error":
			return access.Refused, true
		case "pusher:pong":
			return access.Full, true
		}
	}
}

func (p *prober) pusherAPI() (access.Verdict, bool) {
	r := pusherprotocol.Request{Method: "GET", Path: "/apps/1/channels/" + url.PathEscape(p.name())}
	switch p.row.Op {
	case access.Publish:
		body, _ := json.Marshal(map[string]any{"name": "x", "data": "1", "channels": []string{p.name()}})
		r = pusherprotocol.Request{Method: "POST", Path: "/apps/1/events", Body: body}
	case access.Presence:
	default:
		return 0, false
	}
	p.key = ""
	query := pushertest.SignedQuery(r, modelAppKey, modelAppSecret, time.Now())
	return allowed(p.do(r.Method, r.Path+"?"+query, "application/json", string(r.Body)))
}
