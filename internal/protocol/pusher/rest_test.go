package pusher_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/protocol/pusher/pushertest"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

const events = "/apps/" + appID + "/events"

func TestUnsignedCallsAreRefused(t *testing.T) {
	n := start(t, settings{apps: []pusher.App{{ID: "8", Key: "off", Secret: "x", Namespace: "other", Enabled: setting.Off}}})
	now := time.Now()
	const body = `{"name":"e","channel":"c","data":"1"}`
	sign := func(method, path, body, key, secret string, at time.Time) string {
		return path + "?" + pushertest.SignedQuery(protocol.Request{Method: method, Path: path, Body: []byte(body)}, key, secret, at)
	}
	f := func(method, target, body string, want int, says string) {
		t.Helper()
		if status, answer := n.http(method, target, body); status != want || !strings.Contains(answer, says) {
			t.Errorf("%s %s: %d %s, want %d %s", method, target, status, answer, want, says)
		}
	}
	good := sign("POST", events, body, appKey, appSecret, now)
	f("POST", good, body, 200, "{}")
	f("POST", good, body, 200, "{}") // within its time it may be repeated: the protocol has no nonce
	f("POST", events, body, 401, "auth_key")
	f("POST", good, body+" ", 401, "body_md5")
	f("POST", strings.Replace(good, "auth_signature=", "auth_signature=0", 1), body, 401, "auth_signature")
	f("POST", sign("POST", events, body, appKey, "other", now), body, 401, "auth_signature")
	f("POST", sign("POST", events, body, "other", appSecret, now), body, 401, "auth_key")
	f("POST", sign("POST", events, body, appKey, appSecret, now.Add(-11*time.Minute)), body, 401, "auth_timestamp")
	f("POST", sign("POST", events, body, appKey, appSecret, now.Add(11*time.Minute)), body, 401, "auth_timestamp")
	f("POST", strings.Replace(good, "/events", "/batch_events", 1), body, 401, "auth_signature")
	f("POST", strings.Replace(good, "/apps/7/", "/apps/9/", 1), body, 404, "no app")
	f("POST", sign("POST", "/apps/8/events", body, "off", "x", now), body, 403, "disabled")
	f("POST", sign("POST", "/apps/7/nothing", body, appKey, appSecret, now), body, 404, "no such call")
	f("GET", sign("GET", events, "", appKey, appSecret, now), "", 404, "no such call")
	f("PUT", good, body, 405, "")
	large := `{"name":"e","channel":"c","data":"` + strings.Repeat("a", 40<<10) + `"}`
	f("POST", good, large, 401, "body_md5") // verified on a goroutine
	if n.server.Stats().Refused == 0 {
		t.Error("refusals are not counted")
	}
}

func TestTriggersAreChecked(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.join("c")
	f := func(body string, want int, says string) {
		t.Helper()
		if status, answer := n.call("POST", events, "", body); status != want || !strings.Contains(answer, says) {
			t.Errorf("%.80s: %d %s, want %d %s", body, status, answer, want, says)
		}
	}
	list := func(k int) string {
		var names []string
		for i := range k {
			names = append(names, fmt.Sprintf("c%d", i))
		}
		b, _ := json.Marshal(names)
		return string(b)
	}
	f(`{`, 400, "JSON")
	f(``, 400, "JSON")
	f("{\"name\":\"e\",\"channel\":\"c\",\"data\":{\"a\":\"\xff\"}}", 400, "UTF-8")
	f(`{"channel":"c","data":"1"}`, 400, "name")
	f(`{"name":"pusher:x","channel":"c","data":"1"}`, 400, "reserved")
	f(`{"name":"`+strings.Repeat("a", 201)+`","channel":"c","data":"1"}`, 400, "201 bytes")
	f(`{"name":"e","channel":"c"}`, 400, "data")
	f(`{"name":"e","data":"1"}`, 400, "channels")
	f(`{"name":"e","channels":[],"data":"1"}`, 400, "channels")
	f(`{"name":"e","channels":["a b"],"data":"1"}`, 400, "a b")
	f(`{"name":"e","channels":["other:x"],"data":"1"}`, 400, "other:x")
	f(`{"name":"e","channels":`+list(101)+`,"data":"1"}`, 400, "101 channels")
	f(`{"name":"e","channels":`+list(100)+`,"data":"1"}`, 200, "{}")
	f(`{"name":"e","channels":["private-encrypted-a","b"],"data":"1"}`, 400, "encrypted")
	f(`{"name":"e","channel":"c","data":"1","socket_id":"x"}`, 400, "socket_id")
	f(`{"name":"e","channel":"c","data":"1","info":"nothing"}`, 400, "info")
	f(`{"name":"e","channel":"c","data":"`+strings.Repeat("a", 10<<10+1)+`"}`, 413, "max_event_data")
	a.silent()
	f(`{"name":"e","channels":["c","c"],"data":"1"}`, 200, "{}")
	a.want("e", "c", "1")
	f(`{"name":"e","channel":"c","data":{"an":"object"}}`, 200, "{}")
	a.want("e", "c", `{"an":"object"}`)
	f(`{"name":"e","channel":"c","data":"`+strings.Repeat("a", 10<<10)+`"}`, 200, "{}")
	a.want("e", "c", strings.Repeat("a", 10<<10))
	a.silent()
}

func TestBatches(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.join("c")
	a.join("d")
	f := func(body string, want int, says string) {
		t.Helper()
		if status, answer := n.call("POST", "/apps/"+appID+"/batch_events", "", body); status != want || !strings.Contains(answer, says) {
			t.Errorf("%.80s: %d %s, want %d %s", body, status, answer, want, says)
		}
	}
	one := `{"name":"e","channel":"c","data":"1"}`
	f(`{"batch":[]}`, 400, "batch")
	f(`{"batch":[`+strings.Repeat(one+",", 10)+one+`]}`, 400, "11 events")
	f(`{"batch":[`+one+`,{"name":"e","channel":"c"}]}`, 400, "batch[1]: data")
	a.silent()
	f(`{"batch":[`+one+`,{"name":"f","channel":"d","data":"2","socket_id":"`+a.socket+`"},{"name":"g","channel":"d","data":"3"}]}`, 200, "{}")
	a.want("e", "c", "1")
	a.want("g", "d", "3")
	f(`{"batch":[{"name":"e","channel":"c","data":"1","info":"subscription_count"},{"name":"e","channel":"x","data":"1"}]}`, 200, `{"batch":[{"subscription_count":1},{}]}`)
}

func TestChannelsAreListed(t *testing.T) {
	n := start(t, settings{})
	a, b := n.connect(), n.connect()
	a.join("c")
	b.join("c")
	a.enter("presence-a", member("1", "A"))
	b.enter("presence-a", member("2", "B"))
	n.connect().enter("presence-a", member("2", "B"))
	f := func(path, query string, want int, answer string) {
		t.Helper()
		if status, got := n.call("GET", "/apps/"+appID+path, query, ""); status != want || got != answer && !(status != 200 && strings.Contains(got, answer)) {
			t.Errorf("%s?%s: %d %s, want %d %s", path, query, status, got, want, answer)
		}
	}
	f("/channels", "", 200, `{"channels":{"c":{},"presence-a":{}}}`)
	f("/channels", "filter_by_prefix=presence-", 200, `{"channels":{"presence-a":{}}}`)
	f("/channels", "filter_by_prefix=presence-&info=user_count,subscription_count", 200, `{"channels":{"presence-a":{"user_count":2,"subscription_count":3}}}`)
	f("/channels", "filter_by_prefix=nothing", 200, `{"channels":{}}`)
	f("/channels", "info=user_count", 400, "filter_by_prefix")
	f("/channels/c", "", 200, `{"occupied":true}`)
	f("/channels/c", "info=subscription_count", 200, `{"occupied":true,"subscription_count":2}`)
	f("/channels/c", "info=user_count", 400, "presence")
	f("/channels/c", "info=cache", 400, "cache")
	f("/channels/c", "info=x", 400, "info")
	f("/channels/d", "", 200, `{"occupied":false}`)
	f("/channels/a%20b", "", 400, "a b")
	f("/channels/presence-a", "info=user_count,subscription_count", 200, `{"occupied":true,"user_count":2,"subscription_count":3}`)
	f("/channels/presence-a/users", "", 200, `{"users":[{"id":"1"},{"id":"2"}]}`)
	f("/channels/presence-b/users", "", 200, `{"users":[]}`)
	f("/channels/c/users", "", 400, "presence")
	if _, got := n.call("POST", events, "", `{"name":"e","channels":["c","presence-a"],"data":"1","info":"user_count,subscription_count"}`); got !=
		`{"channels":{"c":{"subscription_count":2},"presence-a":{"user_count":2,"subscription_count":3}}}` {
		t.Error(got)
	}
}

func TestTheCacheOfAChannelCanBeRead(t *testing.T) {
	n := start(t, settings{space: hub.Namespace{HistoryTTL: hub.Duration(time.Hour)}})
	if _, got := n.call("GET", "/apps/"+appID+"/channels/cache-a", "info=cache", ""); got != `{"occupied":false}` {
		t.Error(got)
	}
	n.trigger("e", "words", "", "cache-a")
	_, got := n.call("GET", "/apps/"+appID+"/channels/cache-a", "info=cache", "")
	if !strings.HasPrefix(got, `{"occupied":false,"cache":{"event":"e","data":"words","ttl":35`) {
		t.Error(got)
	}
}

func TestCallsSeeWhatOtherNodesHave(t *testing.T) {
	n, m := pair(t, settings{})
	m.connect().enter("presence-a", member("1", "A"))
	trial.Eventually(t, "the first node knows", func() bool {
		_, got := n.call("GET", "/apps/"+appID+"/channels/presence-a/users", "", "")
		return got == `{"users":[{"id":"1"}]}`
	})
}

func TestAppsAreApart(t *testing.T) {
	n := start(t, settings{apps: []pusher.App{{ID: "8", Key: "key8", Secret: "secret8", Namespace: "other"}}})
	a := n.connect()
	a.join("c")
	b := n.dial("/app/key8?protocol=7")
	b.Next()
	b.request("c", "")
	b.Next()
	n.trigger("e", "1", "", "c")
	a.want("e", "c", "1")
	b.silent()
	n.Publish(hub.Publication{Channel: "other:c", Data: []byte("2")})
	b.want("message", "c", "2")
	a.silent()
	if _, got := n.call("GET", "/apps/"+appID+"/channels", "info=subscription_count", ""); got != `{"channels":{"c":{"subscription_count":1}}}` {
		t.Error(got)
	}
}

func TestUserEventsReachTheUserAlone(t *testing.T) {
	n := start(t, settings{})
	a, b := n.connect(), n.connect()
	for id, c := range map[string]*client{"1": a, "2": b} {
		user := fmt.Sprintf(`{"id":%q}`, id)
		c.sendEvent("pusher:signin", "", map[string]string{"auth": protocol.SignUser(appKey, appSecret, c.socket, user), "user_data": user})
		c.Next()
		c.join("#server-to-user-" + id)
	}
	f := func(user, body string, want int, says string) {
		t.Helper()
		if status, answer := n.call("POST", "/apps/"+appID+"/users/"+user+"/events", "", body); status != want || !strings.Contains(answer, says) {
			t.Errorf("%s %s: %d %s, want %d %s", user, body, status, answer, want, says)
		}
	}
	f("1", `{"name":"e","data":"x"}`, 200, "{}")
	f("1", `{"name":"e","data":"x","channel":"c"}`, 400, "no channel")
	f("1", `{"name":"pusher:e","data":"x"}`, 400, "reserved")
	a.want("e", "#server-to-user-1", "x")
	a.silent()
	b.silent()
}

func TestHealthPaths(t *testing.T) {
	n := start(t, settings{cfg: pusher.Config{HealthPaths: []string{"/", "/ready", "/up"}}})
	f := func(path string, want int, body string) {
		t.Helper()
		if status, answer := n.http("GET", path, ""); status != want || answer != body {
			t.Errorf("%s: %d %q, want %d %q", path, status, answer, want, body)
		}
	}
	f("/", 200, "OK")
	f("/ready?x=1", 200, "OK")
	f("/up", 200, `{"health":"OK"}`)
	n.ready.Store(false)
	f("/", 503, "Service Unavailable")
	f("/up", 503, "Service Unavailable")
	if err := (pusher.Config{HealthPaths: []string{"up"}}).Validate(); err == nil || !strings.Contains(err.Error(), `health_paths[0]: "up"`) {
		t.Error(err)
	}
}
