package app

import (
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/observe/admin"
)

func TestThePlanOfADrainIsALine(t *testing.T) {
	began := time.Unix(1_800_000_000, 0)
	f := func(over float64, after time.Duration, want int64) {
		t.Helper()
		d := admin.Drain{Began: began, Over: over, Streams: 400}
		if got := plannedLeft(&d, began.Add(after)); got != want {
			t.Errorf("over %v s, after %v: %d, want %d", over, after, got, want)
		}
	}
	f(4, 0, 400)
	f(4, time.Second, 300)
	f(4, 4*time.Second, 0)
	f(4, time.Hour, 0)
	f(4, -time.Second, 400) // another clock
	f(0, 0, 0)
}
