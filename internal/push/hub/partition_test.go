package hub

import (
	"fmt"
	"strings"
	"testing"
)

// The partition of a channel is where its messages are stored: it must never change.
func TestPartitionOfChannelIsFixed(t *testing.T) {
	f := func(channel string, partitions int, by PartitionBy, want int) {
		t.Helper()
		n := Namespace{Partitions: partitions, PartitionBy: by}
		if got := n.PartitionOf(channel); got != want {
			t.Errorf("%s of %d by %s: partition %d, want %d", channel, partitions, by, got, want)
		}
	}
	f("news", 1, ByChannel, 0)
	f("news", 0, ByChannel, 0)
	f("news", 4, ByChannel, 3)
	f("orders:42", 4, ByChannel, 0)
	f("orders:43", 4, ByChannel, 1)
	f("orders:eu.42", 8, ByChannel, 7)
	f("orders:eu.42", 8, ByPrefix, 6)
	f("orders:eu.43", 8, ByPrefix, 6)
	f("orders:eu", 8, ByPrefix, 6)
}

func TestChannelsSpreadOverPartitions(t *testing.T) {
	for _, p := range []int{2, 3, 4, 5, 8} {
		n := Namespace{Partitions: p, PartitionBy: ByChannel}
		counts := make([]int, p)
		const channels = 100_000
		for i := range channels {
			counts[n.PartitionOf(fmt.Sprint("a:user-", i))]++
		}
		for k, c := range counts {
			if even := channels / p; c < even*97/100 || c > even*103/100 {
				t.Errorf("partition %d of %d has %d channels of %d", k, p, c, channels)
			}
		}
	}
}

func TestPartitionsAreValidated(t *testing.T) {
	f := func(n Namespace, want string) {
		t.Helper()
		n.Name = "a"
		if err := n.Validate(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", n, err, want)
		}
	}
	f(Namespace{}, "")
	f(Namespace{Partitions: 8, PartitionBy: ByPrefix}, "")
	f(Namespace{Partitions: 9}, "partitions: 9 is not within 1..8")
	f(Namespace{Partitions: -1}, "partitions: -1")
	f(Namespace{PartitionBy: "user"}, `partition_by: "user"`)
	f(Namespace{Partitions: 2, Durability: None}, "durability none")
	f(Namespace{Partitions: 2, Partition: 2}, "partition 2")
}

func TestLogNames(t *testing.T) {
	n := Namespace{Name: "a"}.WithDefaults()
	if n.LogName() != "a" || n.Title() != `"a"` || n.EpochPrefix() != "" {
		t.Errorf("one log is %s, %s, %q", n.LogName(), n.Title(), n.EpochPrefix())
	}
	n.Partitions = 3
	n = n.InPartition(2)
	if n.LogName() != "a@2" || n.Title() != `"a", partition 2 of 3` || n.EpochPrefix() != "2_" || n.LogBytes() != 1<<30/3 {
		t.Errorf("partition 2 is %s, %s, %q, %d bytes", n.LogName(), n.Title(), n.EpochPrefix(), n.LogBytes())
	}
	if got := LogOf("a", "2_AbCd"); got != (Log{"a", "2_"}) {
		t.Errorf("log of an epoch: %v", got)
	}
	if got := LogOf("a", "AbCd"); got != (Log{"a", ""}) {
		t.Errorf("log of an epoch without partition: %v", got)
	}
}

// The epoch of every partition starts anew by itself, and Plan refuses another number.
func TestPlanRefusesOtherPartitions(t *testing.T) {
	h, err := New(Config{Namespaces: []Namespace{{Name: "a", Partitions: 2}}}, stuckBroker{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []Namespace{{Name: "a"}, {Name: "a", Partitions: 4}, {Name: "a", Partitions: 2, PartitionBy: ByPrefix}} {
		if _, err := h.Plan([]Namespace{n}); err == nil || !strings.Contains(err.Error(), "fixed for the life of the logs") {
			t.Errorf("%d by %s: %v", n.Partitions, n.PartitionBy, err)
		}
	}
}
