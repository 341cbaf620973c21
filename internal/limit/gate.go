package limit

import (
	"context"
	"sync"
	"time"
)

// A Gate is an Admission for goroutines: a bounded number are at work at a time, the
// others wait for their turn by class or are refused. All methods are for any goroutine.
type Gate struct {
	// Fixed.
	slots int
	base  time.Time

	mu      sync.Mutex
	queue   *Admission[*ticket]
	running int
}

// ticket is one who waits. told says what became of it; it is buffered.
type ticket struct {
	told chan bool // true: go on; false: expired
	gone bool      // guarded by Gate.mu
}

// NewGate lets slots be at work at a time.
func NewGate(cfg AdmissionConfig, slots int) *Gate {
	g := &Gate{slots: max(slots, 1), base: time.Now(), queue: NewAdmission[*ticket](cfg)}
	g.queue.LetGo(func(t *ticket) bool { return t.gone })
	return g
}

// Enter waits for the turn of a request of class c. When ok, leave is to be called when
// its work is done; otherwise it is not to be served: expired says that it waited too long.
func (g *Gate) Enter(ctx context.Context, c Class) (leave func(), expired, ok bool) {
	g.mu.Lock()
	spent := int64(0)
	if g.running >= g.slots {
		spent = g.queue.Slice()
	}
	t := &ticket{told: make(chan bool, 1)}
	v, _ := g.queue.Offer(c, Key{}, g.now(), spent, t)
	if v == Go {
		g.running++
	}
	g.mu.Unlock()
	switch v {
	case Refuse:
		return nil, false, false
	case Wait:
		select {
		case served := <-t.told:
			if !served {
				return nil, true, false
			}
		case <-ctx.Done():
			g.mu.Lock()
			t.gone = true
			g.mu.Unlock()
			select {
			case served := <-t.told: // its turn came meanwhile
				if served {
					g.leave(c, g.now())
				}
			default:
			}
			return nil, false, false
		}
	}
	began := g.now()
	return func() { g.leave(c, began) }, false, true
}

// leave ends a request's work and lets the next begin.
func (g *Gate) leave(c Class, began int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.running--
	g.queue.Served(c, 1, (now-began)/int64(g.slots), now)
	for g.running < g.slots {
		t, _, expired, ok := g.queue.Next(now)
		if !ok {
			return
		}
		if !expired {
			g.running++
		}
		t.told <- !expired
	}
}

func (g *Gate) now() int64 { return int64(time.Since(g.base)) }

// Guard is Admission's.
func (g *Gate) Guard(scale float64, pause bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue.Guard(scale, pause)
}

// Stats is Admission's.
func (g *Gate) Stats() []ClassStats { return g.queue.Stats() }
