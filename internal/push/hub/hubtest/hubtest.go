// Package hubtest is one conformance suite for every hub.Broker. A broker's own
// tests call Run with a Harness; what only that broker can do (restart on its
// files, lose its server) is tested beside it, with a Recorder from here.
package hubtest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Harness is one broker to be evaluated.
type Harness struct {
	// New returns a broker that is not started. All that one Harness returns are
	// nodes on the same logs, except where Alone is true.
	New func(t *testing.T) hub.Broker
	// Alone reports that a second broker does not see what the first one stored.
	Alone bool
	// Durability of the logs in this run; empty means hub.Stored.
	Durability hub.Durability
	// Replicas of the logs in this run; 0 means 1.
	Replicas int
	// Partitions of the namespaces in this run; 0 means 1. Each test but for those of several
	// partitions runs on one of them, another one each time.
	Partitions int
	// Late has the namespaces added to the started broker, which is a hub.Changer.
	Late bool
	// Patience is how long something that must happen may take; 0 means a minute.
	Patience time.Duration
	// Lose runs f and loses what is published on channel meanwhile on its way to b, which has
	// it subscribed; nil for a broker that delivers in the process, where nothing can be lost.
	Lose func(t *testing.T, b hub.Broker, ns *hub.Namespace, channel string, f func())
}

// runs numbers tests, so that those that share a server use different namespaces.
var runs atomic.Int64

// Run runs the suite; newHarness is called once per test. Most tests run in parallel, since they
// wait: for an age, a window, a server.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		f    func(*suite)
	}{
		{"MessageArrivesAsPublished", messageArrivesAsPublished},
		{"OffsetsRiseAcrossChannels", offsetsRiseAcrossChannels},
		{"PrevChainsEveryChannel", prevChainsEveryChannel},
		{"NamespacesHaveTheirOwnLogs", namespacesHaveTheirOwnLogs},
		{"OddChannelNamesStayApart", oddChannelNamesStayApart},
		{"PayloadsOfEverySizeArriveWhole", payloadsOfEverySizeArriveWhole},
		{"ErrorsAreTheSentinels", errorsAreTheSentinels},
		{"OneKeyStoresOnce", oneKeyStoresOnce},
		{"KeysAreTheirPublishersOwn", keysAreTheirPublishersOwn},
		{"AnotherMessageUnderAKeyIsRefused", anotherMessageUnderAKeyIsRefused},
		{"RetriesOfRemovedMessagesStoreNothing", retriesOfRemovedMessagesStoreNothing},
		{"KeysAreLookedUpWithoutStoring", keysAreLookedUpWithoutStoring},
		{"ConcurrentRetriesStoreOnce", concurrentRetriesStoreOnce},
		{"KeyIsForgottenAfterItsWindow", keyIsForgottenAfterItsWindow},
		{"LostMessagesAreReported", lostMessagesAreReported},
		{"SnapshotHoldsTheTail", snapshotHoldsTheTail},
		{"SnapshotAndLiveJoinExactly", snapshotAndLiveJoinExactly},
		{"ManyChannelsSubscribeAtOnce", manyChannelsSubscribeAtOnce},
		{"UnsubscribeEndsDelivery", unsubscribeEndsDelivery},
		{"HistoryPagesCoverTheLog", historyPagesCoverTheLog},
		{"RetentionIsTold", retentionIsReported},
		{"UntouchedChannelHasNoGap", untouchedChannelHasNoGap},
		{"AgeRemovesMessages", ageRemovesMessages},
		{"BytesBoundTheLog", bytesBoundTheLog},
		{"NoneStoresNothing", noneStoresNothing},
		{"SecondNodeSeesTheSame", secondNodeSeesTheSame},
		{"CloseAnswersEveryPublish", closeAnswersEveryPublish},
		{"StateIsTold", stateIsReported},
		{"NamespacesCanBeAdded", namespacesCanBeAdded},
		{"NamespacesCanBeChanged", namespacesCanBeChanged},
		{"AnAddedNamespaceIsTheSameOnEveryNode", addedOnEveryNode},
		{"AttributesArriveVerbatim", attributesArriveVerbatim},
		{"IDsAreFoundExactly", idsAreFoundExactly},
		{"IDsExpireWithTheirMessages", idsExpireWithTheirMessages},
		{"RemovedMessagesAreGone", removedMessagesAreGone},
		{"WholeNamespacesArrive", wholeNamespacesArrive},
		{"WholeHistoryPagesCoverTheLog", wholeHistoryPagesCoverTheLog},
		{"WholeSnapshotAndLiveJoinExactly", wholeSnapshotAndLiveJoinExactly},
		{"WholeNamespaceWithoutLogArrives", wholeNamespaceWithoutLogArrives},
		{"BusTellsInOrder", busDeliversInOrder},
		{"BusReachesOtherNodes", busReachesOtherNodes},
		{"ConditionsAreJudgedAtTheEnd", conditionsAreCheckedAtTheEnd},
		{"OneOfManyConditionsHolds", oneOfManyConditionsHolds},
		{"ForeignPositionsAreGaps", foreignPositionsAreGaps},
		{"LiveFollowsTheReplay", liveFollowsTheReplay},
		{"PartitionsResumeTogether", partitionsResumeTogether},
		{"ClosedArchiveSaysSo", closedArchiveSaysSo},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t)
			// What has work for all processors, or for the disk, does not wait.
			busy := c.name == "ManyChannelsSubscribeAtOnce" || c.name == "OffsetsRiseAcrossChannels"
			if !busy && h.Durability != hub.Synced {
				t.Parallel()
			}
			if h.Patience == 0 {
				h.Patience = time.Minute // two thousand subscriptions at once take 15 s at a load of 20
			}
			c.f(&suite{T: t, h: h, prefix: fmt.Sprintf("t%d", runs.Add(1))})
		})
	}
}

// A suite is one test under way.
type suite struct {
	*testing.T
	h      Harness
	prefix string
}

// namespace returns a namespace whose name no other test has.
func (s *suite) namespace(name string) hub.Namespace {
	ns := hub.Namespace{Name: s.prefix + "-" + name, Durability: s.h.Durability, Replicas: s.h.Replicas, Partitions: s.h.Partitions}.WithDefaults()
	return ns.InPartition(len(s.Name()) % ns.Partitions)
}

// withoutLog makes ns one that keeps no log, and has no partitions.
func withoutLog(ns *hub.Namespace) { ns.Durability, ns.Partitions, ns.Partition = hub.None, 1, 0 }

// start starts a broker on namespaces and closes it with the test.
func (s *suite) start(namespaces ...hub.Namespace) *Node {
	s.Helper()
	if !s.h.Late {
		return Start(s.T, s.h.New(s.T), s.h.Patience, namespaces...)
	}
	n := Start(s.T, s.h.New(s.T), s.h.Patience, hub.Namespace{Name: s.prefix + "-there", Durability: hub.None})
	for _, ns := range namespaces {
		if err := n.Add(ns); err != nil {
			s.Fatalf("add %q: %v", ns.Name, err)
		}
	}
	return n
}

// changerOf returns the broker as one whose namespaces change.
func changerOf(n *Node) hub.Changer {
	n.t.Helper()
	c, ok := n.Broker.(hub.Changer)
	if !ok {
		n.t.Fatal("the broker is not a hub.Changer")
	}
	return c
}

// Add adds a namespace.
func (n *Node) Add(ns hub.Namespace) error {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	return changerOf(n).Add(ctx, ns)
}

// Change gives a namespace other options.
func (n *Node) Change(ns hub.Namespace) error {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	return changerOf(n).Change(ctx, ns)
}

// A Node is a started broker with what it delivered.
type Node struct {
	hub.Broker
	*Recorder
	t        *testing.T
	patience time.Duration
}

// Start starts b and closes it at the end of the test.
func Start(t *testing.T, b hub.Broker, patience time.Duration, namespaces ...hub.Namespace) *Node {
	t.Helper()
	n := &Node{Broker: b, Recorder: NewRecorder(t), t: t, patience: patience}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := b.Start(ctx, namespaces, n.Deliver); err != nil {
		t.Fatalf("start: %v", err)
	}
	return n
}

// Subscribe is hub.Broker's.
func (n *Node) Subscribe(ctx context.Context, ns *hub.Namespace, channel string, tail int) (hub.Snapshot, error) {
	n.leave(channel)
	snap, err := n.Broker.Subscribe(ctx, ns, channel, tail)
	if err == nil {
		n.join(channel, snap.Top)
	}
	return snap, err
}

// Unsubscribe is hub.Broker's.
func (n *Node) Unsubscribe(ns *hub.Namespace, channel string) {
	n.leave(channel)
	n.Broker.Unsubscribe(ns, channel)
}

// context bounds one call.
func (n *Node) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), n.patience)
}

// Channel returns the full name of a channel in ns.
func Channel(ns *hub.Namespace, name string) string { return ns.Name + ":" + name }

// A Result is what a publish was answered with.
type Result struct {
	hub.Position
	Err error
}

// Go publishes and returns where the answer will be. An answer given twice fails the test.
func (n *Node) Go(ns *hub.Namespace, p hub.Publication) <-chan Result {
	c := make(chan Result, 1)
	var answered atomic.Bool
	n.Broker.Publish(ns, p, func(at hub.Position, err error) {
		if answered.Swap(true) {
			n.t.Errorf("publish to %q was answered twice", p.Channel)
			return
		}
		c <- Result{at, err}
	})
	return c
}

// Try publishes and waits for the answer.
func (n *Node) Try(ns *hub.Namespace, p hub.Publication) (hub.Position, error) {
	n.t.Helper()
	select {
	case r := <-n.Go(ns, p):
		return r.Position, r.Err
	case <-time.After(n.patience):
		n.t.Fatalf("publish to %q: no answer after %v", p.Channel, n.patience)
		panic("unreachable")
	}
}

// Pub publishes data to the channel called name and returns its position.
func (n *Node) Pub(ns *hub.Namespace, name, data string) hub.Position {
	n.t.Helper()
	p, err := n.Try(ns, hub.Publication{Channel: Channel(ns, name), Data: []byte(data)})
	if err != nil {
		n.t.Fatalf("publish to %q: %v", name, err)
	}
	return p
}

// Sub subscribes to the channel called name.
func (n *Node) Sub(ns *hub.Namespace, name string, tail int) hub.Snapshot {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	s, err := n.Subscribe(ctx, ns, Channel(ns, name), tail)
	if err != nil {
		n.t.Fatalf("subscribe %q: %v", name, err)
	}
	return s
}

// Page reads one page of the channel called name.
func (n *Node) Page(ns *hub.Namespace, name string, since uint64, limit int) hub.Page {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	p, err := n.History(ctx, ns, Channel(ns, name), since, limit)
	if err != nil {
		n.t.Fatalf("history of %q since %d: %v", name, since, err)
	}
	return p
}

// End returns the top of the log.
func (n *Node) End(ns *hub.Namespace) hub.Position {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	p, err := n.Top(ctx, ns)
	if err != nil {
		n.t.Fatalf("top of %q: %v", ns.Name, err)
	}
	return p
}

// Await waits until count messages have arrived on the channel called name and
// returns all that are there.
func (n *Node) Await(ns *hub.Namespace, name string, count int) []*hub.Message {
	n.t.Helper()
	channel := Channel(ns, name)
	n.Wait(n.patience, fmt.Sprintf("%d messages on %q", count, name), func() bool {
		return len(n.messages[channel]) >= count
	})
	return n.On(channel)
}

// texts returns the payloads of ms, joined: the form in which failures are printed.
func texts(ms []*hub.Message) string {
	var b strings.Builder
	for i, m := range ms {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.Write(m.Data)
	}
	return b.String()
}

func offsets(ms []*hub.Message) []uint64 {
	out := make([]uint64, 0, len(ms))
	for _, m := range ms {
		out = append(out, m.Offset)
	}
	return out
}
