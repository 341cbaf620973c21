package push

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// owing is a job of n deliveries on a channel.
type owing struct {
	n       int
	channel string
}

func (o owing) Fanout() (int, string) { return o.n, o.channel }
func (owing) Serve()                  {}
func (owing) Shed(bool)               {}
func (owing) Gone() bool              { return false }
func (owing) Conn() *eventloop.Conn   { return nil }

func TestDeliveriesAreEstimatedBySendsAndMessages(t *testing.T) {
	for _, c := range []struct{ send, message float64 }{{2000, 80}, {6000, 400}, {900, 30}} {
		f, r := newFanout(), rand.New(rand.NewPCG(1, 2))
		for i := range 3000 {
			sends, per := uint64(100), uint64(1+r.IntN(30))
			took := float64(sends)*c.send + float64(sends*per)*c.message
			took *= 0.9 + 0.2*r.Float64()
			if i%50 == 0 {
				took += 20e6 // another process had the processor
			}
			f.learn(int64(took), sends, sends*per, true)
		}
		for _, per := range []float64{1, 10, 30} {
			want, got := c.send+per*c.message, f.send+per*f.message
			if got < 0.7*want || got > 2*want {
				t.Errorf("a send of %.0f messages takes %.0f ns, estimated are %.0f (%+v)", per, want, got, f)
			}
		}
	}
}

func TestWhatIsNotWholeTeachesSlowlyThatLessIsNeeded(t *testing.T) {
	f := newFanout()
	before := f.send + f.message
	for range 10 {
		f.learn(100*200, 100, 100, false)
	}
	if after := f.send + f.message; after < 0.85*before {
		t.Errorf("from %.0f to %.0f ns in ten runs", before, after)
	}
	for range 10 {
		f.learn(100*20_000, 100, 100, false)
	}
	if after := f.send + f.message; after < 10_000 {
		t.Errorf("of 20,000 ns it estimates %.0f", after)
	}
}

func TestTheSecondMessageOfAChannelAddsNoSends(t *testing.T) {
	f := fanout{send: 1000, message: 10}
	var b batch
	add := func(n int, channel string, want int64) {
		t.Helper()
		if got := b.add(&f, owing{n, channel}); got != want {
			t.Errorf("%d deliveries on %q owe %d, want %d", n, channel, got, want)
		}
	}
	add(100, "a", 101_000)
	add(100, "a", 1000)
	add(0, "b", 0)
	add(10, "c", 10_100)
	add(10, "", 10_100)
	add(10, "", 10_100)
	if b.most != 100_000 || b.owed != 132_300 {
		t.Errorf("%+v", b)
	}
	b.reset()
	add(100, "a", 101_000)
}
