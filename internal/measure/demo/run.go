package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/client"
)

// Options of Run. BaseURL is required, the rest works as its zero value.
type Options struct {
	// BaseURL of the public listener, for example http://127.0.0.1:8000.
	BaseURL string
	// APIKey for the publish API; empty sends none.
	APIKey string
	// Rate of publishing in messages per second; 0 means 200.
	Rate float64
	// Seed of the simulation; any value is good, 0 too.
	Seed uint64
	// Fleet of shipments under way; 0 means 150.
	Fleet int
	// Log gets what happens to the connections; nil discards it.
	Log *slog.Logger
	// Progress, if not nil, is called with the numbers so far about once a second
	// by a goroutine of Run's, and not any more after Run has returned.
	Progress func(Summary)
}

// A Summary reports what flowed since Run began.
type Summary struct {
	// Published messages: answered by the server as stored.
	Published uint64
	// Delivered messages: those of this run that came back by SSE, each once.
	Delivered uint64
	// Lost and Repeated are evaluated by the messages' sequence numbers alone.
	Lost, Repeated uint64
	// Gap events from the server.
	Gaps uint64
	// Errors are attempts to publish that failed and were tried again.
	Errors uint64
	// Reconnects of the subscription, each with resume.
	Reconnects uint64
	// P50 and P99 of the time from the first attempt to publish until the message
	// came back by SSE, at most 1 % too high.
	P50, P99 time.Duration
	// Duration of publishing.
	Duration time.Duration
}

// AllDelivered reports whether messages went all the way, none lost and none repeated.
func (s Summary) AllDelivered() bool {
	return s.Delivered > 0 && s.Lost == 0 && s.Repeated == 0
}

const (
	defaultRate = 200
	// waiting bounds what one channel may have in line before the pacer waits.
	waiting = 64
	// behind is how late the pacer may be before it gives up catching up.
	behind = time.Second
	// attemptTimeout bounds one attempt to publish.
	attemptTimeout = 5 * time.Second
	// firstWait is the time before the next attempt, which doubles up to maxWait.
	firstWait = 50 * time.Millisecond
	maxWait   = time.Second
	// maxRequested bounds what the server may request instead.
	maxRequested = 2 * time.Second
	// settle bounds how long Run waits for the last messages to come back.
	settle = 2 * time.Second
	// progressEvery is the time between two calls of Options.Progress.
	progressEvery = time.Second
)

// Run publishes the demo's events and follows its own channels until ctx is
// done, which is not an error. While the server is away it keeps trying, and the
// simulation stops. It returns an error if the server refuses for good:
// a bad key, an unknown namespace, a channel that is not allowed.
//
// The server must still be there for a short time after ctx is done: Run then
// waits for what it published to arrive.
func Run(ctx context.Context, o Options) (Summary, error) {
	r, err := newRunner(o)
	if err != nil {
		return Summary{}, err
	}
	return r.do(ctx)
}

func (r *runner) do(ctx context.Context) (Summary, error) {
	defer r.client.Close()

	// The follower outlives ctx: it sees the last messages arrive.
	following, stopFollowing := context.WithCancel(context.WithoutCancel(ctx))
	publishing, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var all sync.WaitGroup
	all.Go(func() {
		if err := r.follower.follow(following); err != nil {
			fail(err)
		}
	})
	all.Go(func() { r.report(following) })

	select {
	case <-publishing.Done():
	case <-r.follower.ready:
		r.started.Store(new(time.Now()))
		r.publishAll(publishing, fail)
		r.settle()
	}
	stopFollowing()
	all.Wait()

	s := r.summary()
	if err := context.Cause(publishing); !errors.Is(err, context.Cause(ctx)) {
		return s, err
	}
	return s, nil
}

// A runner is one Run.
type runner struct {
	// Fixed by newRunner.
	o        Options
	client   *client.Client
	publish  func(context.Context, client.Publication) (client.Position, error)
	follower *follower
	sim      *Simulation // owned by the pacer

	// Any goroutine.
	started   atomic.Pointer[time.Time]
	ended     atomic.Pointer[time.Time]
	published atomic.Uint64
	errors    atomic.Uint64
}

func newRunner(o Options) (*runner, error) {
	if o.Rate < 0 {
		return nil, fmt.Errorf("demo: rate %v is negative", o.Rate)
	}
	if o.Rate == 0 {
		o.Rate = defaultRate
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	run := strings.ToLower(rand.Text()[:10])
	sim, err := NewSimulation(SimulationConfig{Run: run, Seed: o.Seed, Fleet: o.Fleet}, time.Now())
	if err != nil {
		return nil, err
	}
	// One attempt at a time: each that fails is counted.
	c, err := client.New(client.Config{URL: o.BaseURL, APIKey: o.APIKey, Attempts: 1, ConnectTimeout: attemptTimeout, MinBackoff: firstWait, MaxBackoff: maxWait})
	if err != nil {
		return nil, err
	}
	return &runner{o: o, client: c, publish: c.Publish, follower: newFollower(c, run, o.Log), sim: sim}, nil
}

// publishAll paces the events and returns when all that were started are answered
// or given up. One goroutine per channel keeps the channel's order.
func (r *runner) publishAll(ctx context.Context, fail context.CancelCauseFunc) {
	var workers sync.WaitGroup
	lines := map[string]chan Event{}
	for _, c := range Channels() {
		line := make(chan Event, waiting)
		lines[c] = line
		workers.Go(func() { r.work(ctx, line, fail) })
	}
	r.pace(ctx, lines)
	for _, line := range lines {
		close(line)
	}
	workers.Wait()
	r.ended.Store(new(time.Now()))
}

// pace makes the events at Options.Rate. A full line holds it up: while the
// server is away, the world stops.
func (r *runner) pace(ctx context.Context, lines map[string]chan Event) {
	interval := time.Duration(float64(time.Second) / r.o.Rate)
	next := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := time.Now()
		if now.Sub(next) > behind {
			next = now
		}
		for ; !next.After(now); next = next.Add(interval) {
			e := r.sim.Next(now)
			select {
			case lines[e.Channel] <- e:
			case <-ctx.Done():
				return
			}
		}
		timer.Reset(time.Until(next))
	}
}

// work publishes the events of one channel, one after the other.
func (r *runner) work(ctx context.Context, line <-chan Event, fail context.CancelCauseFunc) {
	for e := range line {
		if ctx.Err() != nil {
			continue // empty the line: nothing new is started
		}
		if err := r.publishOne(ctx, e); err != nil {
			fail(err)
		}
	}
}

// publishOne tries until the server has answered for good or ctx is done. An
// attempt that was started is finished, so that its outcome is known.
func (r *runner) publishOne(ctx context.Context, e Event) error {
	p := client.Publication{
		Channel:        e.Channel,
		Data:           e.Payload(time.Now()),
		Key:            e.Key,
		IdempotencyKey: fmt.Sprintf("%s-%s-%d", e.Run, e.Channel, e.Seq),
	}
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		_, err := r.publish(context.WithoutCancel(ctx), p)
		if err == nil {
			r.published.Add(1)
			return nil
		}
		requested := time.Duration(0)
		if answer, ok := errors.AsType[*client.Error](err); ok {
			if answer.Final() {
				return err
			}
			requested = answer.RetryAfter
		}
		r.errors.Add(1)
		r.o.Log.Debug("publish again", "channel", e.Channel, "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(wait, min(requested, maxRequested))):
		}
	}
}

// settle waits until what was published has come back, or long enough.
func (r *runner) settle() {
	late := time.NewTimer(settle)
	defer late.Stop()
	for r.follower.seen().delivered < r.published.Load() {
		select {
		case <-r.follower.arrived:
		case <-late.C:
			return
		}
	}
}

// report calls Options.Progress until ctx is done.
func (r *runner) report(ctx context.Context) {
	if r.o.Progress == nil {
		return
	}
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.o.Progress(r.summary())
		}
	}
}

func (r *runner) summary() Summary {
	c := r.follower.seen()
	s := Summary{
		Published: r.published.Load(), Delivered: c.delivered, Lost: c.lost, Repeated: c.repeated,
		Gaps: c.gaps, Errors: r.errors.Load(), Reconnects: c.reconnects,
		P50: r.follower.quantile(0.50), P99: r.follower.quantile(0.99),
	}
	if started := r.started.Load(); started != nil {
		end := time.Now()
		if ended := r.ended.Load(); ended != nil {
			end = *ended
		}
		s.Duration = end.Sub(*started)
	}
	return s
}
