package mercure_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/hub"
)

// natsServer runs a NATS server until the test ends and returns its URL.
func natsServer(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server is not ready")
	}
	return s.ClientURL()
}

// Two nodes over one NATS: a client leaves one and resumes on the other, from ids that
// publishers gave and from positions, and nothing is missing or told twice.
func TestClientsMoveBetweenNodes(t *testing.T) {
	url := natsServer(t)
	join := func(netHTTP bool) *node {
		b, err := nats.New(nats.Config{URL: url}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return start(t, settings{broker: b, netHTTP: netHTTP, space: hub.Namespace{HistorySize: 20_000}})
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
		defer st.cancel()
		for i := from; i < count; i += step {
			if e := st.next(); e.data != strconv.Itoa(i) {
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
	expect(t, "on the other node", st.next(), event{id, "", "1"})
	expect(t, "on this one", far.next(), event{id, "", "1"})
	next := b.publish("topic=d&data=2")
	expect(t, "on the other node", far.next(), event{next, "", "2"})
	for _, n := range []*node{a, b} {
		st := n.subscribe("topic=e&topic=d", "Last-Event-ID", id)
		expect(t, "resumed", st.next(), event{next, "", "2"})
	}
	// The list of subscriptions is one.
	all := []string{"Authorization", "Bearer " + token07(t, subSecret, "subscribe", "*")}
	eventually(t, "all see the same", func() bool {
		_, _, x := a.request("GET", hubPath+"/subscriptions/d", "", all...)
		_, _, y := b.request("GET", hubPath+"/subscriptions/d", "", all...)
		return len(read(t, x).Subscriptions) == 3 && len(read(t, y).Subscriptions) == 3
	})
	began := time.Now()
	f(b, "urn:x:0", "topic=nothing", count, 1)
	t.Logf("an id of %d messages ago was found in %v", count, time.Since(began))
}
