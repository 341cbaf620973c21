package nats

import (
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	natsgo "github.com/nats-io/nats.go"
)

// A group of replicas elects another leader when it has received nothing from its leader
// for 4 to 9 seconds: constants of nats-server, which has no option for them. Servers
// inside Weir, which form clusters among themselves only, need less. A follower still
// waits longer than the second between the heartbeats of nodes with the usual times.
//
// docs/design/frozen-servers.md says why this reaches into the server, and what it brings.
const (
	electionMin = 1500 * time.Millisecond
	electionMax = 2500 * time.Millisecond
	heartbeat   = 400 * time.Millisecond
	// A follower that is to campaign, see campaign, or that refuses another's older log, does so after a
	// random time between these.
	campaignMin = 50 * time.Millisecond
	campaignMax = 250 * time.Millisecond
)

// If an update of nats-server removes one of these, the program does not link; the test
// fails if their values change.
//
//go:linkname raftElectionMin github.com/nats-io/nats-server/v2/server.minElectionTimeout
var raftElectionMin time.Duration

//go:linkname raftElectionMax github.com/nats-io/nats-server/v2/server.maxElectionTimeout
var raftElectionMax time.Duration

//go:linkname raftHeartbeat github.com/nats-io/nats-server/v2/server.hbInterval
var raftHeartbeat time.Duration

//go:linkname raftCampaignMin github.com/nats-io/nats-server/v2/server.minCampaignTimeout
var raftCampaignMin time.Duration

//go:linkname raftCampaignMax github.com/nats-io/nats-server/v2/server.maxCampaignTimeout
var raftCampaignMax time.Duration

// usualElection are the server's own times, from quickElections on.
var usualElection [5]time.Duration

// quickElections sets the times, for all servers of this process. It is called before the
// first one starts that has a cluster: only those read them.
var quickElections = sync.OnceFunc(func() {
	usualElection = [...]time.Duration{raftElectionMin, raftElectionMax, raftHeartbeat, raftCampaignMin, raftCampaignMax}
	raftElectionMin, raftElectionMax, raftHeartbeat = electionMin, electionMax, heartbeat
	raftCampaignMin, raftCampaignMax = campaignMin, campaignMax
})

// elections wakes those who wait for the leader of a log. The zero value is ready.
type elections struct {
	mu      sync.Mutex
	changed chan struct{} // closed with the next one; nil while no one waits
}

// next returns what is closed when a log has another leader.
func (e *elections) next() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// note wakes all. It is the client library's callback for the news of an election.
func (e *elections) note(*natsgo.Msg) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}
