package mercure_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Two nodes over one NATS: a client leaves one and resumes on the other, from ids that
// publishers gave and from positions, and nothing is missing or delivered twice.
func TestClientsMoveBetweenNodes(t *testing.T) {
	t.Parallel()
	url := natstest.Server(t)
	join := func(http2 bool) *node {
		b, err := nats.New(nats.Config{URL: url}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return start(t, settings{broker: b, http2: http2, space: hub.Namespace{HistorySize: 20_000}})
	}
	a, b := join(false), join(true)
	const count = 4_000
	at := a.fill(count, func(i int) string {
		if i%2 == 0 {
			return fmt.Sprint("urn:x:", i)
		}
		return ""
	})
	f := func(n *node, id, query string, from, step int) {
		t.Helper()
		st := n.subscribe(query, "Last-Event-ID", id)
		defer st.Stop()
		for i := from; i < count; i += step {
			if e := st.Next(); e.data != strconv.Itoa(i) {
				t.Fatalf("after %s of %s: %s, want %d", id, query, e, i)
			}
		}
	}
	f(b, "urn:x:100", "topic=a&topic=b", 101, 1)
	f(b, at[3001].String(), "topic={x}", 3002, 1)
	f(a, "urn:x:3000", "topic=b", 3001, 2)
	f(b, "earliest", "match=a", 0, 2)

	st, far := b.subscribe("topic=*"), a.subscribe("topic=c{x}&topic=d")
	id := a.publish("topic=c&topic=d&topic=e&data=1&id=urn:y")
	expect(t, "on the other node", st.Next(), event{id, "", "1"})
	expect(t, "on this one", far.Next(), event{id, "", "1"})
	next := b.publish("topic=d&data=2")
	expect(t, "on the other node", far.Next(), event{next, "", "2"})
	for _, n := range []*node{a, b} {
		st := n.subscribe("topic=e&topic=d", "Last-Event-ID", id)
		expect(t, "resumed", st.Next(), event{next, "", "2"})
	}
	// The list of subscriptions is one.
	all := []string{"Authorization", "Bearer " + token07(t, subSecret, "subscribe", "*")}
	trial.Eventually(t, "all see the same", func() bool {
		_, _, x := a.request("GET", hubPath+"/subscriptions/d", "", all...)
		_, _, y := b.request("GET", hubPath+"/subscriptions/d", "", all...)
		return len(read(t, x).Subscriptions) == 3 && len(read(t, y).Subscriptions) == 3
	})
	began := time.Now()
	f(b, "urn:x:0", "topic=nothing", count, 1)
	t.Logf("an id of %d messages ago was found in %v", count, time.Since(began))
}
