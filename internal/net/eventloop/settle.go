package eventloop

import (
	"context"
	"runtime/debug"
	"time"
)

// Memory after a burst. Connections that come by the thousand leave garbage
// behind, as much as they keep, and the collector would not look at it again
// before something else allocates as much. So when many have come and no more
// do, it is given back to the system.

const (
	settleCheck = 250 * time.Millisecond
	// settleAfter is how many connections make a burst, or an eighth of those
	// that are open if that is more: a collection looks at all of them.
	settleAfter = 1000
)

// settle calls release at the end of each burst of g's connections, until ctx is done.
func settle(ctx context.Context, g *Group, release func()) {
	t := time.NewTicker(settleCheck)
	defer t.Stop()
	var b burst
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if b.over(started(g.loops), g.Open()) {
				release()
			}
		}
	}
}

// started counts the connections of loops since New.
func started(loops []*Loop) (n uint64) {
	for _, l := range loops {
		s := l.Stats()
		n += s.Accepted + s.Dialed + s.Adopted
	}
	return n
}

// A burst is many connections in a row.
type burst struct {
	settled, last uint64 // connections started at the last release, and at the last look
}

// over is called at regular intervals with the connections started so far and those
// open now. It reports the end of a burst, once.
func (b *burst) over(total uint64, open int) bool {
	calm := total == b.last
	b.last = total
	if !calm || total-b.settled < uint64(max(settleAfter, open/8)) {
		return false
	}
	b.settled = total
	return true
}

// releaseMemory is also called before the first connection: what starting left
// behind goes back, and what the collector needs for itself is there.
func releaseMemory() { debug.FreeOSMemory() }
