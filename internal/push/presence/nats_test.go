package presence_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// onNATS starts a node over the real bus. kill ends it without leave messages.
func onNATS(t *testing.T, url string) (p *presence.Presence, c *cluster.Cluster, kill func()) {
	t.Helper()
	b, err := nats.New(nats.Config{URL: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), []hub.Namespace{{Name: "default"}}, func(*hub.Message) {}); err != nil {
		t.Fatal(err)
	}
	c, err = cluster.New(cluster.Config{Heartbeat: hub.Duration(100 * time.Millisecond), Lease: hub.Duration(2 * time.Second)}, b.Bus(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = presence.New(presence.Config{}, c, b.Bus(), nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{p.Run, c.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	kill = sync.OnceFunc(func() {
		_ = b.Close() // first, so that no node receives the leave messages
		cancel()
		wg.Wait()
	})
	t.Cleanup(kill)
	return p, c, kill
}

func TestPresenceOverNATS(t *testing.T) {
	url := natstest.Server(t)
	var nodes []*presence.Presence
	var kills []func()
	var clusters []*cluster.Cluster
	for range 3 {
		p, c, kill := onNATS(t, url)
		nodes, clusters, kills = append(nodes, p), append(clusters, c), append(kills, kill)
	}
	for i, p := range nodes {
		for j := range 1000 {
			m := presence.Member{Client: fmt.Sprint(j), User: fmt.Sprint("u", j%10), Info: make([]byte, 2000)}
			if err := p.Join(fmt.Sprint("room", j%10), m); err != nil {
				t.Fatal(err)
			}
		}
		p.Add("plain", presence.Mercure, i+1)
	}
	see := func(p *presence.Presence, members int64, subs int) func() bool {
		return func() bool { return p.Stats().Members == members && p.Subscriptions("plain", presence.Mercure) == subs }
	}
	for _, p := range nodes {
		trial.Eventually(t, "all see all", see(p, 3000, 6))
	}
	late, _, _ := onNATS(t, url)
	trial.Eventually(t, "who comes late as well", see(late, 3000, 6))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	clusters[1].Handle("big", func(string, []byte) []byte { return make([]byte, 3<<20) })
	answer, err := clusters[0].RequestNode(ctx, clusters[1].Self(), "big", nil)
	if err != nil || len(answer) != 3<<20 {
		t.Errorf("an answer of %d bytes, %v", len(answer), err)
	}
	kills[0]()
	for _, p := range []*presence.Presence{nodes[1], nodes[2], late} {
		trial.Eventually(t, "a dead node's members are gone", see(p, 2000, 5))
		clients, users := p.Count("room3")
		want(t, "count", fmt.Sprint(clients, " ", users), "200 1")
	}
}
