package centrifuge_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// What a client is granted is what Centrifugo 6.9 grants: what the namespace forces,
// and what a client that may read the history, once it is subscribed, requests.
func TestRecoveryRequiresTheHistoryGrant(t *testing.T) {
	const ask = `,"recoverable":true,"positioned":true,"join_leave":true`
	allow := centrifuge.Namespace{AllowSubscribeForClient: true, AllowSubscribeForAnonymous: true}
	with := func(change func(*centrifuge.Namespace)) centrifuge.Namespace {
		n := allow
		change(&n)
		return n
	}
	options := map[string]centrifuge.Namespace{
		"none":       allow,
		"force":      with(func(n *centrifuge.Namespace) { n.ForceRecovery = true }),
		"positions":  with(func(n *centrifuge.Namespace) { n.ForcePositioning = true }),
		"allow":      with(func(n *centrifuge.Namespace) { n.AllowRecovery = true }),
		"allowpos":   with(func(n *centrifuge.Namespace) { n.AllowPositioning = true }),
		"client":     with(func(n *centrifuge.Namespace) { n.AllowHistoryForClient = true }),
		"subscriber": with(func(n *centrifuge.Namespace) { n.AllowHistoryForSubscriber = true }),
		"anonymous":  with(func(n *centrifuge.Namespace) { n.AllowHistoryForClient, n.AllowHistoryForAnonymous = true, true }),
		"nolog":      with(func(n *centrifuge.Namespace) { n.ForceRecovery, n.AllowHistoryForClient = true, true }),
	}
	var spaces []hub.Namespace
	for name := range options {
		ns := hub.Namespace{Name: name}
		if name == "nolog" {
			ns.Durability = hub.None
		}
		spaces = append(spaces, ns)
	}
	n := start(t, settings{spaces: spaces, cfg: centrifuge.Config{AnonymousConnect: true, Namespaces: options}})
	anonymous, user := n.connect("{}"), n.connect(`{"token":"`+token(t, map[string]any{"sub": "1"})+`"}`)
	id := 1
	f := func(c *client, channel, request, want string) {
		t.Helper()
		id++
		c.send(fmt.Sprintf(`{"id":%d,"subscribe":{"channel":%q%s}}`, id, channel, request))
		if want != "" {
			want += `,"epoch":"?"`
		}
		c.expect(fmt.Sprintf(`{"id":%d,"subscribe":{%s}}`, id, strings.TrimPrefix(want, ",")))
	}
	const both, pos = `,"recoverable":true,"positioned":true`, `,"positioned":true`
	f(anonymous, "none:a", ask, "")
	f(anonymous, "force:a", "", both)
	f(anonymous, "positions:a", "", pos)
	f(anonymous, "positions:b", ask, pos)
	f(anonymous, "allow:a", "", "")
	f(anonymous, "allow:b", ask, both)
	f(anonymous, "allowpos:a", ask, pos)
	f(anonymous, "client:a", ask, "")
	f(anonymous, "subscriber:a", ask, "")
	f(anonymous, "anonymous:a", ask, both)
	f(anonymous, "anonymous:b", `,"positioned":true`, pos)
	f(anonymous, "anonymous:c", "", "")
	f(user, "none:a", ask, "")
	f(user, "client:a", ask, both)
	f(user, "client:b", `,"recoverable":true`, both)
	f(user, "subscriber:a", ask, both)
	f(user, "nolog:a", ask, "")
	user.send(`{"id":90,"subscribe":{"channel":"none:b","recover":true,"epoch":"x","offset":1}}`)
	user.expect(`{"id":90,"subscribe":{"was_recovering":true}}`)
}

// Three messages that a client missed after a migration were lost in silence where it
// asked to recover by the right to read history.
func TestClientsWithTheHistoryGrantRecover(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{"default": {
		AllowSubscribeForClient: true, AllowHistoryForSubscriber: true,
	}}}})
	user := `{"token":"` + token(t, map[string]any{"sub": "1"}) + `"}`
	c := n.connect(user)
	epoch, at := c.subscribe(`{"channel":"news","recoverable":true}`)
	c.conn.CloseNow()
	for i := range 3 {
		n.publish("news", fmt.Sprint(i))
	}
	c = n.connect(user)
	c.send(fmt.Sprintf(`{"id":2,"subscribe":{"channel":"news","recoverable":true,"recover":true,"epoch":%q,"offset":%d}}`, epoch, at))
	c.expect(`{"id":2,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","recovered":true,"was_recovering":true,` +
		`"publications":[{"data":0,"offset":1},{"data":1,"offset":2},{"data":2,"offset":3}]}}`)
}

// A token that overrides force_recovery decides before the client's position is looked
// at; what the client requests by its rights stays.
func TestOverridesComeBeforeRecovery(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"default": {AllowHistoryForSubscriber: true}}}})
	at := n.publish("news", "1")
	n.publish("news", "2")
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "1"}) + `"}`)
	f := func(id int, channel string, force bool, request, want string) {
		t.Helper()
		tok := token(t, map[string]any{"sub": "1", "channel": channel, "override": map[string]any{"force_recovery": map[string]any{"value": force}}})
		c.send(fmt.Sprintf(`{"id":%d,"subscribe":{"channel":%q,"token":%q%s}}`, id, channel, tok, request))
		c.expect(fmt.Sprintf(`{"id":%d,"subscribe":%s}`, id, want))
	}
	recover := fmt.Sprintf(`,"recover":true,"epoch":%q,"offset":1`, at.Epoch)
	f(2, "news", true, recover, `{"recoverable":true,"positioned":true,"epoch":"?","offset":1,"recovered":true,"was_recovering":true,"publications":[{"data":2,"offset":2}]}`)
	f(3, "more", false, recover, `{"was_recovering":true}`)
	f(4, "asked", false, `,"recoverable":true`, `{"recoverable":true,"positioned":true,"epoch":"?","offset":2}`)
}

// Who may not see the presence is not notified of joins either.
func TestJoinsRequireThePresenceGrant(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{"default": {
		JoinLeave: true, AllowSubscribeForClient: true, AllowSubscribeForAnonymous: true, AllowPresenceForSubscriber: true,
	}}}})
	anonymous, user := n.connect("{}"), n.connect(`{"token":"`+token(t, map[string]any{"sub": "1"})+`"}`)
	anonymous.subscribe(`{"channel":"room","join_leave":true}`)
	user.subscribe(`{"channel":"room","join_leave":true}`)
	user.expect(`{"push":{"channel":"room","join":{"info":{"user":"","client":"` + anonymous.id + `"}}}}`)
	user.expect(`{"push":{"channel":"room","join":{"info":{"user":"1","client":"` + user.id + `"}}}}`)
	anonymous.send(`{"id":9,"unsubscribe":{"channel":"room"}}`)
	anonymous.expect(`{"id":9,"unsubscribe":{}}`)
}
