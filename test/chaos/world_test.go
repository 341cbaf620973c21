package chaos

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/test/judge"
)

var channels = []string{"c0", "c1", "c2", "c3", "c4"}

// patience is for what has to happen at some time.
const patience = 60 * time.Second

// A world is a node under load: a publisher, subscribers that resume, and the history.
type world struct {
	*trial
	node  *judge.Server
	fleet *judge.Fleet
	pub   *judge.Publisher
	// dial makes the subscribers' connections; nil: plain ones.
	dial func(ctx context.Context, addr string) (net.Conn, error)
	stop func() // ends the publisher, after everything is acknowledged
}

// A load is what a world is under.
type load struct {
	subscribers int                                         // half of them by SSE, half by WebSocket
	rate        int                                         // publications per second
	addr        string                                      // what subscribers dial; empty: the node
	front       string                                      // what publishers dial; empty: the node
	publishers  func(ctx context.Context) (net.Conn, error) // makes a connection for each writer, instead of front
	options     history.Options
	twice       bool
	others      []string // where publications are repeated that the node does not acknowledge
	continued   bool     // epochs continue each other, with the same offsets
	channels    []string // nil: channels, of which one subscriber in ten follows all; otherwise each follows one
	writers     int      // publications under way at most; 0: as judge.Publisher says
}

// exact is a history that misses, repeats and gives up nothing.
var exact = history.Options{ExactlyOnce: true, NoGaps: true}

// byChannel is exact where live messages can be lost between servers: such a message is read from the log, and
// those of other channels do not wait for it.
var byChannel = history.Options{ExactlyOnce: true, NoGaps: true, ByChannel: true}

// under puts node under load and returns when it is served.
func (c *trial) under(node *judge.Server, l load) *world {
	c.Helper()
	return (&world{trial: c, node: node}).begin(l)
}

func (w *world) begin(l load) *world {
	w.Helper()
	w.fleet = judge.NewFleet(w, l.options)
	w.fleet.Dial, w.fleet.Continued, w.fleet.Single = w.dial, l.continued, l.channels != nil
	if l.channels == nil {
		l.channels = channels
	}
	w.pub = &judge.Publisher{Addr: cmp.Or(l.front, w.node.Public), Others: l.others, Twice: l.twice, Writers: l.writers, Dial: l.publishers}
	if l.addr == "" {
		l.addr = w.node.Public
	}
	judge.Descriptors(w, uint64(4*l.subscribers+2000))
	w.fleet.Sail(l.addr, l.subscribers/2, l.channels)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.pub.Run(ctx, fmt.Sprintf("r%d-", w.row.number), l.channels, l.rate, patience) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(w.stop)
	w.served(make([]int64, len(w.fleet.Members)))
	w.more(50)
	w.rss[0] = max(w.rss[0], w.node.Memory())
	return w
}

// sample notes how much memory the node has.
func (w *world) sample() {
	if n, err := w.node.MemoryNow(); err == nil {
		w.rss[1] = max(w.rss[1], n)
	}
}

// counts are the sessions of each member that were served.
func (w *world) counts() []int64 {
	var all []int64
	for _, m := range w.fleet.Members {
		all = append(all, m.Served.Load())
	}
	return all
}

// served waits until every member was served again since counts.
func (w *world) served(since []int64) {
	w.Helper()
	judge.Eventually(w, patience, "every subscriber is served", func() bool {
		for i, m := range w.fleet.Members {
			if m.Served.Load() <= since[i] {
				return false
			}
		}
		return true
	})
}

// more waits until n more publications are acknowledged.
func (w *world) more(n int) {
	w.Helper()
	started := w.pub.Count()
	judge.Eventually(w, patience, fmt.Sprintf("%d more publications are acknowledged", n), func() bool { return w.pub.Count() >= started+n })
}

// fault injects one and waits until everything works again; disconnects says that
// every subscriber has to come back.
func (w *world) fault(disconnects bool, inject func()) {
	w.Helper()
	before, began := w.counts(), time.Now()
	inject()
	w.faults++
	w.more(20)
	if disconnects {
		w.served(before)
		for _, m := range w.fleet.Members {
			w.resumes = append(w.resumes, time.Unix(0, m.ServedAt.Load()).Sub(began))
		}
	}
	w.outages = append(w.outages, w.outage(began))
	w.sample()
}

// outage is the longest time since began in which nothing was acknowledged.
func (w *world) outage(began time.Time) (longest time.Duration) {
	acked := w.pub.AckedSince(began)
	slices.SortFunc(acked, func(a, b judge.Acked) int { return a.At.Compare(b.At) })
	last := began
	for _, a := range acked {
		longest = max(longest, a.At.Sub(last))
		last = a.At
	}
	return longest
}

// finish ends the load and has the history decide.
func (w *world) finish() *history.Report {
	w.Helper()
	w.stop()
	w.sample()
	acked := w.pub.Acked()
	w.fleet.CaughtUp(acked, patience)
	w.fleet.Land()
	r := w.fleet.Report(acked)
	w.reports = append(w.reports, r)
	w.Log(r)
	if !r.OK() {
		w.Error("the history is wrong")
	}
	if r.Received == 0 || r.Published == 0 {
		w.Error("there was nothing to check")
	}
	return r
}
