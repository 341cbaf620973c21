package admin

import (
	"slices"
	"testing"
)

func TestTheProblemsOfAClusterAreSentences(t *testing.T) {
	f := func(c Cluster, want ...string) {
		t.Helper()
		c.FindProblems()
		if !slices.Equal(c.Problems, append([]string{}, want...)) {
			t.Errorf("%q, want %q", c.Problems, want)
		}
	}
	node := func(s NodeState) Cluster { return Cluster{Nodes: []ClusterNode{{Name: "n1", NodeState: s}}} }
	log := func(l ClusterLog) Cluster { l.Namespace = "a"; return Cluster{Logs: []ClusterLog{l}} }
	f(node(NodeState{Ready: "yes"}))
	f(node(NodeState{Ready: "draining", Draining: true}))
	f(node(NodeState{})) // of a version that does not say
	f(node(NodeState{Ready: "checking"}), "node n1 is not ready: checking")
	f(node(NodeState{Ready: "no", Degraded: []string{"disk-full"}}), "node n1 is degraded: disk-full")
	f(log(ClusterLog{Wanted: 1}))
	f(log(ClusterLog{Wanted: 3, Leader: "s1", Replicas: []ClusterReplica{{Name: "s2", Current: true}, {Name: "s3", Current: true}}}))
	f(log(ClusterLog{Wanted: 3}), "the log of namespace a has no leader")
	f(log(ClusterLog{Wanted: 3, Error: "timeout"}), "the log of namespace a: timeout")
	f(log(ClusterLog{Wanted: 3, Leader: "s1", Replicas: []ClusterReplica{{Name: "s2", Offline: true}, {Name: "s3", Lag: 7}}}),
		"the log of namespace a: replica s2 is offline", "the log of namespace a: replica s3 is 7 entries behind")
	f(log(ClusterLog{Sites: &ClusterSites{Leads: "a", Copy: "b"}}))
	f(log(ClusterLog{Sites: &ClusterSites{Leads: "a", Copy: "b", Lost: []string{"a"}}}),
		"site a, which leads the log of namespace a, does not answer; at site b it is taken over with weir cluster promote")
	f(log(ClusterLog{Sites: &ClusterSites{Leads: "b", Copy: "a", Lost: []string{"a"}, Kept: 3}}),
		"site a, which has the copy of the log of namespace a, does not answer", "site a has 3 messages of namespace a that site b lacks")
}
