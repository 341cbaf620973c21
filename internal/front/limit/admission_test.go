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
	// hidden is work that follows from what is served and that is not reported to the queue,
	// in parts of the cost: what other loops deliver here, what the kernel sends later.
	hidden float64
	// sends is what bringing a tick's publications of the market to their followers takes,
	// however many they are. One message more is cheap then.
	sends time.Duration
	// pauses are times in which others have the processor: of that length on average, so
	// many a second.
	pauses  float64
	pause   time.Duration
	poisson *rand.Rand
}

const (
	readCost   = int64(4 * time.Microsecond)
	orderCost  = int64(60 * time.Microsecond)
	marketCost = int64(150 * time.Microsecond)
	// batchedCost is a publication's of the market without its sends.
	batchedCost = int64(30 * time.Microsecond)
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
	owed, nextPause, sent := 0.0, int64(0), false
	slice := a.Slice()
	if s.sends > 0 {
		cost[Market] = batchedCost
		slice = max(slice, 2*int64(s.sends))
		a.Slices(slice)
	}
	pause := func() {
		for s.pauses > 0 && now >= nextPause {
			if nextPause > 0 {
				now += int64(s.poisson.ExpFloat64() * float64(s.pause))
			}
			nextPause = now + int64(s.poisson.ExpFloat64()/s.pauses*1e9)
		}
	}
	serve := func(r simRequest) (took int64) {
		took = cost[r.class]
		if r.class == Market && !sent {
			took, sent = took+int64(s.sends), true
		}
		now += took
		owed += s.hidden * float64(took)
		pause()
		o := in(r.at)
		o.served[r.class]++
		o.took[r.class] = append(o.took[r.class], float64(now-r.at)/1e6)
		if now >= begin && now < end {
			burst.work += took
		}
		return took
	}
	refuse := func(r simRequest) { in(r.at).refused[r.class]++ }
	for now < last {
		if s.stall > 0 && now-stalled > int64(2*time.Second) {
			now += int64(s.stall)
			stalled = now
		}
		tick := now
		sent = false
		for next <= now { // everything that there is
			r := simRequest{class: Market, at: next}
			if s.poisson.Float64() < s.orders {
				r.class = Order
			}
			in(r.at).offered[r.class]++
			now += readCost
			spent := int64(0)
			if now-tick >= slice {
				spent = a.Slice()
			}
			switch v, _ := a.Offer(r.class, Key{}, now, spent, r); v {
			case Go:
				a.Served(r.class, 1, serve(r), now)
			case Refuse:
				refuse(r)
			}
			rate := s.rate
			if next >= begin && next < end {
				rate = s.burst
			}
			next += int64(s.poisson.ExpFloat64() / rate * 1e9)
		}
		var n [Classes]int
		var took [Classes]int64
		for from := now; now-from < slice; {
			r, _, expired, ok := a.Next(now)
			if !ok {
				break
			}
			if expired {
				refuse(r)
			} else {
				n[r.class]++
				took[r.class] += serve(r)
			}
		}
		for c := range n {
			a.Served(Class(c), n[c], took[c], now)
		}
		now += int64(owed)
		owed = 0
		pause()
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

func TestABurstOfThreeTimesTheLoadDelaysNoOrderSimulated(t *testing.T) {
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

func TestOrdersAreRefusedOnlyWhenOrdersAloneAreTooManySimulated(t *testing.T) {
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

func TestExcessRequestsAreRefusedInTime(t *testing.T) {
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
		t.Error("a replay is started while the process is short of processors")
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

// What a tick's publications take to send is paid once. With a budget below that the
// queue would hold one at a time, each as dear as many, and what is carried would shrink
// with what is admitted.
func TestAShortBudgetKeepsWhatIsServedInOneGo(t *testing.T) {
	served := func(scale float64) (n int) {
		s := simulation{rate: 4000, burst: 20_000, length: 10 * time.Second, orders: 0.1, sends: time.Millisecond, poisson: rand.New(rand.NewPCG(1, 1))}
		a := NewAdmission[simRequest](AdmissionConfig{})
		a.Guard(scale, scale < 1)
		burst, after := s.run(a)
		if v := burst.p95(Order, Market); v > 15 || burst.refused[Order] != 0 {
			t.Errorf("scale %v: p95 of the admitted is %.1f ms, %d orders are refused", scale, v, burst.refused[Order])
		}
		if after.refused[Market] > 0 {
			t.Errorf("scale %v: after the burst %d are refused", scale, after.refused[Market])
		}
		return burst.served[Market] + burst.served[Order]
	}
	half := served(0.5)
	for _, scale := range []float64{1, 0.25, 0.05} {
		if n := served(scale); scale < 1 && n < half*95/100 {
			t.Errorf("%d are served with a budget of %v, %d with half of it", n, scale, half)
		}
	}
}

// Others have the processor for 2 ms fifty times a second, and as much work again follows
// unseen: the share of its time that the loop has accounts for both.
func TestHiddenWorkAndPausesAreAccountedFor(t *testing.T) {
	for seed := range uint64(3) {
		const hidden, pauses, pause = 1.0, 50.0, 2 * time.Millisecond
		c := 1e9 * (1 - pauses*pause.Seconds()) / ((1+hidden)*(0.1*float64(orderCost)+0.9*float64(marketCost)) + float64(readCost))
		s := simulation{rate: 0.6 * c, burst: 1.8 * c, length: 20 * time.Second, orders: 0.1, hidden: hidden, pauses: pauses, pause: pause, poisson: rand.New(rand.NewPCG(seed, 1))}
		burst, _ := s.run(NewAdmission[simRequest](AdmissionConfig{}))
		possible := (1 - 1.8*c*float64(readCost)/1e9 - 0.1/1.1) / (1 + hidden)
		if v := float64(burst.work) / float64(s.length); v < 0.95*possible || burst.p95(Order, Market) > 15 || burst.p95(Order) > 8 || burst.refused[Order] != 0 {
			t.Errorf("%.3f of %.3f of the time is spent serving; p95 %.1f ms, of orders %.1f; %d orders refused", v, possible, burst.p95(Order, Market), burst.p95(Order), burst.refused[Order])
		}
	}
}
