package tlsterm

import (
	"container/list"
	"sync"
	"time"
)

// An admission decides which handshakes run: a bounded number at a time, started
// at a bounded rate. The others wait in the order they came, and when too many
// wait, one more is turned away. Any goroutine.
//
// Most of a handshake's time is spent waiting for the peer. Those that do not are
// as many as have a processor, and what has started goes first: if all began at
// once all would end at once, too late. One whose peer says nothing keeps its place as long as no other needs it; when all places are
// taken and others wait, it is ended after patience.
type admission struct {
	// Fixed at New.
	maxRunning, maxWaiting int
	maxComputing           int     // of those that run; 0: no bound
	rate                   float64 // per second; 0: no bound
	burst                  float64
	patience               time.Duration
	now                    func() time.Time

	mu      sync.Mutex
	running int
	single  bool      // one at a time: the process is short of processors
	waiting list.List // of *place
	hung    list.List // of *place: they run and have not got all that they wait for, the longest first
	silent  int       // of those that run, how many have nothing to do
	leaving int       // and how many were ended
	tokens  float64
	filled  time.Time   // when tokens was right
	timer   *time.Timer // nil until something first waited
	closed  bool
	idle    sync.WaitGroup
}

// hangPatience is longer than the way to any client and back, with one packet lost.
const hangPatience = 2 * time.Second

// A place is one handshake's in the line.
type place struct {
	run func()
	end func(error) // makes run return soon

	// With admission.mu held.
	item   *list.Element // of waiting; nil once it runs, or was given up
	hung   *list.Element // of hung
	since  time.Time     // when it began to hang
	silent bool
	ended  bool
}

func newAdmission(cfg Config) *admission {
	rate := float64(cfg.HandshakeRate)
	a := &admission{
		maxRunning: cfg.MaxHandshakes, maxWaiting: cfg.MaxWaiting, maxComputing: cfg.HandshakeCPUs, rate: rate, burst: max(rate/10, 1), patience: hangPatience, now: time.Now,
	}
	a.tokens, a.filled = a.burst, a.now()
	return a
}

// enter runs run on a goroutine of its own, now or later. It returns nil when
// too many wait already.
func (a *admission) enter(run func()) *place {
	p := &place{run: run}
	if !a.admit(p) {
		return nil
	}
	return p
}

// admit is enter for a place that says when it hangs. It reports whether p is in.
func (a *admission) admit(p *place) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if a.waiting.Len() == 0 && a.ready() {
		a.start(p)
		return true
	}
	if a.waiting.Len() >= a.maxWaiting {
		return false
	}
	p.item = a.waiting.PushBack(p)
	a.advance()
	return true
}

// leave gives up a place that still waits.
func (a *admission) leave(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.item != nil {
		a.waiting.Remove(p.item)
		p.item = nil
	}
}

// inLine reports whether p still waits.
func (a *admission) inLine(p *place) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return p.item != nil
}

// hangs reports that p waits for its peer, until resumed.
func (a *admission) hangs(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.silent = true
	a.silent++
	if p.hung == nil && !p.ended {
		p.since = a.now()
		p.hung = a.hung.PushBack(p)
	}
	if a.waiting.Len() > 0 {
		a.advance()
	}
}

// resumed reports that p has something to do. What it waited for may not be complete yet.
func (a *admission) resumed(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.speaks(p)
}

// answers reports that p has got what it waited for.
func (a *admission) answers(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unhang(p)
}

// speaks takes p from those that have nothing to do. With mu held.
func (a *admission) speaks(p *place) {
	if p.silent {
		p.silent = false
		a.silent--
	}
}

// unhang takes p off the list of those that hang. With mu held.
func (a *admission) unhang(p *place) {
	if p.hung != nil {
		a.hung.Remove(p.hung)
		p.hung = nil
	}
}

// waits returns how many wait.
func (a *admission) waits() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting.Len()
}

// runs returns how many run.
func (a *admission) runs() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

// ready reports whether one more may start. With mu held.
func (a *admission) ready() bool {
	if a.running >= a.maxRunning || a.busy() {
		return false
	}
	if a.rate == 0 {
		return true
	}
	now := a.now()
	a.tokens = min(a.burst, a.tokens+now.Sub(a.filled).Seconds()*a.rate)
	a.filled = now
	return a.tokens >= 1
}

// busy reports whether as many compute as may, or continue sooner than one starts. With mu held.
func (a *admission) busy() bool {
	most := a.maxComputing
	if a.single {
		most = 1
	}
	return most > 0 && a.running-a.silent >= most
}

// start runs p. With mu held.
func (a *admission) start(p *place) {
	a.running++
	a.tokens--
	a.idle.Go(func() {
		defer a.finished(p)
		p.run()
	})
}

func (a *admission) finished(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.speaks(p)
	a.unhang(p)
	a.running--
	if p.ended {
		a.leaving--
	}
	a.advance()
}

// throttle lets handshakes run one at a time, or as many as may again.
func (a *admission) throttle(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.single = on
	a.advance()
}

// advance starts what may start now. With mu held.
func (a *admission) advance() {
	for a.waiting.Len() > 0 && !a.closed && a.ready() {
		p := a.waiting.Remove(a.waiting.Front()).(*place)
		p.item = nil
		a.start(p)
	}
	if a.closed {
		return
	}
	for p := a.stuck(); p != nil && a.now().Sub(p.since) >= a.patience; p = a.stuck() {
		a.unhang(p)
		p.ended = true
		a.leaving++
		p.end(errHung)
	}
	a.arm()
}

// stuck returns the one that hangs longest, if another waits for its place. With mu held.
func (a *admission) stuck() *place {
	if a.running < a.maxRunning || a.waiting.Len() <= a.leaving {
		return nil
	}
	for e := a.hung.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*place); p.silent {
			return p
		}
	}
	return nil
}

// arm sets the timer for when time alone admits the next. With mu held.
func (a *admission) arm() {
	var wait time.Duration
	switch p := a.stuck(); {
	case a.waiting.Len() == 0:
		return
	case p != nil:
		wait = p.since.Add(a.patience).Sub(a.now())
	case a.rate == 0, a.running >= a.maxRunning, a.busy():
		return // a running one has to finish first
	default:
		wait = time.Duration((1 - a.tokens) / a.rate * float64(time.Second))
	}
	wait = max(wait, time.Millisecond)
	if a.timer != nil {
		a.timer.Reset(wait)
		return
	}
	a.timer = time.AfterFunc(wait, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.advance()
	})
}

// close admits no more and waits for the running ones.
func (a *admission) close() {
	a.mu.Lock()
	a.closed = true
	for a.waiting.Len() > 0 {
		a.waiting.Remove(a.waiting.Front()).(*place).item = nil
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	a.idle.Wait()
}
