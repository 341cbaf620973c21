package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A simulated loop: it reads what has arrived, which costs it something whatever
// becomes of it, and serves by an Admission.
type simulation struct {
	rate, burst float64 // requests per second, before and during the burst
	length      time.Duration
	orders      float64 // share of the requests
	stall       time.Duration
	poisson     *rand.Rand
}

const (
	readCost   = int64(4 * time.Microsecond)
	orderCost  = int64(60 * time.Microsecond)
	marketCost = int64(150 * time.Microsecond)
)

type simRequest struct {
	class Class
	at    int64
}

// outcome is what became of the requests that arrived within a stretch of time.
type outcome struct {
	offered, served, refused [Classes]int
	took                     [Classes][]float64 // milliseconds from arrival to the end of service
	work                     int64              // time spent serving
}

func (o *outcome) p95(classes ...Class) float64 {
	var all []float64
	for _, c := range classes {
		all = append(all, o.took[c]...)
	}
	slices.Sort(all)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)*95/100]
}

// run simulates 5 s of base load, the burst, and 5 s of base load again. It returns
// what became of the requests of the burst and of those that came from 2 s after it.
func (s simulation) run(a *Admission[simRequest]) (burst, after outcome) {
	cost := [Classes]int64{Order: orderCost, Market: marketCost}
	begin, end := int64(5*time.Second), int64(5*time.Second+s.length)
	last := end + int64(5*time.Second)
	next, now, stalled := int64(0), int64(0), int64(0)
	in := func(at int64) *outcome {
		switch {
		case at >= begin && at < end:
			return &burst
		case at >= end+int64(2*time.Second):
			return &after
		}
		return &outcome{}
	}
	serve := func(r simRequest) {
		now += cost[r.class]
		o := in(r.at)
		o.served[r.class]++
		o.took[r.class] = append(o.took[r.class], float64(now-r.at)/1e6)
		if now >= begin && now < end {
			burst.work += cost[r.class]
		}
		a.Served(r.class, 1, cost[r.class], now)
	}
	refuse := func(r simRequest) { in(r.at).refused[r.class]++ }
	for now < last {
		if s.stall > 0 && now-stalled > int64(2*time.Second) {
			now += int64(s.stall)
			stalled = now
		}
		tick := now
		for next <= now { // everything that there is
			r := simRequest{class: Market, at: next}
			if s.poisson.Float64() < s.orders {
				r.class = Order
			}
			in(r.at).offered[r.class]++
			now += readCost
			switch v, _ := a.Offer(r.class, Key{}, now, now-tick, r); v {
			case Go:
				serve(r)
			case Refuse:
				refuse(r)
			}
			rate := s.rate
			if next >= begin && next < end {
				rate = s.burst
			}
			next += int64(s.poisson.ExpFloat64() / rate * 1e9)
		}
		for from := now; now-from < a.Slice(); {
			r, _, expired, ok := a.Next(now)
			if !ok {
				break
			}
			if expired {
				refuse(r)
			} else {
				serve(r)
			}
		}
		if a.Len() == 0 && next > now {
			now = next
		}
	}
	return burst, after
}

// capacity is how many requests per second one loop serves that does nothing else.
func capacity(orders float64) float64 {
	return 1e9 / (orders*float64(orderCost) + (1-orders)*float64(marketCost) + float64(readCost))
}

func TestABurstOfThreeTimesTheLoadDelaysNoOrder(t *testing.T) {
	f := func(name string, times float64, length, stall time.Duration, p95 float64) {
		t.Helper()
		for seed := range uint64(5) {
			c := capacity(0.1)
			s := simulation{rate: 0.6 * c, burst: 0.6 * c * times, length: length, orders: 0.1, stall: stall, poisson: rand.New(rand.NewPCG(seed, 1))}
			burst, after := s.run(NewAdmission[simRequest](AdmissionConfig{}))
			if n := burst.refused[Order]; n != 0 {
				t.Errorf("%s: %d orders of %d were refused", name, n, burst.offered[Order])
			}
			if v := burst.p95(Order, Market); v > p95 {
				t.Errorf("%s: p95 of the admitted is %.1f ms", name, v)
			}
			if v := burst.p95(Order); v > 3 && stall == 0 {
				t.Errorf("%s: p95 of orders is %.1f ms", name, v)
			}
			// What a loop that reads everything can serve at most.
			offered := float64(burst.offered[Order]+burst.offered[Market]) / length.Seconds()
			possible := 1 - offered*float64(readCost)/1e9 - stall.Seconds()/2
			if v := float64(burst.work) / float64(length); v < 0.95*min(possible, offered/c) {
				t.Errorf("%s: %.3f of the time is spent serving, of %.3f", name, v, possible)
			}
			if n := after.refused[Order] + after.refused[Market]; n > after.offered[Market]/100 && stall == 0 {
				t.Errorf("%s: 2 s after the burst %d of %d are refused", name, n, after.offered[Market])
			}
			if v := after.p95(Order, Market); v > 5 && stall == 0 {
				t.Errorf("%s: 2 s after the burst p95 is %.1f ms", name, v)
			}
		}
	}
	f("3x for 10 s", 3, 10*time.Second, 0, 15)
	f("3x for 60 s", 3, 60*time.Second, 0, 15)
	f("5x for 10 s", 5, 10*time.Second, 0, 15)
	f("3x for 10 s with stalls of 30 ms", 3, 10*time.Second, 30*time.Millisecond, 15)
	f("1.2x: within what it carries", 1.2, 10*time.Second, 0, 15)
}

func TestOrdersAreRefusedOnlyWhenOrdersAloneAreTooMany(t *testing.T) {
	c := 1e9 / float64(orderCost+readCost)
	s := simulation{rate: 0.5 * c, burst: 2 * c, length: 10 * time.Second, orders: 1, poisson: rand.New(rand.NewPCG(1, 1))}
	burst, _ := s.run(NewAdmission[simRequest](AdmissionConfig{}))
	if burst.refused[Order] < burst.offered[Order]/3 {
		t.Errorf("%d of %d were refused", burst.refused[Order], burst.offered[Order])
	}
	if v := burst.p95(Order); v > 15 {
		t.Errorf("p95 of the admitted is %.1f ms", v)
	}
}

func TestTheLeastImportantClassIsNotStarved(t *testing.T) {
	c := 1e9 / float64(orderCost+readCost)
	s := simulation{rate: 0.5 * c, burst: 1.5 * c, length: 10 * time.Second, orders: 0.9, poisson: rand.New(rand.NewPCG(1, 1))}
	burst, _ := s.run(NewAdmission[simRequest](AdmissionConfig{}))
	share := float64(burst.served[Market]) * float64(marketCost) / float64(burst.work)
	if share < 0.02 || share > 0.10 {
		t.Errorf("%.1f %% of the time went to the market, want about 5", 100*share)
	}
}

func TestTheOrderOfTheClasses(t *testing.T) {
	a := NewAdmission[string](AdmissionConfig{Slice: 1})
	offer := func(c Class, key, item string, want Verdict, old string) {
		t.Helper()
		if v, o := a.Offer(c, Key{Key: key}, 0, 1, item); v != want || o != old {
			t.Errorf("%s: verdict %d (%q), want %d (%q)", item, v, o, want, old)
		}
	}
	offer(Market, "EURUSD", "m1", Wait, "")
	offer(Replay, "", "r1", Wait, "")
	offer(Market, "GBPUSD", "m2", Wait, "")
	offer(Order, "", "o1", Wait, "")
	offer(Market, "EURUSD", "m3", Replaced, "m1")
	offer(Control, "", "c1", Wait, "")
	offer(Order, "", "o2", Wait, "")
	for _, want := range []string{"c1", "o1", "o2", "m3", "m2", "r1"} {
		if got, _, _, ok := a.Next(1); !ok || got != want {
			t.Errorf("%q (%v), want %q", got, ok, want)
		}
	}
	if _, _, _, ok := a.Next(1); ok || a.Len() != 0 {
		t.Error("something is left")
	}
	offer(Market, "EURUSD", "m4", Wait, "")
}

func TestWhatNobodyHasTimeForIsRefusedInTime(t *testing.T) {
	a := NewAdmission[int](AdmissionConfig{Slice: 1, MaxQueued: 100})
	a.Served(Market, 1, int64(time.Millisecond), 0)
	a.Served(Order, 1, int64(time.Millisecond), 0)
	admitted := 0
	for i := range 50 {
		if v, _ := a.Offer(Market, Key{}, 0, 1, i); v == Wait {
			admitted++
		}
	}
	if admitted < 4 || admitted > 6 {
		t.Errorf("%d of 1 ms each were admitted to 4 ms", admitted)
	}
	if v, _ := a.Offer(Order, Key{}, 0, 1, 0); v != Wait {
		t.Error("an order waits for the market")
	}
	a.Guard(0.05, true)
	if v, _ := a.Offer(Replay, Key{}, 0, 1, 0); v != Refuse {
		t.Error("a replay is begun while the process is short of processors")
	}
	for i := range 200 {
		if v, _ := a.Offer(Control, Key{}, 0, 1, i); v != Wait {
			t.Fatal("control was refused")
		}
	}
	for {
		if _, _, _, ok := a.Next(int64(time.Second)); !ok {
			break
		}
	}
	for _, s := range a.Stats() {
		if s.Offered != s.Admitted+s.Refused+s.Expired+s.Conflated+s.Abandoned || s.Queued != 0 {
			t.Errorf("%v: %+v does not add up", s.Class, s)
		}
	}
}

func TestOfferCostsNoAllocation(t *testing.T) {
	a := NewAdmission[*int](AdmissionConfig{})
	x := new(int)
	if n := testing.AllocsPerRun(1000, func() { a.Offer(Order, Key{}, 0, 0, x) }); n != 0 {
		t.Errorf("%v allocations to let a request through", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		a.Offer(Market, Key{}, 0, a.Slice(), x)
		a.Next(0)
	}); n != 0 {
		t.Errorf("%v allocations to queue one", n)
	}
}

func TestAClassHasAName(t *testing.T) {
	for c := Unclassed; c < Classes; c++ {
		var back Class
		b, _ := c.MarshalText()
		if err := back.UnmarshalText(b); err != nil || back != c {
			t.Errorf("%v: %q became %v (%v)", c, b, back, err)
		}
	}
	var c Class
	if err := c.UnmarshalText([]byte("urgent")); err == nil {
		t.Error("urgent is a class")
	}
}
