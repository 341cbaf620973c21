package admin

import (
	"fmt"
	"net/http"
	"time"
)

// A Cluster is the nodes and logs as one node sees them: GET /api/cluster.
type Cluster struct {
	// Node is the id of the node that answers, Server the NATS server that it is connected
	// to; empty: none.
	Node   string        `json:"node"`
	Server string        `json:"server"`
	Nodes  []ClusterNode `json:"nodes"`
	Logs   []ClusterLog  `json:"logs"`
	// Problems say what is wrong, in sentences; empty: nothing.
	Problems []string `json:"problems"`
}

// NodeState is what a node sends the others with each heartbeat: its health and its load.
type NodeState struct {
	// Rate is in reconnections per second: what a half of the node's idle processor time is
	// enough for. Free is the number of connections that it has room for.
	Rate float64 `json:"rate"`
	Free int     `json:"free"`
	// Draining nodes accept no new clients.
	Draining bool `json:"draining,omitempty"`
	// Ready is "yes" or why not; empty: a node of a version that does not say.
	Ready string `json:"ready,omitempty"`
	// Degraded are the names of its degraded modes.
	Degraded    []string `json:"degraded,omitempty"`
	Connections int      `json:"connections"`
	MaxConns    int      `json:"max_conns"`
	Channels    int64    `json:"channels"`
	// Published and Delivered are messages per second, CPU the share of the machine's
	// processor time that the process uses, P99 the time from publish to socket in seconds.
	Published float64 `json:"published_per_second"`
	Delivered float64 `json:"delivered_per_second"`
	CPU       float64 `json:"cpu"`
	P99       float64 `json:"delivery_p99_seconds"`
	// LimitNodes is how many nodes share rate limits with it, itself included; 0: it shares none.
	LimitNodes int `json:"limit_nodes,omitempty"`
}

// A ClusterNode is a node that lives.
type ClusterNode struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Silent is the time since its last heartbeat.
	Silent float64 `json:"silent_seconds"`
	Self   bool    `json:"self"`
	NodeState
}

// A ClusterLog is the log of a namespace, or of one of its partitions.
type ClusterLog struct {
	Namespace string `json:"namespace"`
	// Partition is which of Partitions it is, from 0; Partitions is 1 for a namespace with one log.
	Partition  int    `json:"partition"`
	Partitions int    `json:"partitions"`
	Epoch      string `json:"epoch,omitempty"`
	Last       uint64 `json:"last"`
	Messages   uint64 `json:"messages"`
	Bytes      uint64 `json:"bytes"`
	// Leader is the NATS server that leads it; empty: none does, or it is stored by one
	// server alone.
	Leader   string           `json:"leader,omitempty"`
	Wanted   int              `json:"replicas_wanted"`
	Replicas []ClusterReplica `json:"replicas"` // the leader's followers
	Error    string           `json:"error,omitempty"`
	// Sites is how two sites have it; nil with one site.
	Sites *ClusterSites `json:"sites,omitempty"`
}

// ClusterSites is a log that one site leads and the other has a copy of.
type ClusterSites struct {
	Leads string `json:"leads"`
	// Term is how often another site has taken the log over.
	Term uint64 `json:"term"`
	Copy string `json:"copy"`
	// Behind is how many messages the copy lacks. Whole says that it has had everything which is
	// acknowledged, so that it can take over without a gap.
	Behind uint64 `json:"behind"`
	Whole  bool   `json:"whole"`
	// Alone reports that publications are acknowledged without the copy.
	Alone bool     `json:"alone"`
	Lost  []string `json:"lost"` // the sites that do not answer
	// Kept are messages that only the site with the copy has, from the time when it led.
	Kept uint64 `json:"kept"`
}

func (s *ClusterSites) findProblems(name string, add func(string, ...any)) {
	if s == nil {
		return
	}
	for _, site := range s.Lost {
		if site == s.Leads {
			add("site %s, which leads the log of namespace %s, does not answer; at site %s it is taken over with weir cluster promote", site, name, s.Copy)
		} else {
			add("site %s, which has the copy of the log of namespace %s, does not answer", site, name)
		}
	}
	if s.Kept > 0 {
		add("site %s has %d messages of namespace %s that site %s lacks", s.Copy, s.Kept, name, s.Leads)
	}
}

// A ClusterReplica is a follower of a log.
type ClusterReplica struct {
	Name    string  `json:"name"`
	Current bool    `json:"current"`
	Offline bool    `json:"offline"`
	Lag     uint64  `json:"lag"` // entries that it lacks
	Silent  float64 `json:"silent_seconds"`
}

// Name is the namespace's, with the partition if it has several: "orders, partition 2".
func (l *ClusterLog) Name() string {
	if l.Partitions <= 1 {
		return l.Namespace
	}
	return fmt.Sprintf("%s, partition %d", l.Namespace, l.Partition)
}

// State is one word for how the node fares.
func (n *ClusterNode) State() string {
	switch {
	case n.Draining:
		return "draining"
	case len(n.Degraded) > 0:
		return n.Degraded[0]
	case n.Ready == "":
		return "unknown"
	case n.Ready != "yes":
		return "not ready"
	}
	return "ready"
}

// Copies is how many servers have the whole log.
func (l *ClusterLog) Copies() int {
	n := 1
	for i := range l.Replicas {
		if r := &l.Replicas[i]; r.Current && !r.Offline {
			n++
		}
	}
	return n
}

// Lag is what the follower lacks that lacks most.
func (l *ClusterLog) Lag() (most uint64) {
	for i := range l.Replicas {
		most = max(most, l.Replicas[i].Lag)
	}
	return most
}

// promote answers POST /api/cluster/promote.
func promote(src *Sources, w http.ResponseWriter, r *http.Request) {
	if err := src.Promote(r.Context(), r.URL.Query()["namespace"]); err != nil {
		writeError(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	if src.Starting != nil && src.Starting() {
		writeJSON(w, http.StatusOK, &Cluster{Problems: []string{"the node takes over the logs as it starts"}})
		return
	}
	writeJSON(w, http.StatusOK, src.Cluster(r.Context()))
}

// FindProblems fills in Problems.
func (c *Cluster) FindProblems() {
	c.Problems = []string{}
	add := func(format string, a ...any) { c.Problems = append(c.Problems, fmt.Sprintf(format, a...)) }
	for i := range c.Nodes {
		switch n := &c.Nodes[i]; {
		case n.Draining, n.Ready == "yes" && len(n.Degraded) == 0, n.Ready == "":
		case len(n.Degraded) > 0:
			add("node %s is degraded: %s", n.Name, n.Degraded[0])
		default:
			add("node %s is not ready: %s", n.Name, n.Ready)
		}
	}
	for i := range c.Logs {
		l := &c.Logs[i]
		l.Sites.findProblems(l.Name(), add)
		switch {
		case l.Error != "":
			add("the log of namespace %s: %s", l.Name(), l.Error)
			continue
		case l.Wanted > 1 && l.Leader == "":
			add("the log of namespace %s has no leader", l.Name())
		}
		for j := range l.Replicas {
			switch r := &l.Replicas[j]; {
			case r.Offline:
				add("the log of namespace %s: replica %s is offline", l.Name(), r.Name)
			case !r.Current:
				add("the log of namespace %s: replica %s is %d entries behind", l.Name(), r.Name, r.Lag)
			}
		}
	}
}
