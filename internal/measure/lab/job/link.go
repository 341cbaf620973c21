package job

import (
	"container/list"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A link carries packets one way, as a long line does: each takes its time to be put on at the
// line's rate, waits behind those before it, is dropped if too many do, and arrives after the
// delay, unless it is lost.
type link struct {
	// rate in bytes a second; 0 means without a bound.
	rate float64
	// delay from one end to the other.
	delay time.Duration
	// queue bounds the bytes that wait; 0 means without a bound.
	queue float64
	// loss is the share of packets that are lost, at random.
	loss float64

	// Any goroutine, while it carries.
	packets, lost, dropped atomic.Int64
}

// A flight is a packet on its way.
type flight struct {
	due time.Time
	b   []byte
}

// enter decides what becomes of a packet of n bytes that comes now: when it arrives, or that it never does.
// free is when the line is done with those before it; it returns that of after it.
func (l *link) enter(now, free time.Time, n int, dice float64) (due, after time.Time, arrives bool) {
	l.packets.Add(1)
	if free.Before(now) {
		free = now
	}
	if l.queue > 0 && l.rate > 0 && free.Sub(now).Seconds()*l.rate > l.queue {
		l.dropped.Add(1)
		return now, free, false
	}
	if l.rate > 0 {
		free = free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	}
	if dice < l.loss { // it was on the line all the same
		l.lost.Add(1)
		return now, free, false
	}
	return free.Add(l.delay), free, true
}

// carry carries packets from one device to the other until ctx ends and from is closed.
func (l *link) carry(ctx context.Context, from, to *os.File, seed uint64) error {
	var mu sync.Mutex
	waiting := list.New() // of flight, in the order in which they arrive
	more := make(chan struct{}, 1)
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			mu.Lock()
			first := waiting.Front()
			if first != nil {
				waiting.Remove(first)
			}
			mu.Unlock()
			if first == nil {
				select {
				case <-ctx.Done():
					return
				case <-more:
				}
				continue
			}
			f := first.Value.(flight)
			time.Sleep(time.Until(f.due))
			_, _ = to.Write(f.b) // a device whose namespace is gone takes nothing
		}
	})
	defer writing.Wait()
	dice := rand.New(rand.NewPCG(seed, 7))
	free := time.Now()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		}
		due, after, arrives := l.enter(time.Now(), free, n, dice.Float64())
		if free = after; !arrives {
			continue
		}
		mu.Lock()
		waiting.PushBack(flight{due, append([]byte(nil), buf[:n]...)})
		mu.Unlock()
		select {
		case more <- struct{}{}:
		default:
		}
	}
}
