package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Deps are what sources need of the rest.
type Deps struct {
	// Publish is Hub.Publish.
	Publish func(p hub.Publication, done func(hub.Position, error))
	// Leads reports whether this node is to read the source of that name; nil means always.
	Leads func(name string) bool
	// Log receives errors and their end; nil discards.
	Log *slog.Logger
}

// Phases of a source.
const (
	Connecting = "connecting" // also after an error
	Reading    = "reading"
	Standby    = "standby" // another node reads it
	Paused     = "paused"
	Blocked    = "blocked" // a message cannot be published, and there is no dead-letter channel
)

// A State is what a source does and did since it was configured.
type State struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	// Phase is connecting, reading, standby, paused or blocked.
	Phase string `json:"phase"`
	// Error is what keeps the source from reading or publishing now.
	Error string `json:"error,omitempty"`
	// Lag is how many messages wait in the source, -1 if it is not known; LagSeconds the age
	// of the oldest one that was read and not published, or of the last one that was
	// published while others wait.
	Lag        int64   `json:"lag"`
	LagSeconds float64 `json:"lag_seconds"`
	// Read counts messages read, also again; Published and DeadLettered where they went.
	Read         uint64 `json:"read"`
	Published    uint64 `json:"published"`
	DeadLettered uint64 `json:"dead_lettered"`
	// Dropped are messages that came while a queue was full, Conflated those replaced by
	// newer ones; only of sources without backpressure.
	Dropped   uint64 `json:"dropped"`
	Conflated uint64 `json:"conflated"`
	// Gaps are breaks in the source's sequence numbers, Missing the messages in them.
	Gaps    uint64 `json:"gaps"`
	Missing uint64 `json:"missing"`
	// Retries are publications repeated because the broker was unavailable, Errors the
	// failures of the connection to the source.
	Retries uint64 `json:"retries"`
	Errors  uint64 `json:"errors"`
}

// A Source reads one source and publishes what it reads.
type Source struct {
	// Fixed at newSource.
	cfg     Config
	open    Opener
	shared  bool
	mapping mapping
	deps    Deps

	// Owned by run; publishAll only reads it.
	unacknowledged map[string]struct{} // positions that were published and not acknowledged

	// Any goroutine.
	stats counters

	mu        sync.Mutex
	phase     string
	err       string
	paused    bool
	changed   chan struct{} // closed when paused changes
	lag       int64
	newest    time.Time // of the last message that was published
	pending   time.Time // of the oldest message that was read and is not settled
	lagReadAt time.Time
}

type counters struct {
	read, published, dead, dropped, conflated, gaps, missing, retries, errors atomic.Uint64
}

// Dropped implements Counter.
func (c *counters) Dropped(n uint64) { c.dropped.Add(n) }

// Conflated implements Counter.
func (c *counters) Conflated(n uint64) { c.conflated.Add(n) }

// Gap implements Counter.
func (c *counters) Gap(missing uint64) {
	c.gaps.Add(1)
	c.missing.Add(missing)
}

func newSource(spec Spec, deps Deps) (*Source, error) {
	cfg := spec.Config.WithDefaults()
	m, err := newMapping(cfg)
	if err != nil {
		return nil, fmt.Errorf("source %q: %w", cfg.Name, err)
	}
	return &Source{
		cfg: cfg, open: spec.Open, shared: spec.Shared, mapping: m, deps: deps, unacknowledged: map[string]struct{}{},
		phase: Connecting, paused: cfg.Paused, changed: make(chan struct{}), lag: -1,
	}, nil
}

// State returns what the source does now.
func (s *Source) State() State {
	c := &s.stats
	v := State{
		Name: s.cfg.Name, Kind: s.cfg.Kind, Namespace: s.cfg.Namespace,
		Read: c.read.Load(), Published: c.published.Load(), DeadLettered: c.dead.Load(), Dropped: c.dropped.Load(), Conflated: c.conflated.Load(),
		Gaps: c.gaps.Load(), Missing: c.missing.Load(), Retries: c.retries.Load(), Errors: c.errors.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v.Phase, v.Error, v.Lag = s.phase, s.err, s.lag
	switch {
	case !s.pending.IsZero():
		v.LagSeconds = max(0, time.Since(s.pending).Seconds())
	case s.lag > 0 && !s.newest.IsZero():
		v.LagSeconds = max(0, time.Since(s.newest).Seconds())
	}
	return v
}

// setPaused pauses or resumes reading. What was read already is published.
func (s *Source) setPaused(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused != paused {
		s.paused = paused
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// turn returns whether the source may be read here, the phase if it may not, and what is
// closed when it was paused or resumed.
func (s *Source) turn() (may bool, phase string, changed <-chan struct{}) {
	leads := s.shared || s.deps.Leads == nil || s.deps.Leads(s.cfg.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.paused:
		return false, Paused, s.changed
	case !leads:
		return false, Standby, s.changed
	}
	return true, "", s.changed
}

func (s *Source) setPhase(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase = phase; phase != Connecting && phase != Blocked {
		s.err = ""
	}
}

// reportError shows err until the next success, and logs it if it is another than before.
func (s *Source) reportError(err error) {
	what := text(err.Error(), 1024)
	s.mu.Lock()
	again := s.err == what
	s.err = what
	s.mu.Unlock()
	if !again {
		s.deps.Log.Warn("source has a problem and is tried again", "source", s.cfg.Name, "err", what)
	}
}

// blocked notes that msg cannot be published and nothing else is read.
func (s *Source) blocked(msg *Message, err error) {
	what := fmt.Sprintf("message %s cannot be published: %s", text(msg.Position, 128), text(err.Error(), 1024))
	s.mu.Lock()
	again := s.phase == Blocked && s.err == what
	s.phase, s.err = Blocked, what
	s.mu.Unlock()
	if !again {
		s.deps.Log.Error("source is blocked; set its dead_letter, or correct the message in the source", "source", s.cfg.Name, "err", what)
	}
}

// unblocked notes that msg is settled.
func (s *Source) unblocked(msg *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.err = Reading, ""
	if msg.Time.After(s.newest) {
		s.newest = msg.Time
	}
}

func (s *Source) settledBefore(position string) bool {
	_, ok := s.unacknowledged[position]
	return ok && position != ""
}

const (
	lookEvery  = 500 * time.Millisecond // at whether the source is this node's now
	lagEvery   = 2 * time.Second
	ackWithin  = 5 * time.Second
	openWithin = 15 * time.Second
)

// run reads until ctx is done.
func (s *Source) run(ctx context.Context) {
	wait := minWait
	for ctx.Err() == nil {
		may, phase, changed := s.turn()
		if !may {
			s.setPhase(phase)
			s.await(ctx, changed, lookEvery)
			continue
		}
		err := s.session(ctx)
		switch {
		case err == nil:
			wait = minWait
			continue
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrStandby):
			s.setPhase(Standby)
			s.await(ctx, changed, lookEvery)
			continue
		}
		s.stats.errors.Add(1)
		s.setPhase(Connecting)
		s.reportError(err)
		s.await(ctx, changed, wait)
		wait = min(2*wait, maxWait)
	}
}

// await waits for a change of paused, or for d.
func (s *Source) await(ctx context.Context, changed <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-t.C:
	}
}

// session opens the source and reads until it fails, or is paused or another node's: then it
// returns nil.
func (s *Source) session(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, openWithin)
	r, err := s.open(opening, Options{Name: s.cfg.Name, Batch: s.cfg.Batch, Count: &s.stats})
	cancel()
	if err != nil {
		return err
	}
	defer r.Close()
	s.setPhase(Reading)
	for {
		may, _, changed := s.turn()
		if !may || ctx.Err() != nil {
			return nil
		}
		if err := s.step(ctx, r, changed); err != nil {
			return err
		}
	}
}

// step reads and publishes one batch.
func (s *Source) step(ctx context.Context, r Reader, changed <-chan struct{}) error {
	reading, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(contextOf(changed), cancel)
	messages, err := r.Read(reading)
	stop()
	interrupted := reading.Err() != nil
	cancel()
	if len(messages) > 0 {
		s.stats.read.Add(uint64(len(messages)))
		s.setPending(messages[0].Time)
		done := s.publishAll(ctx, messages)
		if len(done) == len(messages) {
			s.setPending(time.Time{})
		}
		if ackErr := s.acknowledge(ctx, r, done); ackErr != nil {
			return errors.Join(err, ackErr)
		}
	}
	if err != nil {
		if interrupted {
			return nil
		}
		return err
	}
	return s.measureLag(ctx, r)
}

// acknowledge acknowledges what is done. What could not be acknowledged is skipped when it is read
// again, also after the idempotency window.
func (s *Source) acknowledge(ctx context.Context, r Reader, done []Message) error {
	if len(done) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackWithin)
	defer cancel()
	err := r.Acknowledge(ctx, done)
	if err != nil && len(s.unacknowledged) > maxUnacknowledged*s.cfg.Batch {
		clear(s.unacknowledged) // the log knows the newest of them
	}
	for i := range done {
		if err == nil {
			delete(s.unacknowledged, done[i].Position)
		} else if done[i].Position != "" {
			s.unacknowledged[done[i].Position] = struct{}{}
		}
	}
	if err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// maxUnacknowledged bounds what is kept of batches that could not be acknowledged, in batches.
const maxUnacknowledged = 16

func (s *Source) setPending(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = t
}

// measureLag reads how much waits in the source, at most once in lagEvery.
func (s *Source) measureLag(ctx context.Context, r Reader) error {
	s.mu.Lock()
	due := time.Since(s.lagReadAt) >= lagEvery
	s.mu.Unlock()
	if !due || ctx.Err() != nil {
		return nil
	}
	measuring, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	n, err := r.Lag(measuring)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("lag: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag, s.lagReadAt = n, time.Now()
	return nil
}

// contextOf returns a context that is done when c is closed.
func contextOf(c <-chan struct{}) context.Context { return closing{context.Background(), c} }

type closing struct {
	context.Context
	done <-chan struct{}
}

func (c closing) Done() <-chan struct{} { return c.done }

func (c closing) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}
