package eventloop

import (
	"testing"
	"time"
)

func TestTicksAreMeasured(t *testing.T) {
	l := &Loop{base: time.Now().Add(-time.Second)}
	var ended []int64
	l.OnTickEnd(func(now int64) { ended = append(ended, now) })
	l.now = l.Clock() - int64(100*time.Millisecond) // what began a while ago
	l.ticking.begin(l.now)
	l.ticking.begin(l.now) // more from the poller in the same tick
	if got := l.Ticks(); got.Current < 100*time.Millisecond || got.Busy < got.Current || got.Times.Total() != 0 {
		t.Errorf("in the tick: %v, busy %v, %d ended", got.Current, got.Busy, got.Times.Total())
	}
	l.tickEnds()
	got := l.Ticks()
	if got.Current != 0 || got.Busy < 100*time.Millisecond || got.Times.Total() != 1 || got.Times.Quantile(0.5) < 0.09 {
		t.Errorf("after it: %v, busy %v, %d ended, half below %v s", got.Current, got.Busy, got.Times.Total(), got.Times.Quantile(0.5))
	}
	if len(ended) != 1 || ended[0] <= l.now {
		t.Errorf("notified of ends %v", ended)
	}
	l.queue = append(l.queue, func() {}, func() {})
	if got := l.Ticks().Inbox; got != 2 {
		t.Errorf("inbox %d", got)
	}
}
