package protocols

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A transport is a way in which the JavaScript SDK connects.
type transport struct {
	name, kind string
	// transports is what the SDK is to try.
	transports []obj
	binary     bool
}

func transports(addr string) []transport {
	one := func(transport, scheme, path string) []obj {
		return []obj{{"transport": transport, "endpoint": scheme + "://" + addr + "/connection/" + path}}
	}
	return []transport{
		{name: "websocket", kind: "Centrifuge", transports: one("websocket", "ws", "websocket")},
		{name: "websocket protobuf", kind: "CentrifugeProtobuf", transports: one("websocket", "ws", "websocket"), binary: true},
		{name: "sse", kind: "Centrifuge", transports: one("sse", "http", "sse")},
		{name: "http_stream", kind: "Centrifuge", transports: one("http_stream", "http", "http_stream")},
		{name: "http_stream protobuf", kind: "CentrifugeProtobuf", transports: one("http_stream", "http", "http_stream"), binary: true},
		{name: "sse eventsource 2", kind: "CentrifugeEventSource2", transports: one("sse", "http", "sse")},
	}
}

// data is a payload as the SDK of that transport wants it.
func (tr transport) data(v any) any {
	if tr.binary {
		return encoded(v)
	}
	return v
}

var clientEvents = []string{"connected", "connecting", "disconnected", "error", "message", "subscribed", "unsubscribed"}

var subEvents = []string{"subscribed", "subscribing", "unsubscribed", "publication", "join", "leave", "error"}

// connect makes a client named name and connects it.
func (tr transport) connect(a *agent, addr, name string, options obj) {
	a.t.Helper()
	a.make(tr.kind, name, tr.transports, over(obj{
		"emulation": "http://" + addr + "/emulation", "minReconnectDelay": 50, "maxReconnectDelay": 1000, "timeout": 20_000, "maxServerPingDelay": 30_000,
	}, options), on("on", clientEvents...))
	a.call(name, "connect")
}

// subscribe subscribes the client to a channel; the subscription is named
// "<client>/<channel>".
func subscribe(a *agent, client, channel string, options obj) (name string) {
	a.t.Helper()
	name = client + "/" + channel
	a.name(name, client, "newSubscription", channel, options, on("on", subEvents...))
	a.call(name, "subscribe")
	return name
}

// rpcBackend answers calls as Centrifugo's proxy has it.
func rpcBackend(t *testing.T) string {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var q struct {
			Method, User string
			Data         json.RawMessage
		}
		if err := json.Unmarshal(body, &q); err != nil {
			t.Errorf("rpc proxy got %s: %v", body, err)
		}
		if q.Method != "greet" {
			_, _ = io.WriteString(w, `{"error":{"code":404,"message":"no such method"}}`)
			return
		}
		_, _ = fmt.Fprintf(w, `{"result":{"data":{"user":%q,"said":%s}}}`, q.User, q.Data)
	}))
	t.Cleanup(b.Close)
	return b.URL
}

func TestCentrifugeJavaScript(t *testing.T) {
	s := serve(t, obj{"centrifuge": obj{"proxies": obj{"rpc": obj{"endpoint": rpcBackend(t), "timeout": "30s"}}, "expired_close_delay": "20s"}})
	a := nodeAgent(t)
	for i, tr := range transports(s.Public) {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			c := &talk{t: t, s: s.In(t), a: a.with(t), tr: tr, one: fmt.Sprintf("c%d", i), two: fmt.Sprintf("d%d", i), channel: fmt.Sprintf("room%d", i)}
			c.connects()
			c.publishes()
			c.meets()
			c.readsHistory()
			c.callsBackend()
			c.isRefused()
			c.recovers()
			c.refreshes()
			c.leaves()
		})
	}
}

// talk is a conversation of two clients over one transport.
type talk struct {
	t        *testing.T
	s        *judge.Server
	a        *agent
	tr       transport
	one, two string
	channel  string
	sub      string // of one
}

func (c *talk) connects() {
	c.tr.connect(c.a, c.s.Public, c.one, obj{"token": userToken(c.one, time.Hour, judge.Claims{"info": obj{"name": "Ann"}}), "data": c.tr.data(obj{"app": 1})})
	got := c.a.next(c.one, "connected")
	want := c.tr.transports[0]["transport"]
	expect(c.t, "transport", field(c.t, got, "transport"), want)
	c.sub = subscribe(c.a, c.one, c.channel, obj{"recoverable": true, "positioned": true, "joinLeave": true})
	got = c.a.next(c.sub, "subscribed")
	expect(c.t, "recoverable", field(c.t, got, "recoverable"), true)
	expect(c.t, "wasRecovering", field(c.t, got, "wasRecovering"), false)
}

func (c *talk) publishes() {
	c.a.call(c.sub, "publish", c.tr.data(obj{"n": 1}))
	got := c.a.next(c.sub, "publication")
	expect(c.t, "data", field(c.t, got, "data"), obj{"n": 1})
	expect(c.t, "publisher", field(c.t, got, "info", "user"), c.one)
	centrifugo(c.t, c.s, "publish", obj{"channel": c.channel, "data": obj{"n": 2}, "tags": obj{"k": "v"}})
	got = c.a.next(c.sub, "publication")
	expect(c.t, "data", field(c.t, got, "data"), obj{"n": 2})
	expect(c.t, "tags", field(c.t, got, "tags"), obj{"k": "v"})
}

func (c *talk) meets() {
	expect(c.t, "own join", field(c.t, c.a.next(c.sub, "join"), "info", "user"), c.one)
	c.tr.connect(c.a, c.s.Public, c.two, obj{"token": userToken(c.two, time.Hour, nil)})
	c.a.next(c.two, "connected")
	sub := subscribe(c.a, c.two, c.channel, obj{})
	c.a.next(sub, "subscribed")
	expect(c.t, "join", field(c.t, c.a.next(c.sub, "join"), "info", "user"), c.two)
	type info struct{ User, Client string }
	present := decode[map[string]info](c.t, field(c.t, c.a.call(c.sub, "presence"), "clients"))
	users := map[string]bool{}
	for id, i := range present {
		users[i.User] = id == i.Client
	}
	if len(present) != 2 || !users[c.one] || !users[c.two] {
		c.t.Errorf("presence: %v", present)
	}
	expect(c.t, "presence stats", c.a.call(c.sub, "presenceStats"), obj{"numClients": 2, "numUsers": 2})
	c.a.call(sub, "unsubscribe")
	expect(c.t, "unsubscribed", field(c.t, c.a.next(sub, "unsubscribed"), "code"), 0)
	expect(c.t, "leave", field(c.t, c.a.next(c.sub, "leave"), "info", "user"), c.two)
	expect(c.t, "presence stats", c.a.call(c.sub, "presenceStats"), obj{"numClients": 1, "numUsers": 1})
	c.a.none(sub, "publication")
}

func (c *talk) readsHistory() {
	all := c.a.call(c.sub, "history", obj{"limit": 10})
	pubs := decode[[]json.RawMessage](c.t, field(c.t, all, "publications"))
	if len(pubs) != 2 {
		c.t.Fatalf("history: %s", all)
	}
	expect(c.t, "first", field(c.t, pubs[0], "data"), obj{"n": 1})
	first := decode[uint64](c.t, field(c.t, pubs[0], "offset"))
	epoch := text(field(c.t, all, "epoch"))
	rest := c.a.call(c.sub, "history", obj{"limit": 10, "since": obj{"offset": first, "epoch": epoch}})
	expect(c.t, "since", field(c.t, decode[[]json.RawMessage](c.t, field(c.t, rest, "publications"))[0], "data"), obj{"n": 2})
	back := c.a.call(c.sub, "history", obj{"limit": 1, "reverse": true})
	expect(c.t, "reverse", field(c.t, decode[[]json.RawMessage](c.t, field(c.t, back, "publications"))[0], "data"), obj{"n": 2})
	top := c.a.call(c.sub, "history", obj{"limit": 0})
	expect(c.t, "top", field(c.t, top, "publications"), []any{})
	expect(c.t, "top's epoch", field(c.t, top, "epoch"), epoch)
}

func (c *talk) callsBackend() {
	got := c.a.call(c.one, "rpc", "greet", c.tr.data(obj{"hello": "there"}))
	expect(c.t, "rpc", field(c.t, got, "data"), obj{"user": c.one, "said": obj{"hello": "there"}})
	f := c.a.refused(c.one, "rpc", "other", c.tr.data(obj{}))
	if fmt.Sprint(f.Code) != "404" || f.Message != "no such method" {
		c.t.Errorf("rpc error: %+v", f)
	}
}

func (c *talk) isRefused() {
	sub := subscribe(c.a, c.one, "closed:x", obj{}) // a namespace without options
	got := c.a.next(sub, "unsubscribed")
	expect(c.t, "not allowed", field(c.t, got, "code"), 103)
	sub = subscribe(c.a, c.one, "nowhere:x", obj{})
	expect(c.t, "unknown namespace", field(c.t, c.a.next(sub, "unsubscribed"), "code"), 102)
	if f := c.a.refused(c.one, "presence", "closed:x"); fmt.Sprint(f.Code) != "108" {
		c.t.Errorf("presence where there is none: %+v", f)
	}
	if f := c.a.refused(c.one, "publish", "closed:x", c.tr.data(obj{})); fmt.Sprint(f.Code) != "103" {
		c.t.Errorf("publish where none may: %+v", f)
	}
	bad := c.one + "-bad"
	c.tr.connect(c.a, c.s.Public, bad, obj{"token": judge.Sign(obj{"alg": "HS256"}, judge.Claims{"sub": "u", "exp": time.Now().Add(time.Hour).Unix()}, strings.Repeat("x", 32))})
	expect(c.t, "bad token", field(c.t, c.a.next(bad, "disconnected"), "code"), 3500)
	c.tr.connect(c.a, c.s.Public, bad+"2", obj{})
	expect(c.t, "no token", field(c.t, c.a.next(bad+"2", "disconnected"), "code"), 3501)
	expired := c.one + "-expired"
	c.a.answering(expired, "token", func(json.RawMessage) any { return userToken("late", time.Hour, nil) })
	c.tr.connect(c.a, c.s.Public, expired, obj{"token": userToken("late", -time.Hour, nil), "getToken": ask("token")})
	c.a.next(expired, "connected") // after 109 and a new token
	c.a.call(expired, "disconnect")
}

func (c *talk) recovers() {
	c.a.call(c.one, "disconnect")
	expect(c.t, "disconnected", field(c.t, c.a.next(c.one, "disconnected"), "code"), 0)
	for n := 3; n <= 5; n++ {
		centrifugo(c.t, c.s, "publish", obj{"channel": c.channel, "data": obj{"n": n}})
		centrifugo(c.t, c.s, "publish", obj{"channel": c.channel + "-other", "data": obj{"n": n}})
	}
	c.a.call(c.one, "connect")
	c.a.next(c.one, "connected")
	got := c.a.next(c.sub, "subscribed")
	expect(c.t, "recovered", field(c.t, got, "recovered"), true)
	expect(c.t, "wasRecovering", field(c.t, got, "wasRecovering"), true)
	for n := 3; n <= 5; n++ {
		expect(c.t, "recovered publication", field(c.t, c.a.next(c.sub, "publication"), "data"), obj{"n": n})
	}
	c.a.none(c.sub, "publication")
}

// refreshes lives on tokens of few seconds.
func (c *talk) refreshes() {
	name := c.one + "-short"
	requested := make(chan struct{}, 100)
	c.a.answering(name, "token", func(json.RawMessage) any {
		requested <- struct{}{}
		return userToken(name, 3*time.Second, nil)
	})
	c.tr.connect(c.a, c.s.Public, name, obj{"getToken": ask("token")})
	c.a.next(name, "connected")
	sub := name + "/" + c.channel
	c.a.answering(sub, "sub token", func(json.RawMessage) any {
		requested <- struct{}{}
		return judge.Token(judge.Claims{"sub": name, "channel": "closed:" + c.channel, "exp": time.Now().Add(3 * time.Second).Unix()})
	})
	c.a.name(sub, name, "newSubscription", "closed:"+c.channel, obj{"getToken": ask("sub token")}, on("on", subEvents...))
	c.a.call(sub, "subscribe")
	c.a.next(sub, "subscribed")
	for range 4 { // the first ones, and one or the other again
		select {
		case <-requested:
		case <-time.After(patience):
			c.t.Fatal("no token was refreshed")
		}
	}
	for _, e := range []string{"connecting", "disconnected"} {
		if e == "connecting" {
			c.a.next(name, e) // the first
		}
		c.a.none(name, e)
	}
	c.a.next(sub, "subscribing")
	c.a.none(sub, "subscribing")
	c.a.none(sub, "unsubscribed")
	centrifugo(c.t, c.s, "publish", obj{"channel": "closed:" + c.channel, "data": obj{"n": "after"}})
	expect(c.t, "after the refresh", field(c.t, c.a.next(sub, "publication"), "data"), obj{"n": "after"})
	c.a.call(name, "disconnect")
}

func (c *talk) leaves() {
	centrifugo(c.t, c.s, "unsubscribe", obj{"user": c.one, "channel": c.channel})
	expect(c.t, "unsubscribed by the server", field(c.t, c.a.next(c.sub, "unsubscribed"), "code"), 2000)
	centrifugo(c.t, c.s, "disconnect", obj{"user": c.one})
	expect(c.t, "disconnected by the server", field(c.t, c.a.next(c.one, "disconnected"), "code"), 3503)
	c.a.call(c.two, "disconnect")
	c.a.next(c.two, "disconnected")
}

func TestCentrifugeRefusesWhatItLacks(t *testing.T) {
	s := serve(t)
	a := nodeAgent(t)
	for _, tr := range transports(s.Public)[:2] {
		name := strings.ReplaceAll(tr.name, " ", "_")
		tr.connect(a, s.Public, name, obj{"token": userToken("u", time.Hour, nil)})
		a.next(name, "connected")
		for kind, method := range map[string]string{"map": "newMapSubscription", "poll": "newSharedPollSubscription"} {
			sub := name + "/" + kind
			a.name(sub, name, method, "of-kind-"+kind, obj{}, on("on", "subscribed", "unsubscribed", "error"))
			a.call(sub, "subscribe")
			expect(t, kind, field(t, a.next(sub, "unsubscribed"), "code"), 108)
		}
		// The connection continues.
		good := subscribe(a, name, "good", obj{})
		a.next(good, "subscribed")
		a.call(name, "disconnect")
	}
}

func TestCentrifugePython(t *testing.T) {
	s := serve(t, obj{"centrifuge": obj{"proxies": obj{"rpc": obj{"endpoint": rpcBackend(t), "timeout": "30s"}}}})
	py := pythonAgent(t)
	for _, binary := range []bool{false, true} {
		one, two := fmt.Sprintf("one-%t", binary), fmt.Sprintf("two-%t", binary)
		channel := "room-" + one
		for _, name := range []string{one, two} {
			pythonClient(py, s.Public, name, name, binary)
			py.next(name, "connected")
			py.name(name+"/c", name, "new_subscription", channel, obj{"recoverable": true, "positioned": true, "join_leave": true})
			py.call(name+"/c", "subscribe")
			py.next(name+"/c", "subscribed")
		}
		sub := one + "/c"
		expect(t, "own join", field(t, py.next(sub, "join"), "info", "user"), one)
		expect(t, "join", field(t, py.next(sub, "join"), "info", "user"), two)
		py.call(sub, "publish", obj{"n": 1})
		got := py.next(two+"/c", "publication")
		expect(t, "data", field(t, got, "pub", "data"), obj{"n": 1})
		expect(t, "publisher", field(t, got, "pub", "info", "user"), one)
		if all := decode[map[string]json.RawMessage](t, field(t, py.call(sub, "presence"), "clients")); len(all) != 2 {
			t.Errorf("presence: %s", all)
		}
		expect(t, "presence stats", py.call(sub, "presence_stats"), obj{"num_clients": 2, "num_users": 2})
		if pubs := decode[[]json.RawMessage](t, field(t, py.call(sub, "history", 10), "publications")); len(pubs) != 1 {
			t.Errorf("history: %s", pubs)
		}
		expect(t, "rpc", field(t, py.call(one, "rpc", "greet", obj{"a": 1}), "data"), obj{"user": one, "said": obj{"a": 1}})
		py.call(two+"/c", "unsubscribe")
		expect(t, "leave", field(t, py.next(sub, "leave"), "info", "user"), two)
		if f := py.refused(one, "presence", "closed:x"); fmt.Sprint(f.Code) != "108" {
			t.Errorf("presence where there is none: %+v", f)
		}
		py.call(one, "disconnect")
		py.next(one, "disconnected")
	}
}
