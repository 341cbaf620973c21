package push

import (
	"math/rand/v2"
	"testing"
)

// In no second is a subscriber sent more than its rate, however the calls come, and who
// has enough waiting gets most of it.
func TestNoSecondHasMoreThanTheRate(t *testing.T) {
	const second = int64(1e9)
	r := rand.New(rand.NewPCG(1, 2))
	f := func(rate int, every func(p *pace) int64) {
		t.Helper()
		p := pace{rate: rate}
		var sent []int64
		first := 0
		for now := int64(0); now < 20*second; now += every(&p) {
			for p.allow(now) {
				sent = append(sent, now)
				for now-sent[first] >= second {
					first++
				}
				if n := len(sent) - first; n > rate {
					t.Fatalf("%d messages in a second at a rate of %d", n, rate)
				}
			}
		}
		if len(sent) < 20*rate*4/5 {
			t.Errorf("%d messages in 20 seconds at a rate of %d", len(sent), rate)
		}
	}
	const tick = int64(100e6) // what the loop's timers are exact to
	for _, rate := range []int{1, 2, 7, 10, 11, 20, 50, 99, 100, 1000, 30_000} {
		f(rate, func(p *pace) int64 { return max(p.wait(), 1) })
		f(rate, func(*pace) int64 { return 1 + r.Int64N(tick) })
		if rate >= 5 {
			f(rate, func(p *pace) int64 { return p.wait() + r.Int64N(tick) })
		}
	}
}
