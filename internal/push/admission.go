package push

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A Job is a request of a class, which may be queued. Its methods are
// called on its connection's loop.
type Job interface {
	// Serve does what was asked for.
	Serve()
	// Shed answers that it is not done, now or any more: expired says that it waited for
	// too long, otherwise it never waited.
	Shed(expired bool)
	// Gone reports whether it is no longer awaited.
	Gone() bool
	// Conn is who asked.
	Conn() *eventloop.Conn
	// Fanout is how many deliveries on this loop follow from it, and on which channel;
	// "" represents several.
	Fanout() (n int, channel string)
}

// classes are what the namespaces say of admission; nil: nothing has a class.
type classes struct {
	cfg limit.AdmissionConfig
	of  atomic.Pointer[namespaceClasses]
}

// namespaceClasses are by namespace. Immutable.
type namespaceClasses struct {
	class     map[string]limit.Class
	conflates map[string]bool // namespaces whose waiting publications replace each other
}

func newNamespaceClasses(namespaces []hub.Namespace) (*namespaceClasses, error) {
	n := &namespaceClasses{class: map[string]limit.Class{}, conflates: map[string]bool{}}
	for _, ns := range namespaces {
		var class limit.Class
		if err := class.UnmarshalText([]byte(ns.Class)); err != nil {
			return nil, fmt.Errorf("namespace %q: class: %w", ns.Name, err)
		}
		if class != limit.Unclassed {
			n.class[ns.Name] = class
			n.conflates[ns.Name] = ns.Policy == hub.Conflate
		}
	}
	return n, nil
}

// PrepareClasses returns what makes the classes of namespaces count from then on. It needs
// UseAdmission.
func (s *classes) PrepareClasses(namespaces []hub.Namespace) (replace func(), err error) {
	n, err := newNamespaceClasses(namespaces)
	if err != nil {
		return nil, err
	}
	return func() { s.of.Store(n) }, nil
}

// admit has requests queued by class.
func (p *Push) admit(cfg limit.AdmissionConfig, namespaces []hub.Namespace) error {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	n, err := newNamespaceClasses(namespaces)
	if err != nil {
		return err
	}
	c := &classes{cfg: cfg}
	c.of.Store(n)
	p.classes = c
	p.useMarks(cfg.Marks)
	for _, l := range p.loopStates {
		a := &admission{loopState: l, slice: int64(cfg.Slice), direct: l.loop.Engine() == "epoll", fanout: newFanout()}
		a.queue = limit.NewAdmission[Job](cfg)
		a.queue.LetGo(Job.Gone)
		l.admission = a
	}
	return nil
}

// Admits reports whether there are classes at all.
func (s *classes) Admits() bool { return s != nil }

// ClassOf is the class of a channel's publications.
func (s *classes) ClassOf(channel string) limit.Class {
	if s == nil {
		return limit.Unclassed
	}
	of := s.of.Load().class
	if len(of) == 0 {
		return limit.Unclassed
	}
	return of[hub.NamespaceOf(channel)]
}

// LeastOf is the least important class of those that the channels have.
func (s *classes) LeastOf(channels []string) (c limit.Class) {
	for _, ch := range channels {
		c = max(c, s.ClassOf(ch))
	}
	return c
}

// ReplayClass is Replay if requesting the history of channels is part of admission.
func (s *classes) ReplayClass(channels []string) limit.Class {
	if s.LeastOf(channels) == limit.Unclassed {
		return limit.Unclassed
	}
	return limit.Replay
}

// key is what a publication is the newest word about.
func (s *classes) key(channel, key string) (k limit.Key) {
	if key != "" && s.of.Load().conflates[hub.NamespaceOf(channel)] {
		k = limit.Key{Channel: channel, Key: key}
	}
	return k
}

// admission is a loop's queue, and what its work costs. It belongs to that loop.
//
// A publication's cost is what it takes to publish and answer it, and the deliveries
// that follow here: what other loops publish is delivered here as well, between the two,
// and must not be compared with it. Deliveries are estimated (fanout).
type admission struct {
	loopState *LoopState
	slice     int64
	direct    bool // the kernel sends on submission, not when the loop waits for events
	queue     *limit.Admission[Job]

	serving bool // run is at work: whatever is offered has to wait
	batch   batch
	fanout  fanout

	// Of the last run, evaluated in the next one.
	busy      bool  // the loop does not sleep after it
	until     int64 // its end, on the loop's clock
	delivered uint64
	messages  int64
	sends     uint64 // of the loop, up to its end
	running   int64  // nanoseconds of the shard's runs
	answers   uint64 // requests that were answered since the one before

	resting bool // history rests
	rested  bool // and a client was notified that there is no room for now

	// Any goroutine. message is what one message takes this loop, in nanoseconds.
	message atomic.Int64
	starved atomic.Bool // waits for other loops to catch up
}

// run is what the loop does in every tick.
func (a *admission) run() {
	l := a.loopState
	now := l.loop.Clock()
	a.learnFromLast()
	delivered, depth := l.shard.Delivered(), l.shard.Depth()
	l.shard.Run()
	a.batch.reset()
	end := l.loop.Clock()
	a.running = end - now
	if a.queue.Len() > 0 {
		served := a.work(end)
		depth += l.shard.Depth()
		l.shard.Run()
		a.batch.reset()
		end = l.loop.Clock()
		a.running += end - served
	}
	a.delivered, a.messages, a.until = l.shard.Delivered()-delivered, depth, end
	a.feed()
	if a.busy = false; a.queue.Len() > 0 {
		a.schedule()
	}
}

// schedule sees to it that the loop comes back for what waits: at once, or when loops that
// lag have caught up.
func (a *admission) schedule() {
	if a.othersOverloaded() {
		a.starve()
		if a.othersOverloaded() {
			return // they wake this one
		}
	}
	a.busy = true
	a.loopState.loop.Wake()
}

// learnFromLast learns from the last run, and from what the loop did after it: with io_uring
// the kernel sends only when the loop waits for events.
func (a *admission) learnFromLast() {
	all := a.loopState.loop.Stats().Sends
	took, sends, messages := a.running, all-a.sends, a.delivered
	if a.busy { // answers are sent after the run
		took += max(a.loopState.loop.Now()-a.until, 0)
		messages += a.answers
	} else {
		sends -= min(a.answers, sends)
	}
	if a.delivered > 0 {
		a.fanout.learn(took, sends, messages, a.busy || a.direct)
	}
	a.sends, a.answers = all, 0
	if a.messages > 0 {
		each, was := took/a.messages, a.message.Load()
		switch {
		case was == 0:
			a.message.Store(each)
		case a.busy || a.direct || each > was: // what came after is not known of a loop that slept
			a.message.Store(was + (min(each, 4*was)-was)/8)
		default:
			a.message.Store(was + (each-was)/64)
		}
	}
}

// work serves what waits for one slice: of a channel that so many follow that one message
// takes longer, for as long again as that takes. It returns the time.
func (a *admission) work(now int64) int64 {
	a.serving = true
	defer func() { a.serving = false }()
	var n, took [limit.Classes]int64
	loop := a.loopState.loop
	for began := now; now-began+a.batch.owed < max(a.slice, 2*a.batch.most) && !a.othersOverloaded(); {
		job, c, expired, ok := a.queue.Next(now)
		if !ok {
			break
		}
		a.answers++
		if expired {
			a.guard(job, func() { job.Shed(true) })
			now = loop.Clock()
			continue
		}
		fanoutCost := a.batch.add(&a.fanout, job)
		a.guard(job, job.Serve)
		end := loop.Clock()
		n[c]++
		took[c] += end - now + fanoutCost
		now = end
	}
	a.queue.Slices(2 * a.batch.most)
	for c := range n {
		if n[c] > 0 {
			a.queue.Served(limit.Class(c), int(n[c]), took[c], now)
		}
	}
	return now
}

// guard runs f: a panic ends the client that it was for, not the loop.
func (a *admission) guard(job Job, f func()) {
	defer func() {
		if r := recover(); r != nil {
			p := a.loopState.push
			p.counters.panics.Add(1)
			p.log.Error("panic in a request that waited", "conn", job.Conn().ID(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			job.Conn().Close(fmt.Errorf("panic: %v", r))
		}
	}()
	f()
}

// othersOverloaded reports whether other loops have more to deliver than they can soon: more
// publications would wait there, where no class goes first.
func (a *admission) othersOverloaded() bool {
	bound := 2 * a.slice
	if a.queue.Urgent() {
		bound *= 2
	}
	for _, l := range a.loopState.push.loopStates {
		if l != a.loopState && l.admission != nil && l.shard.Depth()*l.admission.message.Load() > bound {
			return true
		}
	}
	return false
}

// starve registers to be woken by loops that have caught up.
func (a *admission) starve() {
	if !a.starved.Swap(true) {
		a.loopState.push.starving.Add(1)
	}
}

// feed wakes those that wait for this loop.
func (a *admission) feed() {
	p := a.loopState.push
	if p.starving.Load() == 0 {
		return
	}
	for _, l := range p.loopStates {
		if l != a.loopState && l.admission.starved.Load() && l.admission.starved.Swap(false) {
			p.starving.Add(-1)
			l.loop.Wake()
		}
	}
}

// Late reports whether there is more to do than in one slice, so that a request that
// came now would have to wait, and what the clock says. Of a Push that Admits.
func (l *LoopState) Late() (late bool, now int64) {
	a := l.admission
	if !l.push.admitting.Load() {
		l.push.admitting.Store(true)
	}
	now = l.loop.Clock()
	return a.serving || a.queue.Len() > 0 || now-l.loop.Now()+a.batch.owed >= max(a.slice, 2*a.batch.most) || a.othersOverloaded(), now
}

// Offer decides about a request of class c, which must not be Unclassed; late and now
// are what Late has just said. With Go, which is always so when it is not late, the
// caller serves it and calls Served then; with Wait it is served or shed later; with
// Replaced as well, and old is not any more; with Refuse it is not.
func (l *LoopState) Offer(c limit.Class, key limit.Key, job Job, late bool, now int64) (v limit.Verdict, old Job) {
	a, spent := l.admission, int64(0)
	if late {
		spent = a.slice
	}
	v, old = a.queue.Offer(c, key, now, spent, job)
	switch {
	case v != limit.Wait:
		a.answers++
	case !a.serving:
		l.loop.Wake()
	}
	return v, old
}

// EstimateFanout estimates the deliveries of a request that Offer let through, before it is served.
func (l *LoopState) EstimateFanout(job Job) int64 {
	return l.admission.batch.add(&l.admission.fanout, job)
}

// Served reports that a request that was let through at began is done, but for the
// deliveries that follow.
func (l *LoopState) Served(c limit.Class, fanoutCost, began int64) {
	end := l.loop.Clock()
	l.admission.queue.Served(c, 1, end-began+fanoutCost, end)
}

// Decide decides about a request that cannot wait, as Offer does otherwise.
func (l *LoopState) Decide(c limit.Class) bool { return l.admission.queue.Decide(c) }

// RetryAfter is how many seconds a client that was refused is asked to wait: not the
// same for all of them, and more the more there is to do.
func (l *LoopState) RetryAfter() int64 {
	pressure := 0.0
	if l.admission != nil {
		pressure = l.admission.queue.Pressure(limit.Market)
	}
	if pressure == 0 { // it is refused for another reason
		return RetryAfter()
	}
	return 1 + rand.Int64N(2+int64(3*pressure))
}

// Guard scales the budgets of what is least important on every loop; rest lets history
// rest. Any goroutine; it returns at once.
func (p *Push) Guard(scale float64, rest bool) {
	p.guarded.Store(rest)
	if p.classes == nil {
		return
	}
	for _, l := range p.loopStates {
		l.loop.Post(func() { l.admission.guarded(scale, rest) })
	}
}

func (a *admission) guarded(scale float64, rest bool) {
	a.queue.Guard(scale, rest)
	if a.resting = rest; rest || !a.rested {
		return
	}
	a.rested = false
	a.loopState.loop.Conns(func(c *eventloop.Conn) bool {
		if r, ok := c.Handler().(drainee); ok && !c.Closing() {
			r.Drained(c)
		}
		return true
	})
}

// drainee is a subscriber whose history continues when there is room.
type drainee interface {
	lagging
	Drained(c *eventloop.Conn)
}

// historyPaused reports whether history is to wait.
func (l *LoopState) historyPaused() bool {
	if a := l.admission; a != nil && a.resting {
		a.rested = true
		return true
	}
	return false
}

// compresses reports whether new subscribers of channels may have compression.
func (p *Push) compresses(channels []string) bool {
	return p.formats.Compresses(channels) && !p.guarded.Load()
}

// rejects reports whether a subscription of a session that is open already is not
// started now: it requests history, and there is no time for that.
func (p *Push) rejects(l *LoopState, opt *hub.SubscribeOptions) bool {
	if l.admission == nil || len(opt.Since) == 0 && !opt.All {
		return false
	}
	c := p.ReplayClass(opt.Channels)
	return c != limit.Unclassed && !l.Decide(c)
}

// Refuse makes new subscriptions be rejected, or served again. Those there are stay.
// Any goroutine.
func (r *refusals) Refuse(on bool) { r.refusing.Store(on) }

// AdmissionStats are the sums over all loops, by class; nil without classes. Any goroutine.
func (all loopStates) AdmissionStats() []limit.ClassStats {
	if len(all) == 0 || all[0].admission == nil {
		return nil
	}
	var sum []limit.ClassStats
	for i, l := range all {
		if s := l.admission.queue.Stats(); i == 0 {
			sum = s
		} else {
			for k := range sum {
				sum[k].Add(&s[k])
			}
		}
	}
	return sum
}

// errExpired answers a call that waited for too long.
var errExpired = &APIError{Status: 503, Message: "expired, not executed", Hint: "it waited for too long; try again later"}

// What calls that are shed are answered: made once.
var (
	overloadedBody = wire.AppendError(nil, ErrorOf(hub.ErrOverloaded))
	expiredBody    = wire.AppendError(nil, errExpired)
)
