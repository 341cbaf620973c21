package pushhttp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Codes of an end, as in internal/push.
const (
	codeInternal     = 1011
	codeRestart      = 1012
	codeTryLater     = 1013
	codeTokenExpired = wire.CodeTokenExpired
	codeTooSlow      = 4408
)

// farewell is why a stream ends.
type farewell struct {
	code   int
	reason string
}

// stream is one subscriber: the hub puts messages in on its lane, the goroutine
// of the request takes them out.
type stream struct {
	// Fixed at subscribe.
	srv      *Server
	lane     *lane
	identity *auth.Identity
	format   hub.Format
	rate     int // messages per second; 0: no bound
	// open: some channels are read only because everybody may, which does not go for
	// private messages.
	open bool

	sub hub.Subscriber // the lane's

	ready   chan struct{} // holds one: something below has changed
	sending atomic.Int64  // bytes in a write that has not returned

	mu      sync.Mutex
	started bool
	at      hub.Positions // where the stream began
	queue   backlog.Queue
	told    []hub.Gap // taken from queue, to be told first
	hungry  bool      // the hub waits for Continue
	end     *farewell
}

var _ hub.Sink = (*stream)(nil)

func (st *stream) signal() {
	select {
	case st.ready <- struct{}{}:
	default:
	}
}

// Start implements hub.Sink.
func (st *stream) Start(at hub.Positions) {
	st.mu.Lock()
	st.started, st.at = true, append(hub.Positions(nil), at...)
	st.mu.Unlock()
	st.signal()
}

// Live implements hub.Sink: the client reads on alike.
func (st *stream) Live() {}

// Deliver implements hub.Sink.
func (st *stream) Deliver(b *hub.Batch) {
	st.mu.Lock()
	ok := st.end == nil
	for _, m := range b.Messages {
		if !ok {
			break
		}
		if st.open && st.srv.access.Hidden(m, st.identity) {
			continue
		}
		if b.Replay {
			st.queue.PushReplay(m, &st.srv.waiting)
			continue
		}
		if ns, err := st.srv.hub.Namespace(m.Channel); err == nil {
			ok = st.queue.Push(m, ns, &st.srv.waiting)
		}
	}
	st.mu.Unlock()
	if !ok {
		st.finish(&farewell{codeTooSlow, "too slow"}, &st.srv.counters.tooSlow)
	}
	st.signal()
}

// Gap implements hub.Sink.
func (st *stream) Gap(g hub.Gap) {
	st.mu.Lock()
	ok := st.end != nil || st.queue.PushGap(g)
	st.mu.Unlock()
	if !ok {
		st.finish(&farewell{codeTooSlow, "too slow"}, &st.srv.counters.tooSlow)
	}
	st.signal()
}

// Failed implements hub.Sink.
func (st *stream) Failed(err error) {
	st.srv.log.Warn("subscribe", "err", err)
	st.finish(failure(err), &st.srv.counters.failed)
	st.signal()
}

// Room implements hub.Sink.
func (st *stream) Room() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.hungry = !st.queue.Empty()
	return st.end == nil && !st.hungry
}

// finish sets why the stream ends, once, and counts it unless count is nil.
func (st *stream) finish(f *farewell, count interface{ Add(uint64) uint64 }) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.end == nil {
		if st.end = f; count != nil {
			count.Add(1)
		}
	}
}

// failure is how the hub's refusal is told to a client.
func failure(err error) *farewell {
	switch {
	case errors.Is(err, hub.ErrUnavailable), errors.Is(err, hub.ErrOverloaded), errors.Is(err, hub.ErrClosed):
		return &farewell{codeTryLater, "not available now, try again later"}
	default:
		return &farewell{codeInternal, "internal error"}
	}
}

// subscribe begins a stream. It must be left.
func (s *Server) subscribe(opt hub.SubscribeOptions, id *auth.Identity, format hub.Format, open bool) (*stream, error) {
	st := &stream{srv: s, identity: id, format: format, ready: make(chan struct{}, 1), rate: s.rate(opt.Channels), open: open}
	st.lane = s.lanes[int(s.next.Add(1))%len(s.lanes)]
	done := make(chan error, 1)
	st.lane.post(func() {
		done <- st.lane.shard.Subscribe(&st.sub, st, opt)
	})
	return st, <-done
}

// leave ends the subscription.
func (st *stream) leave() {
	st.mu.Lock()
	if st.end == nil {
		st.end = &farewell{}
	}
	st.queue.Forget(&st.srv.waiting)
	st.queue = backlog.Queue{}
	st.mu.Unlock()
	st.lane.post(func() { st.lane.shard.Unsubscribe(&st.sub) })
}

// rate returns the lowest maximum rate among the channels' namespaces, 0 for none.
func (s *Server) rate(channels []string) int {
	rate := 0
	for _, ch := range channels {
		if ns, err := s.hub.Namespace(ch); err == nil && ns.MaxRate > 0 && (rate == 0 || ns.MaxRate < rate) {
			rate = ns.MaxRate
		}
	}
	return rate
}

// transport is what carries a stream. Its errors mean that the client is gone.
type transport interface {
	// open answers the request; what follows comes after at.
	open(at hub.Positions) error
	// message takes a message in the stream's format, gap a gap before the next.
	message(m *hub.Message) error
	gap(g hub.Gap) error
	// flush sends what was taken.
	flush() error
	// beat sends a sign of life.
	beat() error
	// close says why and ends; opened tells whether open was called.
	close(f *farewell, opened bool)
}

// serve runs the stream over t until it ends or ctx does.
func (s *Server) serve(ctx context.Context, st *stream, t transport) {
	opening := time.NewTimer(s.cfg.Opening)
	defer opening.Stop()
	select {
	case <-st.ready:
	case <-opening.C:
		t.close(&farewell{codeTryLater, "not available now, try again later"}, false)
		return
	case <-ctx.Done():
		return
	}
	st.mu.Lock()
	started, at, end := st.started, st.at, st.end
	st.mu.Unlock()
	if !started {
		t.close(end, false)
		return
	}
	if t.open(at) != nil {
		return
	}
	if f := s.pump(ctx, st, t); f != nil {
		t.close(f, true)
	}
}

// pump passes messages on. It returns why the stream ends, or nil when the
// client is gone.
func (s *Server) pump(ctx context.Context, st *stream, t transport) *farewell {
	beat := time.NewTicker(s.cfg.Heartbeat)
	defer beat.Stop()
	pace := newPace(st.rate)
	defer pace.stop()
	expiry := st.expiry()
	defer expiry.Stop()
	drained, leaving := s.drained, (<-chan time.Time)(nil)
	st.signal()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-st.ready:
		case <-pace.more():
		case <-beat.C:
			if t.beat() != nil {
				return nil
			}
		case <-expiry.C:
			if st.identity.Expired(time.Now()) {
				s.counters.expired.Add(1)
				return &farewell{codeTokenExpired, "token expired"}
			}
			expiry.Reset(time.Until(st.identity.Expires) + time.Millisecond)
		case <-drained:
			drained = nil
			leaving = s.leaveAfter()
		case <-leaving:
			s.counters.sentAway.Add(1)
			return &farewell{codeRestart, "draining"}
		}
		f, err := st.take(t, pace)
		if err != nil {
			return nil
		}
		if f != nil {
			return f
		}
	}
}

// expiry is a timer for the end of the token; one that never fires without.
func (st *stream) expiry() *time.Timer {
	if st.identity == nil || st.identity.Expires.IsZero() {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}
	return time.NewTimer(time.Until(st.identity.Expires) + time.Millisecond)
}

// take passes on what waits, as far as the rate allows.
func (st *stream) take(t transport, p *pace) (*farewell, error) {
	sent := false
	for {
		m, g, end := st.pop(p)
		switch {
		case end != nil:
			return end, nil
		case g != nil:
			if err := t.gap(*g); err != nil {
				return nil, err
			}
		case m != nil:
			if err := t.message(m); err != nil {
				return nil, err
			}
		default:
			if !sent {
				return nil, nil
			}
			if err := t.flush(); err != nil {
				return nil, err
			}
			st.feed()
			return nil, nil
		}
		sent = true
	}
}

// pop takes the next thing to say, or nothing.
func (st *stream) pop(p *pace) (*hub.Message, *hub.Gap, *farewell) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.end != nil {
		return nil, nil, st.end
	}
	if st.told = append(st.told, st.queue.TakeDropped(&st.srv.waiting)...); len(st.told) > 0 {
		g := st.told[0]
		st.told = st.told[1:]
		return nil, &g, nil
	}
	if st.queue.Empty() {
		return nil, nil, nil
	}
	if g, ok := st.queue.TakeGap(); ok {
		return nil, &g, nil
	}
	if !p.take(time.Now()) {
		return nil, nil, nil
	}
	return st.queue.Pop(&st.srv.waiting), nil, nil
}

// feed tells the hub that a replay may go on.
func (st *stream) feed() {
	st.mu.Lock()
	hungry := st.hungry && st.queue.Empty()
	if hungry {
		st.hungry = false
	}
	st.mu.Unlock()
	if hungry {
		st.lane.post(st.sub.Continue)
	}
}

// pace is the budget of a stream with a maximum rate.
type pace struct {
	rate   int
	tokens float64
	at     time.Time
	timer  *time.Timer
}

func newPace(rate int) *pace { return &pace{rate: rate, tokens: 1, at: time.Now()} }

// take takes a message's token if there is one; if not, more will fire.
func (p *pace) take(now time.Time) bool {
	if p.rate == 0 {
		return true
	}
	p.tokens = min(max(1, float64(p.rate)/10), p.tokens+now.Sub(p.at).Seconds()*float64(p.rate))
	p.at = now
	if p.tokens < 1 {
		p.stop()
		p.timer = time.NewTimer(time.Duration((1 - p.tokens) / float64(p.rate) * 1e9))
		return false
	}
	p.tokens--
	return true
}

func (p *pace) more() <-chan time.Time {
	if p.timer == nil {
		return nil
	}
	return p.timer.C
}

func (p *pace) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}
