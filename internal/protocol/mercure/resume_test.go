package mercure_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// fill publishes many updates through the hub itself, which is quicker: a and b in
// turn, with an id where id gives one. It returns their positions.
func (n *node) fill(count int, id func(i int) string) []hub.Position {
	n.T.Helper()
	type answer struct {
		i   int
		at  hub.Position
		err error
	}
	answers := make(chan answer, count)
	for i := range count {
		p := hub.Publication{Channel: "mercure:" + []string{"a", "b"}[i%2], Data: []byte(strconv.Itoa(i))}
		if v := id(i); v != "" {
			p.Attributes = &hub.Attributes{ID: v}
		}
		n.Hub.Publish(p, func(at hub.Position, err error) { answers <- answer{i, at, err} })
	}
	out := make([]hub.Position, count)
	for range count {
		a := <-answers
		if a.err != nil {
			n.T.Fatal(a.err)
		}
		out[a.i] = a.at
	}
	return out
}

// TestResumeIsExactAtAnyLength resumes from ids far back in a long history.
func TestResumeIsExactAtAnyLength(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, s settings) {
		const count = 12_000
		s.space = hub.Namespace{HistorySize: 20_000}
		n := start(t, s)
		at := n.fill(count, func(i int) string {
			if i%3 == 0 {
				return fmt.Sprint("urn:x:", i)
			}
			return ""
		})
		f := func(id, query string, from, step int) {
			t.Helper()
			st := n.subscribe(query, "Last-Event-ID", id)
			expect(t, "header for "+id, st.head.Get("Last-Event-ID")+st.head.Get("Mercure-Last-Event-ID"), id)
			for i := from; i < count; i += step {
				if e := st.Next(); e.data != strconv.Itoa(i) {
					t.Fatalf("after %s of %s: %s, want %d", id, query, e, i)
				}
			}
			st.Stop()
		}
		f("earliest", "topic=*", 0, 1)
		f("earliest", "topic=b", 1, 2)
		f("urn:x:300", "topic=*", 301, 1)
		f("urn:x:300", "topic=a", 302, 2)
		f("urn:x:300", "match=b", 301, 2)
		f("urn:x:9", "match_urlpattern="+q("/.well-known/a"), 10, 2) // "a", beside the hub's URL
		f(at[500].String(), "topic=a&topic=b", 501, 1)
		f(at[count-1].String(), "topic=*", count, 1)
		st := n.subscribe("topic=a", "Last-Event-ID", at[count-3].String())
		expect(t, "live after replay", st.Next().data, strconv.Itoa(count-2))
		n.publish("topic=a&data=live")
		expect(t, "live after replay", st.Next().data, "live")
	})
}

func TestWhereAClientSaysItResumes(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		s.quiet = true
		n := start(t, s)
		n.publish("topic=a&id=one&data=1")
		two := n.publish("topic=a&data=2")
		n.publish("topic=a&id=one&data=3") // used again: the earliest counts
		n.publish("topic=a&data=4")
		f := func(query, header, want string, answer string) {
			t.Helper()
			var h []string
			if header != "" {
				h = []string{"Last-Event-ID", header}
			}
			st := n.subscribe(query, h...)
			expect(t, query+" header", st.head.Get("Last-Event-ID")+st.head.Get("Mercure-Last-Event-ID"), answer)
			expect(t, query, strings.Join(st.data(len(strings.Fields(want))), " "), want)
			n.publish("topic=a&private&data=no")
			n.publish("topic=a&type=probe&data=live")
			e := st.Next()
			expect(t, query+" continues live", e.kind+e.data, "probelive")
			st.Stop()
		}
		// The probes of each are updates as well: those before come first.
		f("topic=a&lastEventID=one", "", "2 3 4", "one")
		f("topic=a&Last-Event-ID="+two, "", "3 4 live", two)
		f("match=a&last_event_id=one", "", "2 3 4 live live", "one")
		f("topic=a&lastEventID=one", two, "3 4 live live live", two) // the header wins
		f("topic=a&lastEventID=unknown", "", "", strings.TrimSuffix(n.top(), "."))
		named := n.publish("topic=b&data=x&id=urn:last")
		f("topic=a&lastEventID=unknown", "", "", named)
		n.publish("topic=b&data=x&id=urn:secret&private")
		f("topic=a&lastEventID=unknown", "", "", n.top())
		f("match=a&last_event_id=unknown", "", "", "earliest")
		f("topic=a&lastEventID=other-5", "", "", strings.TrimSuffix(n.top(), "."))
		f("topic=a&lastEventID="+n.future(), "", "", strings.TrimSuffix(n.top(), "."))
		f("topic=a&lastEventID=", "", "", "")
		f("match=a&last_event_id=", "", "", n.top())
		f("topic=a", "", "", "")
	})
}

func (n *node) top() string {
	n.T.Helper()
	at, err := n.Hub.Top(n.T.Context(), "mercure")
	if err != nil {
		n.T.Fatal(err)
	}
	return at.String() + "."
}

// future is a position of the log that has not come yet.
func (n *node) future() string {
	n.T.Helper()
	at, err := n.Hub.Top(n.T.Context(), "mercure")
	if err != nil {
		n.T.Fatal(err)
	}
	at.Offset += 1000
	return at.String()
}

// Anyone who resumes from one copy of an update on several topics does not get another.
func TestResumeFromAnAlternateRepeatsNothing(t *testing.T) {
	n := start(t, settings{})
	n.publish("topic=x&data=0")
	id := n.publish("topic=a&topic=b&topic=c&data=1&id=urn:1")
	other := n.publish("topic=a&topic=b&data=2")
	n.publish("topic=b&data=3")
	for _, query := range []string{"topic=a&topic=b", "topic=b", "topic=*", "topic=c&topic=b", "match_urlpattern=" + q("/.well-known/:x") + "&match=b"} {
		st := n.subscribe(query, "Last-Event-ID", id)
		expect(t, query, st.data(2), []string{"2", "3"})
		st.Stop()
		st = n.subscribe(query, "Last-Event-ID", other)
		expect(t, query+" after the next", st.data(1), []string{"3"})
		st.Stop()
	}
	st := n.subscribe("topic=*", "Last-Event-ID", "earliest")
	expect(t, "all", st.data(4), []string{"0", "1", "2", "3"})
}

func TestResumeKeepsPrivateUpdatesPrivate(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		n.publish("topic=a&data=1")
		n.publish("topic=a&private&data=2")
		n.publish("topic=b&topic=a&private&data=3")
		n.publish("topic=a&data=4")
		for _, query := range []string{"topic=a", "topic=*", "match=a", "topic=a&topic=b"} {
			st := n.subscribe(query, "Last-Event-ID", "earliest")
			expect(t, query, st.data(2), []string{"1", "4"})
			st.Stop()
			st = n.subscribe(query, "Last-Event-ID", "earliest", "Authorization", "Bearer "+token07(t, subSecret, "subscribe", "a"))
			expect(t, query+" with a grant", st.data(4), []string{"1", "2", "3", "4"})
			st.Stop()
		}
	})
}
