package nats

import (
	"testing"
	"time"
)

// The times that quickElections replaces are those it was made for. If an update of
// nats-server changes them, look at how raft.go uses them and choose again; the rows
// "quick elections" of make test-freeze measure what comes of it.
func TestElectionTimesAreThoseOfTheServer(t *testing.T) {
	quickElections()
	if want := [...]time.Duration{4 * time.Second, 9 * time.Second, time.Second, 100 * time.Millisecond, 800 * time.Millisecond}; usualElection != want {
		t.Errorf("nats-server has %v, and had %v when these were chosen", usualElection, want)
	}
	if raftElectionMin != electionMin || raftElectionMax != electionMax || raftHeartbeat != heartbeat ||
		raftCampaignMin != campaignMin || raftCampaignMax != campaignMax {
		t.Errorf("set are %v, %v, %v, %v, %v", raftElectionMin, raftElectionMax, raftHeartbeat, raftCampaignMin, raftCampaignMax)
	}
}
