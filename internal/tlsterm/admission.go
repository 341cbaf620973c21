package tlsterm

import (
	"container/list"
	"sync"
	"time"
)

// An admission decides which handshakes run: a bounded number at a time, begun
// at a bounded rate. The others wait in the order they came, and when too many
// wait, one more is turned away. Any goroutine.
type admission struct {
	// Fixed at New.
	maxRunning, maxWaiting int
	rate                   float64 // per second; 0: no bound
	burst                  float64
	now                    func() time.Time

	mu      sync.Mutex
	running int
	single  bool      // one at a time: the process is short of processors
	waiting list.List // of *place
	tokens  float64
	filled  time.Time   // when tokens was right
	timer   *time.Timer // runs while some wait for a token
	closed  bool
	idle    sync.WaitGroup
}

// A place is one handshake's in the line.
type place struct {
	run  func()
	item *list.Element // nil once it runs, or was given up
}

func newAdmission(cfg Config) *admission {
	rate := float64(cfg.HandshakeRate)
	a := &admission{maxRunning: cfg.MaxHandshakes, maxWaiting: cfg.MaxWaiting, rate: rate, burst: max(rate/10, 1), now: time.Now}
	a.tokens, a.filled = a.burst, a.now()
	return a
}

// enter runs run on a goroutine of its own, now or later. It returns nil when
// too many wait already.
func (a *admission) enter(run func()) *place {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	p := &place{run: run}
	if a.waiting.Len() == 0 && a.ready() {
		a.start(p)
		return p
	}
	if a.waiting.Len() >= a.maxWaiting {
		return nil
	}
	p.item = a.waiting.PushBack(p)
	a.arm()
	return p
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

// ready reports whether one more may begin. With mu held.
func (a *admission) ready() bool {
	if a.running >= a.maxRunning || a.single && a.running > 0 {
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

// start runs p. With mu held.
func (a *admission) start(p *place) {
	a.running++
	a.tokens--
	a.idle.Go(func() {
		defer a.finished()
		p.run()
	})
}

func (a *admission) finished() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	a.advance()
}

// throttle lets handshakes run one at a time, or as many as may again.
func (a *admission) throttle(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.single = on
	a.advance()
}

// advance starts what may begin now. With mu held.
func (a *admission) advance() {
	for a.waiting.Len() > 0 && !a.closed && a.ready() {
		p := a.waiting.Remove(a.waiting.Front()).(*place)
		p.item = nil
		a.start(p)
	}
	a.arm()
}

// arm sets the timer for the next token while something waits for it. With mu held.
func (a *admission) arm() {
	if a.closed || a.rate == 0 || a.timer != nil || a.waiting.Len() == 0 || a.running >= a.maxRunning {
		return
	}
	wait := time.Duration((1 - a.tokens) / a.rate * float64(time.Second))
	a.timer = time.AfterFunc(max(wait, time.Millisecond), func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.timer = nil
		a.advance()
	})
}

// close lets nobody in any more and waits for those who run.
func (a *admission) close() {
	a.mu.Lock()
	a.closed = true
	a.waiting.Init()
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	a.idle.Wait()
}
