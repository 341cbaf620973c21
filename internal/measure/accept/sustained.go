package accept

import (
	"context"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func sustained() Indicator {
	return Indicator{
		Name: "sustained", Number: "3", Title: "Sustained load", Remote: true,
		Definition: "Publications at the target rate, each followed to its subscribers (at another URL: requests), for the whole time without an error, a loss or a drift.",
		Target:     "the target rate (0.8 of the knee, or --rate) held without error; P99, memory, goroutines and descriptors do not grow",
		Method:     "The knee is searched first. Then an open model with Poisson arrivals, response times from the intended instant. Growth is the Theil–Sen slope over the run with its 95 % interval: none when the interval reaches 0 or the growth is within the stated allowance.",
		criteria: append(append(noTrouble(true),
			criterion{name: "gaps", what: "gaps and streams that ended", kind: none},
			criterion{name: "rate", what: "completed of the offered", kind: atLeast, limit: 0.999, unit: share, timed: true},
			criterion{name: "worst", what: "longest response", kind: atMost, limit: 1, unit: seconds, timed: true},
			criterion{name: "p99", what: "P99 of the response", kind: flat, limit: 0.10, slack: 0.0005, unit: seconds, timed: true},
		), steady()...),
		plots: []plot{
			{"Response, P99", []string{"p99"}, seconds}, {"Memory", []string{"rss"}, bytesUnit},
			{"Goroutines and descriptors", []string{"goroutines", "descriptors"}, 0},
		},
		measure: measureSustained,
	}
}

// fanSpec is publications on some channels with a few subscribers on each.
func fanSpec(url string) loadgen.Spec {
	return loadgen.Spec{
		Kind: loadgen.PubSub, Target: url + "/sse?channel=accept-{channel}", Adapter: "weir", Conns: 8, Channels: 4, Publishers: 32,
		Headers: []string{"X-API-Key: " + apiKey}, Payload: 128, Warmup: 2 * time.Second, Window: time.Second,
	}
}

// remoteSpec is requests of another URL.
func remoteSpec(url string) loadgen.Spec {
	return loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 64, Warmup: 2 * time.Second, Window: time.Second, Insecure: true}
}

// placed starts a gateway, with what a test plants before it, or is another URL: then s
// is nil.
func (w *world) placed(ctx context.Context, config string) (s *process.Server, url string, err error) {
	if w.opt.Target != "" {
		return nil, w.opt.Target, nil
	}
	if s, err = w.gateway(ctx, config); err != nil {
		return nil, "", err
	}
	address := s.Addr
	if w.opt.plant != nil {
		if address, err = w.opt.plant(address); err != nil {
			s.Stop()
			return nil, "", err
		}
	}
	return s, "http://" + address, nil
}

func measureSustained(ctx context.Context, w *world) error {
	s, url, err := w.placed(ctx, plainConfig)
	if err != nil {
		return err
	}
	spec := remoteSpec(url)
	if s != nil {
		defer s.Stop()
		spec = fanSpec(url)
	}
	rate, err := w.targetRate(ctx, s, spec)
	if err != nil {
		return err
	}
	w.ev.Reduced = w.plan.heldLess
	w.progress("%s for %v", perSecond.Format(rate), w.plan.hold)
	spec.Rate, spec.Duration, spec.Window = rate, w.plan.hold, max(time.Second, w.plan.hold/maxPoints)
	if w.plan.hold < 20*time.Second {
		spec.Window = w.plan.hold / 20
	}
	spec.Warmup = max(spec.Warmup, min(10*time.Second, w.plan.hold/10)) // the heap has its size some collections later
	all, err := w.loadWatched(ctx, s, w.plan.hold, nil, spec)
	if err != nil {
		return err
	}
	r := all[0]
	w.trouble(r)
	t := &r.Total
	w.ev.value("rate", float64(t.Completed+t.Drained)/float64(max(t.Offered, 1)))
	if t.Response != nil {
		w.ev.value("worst", float64(t.Response.Max())/1e6)
	}
	w.tail("p99", r.Windows)
	if d := t.Delivery; d != nil {
		closes := uint64(0)
		for _, n := range d.Closes {
			closes += n
		}
		w.ev.count("gaps", d.Gaps+closes, d.Expected)
	} else {
		for _, name := range []string{"lost", "repeated", "reordered", "gaps"} {
			w.ev.count(name, 0, t.Offered) // requests have none
		}
		w.ev.Reduced = strings.TrimPrefix(w.ev.Reduced+"; memory, goroutines and descriptors of another service are not seen", "; ")
	}
	return nil
}
