package nats

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// Without a campaign these servers would wait a minute for another leader.
func TestKilledLeaderIsReplacedAtOnce(t *testing.T) {
	cs := cluster(t)
	var ps []*process
	for _, c := range cs {
		c.Campaigns = true
		ps = append(ps, c.spawn(t))
	}
	ns := hub.Namespace{Name: "a", Replicas: 3}.WithDefaults()
	n := startOn(t, Config{URL: urls(cs)}, ns)
	n.Sub(&ns, "x", 0)
	n.Pub(&ns, "x", "1")
	b := n.Broker.(*Broker)
	s := b.all()[ns.LogName()]
	leader := ""
	hubtest.Until(t, patience, "all replicas to have the log", func() bool {
		in, err := s.look(t.Context())
		if leader = in.leader; err != nil || leader == "" {
			return false
		}
		var a streamAnswer
		if b.request(t.Context(), "STREAM.INFO."+s.name(), nil, &a) != nil || a.Cluster == nil || len(a.Cluster.Replicas) != 2 {
			return false
		}
		return a.Cluster.Replicas[0].Current && a.Cluster.Replicas[1].Current
	})
	for i, c := range cs {
		if c.Name == leader {
			ps[i].kill()
		}
	}
	p := hub.Publication{Channel: "a:x", Data: []byte("2"), IdempotencyKey: "2"}
	hubtest.Until(t, patience, "publishing to work", func() bool {
		_, err := n.Try(&ns, p)
		return err == nil
	})
	if got := n.Await(&ns, "x", 2); string(got[1].Data) != "2" {
		t.Errorf("delivered %q", got[1].Data)
	}
	if in, err := s.look(t.Context()); err != nil || in.leader == leader {
		t.Errorf("the leader is %s, %v, and %s was killed", in.leader, err, leader)
	}
}

// One of those that are left campaigns, another one in each group, and none without a majority.
func TestOneServerOfAGroupCampaigns(t *testing.T) {
	names := []string{"n0", "n1", "n2"}
	chosen := map[string]int{}
	for i := range 64 {
		group := fmt.Sprint("S-R3F-", i)
		var who []string
		for _, self := range names {
			g := server.RaftzGroup{QuorumNeeded: 3, Peers: map[string]server.RaftzGroupPeer{"x": {Name: "gone"}, "y": {Name: "cut off"}}}
			routed := map[string]bool{"another group's": true}
			for _, name := range names {
				if name != self {
					g.Peers[name], routed[name] = server.RaftzGroupPeer{Name: name}, true
				}
			}
			if campaigns(self, group, &g, routed) {
				who = append(who, self)
			}
			delete(routed, names[0])
			delete(routed, names[1])
			if campaigns(self, group, &g, routed) {
				t.Errorf("%s campaigns with at most two of five", self)
			}
		}
		if len(who) != 1 {
			t.Fatalf("in %s %v campaign", group, who)
		}
		chosen[who[0]]++
	}
	if len(chosen) != len(names) {
		t.Errorf("in 64 groups these campaign: %v", chosen)
	}
}
