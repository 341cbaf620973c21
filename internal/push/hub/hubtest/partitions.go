package hubtest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A collector is a subscriber that keeps what it is given.
type collector struct {
	hub.Subscriber
	at   hub.Positions
	live bool
	gaps []hub.Gap
	got  map[string][]string // data by channel
	n    int
	err  error
}

func (c *collector) Start(at hub.Positions) { c.at = append(hub.Positions(nil), at...) }
func (c *collector) Live()                  { c.live = true }
func (c *collector) Room() bool             { return true }
func (c *collector) Gap(g hub.Gap)          { c.gaps = append(c.gaps, g) }
func (c *collector) Failed(err error)       { c.err = err }
func (c *collector) Deliver(b *hub.Batch) {
	for _, m := range b.Messages {
		if c.got == nil {
			c.got = map[string][]string{}
		}
		c.got[m.Channel] = append(c.got[m.Channel], string(m.Data))
		c.n++
	}
}

// collect subscribes and runs the shard until the subscriber is live and has want messages.
func (n *hubOn) collect(opt hub.SubscribeOptions, want int) *collector {
	n.s.Helper()
	c := &collector{}
	if err := n.shard.Subscribe(&c.Subscriber, c, opt); err != nil {
		n.s.Fatal(err)
	}
	n.until(fmt.Sprintf("%d messages", want), func() bool { return c.err != nil || c.live && c.n >= want })
	if c.err != nil {
		n.s.Fatal(c.err)
	}
	return c
}

// partitionsResumeTogether: channels of a partitioned namespace have the positions of their
// partitions, a stream over several resumes by one for each, and a lost one is a gap of that
// partition only.
func partitionsResumeTogether(s *suite) {
	ns := s.namespace("p")
	ns.Partitions, ns.Partition, ns.Recent = 4, 0, 8
	n := s.hub(ns)
	var channels []string
	parts := map[int]bool{}
	for i := range 12 {
		channels = append(channels, Channel(&ns, fmt.Sprint("c", i)))
		parts[ns.PartitionOf(channels[i])] = true
	}
	if len(parts) != ns.Partitions || n.Logs(channels) != ns.Partitions {
		s.Fatalf("12 channels are in partitions %v and %d logs, want all of %d", parts, n.Logs(channels), ns.Partitions)
	}
	live := n.collect(hub.SubscribeOptions{Channels: channels}, 0)
	if len(live.at) != ns.Partitions {
		s.Fatalf("a stream over all partitions starts at %v", live.at)
	}
	const rounds, seen = 5, 2
	last := map[int]hub.Position{} // by partition, after the first rounds
	for round := range rounds {
		for _, ch := range channels {
			at, k := n.publish(ch, fmt.Sprint(round)), ns.PartitionOf(ch)
			if !strings.HasPrefix(at.Epoch, fmt.Sprint(k, "_")) {
				s.Errorf("%s in partition %d is stored at %v", ch, k, at)
			}
			if round < seen {
				last[k] = at
			}
		}
	}
	all, rest := rounds*len(channels), (rounds-seen)*len(channels)
	n.until("all messages live", func() bool { return live.n == all })
	inOrder(s, "live", live, channels, 0, rounds)
	s.resumesEachPartition(n, channels, last, seen, rounds, rest)

	for _, ch := range channels {
		h, err := n.History(s.Context(), ch, hub.HistoryOptions{Limit: -1})
		if err != nil || len(h.Messages) != rounds {
			s.Errorf("history of %s: %d messages, %v", ch, len(h.Messages), err)
		}
	}
	s.refusesOneOrder(n, &ns, channels)
}

// resumesEachPartition resumes from the positions last of the partitions.
func (s *suite) resumesEachPartition(n *hubOn, channels []string, last map[int]hub.Position, seen, rounds, rest int) {
	s.Helper()
	var since hub.Positions
	for _, p := range last {
		since = append(since, p)
	}
	back, err := hub.ParsePositions(string(since.AppendTo(nil)))
	if err != nil {
		s.Fatal(err)
	}
	resumed := n.collect(hub.SubscribeOptions{Channels: channels, Since: back}, rest)
	if len(resumed.gaps) > 0 {
		s.Errorf("gaps %v after a resume in all partitions", resumed.gaps)
	}
	inOrder(s, "resumed", resumed, channels, seen, rounds)

	lost := append(hub.Positions(nil), back...)
	k := lost[0].Epoch[0] - '0'
	lost[0].Epoch = fmt.Sprint(k, "_elsewhere")
	var others []string
	for _, ch := range channels {
		if last[int(k)].Epoch != "" && s.partitionOf(ch) != int(k) {
			others = append(others, ch)
		}
	}
	gap := n.collect(hub.SubscribeOptions{Channels: channels, Since: lost}, (rounds-seen)*len(others))
	if len(gap.gaps) != 1 || gap.gaps[0].Reason != hub.GapEpoch || gap.gaps[0].To.Epoch != last[int(k)].Epoch {
		s.Errorf("partition %d lost its log: gaps %+v", k, gap.gaps)
	}
	inOrder(s, "beside a lost partition", gap, others, seen, rounds)
}

// partitionOf returns the partition of a channel of partitionsResumeTogether.
func (s *suite) partitionOf(channel string) int {
	ns := hub.Namespace{Partitions: 4, PartitionBy: hub.ByChannel}
	return ns.PartitionOf(channel)
}

// refusesOneOrder expects that what needs one order of the namespace is refused.
func (s *suite) refusesOneOrder(n *hubOn, ns *hub.Namespace, channels []string) {
	s.Helper()
	f := func(what string, err error) {
		s.Helper()
		if !errors.Is(err, hub.ErrPartitioned) {
			s.Errorf("%s: %v, want ErrPartitioned", what, err)
		}
	}
	f("subscribe to all", n.shard.Subscribe(new(hub.Subscriber), &collector{}, hub.SubscribeOptions{Channels: []string{hub.Whole(ns.Name)}}))
	_, err := n.Top(s.Context(), ns.Name)
	f("top", err)
	_, err = n.Lookup(s.Context(), ns.Name, "id")
	f("lookup", err)
	answer := make(chan error, 1)
	n.PublishTopics(channels[:2], hub.Publication{Data: []byte("x")}, func(_ hub.Position, err error) { answer <- err })
	f("publish to two channels", <-answer)
}

// inOrder compares what came on channels with the rounds from start to end.
func inOrder(s *suite, what string, c *collector, channels []string, begin, end int) {
	s.Helper()
	var want []string
	for round := begin; round < end; round++ {
		want = append(want, fmt.Sprint(round))
	}
	for _, ch := range channels {
		if got := strings.Join(c.got[ch], " "); got != strings.Join(want, " ") {
			s.Errorf("%s: %s got %q, want %q", what, ch, got, want)
		}
	}
}
