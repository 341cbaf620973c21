package app

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/nats"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A source is added, paused and resumed through the admin API, changed and removed, while the
// server runs.
func TestSourcesComeChangeAndGo(t *testing.T) {
	url := natstest.Server(t)
	nc, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	put := func(subject, data string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), subject, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	g := startLive(t, nil, Options{})
	state := func() ingest.State {
		t.Helper()
		r, body := g.do(t, http.MethodGet, "/api/sources", "")
		var list admin.SourceList
		if err := json.Unmarshal(body, &list); err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v", body, err)
		}
		if len(list.Sources) == 0 {
			return ingest.State{}
		}
		return list.Sources[0]
	}
	if s := state(); s.Name != "" {
		t.Errorf("a source that is not configured: %+v", s)
	}
	connection := nats.Config{URL: url, Stream: "ORDERS"}.WithDefaults()
	connection.URL = strings.Replace(url, "nats://", "nats://weir:hunter2@", 1) // the server wants no login
	source := config.Source{Config: ingest.Config{Name: "orders", Kind: "nats"}.WithDefaults(), NATS: &connection}
	put("orders.a", `"one"`)
	done := g.change(t, func(c *config.Config) { c.Sources = []config.Source{source} })
	if len(done.Applied) != 1 || done.Applied[0] != "sources[orders]" {
		t.Errorf("applied %q", done.Applied)
	}
	logged := func(channel, want string) {
		t.Helper()
		trial.Eventually(t, channel+" has "+want, func() bool {
			log, err := g.hub.History(t.Context(), channel, hub.HistoryOptions{Limit: -1})
			var all []string
			for _, m := range log.Messages {
				all = append(all, string(m.Data))
			}
			return err == nil && strings.Join(all, " ") == want
		})
	}
	logged("orders.a", `"one"`)
	if n := g.scraped(t, `weir_source_messages_total{outcome="published",source="orders"}`); n != 1 {
		t.Errorf("the metric counts %v published messages", n)
	}
	if r, body := g.do(t, http.MethodPost, "/api/sources/orders/pause", ""); r.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", r.StatusCode, body)
	}
	trial.Eventually(t, "it is paused", func() bool { return state().Phase == ingest.Paused })
	put("orders.a", `"two"`)
	for path, want := range map[string]int{"/api/sources/none/pause": 404, "/api/sources/orders/stop": 404, "/api/sources/orders/resume": 200} {
		if r, body := g.do(t, http.MethodPost, path, ""); r.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, r.StatusCode, body, want)
		}
	}
	logged("orders.a", `"one" "two"`)
	g.refused(t, "there is no namespace", func(c *config.Config) { c.Sources[0].Namespace = "none" })
	g.change(t, func(c *config.Config) { c.Sources[0].Channel = "all" })
	put("orders.b", `"three"`)
	logged("all", `"three"`)
	g.change(t, func(c *config.Config) { c.Sources = nil })
	if s := state(); s.Name != "" {
		t.Errorf("a source that was removed: %+v", s)
	}
}

// Of two nodes on one broker one reads; when it drains the other one takes over, and the log has
// every message once.
func TestOneNodeReadsASourceUntilItDrains(t *testing.T) {
	t.Parallel() // it mostly waits
	url := natstest.Server(t)
	nc, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	node := func() *gateway {
		return start(t, func(c *config.Config) {
			c.Broker = config.Broker{Kind: config.BrokerNATS}
			c.Broker.NATS.URL = url
			c.Cluster.Heartbeat, c.Cluster.Lease = hub.Duration(50*time.Millisecond), hub.Duration(time.Second)
			connection := nats.Config{URL: url, Stream: "ORDERS", AckWait: hub.Duration(200 * time.Millisecond)}.WithDefaults()
			c.Sources = []config.Source{{Config: ingest.Config{Name: "orders", Kind: "nats"}.WithDefaults(), NATS: &connection}}
		})
	}
	nodes := []*gateway{node(), node()}
	phase := func(i int) string { return nodes[i].sourceStates()[0].Phase }
	trial.Eventually(t, "one reads and one is on standby", func() bool {
		a, b := phase(0), phase(1)
		return a == ingest.Reading && b == ingest.Standby || a == ingest.Standby && b == ingest.Reading
	})
	reading := 0
	if phase(1) == ingest.Reading {
		reading = 1
	}
	put := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if _, err := js.Publish(t.Context(), "orders", []byte(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(0, 50)
	nodes[reading].stop() // it drains
	put(50, 100)
	var want []string
	for i := range 100 {
		want = append(want, strconv.Itoa(i))
	}
	trial.Eventually(t, "the other node has read the rest", func() bool {
		log, err := nodes[1-reading].hub.History(t.Context(), "orders", hub.HistoryOptions{Limit: -1})
		var all []string
		for _, m := range log.Messages {
			all = append(all, string(m.Data))
		}
		return err == nil && phase(1-reading) == ingest.Reading && slices.Equal(all, want)
	})
}
