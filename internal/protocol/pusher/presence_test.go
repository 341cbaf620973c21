package pusher_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// member is channel_data.
func member(id, name string) string {
	return fmt.Sprintf(`{"user_id":%q,"user_info":{"name":%q}}`, id, name)
}

// enter joins a presence channel and returns the ids of those who are there.
func (c *client) enter(channel, data string) []string {
	c.t.Helper()
	c.request(channel, data)
	f := c.Next()
	var got struct {
		Presence struct {
			IDs   []string                   `json:"ids"`
			Hash  map[string]json.RawMessage `json:"hash"`
			Count int                        `json:"count"`
		} `json:"presence"`
	}
	if err := json.Unmarshal([]byte(f.text()), &got); err != nil || f.Event != "pusher_internal:subscription_succeeded" {
		c.t.Fatalf("%+v: %v", f, err)
	}
	if p := got.Presence; p.Count != len(p.IDs) || p.Count != len(p.Hash) {
		c.t.Errorf("%s", f.text())
	}
	return got.Presence.IDs
}

func TestMembersAreReportedOncePerUser(t *testing.T) {
	n := start(t, settings{})
	a, b, b2 := n.connect(), n.connect(), n.connect()
	f := func(got []string, want string) {
		t.Helper()
		if s := strings.Join(got, " "); s != want {
			t.Errorf("members %q, want %q", s, want)
		}
	}
	f(a.enter("presence-a", member("1", "A")), "1")
	f(b.enter("presence-a", member("2", "B")), "1 2")
	a.want("pusher_internal:member_added", "presence-a", `{"user_id":"2","user_info":{"name":"B"}}`)
	f(b2.enter("presence-a", member("2", "B")), "1 2")
	f(a.enter("presence-b", `{"user_id":5}`), "5")
	b.sendEvent("pusher:unsubscribe", "", map[string]string{"channel": "presence-a"})
	b.silent()
	b2.conn.CloseNow()
	a.want("pusher_internal:member_removed", "presence-a", `{"user_id":"2"}`)
	a.silent()
}

func TestMembersOfOtherNodesAreReported(t *testing.T) {
	n, m := pair(t, settings{})
	a, b := n.connect(), m.connect()
	a.enter("presence-a", member("1", "A"))
	trial.Eventually(t, "the other node knows", func() bool { _, users := m.Presence.Count("presence-a"); return users == 1 })
	if got := b.enter("presence-a", member("2", "B")); len(got) != 2 {
		t.Errorf("members %v", got)
	}
	a.want("pusher_internal:member_added", "presence-a", `{"user_id":"2","user_info":{"name":"B"}}`)
	b.conn.CloseNow()
	a.want("pusher_internal:member_removed", "presence-a", `{"user_id":"2"}`)
}

func TestMembersOfOtherProtocolsAreMembers(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	a.enter("presence-a", member("1", "A"))
	for _, m := range []presence.Member{{Client: "x", User: "9", Info: []byte(`{"from":"elsewhere"}`)}, {Client: "y"}} {
		if err := n.Presence.Join("presence-a", m); err != nil {
			t.Fatal(err)
		}
	}
	a.want("pusher_internal:member_added", "presence-a", `{"user_id":"9","user_info":{"from":"elsewhere"}}`)
	n.Presence.Leave("presence-a", "x")
	a.want("pusher_internal:member_removed", "presence-a", `{"user_id":"9"}`)
	a.silent()
}

func TestPresenceChannelsHaveABound(t *testing.T) {
	n := start(t, settings{cfg: pusher.Config{MaxMembers: 1, MaxMemberData: 100}})
	a, b := n.connect(), n.connect()
	a.enter("presence-a", member("1", "A"))
	b.request("presence-a", member("2", "B"))
	if f := b.Next(); f.Event != "pusher:subscription_error" || !strings.Contains(f.text(), "LimitReached") {
		t.Errorf("%+v", f)
	}
	b.request("presence-b", member("2", strings.Repeat("B", 100)))
	if f := b.Next(); !strings.Contains(f.text(), "max_member_data") {
		t.Errorf("%+v", f)
	}
	if got := b.enter("presence-a", member("1", "A")); len(got) != 1 { // the same user
		t.Errorf("members %v", got)
	}
}

func TestSignedInUsersNeedNoChannelData(t *testing.T) {
	n := start(t, settings{})
	a := n.connect()
	const user = `{"id":"1","user_info":{"name":"A"}}`
	a.sendEvent("pusher:signin", "", map[string]string{"auth": protocol.SignUser(appKey, appSecret, a.socket, user), "user_data": user})
	a.Next()
	if got := a.enter("presence-a", ""); len(got) != 1 || got[0] != "1" {
		t.Errorf("members %v", got)
	}
}

func TestClientEventsOnPresenceChannelsNameTheirSender(t *testing.T) {
	n := start(t, settings{app: pusher.App{ClientEvents: true}})
	a, b := n.connect(), n.connect()
	a.enter("presence-a", member("1", "A"))
	b.enter("presence-a", member("2", "B"))
	a.want("pusher_internal:member_added", "presence-a", `{"user_id":"2","user_info":{"name":"B"}}`)
	b.sendEvent("client-hi", "presence-a", "x")
	if f := a.want("client-hi", "presence-a", "x"); f.User != "2" {
		t.Errorf("user_id %q", f.User)
	}
}

func TestSubscribersReceiveTheSubscriptionCount(t *testing.T) {
	n := start(t, settings{app: pusher.App{SubscriptionCount: true}, cfg: pusher.Config{CountInterval: 20e6}})
	a, b := n.connect(), n.connect()
	a.request("orders", "")
	a.want("pusher_internal:subscription_succeeded", "orders", `{"subscription_count":1}`)
	a.want("pusher_internal:subscription_count", "orders", `{"subscription_count":1}`)
	b.request("orders", "")
	b.want("pusher_internal:subscription_succeeded", "orders", `{"subscription_count":2}`)
	a.want("pusher_internal:subscription_count", "orders", `{"subscription_count":2}`)
	b.conn.CloseNow()
	a.want("pusher_internal:subscription_count", "orders", `{"subscription_count":1}`)
}

func TestCountsOfOtherNodesAreReceived(t *testing.T) {
	n, m := pair(t, settings{app: pusher.App{SubscriptionCount: true}, cfg: pusher.Config{CountInterval: 200e6}})
	a, b := n.connect(), m.connect()
	a.request("orders", "")
	a.want("pusher_internal:subscription_succeeded", "orders", `{"subscription_count":1}`)
	a.want("pusher_internal:subscription_count", "orders", `{"subscription_count":1}`)
	b.request("orders", "")
	a.want("pusher_internal:subscription_count", "orders", `{"subscription_count":2}`)
}

func TestUsersAreNotifiedOfTheirWatchlist(t *testing.T) {
	n, m := pair(t, settings{app: pusher.App{Watchlists: true}, cfg: pusher.Config{VacatedDelay: hub.Duration(100 * time.Millisecond), MaxWatchlist: 2}})
	signin := func(c *client, user string) {
		c.t.Helper()
		c.sendEvent("pusher:signin", "", map[string]string{"auth": protocol.SignUser(appKey, appSecret, c.socket, user), "user_data": user})
	}
	a, b := n.connect(), m.connect()
	signin(a, `{"id":"a","watchlist":["b","c"]}`)
	a.Next()
	signin(b, `{"id":"b","watchlist":["a"]}`)
	b.Next()
	a.want("pusher_internal:watchlist_events", "", `{"events":[{"name":"online","user_ids":["b"]}]}`)
	b.want("pusher_internal:watchlist_events", "", `{"events":[{"name":"online","user_ids":["a"]}]}`)
	b.conn.CloseNow()
	a.want("pusher_internal:watchlist_events", "", `{"events":[{"name":"offline","user_ids":["b"]}]}`)
	a.silent()
	c := n.connect()
	signin(c, `{"id":"c","watchlist":["a","b","c"]}`)
	c.wantClose(4009)
}

// What a new member says never comes before the member, whatever node the others are
// on; and no member is announced twice.
func TestNewMembersEventsComeBehindTheirArrival(t *testing.T) {
	f := func(t *testing.T, here, there *node) {
		t.Helper()
		t.Parallel()
		a := here.connect()
		a.enter("presence-a", member("a", "A"))
		trial.Eventually(t, "the other node knows", func() bool { return there.Presence.Has("presence-a", "a") })
		for i := range 20 {
			id := fmt.Sprint("b", i)
			b := there.connect()
			b.request("presence-a", member(id, "B"))
			for b.Next().Event != "pusher_internal:subscription_succeeded" {
			}
			b.sendEvent("client-hi", "presence-a", "1")
			b.sendEvent("client-hi", "presence-a", "2")
			a.want("pusher_internal:member_added", "presence-a", fmt.Sprintf(`{"user_id":%q,"user_info":{"name":"B"}}`, id))
			a.want("client-hi", "presence-a", "1")
			a.want("client-hi", "presence-a", "2")
			if i == 0 { // presence may say nothing of this one
				b.conn.CloseNow()
				a.want("pusher_internal:member_removed", "presence-a", fmt.Sprintf(`{"user_id":%q}`, id))
			}
		}
		// One who comes again is announced again, and one who has come twice once.
		for range 2 {
			b := there.connect()
			b.request("presence-a", member("c", "C"))
			for b.Next().Event != "pusher_internal:subscription_succeeded" {
			}
			b.sendEvent("client-hi", "presence-a", "1")
			a.want("pusher_internal:member_added", "presence-a", `{"user_id":"c","user_info":{"name":"C"}}`)
			a.want("client-hi", "presence-a", "1")
			b2 := there.connect()
			b2.request("presence-a", member("c", "C"))
			for b2.Next().Event != "pusher_internal:subscription_succeeded" {
			}
			b2.sendEvent("client-hi", "presence-a", "2")
			a.want("client-hi", "presence-a", "2")
			a.silent()
			b.conn.CloseNow()
			b2.conn.CloseNow()
			a.want("pusher_internal:member_removed", "presence-a", `{"user_id":"c"}`)
		}
	}
	s := settings{app: pusher.App{ClientEvents: true}}
	t.Run("one node", func(t *testing.T) {
		n := start(t, s)
		f(t, n, n)
	})
	t.Run("two nodes", func(t *testing.T) {
		n, m := share(t, s)
		f(t, n, m)
	})
}
