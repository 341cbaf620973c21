package protocols

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// The official clients do not notice that new processes take over from one another: no client
// reconnects, nothing is lost, repeated or out of order, and members stay members.
func TestTheSDKsNoticeNoUpgrade(t *testing.T) {
	s := serve(t)
	js, py := nodeAgent(t), pythonAgent(t)
	c := newCrew(t)
	c.sail(js, py, s.Public)
	a := nodeAgent(t)
	room := watchedRoom(a, s)
	pushers := pusherRoom(a, s)
	readers := mercureReaders(a, s)
	p := &judge.Publisher{Addr: s.Public}
	stop := c.publish(p, channels, 200)
	before := c.counts()
	var sent []int
	update1 := func() {
		n := len(sent)
		update(t, s, token07([]string{"*"}, nil), form("topic", upgradeTopic, "data", strconv.Itoa(n), "private", "on"))
		sent = append(sent, n)
	}
	for i := range 3 {
		c.more(p, 100)
		update1()
		if u := s.Upgrade(); u.Step != "done" {
			t.Fatalf("upgrade %d: %+v\n%s", i, u, s.Log())
		}
		c.more(p, 100)
		update1()
		room(i)
		pushers(i)
	}
	stop()
	c.verdict(p.Acked())
	if now := c.counts(); !slices.Equal(before, now) {
		t.Errorf("subscribed %v times, want %v", now, before)
	}
	for name, r := range readers {
		judge.Eventually(t, patience, name+" has the newest", func() bool { return r.last() == len(sent)-1 })
		r.judge(t, name, sent)
		if r.sessions() != 1 {
			t.Errorf("%s: %d connections, want 1", name, r.sessions())
		}
	}
}

const upgradeTopic = "https://example.com/upgrade"

// watchedRoom has a client of each transport on a channel with presence, which the first
// watches. The returned function checks that all are there as they were, and that commands
// reach them.
func watchedRoom(a *agent, s *judge.Server) func(round int) {
	t := a.t
	const channel = "upgraded"
	var names, subs []string
	for _, tr := range transports(s.Public) {
		name := "room_" + strings.ReplaceAll(tr.name, " ", "_")
		tr.connect(a, s.Public, name, obj{"token": userToken(name, time.Hour, nil)})
		a.next(name, "connected")
		sub := subscribe(a, name, channel, obj{"recoverable": true, "positioned": true, "joinLeave": len(subs) == 0})
		a.next(sub, "subscribed")
		names, subs = append(names, name), append(subs, sub)
	}
	for range names {
		a.next(subs[0], "join")
	}
	present := func() string { return string(field(t, a.call(subs[0], "presence"), "clients")) }
	was := present()
	return func(round int) {
		t.Helper()
		if now := decode[map[string]obj](t, []byte(present())); len(now) != len(names) {
			t.Errorf("present: %v, want %s", now, was)
		} else {
			for id := range decode[map[string]obj](t, []byte(was)) {
				if now[id] == nil {
					t.Errorf("%s is gone from %v", id, now)
				}
			}
		}
		for i, tr := range transports(s.Public) {
			a.call(subs[i], "publish", tr.data(obj{"n": round}))
		}
		for _, sub := range subs {
			for range names {
				expect(t, "publication", field(t, a.next(sub, "publication"), "data"), obj{"n": round})
			}
			a.none(sub, "unsubscribed")
		}
		for _, event := range []string{"join", "leave"} {
			a.none(subs[0], event)
		}
		for _, name := range names {
			a.none(name, "disconnected")
		}
	}
}

// pusherRoom has two members on a presence channel. The returned function checks that they are
// there, and that events reach them.
func pusherRoom(a *agent, s *judge.Server) func(round int) {
	t := a.t
	pusherApp(a, s.Public)
	kinds := []string{"Pusher", "BrowserPusher"}
	var rooms []string
	for _, kind := range kinds {
		pusherClient(a, kind, s.Public, kind, "user of "+kind)
		name, _ := join(a, kind, "presence-room", "made", "client-hello", "pusher:member_added", "pusher:member_removed")
		rooms = append(rooms, name)
	}
	a.next(rooms[0], "pusher:member_added")
	for _, kind := range kinds {
		a.forget(kind, "state_change")
	}
	return func(round int) {
		t.Helper()
		a.call("app", "trigger", "presence-room", "made", obj{"n": round})
		for _, room := range rooms {
			expect(t, "event", a.next(room, "made"), obj{"n": round})
		}
		a.call(rooms[1], "trigger", "client-hello", obj{"n": round})
		expect(t, "client event", a.next(rooms[0], "client-hello"), obj{"n": round})
		a.none(rooms[0], "pusher:member_added")
		a.none(rooms[0], "pusher:member_removed")
		for _, kind := range kinds {
			a.none(kind, "state_change")
		}
	}
}

// mercureReaders are subscribers of both drafts, with tokens that let them read private updates.
func mercureReaders(a *agent, s *judge.Server) map[string]*reader {
	readers := map[string]*reader{}
	for name, q := range map[string][]string{
		"07 upgraded": {"topic", "https://example.com/{x}"},
		"08 upgraded": {"match_urlpattern", "https://example.com/*"},
	} {
		token := token07(nil, []string{"*"})
		if strings.HasPrefix(name, "08") {
			token = token08("subscribe", "https://example.com/*")
		}
		r := &reader{}
		readers[name] = r
		a.sink(name, r.on)
		a.make("EventSource", name, "http://"+s.Public+hubPath+"?"+form(q...).Encode(), obj{"Authorization": "Bearer " + token}, on("addEventListener", "open", "message", "error"))
		judge.Eventually(a.t, patience, name+" is connected", func() bool { return r.sessions() == 1 })
	}
	return readers
}
