package capacity

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// A served queue answers HTTP requests as a single server with exactly the service times that
// are drawn: an answer leaves when the request would be served (Lindley), which a thread of
// its own waits for. What sockets add comes on top and keeps no other request waiting.
type served struct {
	*httptest.Server
	jobs chan servedJob

	mu   sync.Mutex // guards what follows
	r    *rand.Rand
	free time.Time
}

type servedJob struct {
	at   time.Time
	done chan struct{}
}

// serveQueue serves; service is in seconds, and 0 for a request of /null.
func serveQueue(t *testing.T, service func(*rand.Rand) float64, seed uint64) *served {
	s := &served{jobs: make(chan servedJob, 1<<16), r: rand.New(rand.NewPCG(seed, 3))}
	var clerk sync.WaitGroup
	clerk.Go(func() {
		runtime.LockOSThread() // it sleeps in the kernel: timers of the runtime are rounded to a millisecond
		for j := range s.jobs {
			if d := time.Until(j.at); d > 0 {
				ts := syscall.NsecToTimespec(int64(d))
				_ = syscall.Nanosleep(&ts, nil) // woken early is a little early
			}
			close(j.done)
		}
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		j := servedJob{done: make(chan struct{})}
		s.mu.Lock()
		if now := time.Now(); now.After(s.free) {
			s.free = now
		}
		if r.URL.Path != "/null" {
			s.free = s.free.Add(time.Duration(service(s.r) * 1e9))
		}
		j.at = s.free
		s.jobs <- j
		s.mu.Unlock()
		<-j.done
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(func() {
		s.Close()
		close(s.jobs)
		clerk.Wait()
	})
	return s
}

// overhead is the median time in seconds that a request takes without service.
func (s *served) overhead(t *testing.T) float64 {
	times := make([]float64, 0, 200)
	for range 200 {
		start := time.Now()
		res, err := http.Get(s.URL + "/null") //nolint:noctx // bounded by the server's life
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		times = append(times, time.Since(start).Seconds())
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// The service times are what was drawn, or the truth would be none.
func TestServedQueueHasTheRequestedLaw(t *testing.T) {
	s := serveQueue(t, fixed(0.02), 1)
	res, err := http.Get(s.URL + "/null") //nolint:noctx // bounded by the server's life
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	start := time.Now()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			res, err := http.Get(s.URL) //nolint:noctx // bounded by the server's life
			if err != nil {
				t.Error(err)
				return
			}
			_ = res.Body.Close()
		})
	}
	all.Wait()
	if d := time.Since(start); d < 100*time.Millisecond {
		t.Errorf("five requests of 20 ms, one at a time, took %v", d)
	}
}

var (
	coverageSockets = flag.Int("coverage-sockets", 0, "run TestCoverageOnSockets with so many whole searches, 80 s each")
	socketsFor      = flag.Duration("coverage-sockets-for", 15*time.Minute, "start no search of TestCoverageOnSockets after this time")
)

// socketSearch is one search of a server of known law, and what is true of it.
func socketSearch(t *testing.T, seed uint64, most time.Duration) (r *Report, knee, slo float64) {
	t.Helper()
	const c = 250.0
	k := families[0].known(c)
	s := serveQueue(t, exponential(1/c), 70_000+seed)
	defer s.Close()
	more, law := s.overhead(t), k.at
	k.at = func(rate, p float64) float64 { return law(rate, p) + more }
	spec := loadgen.Spec{Kind: loadgen.HTTP, Target: s.URL + "/", Conns: 256, Seed: seed + 1}
	gen, err := loadgen.New(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer gen.Close()
	target, err := NewGenerated(gen, spec)
	if err != nil {
		t.Fatal(err)
	}
	r, err = Find(context.Background(), WithRuntime(target, Process(os.Getpid())), Options{Mode: Quick, SLO: k.slo, Seed: seed, MaxDuration: most})
	if err != nil {
		t.Fatal(err)
	}
	return r, k.rateFor(2.5*k.at(r.Base.Rate, r.Quantile), r.Quantile), k.rateFor(k.slo.Seconds(), 0.99)
}

// TestCoverageOnSockets prints how often the three intervals hold the truth on a real HTTP
// server of known law (M/M/1, 250/s) and a real generator: make knee-sockets, on a machine
// with nothing else to do. A search that ended early, since the machine or the generator
// disturbed it, is printed and does not count.
func TestCoverageOnSockets(t *testing.T) {
	if *coverageSockets == 0 {
		return // TestServedQueueHasTheRequestedLaw is what can be held anywhere
	}
	const each = 80 * time.Second
	fmt.Println("| search | λ knee, truth | λ SLO, truth | λ max, truth | verdict |\n|---|---|---|---|---|")
	began := time.Now()
	var knee, slo, most tally
	whole, early := 0, 0
	for seed := uint64(0); whole < *coverageSockets && time.Since(began)+each < *socketsFor; seed++ {
		r, kneeAt, sloAt := socketSearch(t, seed, each)
		verdict := string(r.Verdict)
		if len(r.Reasons) > 0 {
			verdict += ": " + r.Reasons[0]
		}
		if r.Partial {
			early++
			fmt.Printf("| ended early | | | | %s |\n", verdict)
			continue
		}
		whole++
		cell := func(l Limit, n *tally, truth float64) string {
			was, mark := n.held, "missed"
			if n.add(l, truth); n.held > was {
				mark = "held"
			}
			return fmt.Sprintf("%.0f … %.0f, %.0f: %s, %s", l.Rate.Lo, l.Rate.Hi, truth, mark, cmp.Or(l.Confidence, "not named"))
		}
		fmt.Printf("| %d | %s | %s | %s | %s |\n", whole, cell(r.Knee, &knee, kneeAt), cell(r.SLO, &slo, sloAt), cell(r.Max, &most, 250), verdict)
	}
	fmt.Printf("\nHeld in %d, %d and %d of %d whole searches; %d ended early.\n", knee.held, slo.held, most.held, whole, early)
}
