package protocols

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// together has all protocols in one namespace, so that a channel is the same for all.
func together() obj {
	return obj{"mercure": obj{"namespace": "default"}, "pusher": obj{"apps": []any{app(obj{"namespace": "default"})}}}
}

// A socketReader follows a channel at /ws by hand.
type socketReader struct {
	mu  sync.Mutex
	got []judge.Event
}

func follow(t *testing.T, s *judge.Server, channel, since string) *socketReader {
	t.Helper()
	r := &socketReader{}
	ctx, cancel := context.WithCancel(context.Background())
	up := make(chan struct{})
	var wg sync.WaitGroup
	sub := &judge.Subscriber{Addr: s.Public, Socket: true, Channels: []string{channel}, Last: since,
		Up: func(int) { close(up) },
		On: func(e judge.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.got = append(r.got, e)
		},
	}
	wg.Go(func() { _ = sub.Once(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	select {
	case <-up:
	case <-time.After(patience):
		t.Fatal("/ws did not open")
	}
	return r
}

// next waits for the message with the number i, from 0.
func (r *socketReader) next(t *testing.T, i int) judge.Event {
	t.Helper()
	var e judge.Event
	judge.Eventually(t, patience, fmt.Sprintf("message %d comes at /ws", i), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.got) > i {
			e = r.got[i]
		}
		return len(r.got) > i
	})
	return e
}

// payload is what was published, however a client shows it.
func payload(data json.RawMessage) string { return strings.ReplaceAll(text(data), " ", "") }

// A watcher is a subscriber of some protocol: next is its next payload and position,
// "" where the protocol shows none.
type watcher struct {
	name string
	next func() (data, position string)
}

// stream is an EventSource at a path of the server.
func stream(t *testing.T, a *agent, s *judge.Server, name, path string) watcher {
	t.Helper()
	a.make("EventSource", name, "http://"+s.Public+path, obj{}, then{
		{"addEventListener", "open", emit("open")},
		{"addEventListener", "message", emit("any")}, {"addEventListener", "made", emit("any")},
	})
	a.next(name, "open")
	return watcher{name, func() (string, string) {
		e := a.next(name, "any")
		return payload(field(t, e, "data")), text(field(t, e, "id"))
	}}
}

// subscription is one of the JavaScript or Python SDK; epoch is known from a position.
func subscription(t *testing.T, a *agent, name string) watcher {
	return watcher{name, func() (string, string) {
		e := a.next(name, "publication")
		if p := field(t, e, "pub"); p != nil {
			e = p
		}
		return payload(field(t, e, "data")), text(field(t, e, "offset"))
	}}
}

func TestOneMessageReachesEveryProtocol(t *testing.T) {
	s := serve(t, together())
	a, py := nodeAgent(t), pythonAgent(t)
	pusherApp(a, s.Public)
	list := []watcher{
		stream(t, a, s, "weir sse", "/sse?channel=news"),
		stream(t, a, s, "mercure 07", hubPath+"?topic=news"),
		stream(t, a, s, "mercure 08", hubPath+"?match=news"),
	}
	for _, tr := range transports(s.Public) {
		name := strings.ReplaceAll(tr.name, " ", "_")
		tr.connect(a, s.Public, name, obj{"token": userToken(name, time.Hour, nil)})
		sub := subscribe(a, name, "news", obj{"recoverable": true, "positioned": true})
		a.next(sub, "subscribed")
		list = append(list, subscription(t, a, sub))
	}
	pythonClient(py, s.Public, "py", "py", false)
	py.name("py/news", "py", "new_subscription", "news", obj{"recoverable": true})
	py.call("py/news", "subscribe")
	py.next("py/news", "subscribed")
	list = append(list, subscription(t, py, "py/news"))
	pusherClient(a, "Pusher", s.Public, "pusher", "p")
	room, _ := join(a, "pusher", "news", "made", "message")
	ws := follow(t, s, "news", "")

	ways := map[string]func(data string){
		"weir":   func(d string) { publishOwn(t, s, "news", d) },
		"api":    func(d string) { centrifugo(t, s, "publish", obj{"channel": "news", "data": json.RawMessage(d)}) },
		"sdk":    func(d string) { a.call("websocket/news", "publish", json.RawMessage(d)) },
		"python": func(d string) { py.call("py/news", "publish", json.RawMessage(d)) },
		"form":   func(d string) { update(t, s, token07([]string{"*"}, nil), form("topic", "news", "data", d)) },
		"pusher": func(d string) { a.call("app", "trigger", "news", "made", json.RawMessage(d)) },
	}
	var order, positions []string
	for way, publish := range ways {
		want := fmt.Sprintf(`{"via":%q}`, way)
		publish(want)
		e := ws.next(t, len(order))
		if payload(e.Data) != want {
			t.Errorf("/ws: got %s, want %s", e.Data, want)
		}
		order, positions = append(order, way), append(positions, e.ID)
		_, offset := parts(e.ID)
		for _, w := range list {
			data, at := w.next()
			if data != want || at != e.ID && at != offset {
				t.Errorf("%s: got %s at %s, want %s at %s", w.name, data, at, want, e.ID)
			}
		}
		event := "message"
		if way == "pusher" {
			event = "made"
		}
		expect(t, "pusher", a.next(room, event), json.RawMessage(want))
	}
	resumeAnywhere(t, s, a, order, positions)
}

// publishOwn publishes by Weir's own API.
func publishOwn(t testing.TB, s *judge.Server, channel, data string) {
	t.Helper()
	status, body := post(t, "http://"+s.Public+"/api/publish", "application/json",
		fmt.Sprintf(`{"channel":%q,"data":%s}`, channel, data), "X-API-Key", judge.APIKey)
	if status != 200 {
		t.Fatalf("publish: status %d, %s", status, body)
	}
}

// parts splits a position into what Centrifuge has of it.
func parts(id string) (epoch, offset string) {
	epoch, rest, _ := strings.Cut(id, "-")
	offset, _, _ = strings.Cut(rest, ".")
	return epoch, offset
}

// resumeAnywhere leaves after each message and continues by every protocol that can.
func resumeAnywhere(t *testing.T, s *judge.Server, a *agent, order, positions []string) {
	t.Helper()
	for i, at := range positions[:len(positions)-1] {
		rest := order[i+1:]
		epoch, offset := parts(at)
		check := func(w watcher) {
			t.Helper()
			for k, way := range rest {
				data, position := w.next()
				_, o := parts(positions[i+1+k])
				if want := fmt.Sprintf(`{"via":%q}`, way); data != want || position != positions[i+1+k] && position != o {
					t.Errorf("%s after %s: got %s at %s, want %s at %s", w.name, at, data, position, want, positions[i+1+k])
				}
			}
		}
		id := func(kind string) string { return fmt.Sprintf("%s %d", kind, i) }
		check(stream(t, a, s, id("sse"), "/sse?channel=news&lastEventId="+at))
		check(stream(t, a, s, id("mercure 07"), hubPath+"?topic=news&lastEventID="+at))
		check(stream(t, a, s, id("mercure 08"), hubPath+"?match=news&last_event_id="+at))
		ws := follow(t, s, "news", at)
		n := -1
		check(watcher{id("ws"), func() (string, string) {
			n++
			e := ws.next(t, n)
			return payload(e.Data), e.ID
		}})
		for _, tr := range transports(s.Public) {
			name := id(strings.ReplaceAll(tr.name, " ", "_"))
			tr.connect(a, s.Public, name, obj{"token": userToken(name, time.Hour, nil)})
			sub := subscribe(a, name, "news", obj{"recoverable": true, "since": obj{"offset": json.Number(offset), "epoch": epoch}})
			expect(t, "recovered", field(t, a.next(sub, "subscribed"), "recovered"), true)
			check(subscription(t, a, sub))
			a.call(name, "disconnect")
		}
	}
}

// The stream that needs no SDK resumes by Last-Event-ID, also by a position of
// another protocol.
func TestUnidirectionalStreamResumes(t *testing.T) {
	s := serve(t, together())
	a := nodeAgent(t)
	publishOwn(t, s, "news", `{"n":1}`)
	publishOwn(t, s, "news", `{"n":2}`)
	all := stream(t, a, s, "sse", "/sse?channel=news&lastEventId=0")
	_, at := all.next()
	connect, err := json.Marshal(obj{"token": userToken("u", time.Hour, nil), "subs": obj{"news": obj{}}})
	if err != nil {
		t.Fatal(err)
	}
	query := form("cf_connect", string(connect), "lastEventId", at).Encode()
	uni := stream(t, a, s, "uni", "/connection/uni_sse?"+query)
	push := func() (n int, id string) {
		for {
			data, id := uni.next()
			var p struct {
				Pub     *struct{ Data struct{ N int } }
				Connect *struct {
					Subs map[string]struct {
						Publications []struct{ Data struct{ N int } }
					}
				}
			}
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				t.Fatal(err)
			}
			switch {
			case p.Pub != nil:
				return p.Pub.Data.N, id
			case p.Connect != nil && len(p.Connect.Subs["news"].Publications) > 0:
				return p.Connect.Subs["news"].Publications[0].Data.N, id
			}
		}
	}
	if n, _ := push(); n != 2 {
		t.Errorf("resumed with %d, want 2", n)
	}
	s.Kill()
	s.Start()
	a.next("uni", "open")
	publishOwn(t, s, "news", `{"n":3}`)
	n, id := push()
	if n != 3 {
		t.Errorf("after the kill: %d, want 3", n)
	}
	// And back.
	publishOwn(t, s, "news", `{"n":4}`)
	if n, _ := push(); n != 4 {
		t.Errorf("then: %d, want 4", n)
	}
	back := stream(t, a, s, "back", "/sse?channel=news&lastEventId="+id)
	if data, _ := back.next(); data != `{"n":4}` {
		t.Errorf("back at /sse after %s: %s", id, data)
	}
}
