package protocols

import "testing"

// echo connects Laravel Echo for a user.
func echo(a *agent, addr, name, user string) {
	a.t.Helper()
	a.make("Echo", name, pusherKey, obj{"wsHost": "127.0.0.1", "wsPort": port(addr)}, ref("app"), user,
		then{{"connector.pusher.connection.bind", "connected", emit("connected")}})
	a.next(name, "connected")
}

func TestLaravelEcho(t *testing.T) {
	s := serve(t)
	a := nodeAgent(t)
	pusherApp(a, s.Public)
	echo(a, s.Public, "ann", "1")
	echo(a, s.Public, "ben", "2")

	a.name("orders", "ann", "channel", "orders", then{
		{"listen", ".made", emit("made")}, {"listen", "OrderShipped", emit("shipped")}, {"subscribed", emit("subscribed")},
	})
	a.next("orders", "subscribed")
	a.call("app", "trigger", "orders", "made", obj{"id": 1})
	a.call("app", "trigger", "orders", `App\Events\OrderShipped`, obj{"id": 2})
	expect(t, "named event", a.next("orders", "made"), obj{"id": 1})
	expect(t, "event by its class", a.next("orders", "shipped"), obj{"id": 2})

	for _, user := range []string{"ann", "ben"} {
		a.name(user+"'s chat", user, "private", "chat", then{{"listenForWhisper", "typing", emit("typing")}, {"subscribed", emit("subscribed")}})
		a.next(user+"'s chat", "subscribed")
	}
	a.name("x", "ben's chat", "whisper", "typing", obj{"n": 3})
	expect(t, "whisper", a.next("ann's chat", "typing"), obj{"n": 3})
	a.none("ben's chat", "typing")

	room := then{{"here", emit("here")}, {"joining", emit("joining")}, {"leaving", emit("leaving")}}
	ann, ben := obj{"name": "name of 1"}, obj{"name": "name of 2"}
	a.name("ann's room", "ann", "join", "room", room)
	expect(t, "here", a.next("ann's room", "here"), []any{ann})
	a.name("ben's room", "ben", "join", "room", room)
	expect(t, "joining", a.next("ann's room", "joining"), ben)
	expect(t, "here", a.next("ben's room", "here"), []any{ann, ben})
	a.call("ben", "leave", "room")
	expect(t, "leaving", a.next("ann's room", "leaving"), ben)

	s.Kill()
	s.Start()
	a.next("ann", "connected")
	a.next("orders", "subscribed")
	expect(t, "here again", a.next("ann's room", "here"), []any{ann})
	a.call("app", "trigger", "orders", "made", obj{"id": 4})
	expect(t, "after the kill", a.next("orders", "made"), obj{"id": 4})
}
