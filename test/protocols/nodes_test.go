package protocols

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/test/judge"
)

// pair is two nodes on one NATS that know each other.
func pair(t *testing.T) (one, two *judge.Server) {
	t.Helper()
	url := natstest.Server(t)
	node := func(name string) *judge.Server {
		return serve(t, obj{"broker": obj{"nats": obj{"url": url}}, "cluster": obj{"name": name}})
	}
	one, two = node("one"), node("two")
	for _, s := range []*judge.Server{one, two} {
		judge.Eventually(t, patience, "the nodes know each other", func() bool {
			return len(decode[[]json.RawMessage](t, field(t, centrifugo(t, s, "info", obj{}), "nodes"))) == 2
		})
	}
	return one, two
}

func TestTwoNodes(t *testing.T) {
	one, two := pair(t)
	a := nodeAgent(t)
	tr := transports("")[0]
	at := func(s *judge.Server, name, user string) (sub string) {
		tr.transports = transports(s.Public)[0].transports
		tr.connect(a, s.Public, name, obj{"token": userToken(user, time.Hour, nil)})
		a.next(name, "connecting")
		a.next(name, "connected")
		sub = subscribe(a, name, "room", obj{"recoverable": true, "positioned": true, "joinLeave": true})
		a.next(sub, "subscribing")
		a.next(sub, "subscribed")
		return sub
	}
	ann := at(one, "ann", "ann")
	expect(t, "own join", field(t, a.next(ann, "join"), "info", "user"), "ann")
	ben := at(two, "ben", "ben")
	expect(t, "join on the other node", field(t, a.next(ann, "join"), "info", "user"), "ben")
	for _, sub := range []string{ann, ben} {
		judge.Eventually(t, patience, sub+" sees both", func() bool {
			return string(field(t, a.call(sub, "presenceStats"), "numUsers")) == "2"
		})
		if all := decode[map[string]struct{ User string }](t, field(t, a.call(sub, "presence"), "clients")); len(all) != 2 {
			t.Errorf("presence at %s: %v", sub, all)
		}
	}
	a.call(ben, "publish", obj{"n": 1})
	expect(t, "published at the other node", field(t, a.next(ann, "publication"), "data"), obj{"n": 1})

	// What the server API of one node says reaches the clients of the other.
	centrifugo(t, one, "subscribe", obj{"user": "ben", "channel": "news"})
	expect(t, "subscribed by the server", field(t, a.next("ben", "subscribed"), "channel"), "news")
	centrifugo(t, one, "unsubscribe", obj{"user": "ben", "channel": "news"})
	expect(t, "unsubscribed by the server", field(t, a.next("ben", "unsubscribed"), "channel"), "news")
	centrifugo(t, one, "refresh", obj{"user": "ben", "expired": true})
	expect(t, "expired by the server", field(t, a.next("ben", "connecting"), "code"), 3005)
	a.next("ben", "connected")
	a.next(ben, "subscribed")
	centrifugo(t, one, "disconnect", obj{"user": "ben"})
	expect(t, "disconnected by the server", field(t, a.next("ben", "disconnected"), "code"), 3503)
	a.call("ben", "connect")
	a.next(ben, "subscribed")
	judge.Eventually(t, patience, "ann sees ben again", func() bool {
		return string(field(t, a.call(ann, "presenceStats"), "numUsers")) == "2"
	})

	pusherOnTwoNodes(t, a, one, two)

	// The members of a node that dies go with its lease. Those who come and go at once
	// may be reported together, so what was reported before does not count.
	a.forget(ann, "leave")
	begin := time.Now()
	two.Kill()
	expect(t, "leave", field(t, a.next(ann, "leave"), "info", "user"), "ben")
	t.Logf("a killed node's member of the Centrifuge protocol left after %s; the lease is 1s", time.Since(begin).Round(time.Millisecond))
	expect(t, "removed", field(t, a.next("pa/presence-r", "pusher:member_removed"), "id"), "pb")
	t.Logf("one of Pusher's after %s", time.Since(begin).Round(time.Millisecond))
	expect(t, "presence", a.call(ann, "presenceStats"), obj{"numClients": 1, "numUsers": 1})
}

// pusherOnTwoNodes leaves user pa at the first and pb at the second on presence-r.
func pusherOnTwoNodes(t *testing.T, a *agent, one, two *judge.Server) {
	t.Helper()
	pusherApp(a, one.Public)
	pusherClient(a, "BrowserPusher", one.Public, "pa", "pa")
	pusherClient(a, "BrowserPusher", two.Public, "pb", "pb")
	pusherClient(a, "BrowserPusher", two.Public, "pc", "pc")
	pa, _ := join(a, "pa", "presence-r", "pusher:member_added", "pusher:member_removed")
	for _, user := range []string{"pb", "pc"} {
		_, data := join(a, user, "presence-r", "pusher:member_added", "made")
		// What the other node does not know yet it reports when it does.
		if user == "pb" && string(field(t, data, "count")) == "1" {
			expect(t, "added at the other node", field(t, a.next("pb/presence-r", "pusher:member_added"), "id"), "pa")
		}
		expect(t, "added", field(t, a.next(pa, "pusher:member_added"), "id"), user)
	}
	a.call("app", "trigger", "presence-r", "made", "x") // at the first node
	expect(t, "event at the other node", a.next("pb/presence-r", "made"), "x")
	a.call("pc", "signin")
	a.get("pc", "user.signinDonePromise")
	a.call("app", "terminateUserConnections", "pc")
	expect(t, "ended by the other node", field(t, a.next("pc", "error"), "data", "code"), 4009)
	expect(t, "removed", field(t, a.next(pa, "pusher:member_removed"), "id"), "pc")
}
