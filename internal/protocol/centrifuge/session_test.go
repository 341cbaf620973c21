package centrifuge_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestConnectAndSubscribeInOneFrame(t *testing.T) {
	n := start(t, settings{})
	c := n.dial("/connection/websocket")
	c.send(`{"connect":{"name":"js"},"id":1}` + "\n" + `{"subscribe":{"channel":"news","flag":1},"id":2}`)
	c.expect(`{"id":1,"connect":{"client":"?","version":"test","ping":25,"pong":true}}`)
	c.expect(`{"id":2,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?"}}`)
	at := n.publish("news", "{\"t\":\n\"hi\"}")
	c.expect(fmt.Sprintf(`{"push":{"channel":"news","pub":{"data":{"t":"hi"},"offset":%d}}}`, at.Offset))
	n.Publish(hub.Publication{Channel: "news", Data: []byte("plain"), Attributes: &hub.Attributes{Payload: hub.Text, Tags: map[string]string{"lang": "en"}}})
	c.expect(`{"push":{"channel":"news","pub":{"data":"plain","offset":2,"tags":{"lang":"en"}}}}`)
}

func TestCommandsAreAnswered(t *testing.T) {
	n := start(t, settings{})
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42", "info": map[string]any{"name": "A"}}) + `"}`)
	c.subscribe(`{"channel":"news"}`)
	info := `{"user":"42","client":"` + c.id + `","conn_info":{"name":"A"}}`
	c.send(`{"id":6,"publish":{"channel":"news","data":{"x":1}}}`)
	// Whether the publication or the answer comes first is not promised.
	got := []string{c.next(), c.next()}
	if strings.HasPrefix(got[0], `{"id":6`) {
		got[0], got[1] = got[1], got[0]
	}
	if want := `{"push":{"channel":"news","pub":{"data":{"x":1},"info":` + info + `,"offset":1}}}`; got[0] != want || got[1] != `{"id":6,"publish":{}}` {
		t.Errorf("got %s, want %s", got, want)
	}
	c.send(`{"id":7,"presence":{"channel":"news"}}`)
	c.expect(`{"id":7,"presence":{"presence":{"` + c.id + `":` + info + `}}}`)
	c.send(`{"id":8,"presence_stats":{"channel":"news"}}`)
	c.expect(`{"id":8,"presence_stats":{"num_clients":1,"num_users":1}}`)
	c.send(`{"id":9,"history":{"channel":"news","limit":2}}`)
	c.expect(`{"id":9,"history":{"publications":[{"data":{"x":1},"info":` + info + `,"offset":1}],"epoch":"?","offset":1}}`)
	c.send(`{"id":10,"history":{"channel":"news"}}`)
	c.expect(`{"id":10,"history":{"publications":[],"epoch":"?","offset":1}}`)
	c.send(`{"id":11,"unsubscribe":{"channel":"news"}}`)
	c.expect(`{"id":11,"unsubscribe":{}}`)
	c.send(`{"id":12,"unsubscribe":{"channel":"never"}}`)
	c.expect(`{"id":12,"unsubscribe":{}}`)
	c.send(`{"id":13,"rpc":{"method":"x","data":1}}`)
	c.expect(`{"id":13,"error":{"code":108,"message":"not available"}}`)
	c.send(`{"id":14,"refresh":{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}}`)
	c.expect(`{"id":14,"refresh":{}}`)
}

func TestRefusalsOfSubscribe(t *testing.T) {
	closed := centrifuge.Namespace{AllowUserLimited: true}
	n := start(t, settings{
		cfg:    centrifuge.Config{ChannelLimit: 2, Namespaces: map[string]centrifuge.Namespace{"default": open, "closed": closed}, AnonymousConnect: true},
		spaces: []hub.Namespace{{Name: "default"}, {Name: "closed"}},
	})
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42", "weir": map[string]any{"subscribe": []string{"closed:granted"}}}) + `"}`)
	f := func(request, want string) {
		t.Helper()
		c.send(`{"id":5,"subscribe":` + request + `}`)
		c.expect(`{"id":5,` + want + `}`)
	}
	f(`{"channel":"nowhere:x"}`, `"error":{"code":102,"message":"unknown channel"}`)
	f(`{"channel":"a b"}`, `"error":{"code":107,"message":"bad request"}`)
	f(`{"channel":"closed:x"}`, `"error":{"code":103,"message":"permission denied"}`)
	f(`{"channel":"$closed:x"}`, `"error":{"code":103,"message":"permission denied"}`)
	f(`{"channel":"$private"}`, `"error":{"code":103,"message":"permission denied"}`)
	f(`{"channel":"closed:x#7,8"}`, `"error":{"code":103,"message":"permission denied"}`)
	f(`{"channel":"map","type":1}`, `"error":{"code":108,"message":"not available"}`)
	for _, publish := range []string{`{"channel":"map","type":1,"key":"k","data":1}`, `{"channel":"map","type":1,"key":"k","removed":true}`} {
		c.send(`{"id":6,"publish":` + publish + `}`)
		c.expect(`{"id":6,"error":{"code":108,"message":"not available"}}`)
	}
	f(`{"channel":"x","tf":{"op":"what"}}`, `"error":{"code":107,"message":"bad request"}`)
	f(`{"channel":"closed:x#7,42"}`, `"subscribe":{}`)
	f(`{"channel":"closed:x#7,42"}`, `"error":{"code":105,"message":"already subscribed"}`)
	f(`{"channel":"closed:granted"}`, `"subscribe":{}`)
	f(`{"channel":"news"}`, `"error":{"code":106,"message":"limit exceeded"}`)
}

func TestPrivateChannelsNeedATokenThatNamesThem(t *testing.T) {
	n := start(t, settings{})
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}`)
	f := func(claims map[string]any, want string) {
		t.Helper()
		c.send(`{"id":5,"subscribe":{"channel":"$default:x","token":"` + token(t, claims) + `"}}`)
		c.expect(want)
	}
	f(map[string]any{"sub": "42", "channel": "$default:x", "exp": 1}, `{"id":5,"error":{"code":109,"message":"token expired"}}`)
	f(map[string]any{"sub": "42", "channel": "$default:x"}, `{"id":5,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?"}}`)
	n.publish("default:$x", "1")
	c.expect(`{"push":{"channel":"$default:x","pub":{"data":1,"offset":1}}}`)

	for _, ask := range []string{`"history":{"channel":"%s","limit":1}`, `"presence_stats":{"channel":"%s"}`} {
		c.send(fmt.Sprintf(`{"id":5,`+ask+`}`, "$other"))
		c.expect(`{"id":5,"error":{"code":103,"message":"permission denied"}}`)
		c.send(fmt.Sprintf(`{"id":5,`+ask+`}`, "other#7"))
		c.expect(`{"id":5,"error":{"code":103,"message":"permission denied"}}`)
	}
	c.send(`{"id":6,"history":{"channel":"$default:x","limit":1}}`)
	c.expect(`{"id":6,"history":{"publications":[{"data":1,"offset":1}],"epoch":"?","offset":1}}`)

	c.send(`{"id":5,"subscribe":{"channel":"$y","token":"` + token(t, map[string]any{"sub": "42", "channel": "$z"}) + `"}}`)
	c.Closes(3500, "invalid token")
}

func TestBadClientsAreNotifiedAndClosed(t *testing.T) {
	n := start(t, settings{})
	const connect = `{"id":1,"connect":{}}`
	f := func(code uint16, reason string, said ...string) {
		t.Helper()
		c := n.dial("/connection/websocket")
		for _, x := range said {
			c.send(x)
		}
		if said[0] == connect {
			c.expect(`{"id":1,"connect":"?"}`)
		}
		c.Closes(code, reason)
	}
	f(3501, "bad request", `{"id":1,"subscribe":{"channel":"x"}}`)
	f(3501, "bad request", connect, connect)
	f(3501, "bad request", `{"connect":{}}`)
	f(3501, "bad request", connect, `{"subscribe":{"channel":"x"}}`)
	f(3501, "bad request", connect, ``)
	f(3501, "bad request", connect, `hello`)
	f(3501, "bad request", connect, `{}`)
	f(3501, "bad request", connect, `{"id":2,"ping":{}}`)
	f(3501, "bad request", connect, `{"id":2}`)
	f(3501, "bad request", connect, `{"id":2,"subscribe":{"channel":""}}`)
	f(3501, "bad request", connect, `{"id":2,"publish":{"data":1}}`)
	f(3501, "bad request", connect, `{"id":2,"presence":{}}`)
	f(3501, "bad request", `{"id":1,"connect":{},"subscribe":{"channel":"x"}}`)
	f(3508, "not available", connect, `{"send":{"data":1}}`)
	f(3500, "invalid token", `{"id":1,"connect":{"token":"a.b.c"}}`)
	f(1009, "message too big", connect, `{"id":2,"publish":{"channel":"x","data":"`+strings.Repeat("x", 70_000)+`"}}`)
	strict := start(t, settings{cfg: centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{}}})
	c := strict.dial("/connection/websocket")
	c.send(connect)
	c.Closes(3501, "bad request")
}

func TestAnExpiredTokenIsAnError(t *testing.T) {
	n := start(t, settings{})
	c := n.dial("/connection/websocket")
	c.send(`{"id":1,"connect":{"token":"` + token(t, map[string]any{"sub": "42", "exp": 1}) + `"}}`)
	c.expect(`{"id":1,"error":{"code":109,"message":"token expired"}}`)
	c.send(`{"id":2,"connect":{}}`) // nothing is read any more
	if len(c.C) > 0 {
		t.Errorf("got %s", <-c.C)
	}
}

func TestRecovery(t *testing.T) {
	n := start(t, settings{
		cfg:    centrifuge.Config{RecoveryLimit: 5, Namespaces: map[string]centrifuge.Namespace{"default": open, "short": open, "recent": open}, AnonymousConnect: true},
		spaces: []hub.Namespace{{Name: "default"}, {Name: "short", HistorySize: 3, Recent: 1}, {Name: "recent", HistorySize: 2}},
	})
	first := n.publish("news", "1")
	n.publish("other", "2") // an offset that this channel does not have
	n.publish("news", "3")
	top := n.publish("news", "4")
	ep := first.Epoch
	var subscribed []*client
	f := func(request, want string) {
		t.Helper()
		c := n.connect("{}")
		c.send(`{"id":5,"subscribe":` + request + `}`)
		c.expect(want)
		if strings.Contains(want, "subscribe") && strings.Contains(request, "news") {
			subscribed = append(subscribed, c)
		}
	}
	const ok = `"recoverable":true,"positioned":true`
	f(fmt.Sprintf(`{"channel":"news","recover":true,"epoch":%q,"offset":1}`, ep),
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":1,"recovered":true,"was_recovering":true,"publications":[{"data":3,"offset":3},{"data":4,"offset":4}]}}`, ok, ep))
	f(fmt.Sprintf(`{"channel":"news","recover":true,"epoch":%q,"offset":%d}`, ep, top.Offset),
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":4,"recovered":true,"was_recovering":true}}`, ok, ep))
	f(`{"channel":"news","recover":true,"offset":3}`,
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":3,"recovered":true,"was_recovering":true,"publications":[{"data":4,"offset":4}]}}`, ok, ep))
	f(`{"channel":"news","recover":true,"epoch":"other","offset":3}`,
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":"?","was_recovering":true}}`, ok, ep))
	f(`{"channel":"news","recover":true,"epoch":"`+strings.Repeat("x", 500)+`","offset":3}`,
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":"?","was_recovering":true}}`, ok, ep))
	f(fmt.Sprintf(`{"channel":"news","recover":true,"epoch":%q,"offset":9999}`, ep),
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":"?","was_recovering":true}}`, ok, ep))
	f(`{"channel":"news","recover":true,"epoch":"other","offset":3,"flag":2}`,
		`{"id":5,"error":{"code":112,"message":"unrecoverable position"}}`)

	at := n.publish("news", "5")
	for _, c := range subscribed { // it continues from there
		c.expect(fmt.Sprintf(`{"push":{"channel":"news","pub":{"data":5,"offset":%d}}}`, at.Offset))
	}
	for i := range 6 {
		n.publish("many", fmt.Sprint(i))
	}
	f(fmt.Sprintf(`{"channel":"many","recover":true,"epoch":%q,"offset":1}`, ep),
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":"?","was_recovering":true}}`, ok, ep))

	for i := range 6 {
		at := n.publish("short:x", fmt.Sprint(i))
		ep = at.Epoch
	}
	c := n.connect("{}")
	c.send(fmt.Sprintf(`{"id":5,"subscribe":{"channel":"short:x","recover":true,"epoch":%q,"offset":1}}`, ep))
	c.expect(fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":6,"was_recovering":true}}`, ok, ep))
	c.send(fmt.Sprintf(`{"id":5,"subscribe":{"channel":"short:y","recover":true,"epoch":%q,"offset":1}}`, ep))
	c.expect(fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":1,"recovered":true,"was_recovering":true}}`, ok, ep))
	n.publish("short:x", "9")
	c.expect(`{"push":{"channel":"short:x","pub":{"data":9,"offset":7}}}`)

	// The hub remembers more, since there is a subscriber, than the namespace keeps.
	listener := n.connect("{}")
	listener.send(`{"id":2,"subscribe":{"channel":"recent:x"}}`)
	listener.next()
	for i := range 4 {
		ep = n.publish("recent:x", fmt.Sprint(i)).Epoch
	}
	f(fmt.Sprintf(`{"channel":"recent:x","recover":true,"epoch":%q,"offset":1}`, ep),
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":4,"was_recovering":true}}`, ok, ep))
	f(fmt.Sprintf(`{"channel":"recent:x","recover":true,"epoch":%q,"offset":1,"flag":2}`, ep),
		`{"id":5,"error":{"code":112,"message":"unrecoverable position"}}`)
	f(fmt.Sprintf(`{"channel":"recent:x","recover":true,"epoch":%q,"offset":2}`, ep),
		fmt.Sprintf(`{"id":5,"subscribe":{%s,"epoch":%q,"offset":2,"recovered":true,"was_recovering":true,"publications":[{"data":2,"offset":3},{"data":3,"offset":4}]}}`, ok, ep))
}

func TestCacheRecoveryBringsTheNewest(t *testing.T) {
	o := open
	o.ForceRecoveryMode = "cache"
	n := start(t, settings{cfg: centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"default": o}, AnonymousConnect: true}})
	n.publish("news", "1")
	n.publish("news", "2")
	c := n.connect("{}")
	c.send(`{"id":5,"subscribe":{"channel":"news","recover":true}}`)
	c.expect(`{"id":5,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","recovered":true,"was_recovering":true,"publications":[{"data":2,"offset":2}]}}`)
	c.send(`{"id":6,"subscribe":{"channel":"none","recover":true}}`)
	c.expect(`{"id":6,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","offset":2,"was_recovering":true}}`) // nothing is cached
	c.send(`{"id":7,"subscribe":{"channel":"plain"}}`)
	c.expect(`{"id":7,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","offset":2}}`)

	o.AutoCacheRecover = true // for clients that come without a position
	n = start(t, settings{cfg: centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"default": o}, AnonymousConnect: true}})
	n.publish("news", "1")
	c = n.connect("{}")
	c.send(`{"id":5,"subscribe":{"channel":"news"}}`)
	c.expect(`{"id":5,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","recovered":true,"was_recovering":true,"publications":[{"data":1,"offset":1}]}}`)
}

func TestJoinsAndLeavesAreReported(t *testing.T) {
	n := start(t, settings{})
	a := n.connect(`{"token":"` + token(t, map[string]any{"sub": "1"}) + `"}`)
	a.subscribe(`{"channel":"room","join_leave":true}`)
	a.expect(`{"push":{"channel":"room","join":{"info":{"user":"1","client":"` + a.id + `"}}}}`)
	b := n.connect(`{"token":"` + token(t, map[string]any{"sub": "2"}) + `"}`)
	b.subscribe(`{"channel":"room"}`)
	a.expect(`{"push":{"channel":"room","join":{"info":{"user":"2","client":"` + b.id + `"}}}}`)
	b.conn.CloseNow()
	a.expect(`{"push":{"channel":"room","leave":{"info":{"user":"2","client":"` + b.id + `"}}}}`)
}

func TestServerSideSubscriptionsRecover(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{UserPersonalChannel: true, Namespaces: map[string]centrifuge.Namespace{"default": open}}})
	tok := token(t, map[string]any{"sub": "42", "channels": []string{"a"}, "subs": map[string]any{"b": map[string]any{"data": map[string]any{"k": 1}}}})
	c := n.dial("/connection/websocket")
	c.send(`{"id":1,"connect":{"token":"` + tok + `"}}`)
	at := `"recoverable":true,"positioned":true,"epoch":"?"`
	c.expect(`{"id":1,"connect":{"client":"?","version":"test","ping":25,"pong":true,"subs":{"#42":{` + at + `},"a":{` + at + `},"b":{` + at + `,"data":{"k":1}}}}}`)
	first := n.publish("a", "1")
	c.expect(`{"push":{"channel":"a","pub":{"data":1,"offset":1}}}`)
	c.conn.CloseNow()
	n.publish("a", "2")
	c = n.dial("/connection/websocket")
	c.send(fmt.Sprintf(`{"id":1,"connect":{"token":"%s","subs":{"a":{"recover":true,"epoch":%q,"offset":1}}}}`, tok, first.Epoch))
	r := c.expect(`{"id":1,"connect":"?"}`)
	a := r["connect"].(map[string]any)["subs"].(map[string]any)["a"].(map[string]any)
	if !like(a["publications"], []any{map[string]any{"data": 2.0, "offset": 2.0}}) || a["recovered"] != true {
		t.Errorf("got %v", a)
	}
}

func TestDeltasMakeThePayloads(t *testing.T) {
	n := start(t, settings{})
	c := n.connect("{}")
	c.send(`{"id":2,"subscribe":{"channel":"q","delta":"fossil"}}`)
	c.expect(`{"id":2,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","delta":true}}`)
	one := `{"bid":1.08,"ask":1.09,"pad":"` + strings.Repeat("ä", 50) + `","n":1}`
	two := strings.Replace(one, `"n":1`, `"n":2`, 1)
	n.publish("q", one)
	r := c.expect(`{"push":{"channel":"q","pub":{"data":"?","offset":1}}}`)
	if got := pub(r)["data"]; got != one {
		t.Errorf("got %v, want %v", got, one)
	}
	n.publish("q", two)
	r = c.expect(`{"push":{"channel":"q","pub":{"data":"?","offset":2,"delta":true}}}`)
	checkDelta(t, one, pub(r)["data"].(string), two)
}

func pub(push map[string]any) map[string]any {
	return push["push"].(map[string]any)["pub"].(map[string]any)
}

func TestFiltersByTags(t *testing.T) {
	n := start(t, settings{})
	c := n.connect("{}")
	c.subscribe(`{"channel":"news","tf":{"op":"and","nodes":[{"key":"lang","cmp":"in","vals":["en","de"]},{"key":"n","cmp":"gt","val":"5"}]}}`)
	for _, tags := range []map[string]string{nil, {"lang": "fr", "n": "9"}, {"lang": "en", "n": "5"}, {"lang": "de", "n": "6"}} {
		n.Publish(hub.Publication{Channel: "news", Data: []byte("1"), Attributes: &hub.Attributes{Tags: tags}})
	}
	c.expect(`{"push":{"channel":"news","pub":{"data":1,"offset":4,"tags":{"lang":"de","n":"6"}}}}`)
}

func TestPrivateMessagesReachOnlyTheirRecipients(t *testing.T) {
	n := start(t, settings{})
	anyUser := n.connect("{}")
	anyUser.subscribe(`{"channel":"news"}`)
	granted := n.connect(`{"token":"` + token(t, map[string]any{"sub": "1", "weir": map[string]any{"subscribe": []string{"news"}}}) + `"}`)
	granted.subscribe(`{"channel":"news"}`)
	n.Publish(hub.Publication{Channel: "news", Data: []byte(`"secret"`), Attributes: &hub.Attributes{Private: true}})
	n.publish("news", `"open"`)
	anyUser.expect(`{"push":{"channel":"news","pub":{"data":"open","offset":2}}}`)
	granted.expect(`{"push":{"channel":"news","pub":{"data":"secret","offset":1}}}`)
	anyUser.send(`{"id":3,"history":{"channel":"news","limit":-1}}`)
	anyUser.expect(`{"id":3,"history":{"publications":[{"data":"open","offset":2}],"epoch":"?","offset":2}}`)
}
