package pusher_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestEventsReachSubscribers(t *testing.T) {
	n := start(t, settings{})
	a, b := n.connect(), n.connect()
	a.join("orders")
	b.join("orders")
	b.join("other")
	n.trigger("made", `{"id": 7}`, "", "orders")
	a.want("made", "orders", `{"id": 7}`)
	b.want("made", "orders", `{"id": 7}`)
	n.trigger("plain", `not "JSON"`, "", "orders", "other")
	a.want("plain", "orders", `not "JSON"`)
	b.want("plain", "orders", `not "JSON"`)
	b.want("plain", "other", `not "JSON"`)
	n.trigger("empty", "", "", "orders")
	a.want("empty", "orders", "")
	a.silent()
}

func TestAnswersThatComeLateAreAnswers(t *testing.T) {
	n := start(t, settings{late: true, app: pusher.App{ClientEvents: true}})
	a, b := n.connect(), n.connect()
	a.join("private-a")
	b.join("private-a")
	n.trigger("made", "1", "", "private-a", "b", "c")
	a.want("made", "private-a", "1")
	a.sendEvent("client-x", "private-a", 2)
	b.want("made", "private-a", "1")
	b.want("client-x", "private-a", "2")
}

func TestRefusedPublicationsAreReported(t *testing.T) {
	n := start(t, settings{space: hub.Namespace{MaxMessageBytes: 200}, app: pusher.App{ClientEvents: true}})
	if status, answer := n.call("POST", events, "", `{"name":"e","channels":["a","b"],"data":"`+strings.Repeat("a", 300)+`"}`); status != 413 || !strings.Contains(answer, "max_message_bytes") {
		t.Errorf("%d %s", status, answer)
	}
	a := n.connect()
	a.join("private-a")
	a.sendEvent("client-x", "private-a", strings.Repeat("a", 300))
	if f := a.Next(); f.Event != "pusher:error" || !strings.Contains(f.text(), "too large") {
		t.Errorf("%+v", f)
	}
}

func TestSocketIDsDiffer(t *testing.T) {
	n := start(t, settings{})
	seen := map[string]bool{}
	for range 20 {
		id := n.connect().socket
		if seen[id] {
			t.Fatalf("%s twice", id)
		}
		seen[id] = true
	}
}

func TestTheTriggeringClientCanBeExcluded(t *testing.T) {
	n := start(t, settings{})
	a, b := n.connect(), n.connect()
	a.join("orders")
	b.join("orders")
	n.trigger("made", `{}`, a.socket, "orders")
	b.want("made", "orders", `{}`)
	a.silent()
}

func TestConnectionsThatCannotBeAreClosedWithACode(t *testing.T) {
	n := start(t, settings{
		app:  pusher.App{MaxConnections: 1},
		apps: []pusher.App{{ID: "8", Key: "off", Secret: "x", Namespace: "other", Enabled: setting.Off}},
	})
	f := func(path string, code int) {
		t.Helper()
		n.dial(path).wantClose(code)
	}
	f("/app/"+appKey, 4008)
	f("/app/"+appKey+"?protocol=seven", 4006)
	f("/app/"+appKey+"?protocol=4", 4007)
	f("/app/"+appKey+"?protocol=8", 4007)
	f("/app/unknown?protocol=7", 4001)
	f("/app/off?protocol=7", 4003)
	n.connect()
	f("/app/"+appKey+"?protocol=7", 4004)
}

func TestUnsubscribedClientsGetNothing(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.join("orders")
	a.sendEvent("pusher:unsubscribe", "", map[string]string{"channel": "orders"})
	a.silent()
	n.trigger("made", "1", "", "orders")
	a.silent()
	a.join("orders")
	n.trigger("made", "2", "", "orders")
	a.want("made", "orders", "2")
}

func TestPrivateChannelsNeedASignature(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	f := func(data map[string]string, ok bool) {
		t.Helper()
		a.sendEvent("pusher:subscribe", "", data)
		got := a.Next()
		if ok != (got.Event == "pusher_internal:subscription_succeeded") || !ok && (got.Event != "pusher:subscription_error" || !strings.Contains(got.text(), `"type":"AuthError"`)) {
			t.Errorf("%v: %+v", data, got)
		}
	}
	sign := func(channel string) string {
		return protocol.SignSubscription(appKey, appSecret, a.socket, channel, "")
	}
	f(map[string]string{"channel": "private-a"}, false)
	f(map[string]string{"channel": "private-a", "auth": sign("private-b")}, false)
	f(map[string]string{"channel": "private-a", "auth": "other" + sign("private-a")}, false)
	f(map[string]string{"channel": "private-a", "auth": protocol.SignSubscription(appKey, appSecret, "1.2", "private-a", "")}, false)
	f(map[string]string{"channel": "private-a", "auth": sign("private-a"), "channel_data": "{}"}, false)
	f(map[string]string{"channel": "private-a", "auth": sign("private-a")}, true)
	f(map[string]string{"channel": "private-encrypted-a", "auth": sign("private-encrypted-a")}, true)
	n.trigger("made", "1", "", "private-a")
	a.want("made", "private-a", "1")
	if n.server.Stats().Denied != 5 {
		t.Errorf("%+v", n.server.Stats())
	}
}

func TestBadSubscriptionsAreRefused(t *testing.T) {
	n := start(t, settings{cfg: pusher.Config{MaxSubscriptions: 2}})
	a := n.connect()
	f := func(channel, want string) {
		t.Helper()
		a.request(channel, "")
		if got := a.Next(); !strings.Contains(got.Event+got.text(), want) {
			t.Errorf("%q: %+v", channel, got)
		}
	}
	f("a b", "InvalidChannel")
	f("other:a", "InvalidChannel")
	f(strings.Repeat("a", 165), "InvalidChannel")
	f("#server-to-user-1", "AuthError")
	f("presence-a", "channel_data")
	f("", "no channel")
	a.join("a")
	f("a", "Existing subscription")
	a.join("b")
	f("c", "LimitReached")
}

func TestWhatCannotBeReadIsAnswered(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	for _, text := range []string{"{", "[]", `{"event":"pusher:nothing"}`, `{"event":"pusher:subscribe","data":7}`, `{"event":"x"}`} {
		a.send(text)
		if f := a.Next(); f.Event != "pusher:error" {
			t.Errorf("%s: %+v", text, f)
		}
	}
	a.silent()
}

func TestClientEvents(t *testing.T) {
	n := start(t, settings{app: pusher.App{ClientEvents: true}})
	a, b := n.connect(), n.connect()
	for _, c := range []*client{a, b} {
		c.join("private-a")
		c.join("public")
		c.join("private-encrypted-a")
	}
	a.sendEvent("client-typing", "private-a", map[string]int{"at": 5})
	b.want("client-typing", "private-a", `{"at":5}`)
	a.sendEvent("client-text", "private-a", "words")
	if f := b.want("client-text", "private-a", "words"); f.User != "" {
		t.Errorf("user_id %q on a private channel", f.User)
	}
	a.send(`{"event":"client-nothing","channel":"private-a"}`)
	b.want("client-nothing", "private-a", "null")
	a.silent()
	f := func(event, channel string, data any) {
		t.Helper()
		a.sendEvent(event, channel, data)
		if got := a.Next(); got.Event != "pusher:error" || !strings.Contains(got.text(), "4301") {
			t.Errorf("%s on %s: %+v", event, channel, got)
		}
	}
	f("client-a", "public", 1)
	f("client-a", "private-encrypted-a", 1)
	f("client-a", "private-other", 1)
	f("client-"+strings.Repeat("a", 200), "private-a", 1)
	f("client-a\n", "private-a", 1)
	f("client-a", "private-a", strings.Repeat("a", 10<<10+1))
	b.silent()
}

func TestClientEventsAreOffUnlessTheAppWantsThem(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.join("private-a")
	a.sendEvent("client-a", "private-a", 1)
	if f := a.Next(); !strings.Contains(f.text(), "client_events") {
		t.Errorf("%+v", f)
	}
}

func TestClientEventsHaveARate(t *testing.T) {
	n := start(t, settings{app: pusher.App{ClientEvents: true}, cfg: pusher.Config{ClientEventRate: 3}})
	a := n.connect()
	a.join("private-a")
	limited := 0
	for range 50 {
		a.sendEvent("client-a", "private-a", 1)
	}
	a.send(`{"event":"pusher:ping"}`)
	for {
		f := a.Next()
		if f.Event == "pusher:pong" {
			break
		}
		if f.Event == "pusher:error" && strings.Contains(f.text(), "rate limit") {
			limited++
		}
	}
	if got := n.server.Stats(); limited == 0 || got.Limited != uint64(limited) {
		t.Errorf("%d refused, %+v", limited, got)
	}
}

func TestClientsThatSendTooMuchAreDisconnected(t *testing.T) {
	n := start(t, settings{cfg: pusher.Config{MaxSubscriptions: 10, MessageRate: 1}})
	a := n.connect()
	for range 21 {
		a.send(`{"event":"pusher:ping"}`)
	}
	for range 21 {
		a.want("pusher:pong", "", "{}")
	}
	for range 100 { // what the clock may have given meanwhile, and one more
		if a.conn.Write(websocket.OpText, []byte(`{"event":"pusher:ping"}`)) != nil {
			break
		}
	}
	a.wantClose(4100)
	if n.server.Stats().Flooded != 1 {
		t.Errorf("%+v", n.server.Stats())
	}
}

func TestCacheChannelsGreetWithTheLastEvent(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.join("cache-a")
	a.want("pusher:cache_miss", "cache-a", "")
	n.trigger("one", "1", "", "cache-a")
	n.trigger("two", `"2"`, "", "cache-a")
	a.want("one", "cache-a", "1")
	a.want("two", "cache-a", `"2"`)
	b := n.connect()
	b.join("cache-a")
	b.want("two", "cache-a", `"2"`)
	b.join("private-cache-a")
	b.want("pusher:cache_miss", "private-cache-a", "")
	b.silent()
}

func TestMessagesOfOtherAPIsArrive(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.join("orders")
	n.Publish(hub.Publication{Channel: "orders", Data: []byte(`{"a":1}`)})
	a.want("message", "orders", `{"a":1}`)
	n.Publish(hub.Publication{Channel: "orders", Data: []byte("text"), Attributes: &hub.Attributes{Payload: hub.Text, Event: "named"}})
	a.want("named", "orders", `text`)
	n.Publish(hub.Publication{Channel: "orders", Data: []byte{0, 1, 255}, Attributes: &hub.Attributes{Payload: hub.Binary}})
	a.want("message", "orders", `AAH/`)
	n.Publish(hub.Publication{Channel: "orders", Data: []byte("1"), Attributes: &hub.Attributes{Event: "pusher:error"}})
	a.want("message", "orders", `1`)
	n.Publish(hub.Publication{Channel: "orders", Data: []byte("1"), Attributes: &hub.Attributes{Private: true}})
	a.silent()
	a.join("private-orders")
	n.Publish(hub.Publication{Channel: "private-orders", Data: []byte("1"), Attributes: &hub.Attributes{Private: true}})
	a.want("message", "private-orders", `1`)
}

// What needs a signature here is not for those who read elsewhere because the namespace
// is open.
func TestEventsOfPrivateChannelsArePrivateElsewhere(t *testing.T) {
	n := start(t, settings{app: pusher.App{ClientEvents: true}, space: hub.Namespace{Anonymous: true}})
	private := func(channel string) bool {
		t.Helper()
		m, err := n.Hub.Latest(t.Context(), channel)
		if err != nil {
			t.Fatal(err)
		}
		return m.Attributes.Private
	}
	for channel, want := range map[string]bool{
		"a": false, "cache-a": false, "private-a": true, "presence-a": true, "private-cache-a": true, "private-encrypted-a": true, "#server-to-user-a": true,
	} {
		n.trigger("e", "1", "", channel)
		if got := private(channel); got != want {
			t.Errorf("an event on %s: private %v, want %v", channel, got, want)
		}
	}
	a, b := n.connect(), n.connect()
	a.join("private-a")
	b.join("private-a")
	a.sendEvent("client-e", "private-a", 1)
	b.want("client-e", "private-a", "1")
	if !private("private-a") {
		t.Error("a client event on private-a is for everybody elsewhere")
	}
}

func TestSignedInUsersAreReached(t *testing.T) {
	n := start(t, settings{})
	a, b := n.connect(), n.connect()
	const user = `{"id":"u: 1/ü"}`
	for _, c := range []*client{a, b} {
		c.sendEvent("pusher:signin", "", map[string]string{"auth": protocol.SignUser(appKey, appSecret, c.socket, user), "user_data": user})
		f := c.Next()
		var back struct {
			UserData string `json:"user_data"`
		}
		if f.Event != "pusher:signin_success" || json.Unmarshal([]byte(f.text()), &back) != nil || back.UserData != user {
			t.Fatalf("%+v", f)
		}
		c.join("#server-to-user-u: 1/ü")
	}
	n.trigger("hello", "1", "", "#server-to-user-u: 1/ü")
	a.want("hello", "#server-to-user-u: 1/ü", "1")
	b.want("hello", "#server-to-user-u: 1/ü", "1")
	status, body := n.call("POST", "/apps/"+appID+"/users/u:%201%2F%C3%BC/terminate_connections", "", "{}")
	if status != 200 || body != "{}" {
		t.Fatal(status, body)
	}
	a.wantClose(4009)
	b.wantClose(4009)
	if n.server.Stats().Terminated != 2 {
		t.Errorf("%+v", n.server.Stats())
	}
}

func TestTerminateReachesOtherNodes(t *testing.T) {
	n, m := pair(t, settings{})
	a := m.connect()
	a.sendEvent("pusher:signin", "", map[string]string{"auth": protocol.SignUser(appKey, appSecret, a.socket, `{"id":1}`), "user_data": `{"id":1}`})
	if f := a.Next(); f.Event != "pusher:signin_success" {
		t.Fatalf("%+v", f)
	}
	if status, body := n.call("POST", "/apps/"+appID+"/users/1/terminate_connections", "", ""); status != 200 {
		t.Fatal(status, body)
	}
	a.wantClose(4009)
}

func TestNodesThatShareABrokerAreOne(t *testing.T) {
	x := newApplication(t)
	app := x.app("channel_occupied", "member_added", "cache_miss")
	n, m := share(t, settings{app: app, cfg: soon})
	a, b := n.connect(), m.connect()
	a.join("private-a")
	b.join("private-a")
	m.trigger("made", "1", a.socket, "private-a")
	n.trigger("made", "words", b.socket, "private-a")
	a.want("made", "private-a", "words")
	b.want("made", "private-a", "1")
	a.sendEvent("client-x", "private-a", map[string]int{"n": 1})
	b.want("client-x", "private-a", `{"n":1}`)
	a.silent()

	a.enter("presence-a", member("1", "A"))
	trial.Eventually(t, "the other node knows", func() bool { return m.Presence.Has("presence-a", "1") })
	if got := b.enter("presence-a", member("2", "B")); len(got) != 2 {
		t.Errorf("members %v", got)
	}
	a.want("pusher_internal:member_added", "presence-a", `{"user_id":"2","user_info":{"name":"B"}}`)

	n.trigger("last", "2", "", "private-cache-a")
	b.join("private-cache-a")
	b.want("last", "private-cache-a", "2")
	b.join("private-cache-b")
	b.want("pusher:cache_miss", "private-cache-b", "")
	x.wait(`{"channel":"private-cache-b","name":"cache_miss"}`)
	x.wait(`{"channel":"presence-a","name":"member_added","user_id":"1"}`)
	x.wait(`{"channel":"presence-a","name":"member_added","user_id":"2"}`)
	trial.Eventually(t, "both nodes count the same", func() bool {
		_, one := n.call("GET", "/apps/"+appID+"/channels/presence-a", "info=user_count,subscription_count", "")
		_, two := m.call("GET", "/apps/"+appID+"/channels/presence-a", "info=user_count,subscription_count", "")
		return one == `{"occupied":true,"user_count":2,"subscription_count":2}` && one == two
	})
}

func TestBadSigninIsTheEnd(t *testing.T) {
	n := start(t, settings{})
	f := func(user, signed string) {
		t.Helper()
		c := n.connect()
		c.sendEvent("pusher:signin", "", map[string]string{"auth": protocol.SignUser(appKey, appSecret, c.socket, signed), "user_data": user})
		c.wantClose(4009)
	}
	f(`{"id":"1"}`, `{"id":"2"}`)
	f(`{"id":""}`, `{"id":""}`)
	f(`{}`, `{}`)
	f(`x`, `x`)
}

func TestSilentClientsArePingedAndClosed(t *testing.T) {
	n := start(t, settings{cfg: pusher.Config{ActivityTimeout: hub.Duration(time.Second), PongTimeout: hub.Duration(time.Second)}})
	a := n.connect()
	a.want("pusher:ping", "", "{}")
	a.send(`{"event":"pusher:pong","data":"{}"}`)
	a.want("pusher:ping", "", "{}")
	a.wantClose(4201)
	if n.server.Stats().Unanswered != 1 {
		t.Errorf("%+v", n.server.Stats())
	}
}

func TestConnectionsMustAuthorizeIfTheAppSaysSo(t *testing.T) {
	n := start(t, settings{app: pusher.App{AuthorizeWithin: hub.Duration(300 * time.Millisecond)}})
	a, b := n.connect(), n.connect()
	b.join("private-a")
	a.wantClose(4009)
	b.silent()
}

func TestSlowClientsAreDisconnected(t *testing.T) {
	n := start(t, settings{space: hub.Namespace{QueueMessages: 8, QueueBytes: 1 << 20}})
	a := n.connect()
	a.join("orders")
	slow := n.open("/app/" + appKey + "?protocol=7")
	slow.request("orders", "")
	trial.Eventually(t, "both subscribe", func() bool { return n.server.Stats().Subscribed == 2 })
	data := strings.Repeat("a", 9000)
	for i := 0; n.server.Stats().Slow == 0; i++ {
		if i == 20_000 {
			t.Fatal("never too slow")
		}
		n.trigger("big", data, "", "orders")
		a.want("big", "orders", data)
	}
	slow.read()
	slow.wantClose(4100)
}

// slowly has a client stop reading until messages were dropped or replaced, and
// returns all that it gets then.
func slowly(t *testing.T, space hub.Namespace, publish func(n *node, i int)) (n *node, got []frame) {
	t.Helper()
	space.QueueBytes = 64 << 20
	n = start(t, settings{space: space})
	a := n.open("/app/" + appKey + "?protocol=7")
	a.request("orders", "")
	trial.Eventually(t, "it subscribes", func() bool { return n.server.Stats().Subscribed == 1 })
	for i := 0; n.server.Stats().Dropped+n.server.Stats().Conflated < 10; i++ {
		if i == 20_000 {
			t.Fatalf("%+v", n.server.Stats())
		}
		publish(n, i)
	}
	n.Publish(hub.Publication{Channel: "orders", Data: []byte(`"last"`)})
	a.read()
	for {
		f := a.Next()
		got = append(got, f)
		if f.text() == `"last"` {
			return n, got
		}
	}
}

func TestDropsForASlowClientAreReported(t *testing.T) {
	data := []byte(`"` + strings.Repeat("a", 9000) + `"`)
	n, got := slowly(t, hub.Namespace{Policy: hub.DropOldest, QueueMessages: 8}, func(n *node, _ int) {
		n.Publish(hub.Publication{Channel: "orders", Data: data})
	})
	gaps := 0
	for _, f := range got {
		if f.Event == "weir:gap" {
			gaps++
			if !strings.Contains(f.text(), `"reason":"overflow"`) {
				t.Errorf("%s", f.text())
			}
		}
	}
	if s := n.server.Stats(); gaps == 0 || s.Waiting != 0 {
		t.Errorf("%d gaps, %+v", gaps, s)
	}
}

func TestASlowClientGetsTheNewestOfEachKey(t *testing.T) {
	data := strings.Repeat("a", 9000)
	last := map[string]string{}
	_, got := slowly(t, hub.Namespace{Policy: hub.Conflate, QueueMessages: 8}, func(n *node, i int) {
		key, text := fmt.Sprint(i%3), fmt.Sprintf(`"%d %d %s"`, i%3, i, data)
		last[key] = text
		n.Publish(hub.Publication{Channel: "orders", Key: key, Data: []byte(text)})
	})
	newest := map[string]string{}
	for _, f := range got {
		if f.Event == "message" && f.text() != `"last"` {
			newest[f.text()[1:2]] = f.text()
		}
	}
	if !maps.Equal(newest, last) {
		t.Errorf("the newest did not come: %.20q, want %.20q", newest, last)
	}
}

func TestMessagesComeAtTheRateOfTheNamespace(t *testing.T) {
	n := start(t, settings{space: hub.Namespace{MaxRate: 20}})
	a := n.connect()
	a.join("orders")
	began := time.Now()
	for i := range 30 {
		n.Publish(hub.Publication{Channel: "orders", Data: []byte(fmt.Sprint(i))})
	}
	for i := range 30 {
		a.want("message", "orders", fmt.Sprint(i))
	}
	if d := time.Since(began); d < 400*time.Millisecond { // 20 at once, 10 more in half a second
		t.Errorf("all came within %v", d)
	}
	trial.Eventually(t, "nothing waits", func() bool { return n.server.Stats().Waiting == 0 })
}

func TestDrainSendsACloseFrame(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.join("orders")
	n.Drain(10 * time.Millisecond)
	a.wantClose(4100) // there is no other node: back in a second
	n.dial("/app/" + appKey + "?protocol=7").wantClose(4100)
}

func TestManyChannelsOfOneConnection(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	for i := range 200 {
		a.request(fmt.Sprintf("c%d", i), "")
	}
	for range 200 {
		if f := a.Next(); f.Event != "pusher_internal:subscription_succeeded" {
			t.Fatalf("%+v", f)
		}
	}
	for i := range 200 {
		n.trigger("e", fmt.Sprint(i), "", fmt.Sprintf("c%d", i))
		a.want("e", fmt.Sprintf("c%d", i), fmt.Sprint(i))
	}
}
