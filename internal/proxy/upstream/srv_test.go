package upstream

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// zone is the SRV records of every name; nil: the server does not answer.
type zone struct{ records atomic.Pointer[[]SRV] }

func (z *zone) set(all ...SRV) { z.records.Store(&all) }
func (z *zone) hang()          { z.records.Store(nil) }

func (z *zone) resolve(context.Context, string) ([]SRV, error) {
	if r := z.records.Load(); r != nil {
		return append([]SRV(nil), *r...), nil
	}
	return nil, errors.New("no answer")
}

const service = "_http._tcp.example.internal"

// service3 are two peers of one priority, 3:1, and one of another.
var service3 = []SRV{{"a.example.", 80, 10, 3}, {"B.example", 81, 10, 1}, {"c.example.", 82, 20, 5}}

func (w *world) hosts() {
	w.name("a.example", "10.0.0.1")
	w.name("b.example", "10.0.0.2")
	w.name("c.example", "10.0.0.3", "10.0.0.4")
}

func TestSRVRecordsSetTargetsAndWeights(t *testing.T) {
	w, z := &world{}, &zone{}
	w.hosts()
	z.set(service3...)
	served(t, w, z, Config{Name: "test", SRV: service}, func(t *testing.T, s *Set) {
		c := s.Cluster("test")
		got := tally(t, c, 4000)
		if len(got) != 2 || got["10.0.0.1:80"] != 3000 || got["10.0.0.2:81"] != 1000 {
			t.Errorf("%v, want 3:1 of the first priority", got)
		}
		if p := mustPick(t, c, 0, 0, nil); p.Name() != "a.example:80" && p.Name() != "b.example:81" {
			t.Errorf("the name of a peer is %q", p.Name())
		} else {
			c.Done(p, Outcome{Kind: Canceled})
		}
	})
}

func TestALowerPriorityPeerServesWhenNoOtherCan(t *testing.T) {
	w, z := &world{}, &zone{}
	w.hosts()
	z.set(service3...)
	served(t, w, z, Config{Name: "test", SRV: service, Outlier: OutlierConfig{Enabled: setting.Off}, Breaker: BreakerConfig{Enabled: setting.Off}}, func(t *testing.T, s *Set) {
		c := s.Cluster("test")
		// A request that failed at both of the first continues to the next ones, and
		// only then to the first again.
		var tried Tried
		var order []string
		for range 5 {
			p := mustPick(t, c, 0, 0, &tried)
			order = append(order, p.Address().String())
			c.Done(p, failed(ConnectError, 0))
		}
		if all := strings.Join(order[:2], " "); !strings.Contains(all, ".1:80") || !strings.Contains(all, ".2:81") {
			t.Errorf("%v: the first two are not of the first priority", order)
		}
		if all := strings.Join(order[2:4], " "); !strings.Contains(all, ".3:82") || !strings.Contains(all, ".4:82") {
			t.Errorf("%v: then come not those of the next", order)
		}
		if order[4] != "10.0.0.1:80" && order[4] != "10.0.0.2:81" {
			t.Errorf("%v: then comes not one of the first", order)
		}
		for _, a := range []string{"10.0.0.1:80", "10.0.0.2:81"} {
			peerAt(t, c, a).health.Store(uint32(HealthDown))
		}
		if got := tally(t, c, 100); got["10.0.0.3:82"] != 50 || got["10.0.0.4:82"] != 50 {
			t.Errorf("with the first down: %v", got)
		}
		peerAt(t, c, "10.0.0.2:81").health.Store(uint32(HealthUp))
		if got := tally(t, c, 100); got["10.0.0.2:81"] != 100 {
			t.Errorf("with one of the first back: %v", got)
		}
		for _, mb := range c.members.known {
			mb.peer.health.Store(uint32(HealthDown))
		}
		if got := tally(t, c, 100); got["10.0.0.1:80"]+got["10.0.0.2:81"] != 100 {
			t.Errorf("with all down: %v, want the first", got)
		}
	})
}

// served is bubble with a zone.
func served(t *testing.T, w *world, z *zone, cfg Config, f func(t *testing.T, s *Set)) {
	t.Helper()
	bubbleWith(t, Options{Resolve: w.resolve, ResolveSRV: z.resolve, Check: w.check}, []Config{cfg}, f)
}

func TestSRVRecordsAreReadAgain(t *testing.T) {
	w, z := &world{}, &zone{}
	w.hosts()
	served(t, w, z, Config{Name: "test", SRV: service}, func(t *testing.T, s *Set) {
		c := s.Cluster("test")
		f := func(what string, wait time.Duration, want ...string) {
			t.Helper()
			after(wait)
			var got []string
			for a := range c.view.Load().all() {
				got = append(got, a.peer.Name())
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		f("at first no server answers", 0)
		if _, err := c.Pick(0, 0, nil); !errors.Is(err, ErrNoPeers) {
			t.Errorf("%v", err)
		}
		z.set(service3...)
		f("tried again soon", 2*time.Second, "a.example:80", "b.example:81", "c.example:82", "c.example:82")
		z.set(SRV{"b.example.", 81, 0, 0}, SRV{"b.example.", 82, 0, 0}, SRV{"b.example.", 81, 0, 0})
		f("not before the interval", 20*time.Second, "a.example:80", "b.example:81", "c.example:82", "c.example:82")
		f("others", 15*time.Second, "b.example:81", "b.example:82")
		z.hang()
		f("no answer changes nothing", 5*time.Minute, "b.example:81", "b.example:82")
		z.set(SRV{"b.example.", 81, 0, 0}, SRV{"new.example.", 90, 0, 0})
		f("a host that is not known yet", time.Minute, "b.example:81")
		w.name("new.example", "10.0.0.9")
		f("it is", time.Minute, "b.example:81", "new.example:90")
		z.set(SRV{".", 0, 0, 0})
		f("there is no such service", time.Minute)
		z.set(SRV{"b.example.", 81, 0, 0}, SRV{"10.0.0.256", 1, 0, 0}, SRV{"a b.", 2, 0, 0}, SRV{"c.example", 0, 0, 0})
		f("records that make no sense", time.Minute, "b.example:81")
		// A reload keeps what is known.
		z.hang()
		if err := s.Replace(t.Context(), []Config{{Name: "test", SRV: service, Balance: LeastConnections}}, nil); err != nil {
			t.Fatal(err)
		}
		f("after a reload", 0, "b.example:81")
		if err := s.Replace(t.Context(), []Config{{Name: "test", Peers: peers("10.1.1.1:80")}}, nil); err != nil {
			t.Fatal(err)
		}
		f("without records", time.Minute, "10.1.1.1:80")
		z.set(service3[0])
		if err := s.Replace(t.Context(), []Config{{Name: "test", SRV: service}}, nil); err != nil {
			t.Fatal(err)
		}
		f("and with them again, at once", 0, "a.example:80")
	})
}

func TestWeightsOfZeroHaveASmallChance(t *testing.T) {
	w, z := &world{}, &zone{}
	w.hosts()
	z.set(SRV{"a.example.", 80, 0, 1}, SRV{"b.example.", 80, 0, 0})
	served(t, w, z, Config{Name: "test", SRV: service}, func(t *testing.T, s *Set) {
		if got := tally(t, s.Cluster("test"), 1010); got["10.0.0.2:80"] != 10 {
			t.Errorf("%v", got)
		}
	})
}
