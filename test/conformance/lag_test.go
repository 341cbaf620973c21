package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A reader is one of the subscribers of TestStoppedReaders… and what it was given.
type reader struct {
	name string
	stop bool // it is one of those that stop

	// Owned by its subscriber until that has ended.
	numbers []int // of the messages, in order
	gaps    []judge.Event
	ends    []string
	wrong   []string

	// Any goroutine.
	last     atomic.Int64 // the newest number
	sessions atomic.Int64
}

func (r *reader) on(e judge.Event) {
	switch e.Kind {
	case "gap":
		r.gaps = append(r.gaps, e)
		var gap struct{ From, To string }
		if err := json.Unmarshal(e.Data, &gap); err != nil || offsetOf(gap.From) >= offsetOf(gap.To) {
			r.wrong = append(r.wrong, fmt.Sprintf("gap %s", e.Data))
			return
		}
		// Numbers are offsets: a gap counts as those it names.
		for n := offsetOf(gap.From) + 1; n <= offsetOf(gap.To); n++ {
			r.numbers = append(r.numbers, -n)
		}
	case "end":
		r.ends = append(r.ends, string(e.Data))
	default:
		var payload string
		err := json.Unmarshal(e.Data, &payload)
		number, _, _ := strings.Cut(payload, " ")
		n, nerr := strconv.Atoi(number)
		if err != nil || nerr != nil || n != offsetOf(e.ID) || len(payload) != lagPayload {
			r.wrong = append(r.wrong, fmt.Sprintf("message %.40q with id %q", e.Data, e.ID))
			return
		}
		r.numbers = append(r.numbers, n)
		r.last.Store(int64(n))
	}
}

// offsetOf reads the offset of "<epoch>-<offset>.<check>", -1 if it has none.
func offsetOf(token string) int {
	_, rest, _ := strings.Cut(token, "-")
	offset, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(offset)
	if err != nil {
		return -1
	}
	return n
}

const (
	lagPayload  = 1 << 10
	lagMessages = 191 // KiB: twice what a stopped reader's socket and queue take
	lagQueue    = 16 << 10
	lagKeys     = 7
	lagReaders  = 500 // of each transport, one in ten of which stops
)

func lagKey(payload string) string {
	number, _, _ := strings.Cut(payload, " ")
	n, _ := strconv.Atoi(number)
	return strconv.Itoa(n % lagKeys)
}

// A crowd reads one channel, and one in ten of it stops.
type crowd struct {
	t       *testing.T
	s       *judge.Server
	p       *judge.Publisher
	readers []*reader
	tap     judge.Tap
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

func newCrowd(t *testing.T, policy string) *crowd {
	judge.Descriptors(t, 4*lagReaders+1000)
	config := judge.Namespace(map[string]any{
		"policy": policy, "queue_bytes": lagQueue, "max_message_bytes": 2 * lagPayload, "recent": 64,
	})
	config["eventloop"] = map[string]any{"write_stall": "10m", "user_timeout": "10m", "notsent_lowat": 16 << 10} // only the policy ends them
	c := &crowd{t: t, s: judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Config: config})}
	c.p = &judge.Publisher{Addr: c.s.Public, Key: lagKey}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	for i := range 2 * lagReaders {
		r := &reader{name: fmt.Sprintf("%s %d", []string{"sse", "websocket"}[i%2], i), stop: i/2%10 == 0}
		c.readers = append(c.readers, r)
		s := &judge.Subscriber{Addr: c.s.Public, Socket: i%2 == 1, Channels: []string{"a"}, On: r.on, Up: func(int) { r.sessions.Add(1) }}
		if r.stop {
			s.Dial = c.tap.Dial
		}
		c.wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		})
	}
	t.Cleanup(c.leave)
	judge.Eventually(t, 60*time.Second, "all are subscribed", func() bool {
		return !slices.ContainsFunc(c.readers, func(r *reader) bool { return r.sessions.Load() == 0 })
	})
	return c
}

func (c *crowd) leave() {
	c.cancel()
	c.tap.Open()
	c.wg.Wait()
}

// publish publishes messages from..to, whose numbers are to be their offsets.
func (c *crowd) publish(from, to int) {
	c.t.Helper()
	for n := from; n <= to; n++ {
		text := strconv.Itoa(n) + " "
		if err := c.p.Publish(c.t.Context(), "a", text+strings.Repeat("x", lagPayload-len(text))); err != nil {
			c.t.Fatal(err)
		}
	}
}

// have waits until those that stop, or the others, have message n.
func (c *crowd) have(n int, stop bool, what string) {
	c.t.Helper()
	judge.Eventually(c.t, 60*time.Second, what, func() bool {
		return !slices.ContainsFunc(c.readers, func(r *reader) bool { return r.stop == stop && r.last.Load() < int64(n) })
	})
}

// stoppedReaders has one reader in ten stop while messages are published, until
// the policy has done something to each of those; the others miss nothing and
// what is held stays within the budget. Then they read again, and everything
// that was held is gone.
func stoppedReaders(t *testing.T, policy string, acted func(c *crowd) bool, verdict func(r *reader) string) {
	t.Helper()
	c := newCrowd(t, policy)
	c.publish(1, 1)
	c.have(1, false, "the others have the first message")
	c.have(1, true, "those that will stop have the first message")
	const slow = 2 * lagReaders / 10
	before := settled(t, c.s.Memory)
	c.tap.Shut()
	var held, lagging, memory int64
	for n := 2; n <= lagMessages; n += 19 {
		c.publish(n, n+18)
		c.have(n+18, false, fmt.Sprintf("the others have message %d while some read nothing", n+18))
		held = max(held, int64(c.s.Metric("weir_subscribers_lagging_bytes")))
		lagging = max(lagging, int64(c.s.Metric("weir_subscribers_lagging_messages")))
		memory = max(memory, c.s.Memory())
	}
	judge.Eventually(t, 30*time.Second, "the policy has acted on all that stopped", func() bool { return acted(c) })
	t.Logf("%s: %d of %d stopped; at most %d bytes in %d messages held, memory grew by %d KiB", policy, slow, len(c.readers), held, lagging, (memory-before)>>10)
	if held == 0 || held > slow*lagQueue {
		t.Errorf("%d bytes were held, want some and at most %d", held, slow*lagQueue)
	}
	// What is held is shared with the log; the rest is the collector's.
	if budget := int64(slow*lagQueue + lagMessages*lagPayload + 16<<20); memory-before > budget {
		t.Errorf("memory grew by %d bytes, want at most %d", memory-before, budget)
	}
	c.tap.Open()
	c.have(c.newest(), true, "those that stopped have the newest message")
	c.publish(c.newest()+1, c.newest()+1)
	c.have(c.newest(), true, "those that stopped have the next message")
	c.have(c.newest(), false, "the others have the next message")
	for _, name := range []string{"weir_subscribers_lagging_bytes", "weir_subscribers_lagging_messages"} {
		judge.Eventually(t, 10*time.Second, name+" is 0 again", func() bool { return c.s.Metric(name) == 0 })
	}
	c.leave()
	for _, r := range c.readers {
		switch {
		case len(r.wrong) > 0:
			t.Errorf("%s: %s", r.name, r.wrong[0])
		case !r.stop && (r.sessions.Load() != 1 || len(r.gaps) > 0 || !complete(r.numbers, c.newest())):
			t.Errorf("%s did not stop: %d sessions (%s), %d gaps, numbers %v", r.name, r.sessions.Load(), r.ends, len(r.gaps), r.numbers)
		case r.stop:
			if what := verdict(r); what != "" {
				t.Errorf("%s stopped: %s: %d sessions (%s), %d gaps, numbers %v", r.name, what, r.sessions.Load(), r.ends, len(r.gaps), r.numbers)
			}
		}
		if t.Failed() {
			return // they are many
		}
	}
}

// newest is the number of the last message published.
func (c *crowd) newest() int { return len(c.p.Acked()) }

// complete reports whether numbers are 1 to n, each once and in order.
func complete(numbers []int, n int) bool {
	return len(numbers) == n && slices.Equal(numbers, slices.Collect(upTo(n)))
}

func upTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := 1; i <= n && yield(i); i++ {
		}
	}
}

func TestStoppedReadersAreDisconnected(t *testing.T) {
	stoppedReaders(t, "disconnect", func(c *crowd) bool {
		return c.s.Metric("weir_subscribers_closed_total") == 2*lagReaders/10
	}, func(r *reader) string {
		switch {
		case r.sessions.Load() < 2:
			return "it was not disconnected"
		case len(r.gaps) > 0 || !complete(r.numbers, lagMessages+1):
			return "it did not resume exactly"
		}
		return ""
	})
}

func TestStoppedReadersMissTheOldest(t *testing.T) {
	stoppedReaders(t, "drop-oldest", dropped, func(r *reader) string {
		all := slices.Clone(r.numbers)
		for i, n := range all {
			all[i] = max(n, -n)
		}
		switch {
		case r.sessions.Load() != 1:
			return "it was disconnected"
		case len(r.gaps) == 0:
			return "it missed nothing"
		case !complete(all, lagMessages+1):
			return "its messages and gaps are not the whole"
		}
		return ""
	})
}

func dropped(c *crowd) bool { return c.s.Metric("weir_messages_dropped_total") > 0 }

func TestStoppedReadersGetTheNewestOfEachKey(t *testing.T) {
	stoppedReaders(t, "conflate", dropped, func(r *reader) string {
		switch {
		case r.sessions.Load() != 1:
			return "it was disconnected"
		case len(r.gaps) > 0:
			return "it got a gap event"
		case !slices.IsSorted(r.numbers) || len(slices.Compact(slices.Clone(r.numbers))) != len(r.numbers):
			return "its messages are out of order"
		case len(r.numbers) > lagMessages:
			return "nothing was conflated for it"
		}
		for n := range upTo(lagMessages) {
			at, found := slices.BinarySearch(r.numbers, n)
			if !found && !slices.ContainsFunc(r.numbers[at:], func(later int) bool { return later%lagKeys == n%lagKeys }) {
				return fmt.Sprintf("it has neither message %d nor a newer one with its key", n)
			}
		}
		return ""
	})
}
