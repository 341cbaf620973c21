package accept

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func burst() Indicator {
	return Indicator{
		Name: "burst", Number: "7", Title: "Burst of three times the base load",
		Definition: "Nine parts of market data, snapshots of 4 KiB with 200 subscribers that take them compressed, and one part of orders at 0.6 of the capacity, then three times that, then the base load again. The capacity is the highest rate of the same mix without classes whose P95 is at most 15 ms.",
		Target:     "P95 of the admitted ≤ 15 ms, no order refused, goodput ≥ 0.95 of the capacity, P99 back within 1.5 times the base's after at most 10 s, no disconnects",
		Method:     "An open model over loopback. The gateway has one half of the processors and the load, readers included, the other, where there are at least four: the report names them. The capacity is found so just before. Each length of burst is a trial.",
		criteria: []criterion{
			{name: "p95", what: "P95 of the admitted in the burst", kind: atMost, limit: 0.015, unit: seconds, timed: true},
			{name: "refused orders", what: "orders refused or failed", kind: none, timed: true},
			{name: "goodput", what: "work done in the burst, of the capacity", kind: atLeast, limit: 0.95, timed: true},
			{name: "recovery", what: "P99 back within 1.5 times the base's after", kind: atMost, limit: 10, unit: seconds, timed: true},
			{name: "disconnects", what: "connections that ended", kind: none},
			{name: "overload", what: "market data refused: the burst was more than could be carried", kind: some},
			{name: "inside", what: "P95 of waiting in the gateway's queue in the burst, as its histogram bounds it", kind: info, unit: seconds},
			{name: "capacity", what: "capacity of the mix", kind: info, unit: perSecond},
		},
		plots:   []plot{{"Response, P95", []string{"P95 market", "P95 orders"}, seconds}, {"Completed", []string{"completed"}, perSecond}},
		measure: measureBurst,
	}
}

const (
	baseShare   = 0.6
	burstTimes  = 3
	orderShare  = 0.1
	burstBudget = 0.015 // seconds, of the P95
)

// classedConfig gives the namespaces of the mix their classes, or none.
func classedConfig(classes bool) string {
	market, order, control := "", "", ""
	if classes {
		market, order, control = "market", "order", "control"
	}
	return fmt.Sprintf(baseConfig+`namespaces:
  - {name: market, durability: none, anonymous: true, compress: true, queue_messages: 20000, queue_bytes: 67108864, class: %q}
  - {name: orders, durability: none, anonymous: true, class: %q}
  - {name: cancels, durability: none, anonymous: true, class: %q}
`, market, order, control)
}

// publications is the load of one kind of message.
func publications(url, channel string, publishers, size int) loadgen.Spec {
	return loadgen.Spec{
		Kind: loadgen.HTTP, Target: url + "/api/publish", Method: "POST", Conns: publishers,
		Headers: []string{"X-API-Key: " + apiKey, "Content-Type: application/json"},
		Body:    `{"channel":"` + channel + `","data":"` + loadgen.PriceText(size) + `"}`,
		Window:  250 * time.Millisecond, Warmup: time.Second,
	}
}

// What is published to the market: large enough, and for so many, that work waits in the gateway
// when there is more than it can carry.
const (
	quoteSize        = 4096
	marketPublishers = 512
	orderPublishers  = 128
	marketReaders    = 200
)

func mix(url string) []loadgen.Spec {
	return []loadgen.Spec{publications(url, "market:EURUSD", marketPublishers, quoteSize), publications(url, "orders:new", orderPublishers, 128)}
}

// readers are the mix's subscribers.
func readers(ctx context.Context, addr string) (*loadgen.Readers, error) {
	r := &loadgen.Readers{}
	err := errors.Join(r.Connect(ctx, addr, "/sse?channel=market:EURUSD", marketReaders, true), r.Connect(ctx, addr, "/sse?channel=orders:new", 1, false))
	if err != nil {
		r.Close()
	}
	return r, err
}

// capacityOf is the capacity of the mix on a gateway without classes.
func (w *world) capacityOf(ctx context.Context) (float64, error) {
	if w.known.mix > 0 {
		return w.known.mix, nil
	}
	s, err := w.gateway(ctx, classedConfig(false))
	if err != nil {
		return 0, err
	}
	defer s.Stop()
	subs, err := readers(ctx, s.Addr)
	if err != nil {
		return 0, err
	}
	defer subs.Close()
	var loads []*loadgen.Generator
	for _, spec := range mix("http://" + s.Addr) {
		g, err := loadgen.New(spec, nil)
		if err != nil {
			return 0, err
		}
		defer func() { _ = g.Close() }() // its connections end either way
		loads = append(loads, g)
	}
	w.known.mix, err = search(1000, func(rate float64) (bool, error) {
		windows, errs := make([]*loadgen.Window, len(loads)), make([]error, len(loads))
		var all sync.WaitGroup
		for i, part := range []float64{1 - orderShare, orderShare} {
			all.Go(func() { windows[i], errs[i] = loads[i].Measure(ctx, loadgen.Load{Rate: rate * part}, w.plan.searched) })
		}
		all.Wait()
		if err := errors.Join(append(errs, ctx.Err())...); err != nil {
			return false, err
		}
		var o outcome
		for _, one := range windows {
			o.add(one)
		}
		w.progress("%s: P95 %s", perSecond.Format(rate), seconds.Format(o.quantile(95)))
		return o.refused+o.failed == 0 && o.quantile(95) <= burstBudget, nil
	})
	return w.known.mix, err
}

// An outcome is what became of some windows' publications.
type outcome struct {
	offered, completed, refused, failed uint64
	times                               *hdrhistogram.Histogram
}

func (o *outcome) add(w *loadgen.Window) {
	o.offered += w.Offered
	o.completed += w.Completed + w.Drained
	for why, n := range w.Errors {
		if why == "status 503" {
			o.refused += n
		} else {
			o.failed += n
		}
	}
	o.failed += w.Dropped
	if w.Response == nil {
		return
	}
	if o.times == nil {
		o.times = hdrhistogram.New(1, 60_000_000, 3)
	}
	o.times.Merge(w.Response)
}

// quantile is in seconds; 0 without answers.
func (o *outcome) quantile(percent float64) float64 {
	if o.times == nil {
		return 0
	}
	return float64(o.times.ValueAtPercentile(percent)) / 1e6
}

// A burstRun is one measurement of burst.
type burstRun struct{ *world }

func measureBurst(ctx context.Context, of *world) error {
	w := burstRun{of}
	defer pin(of)()
	capacity, err := w.capacityOf(ctx)
	if err != nil {
		return err
	}
	w.ev.value("capacity", capacity)
	for _, length := range w.plan.bursts {
		if err := w.burstOf(ctx, capacity, length); err != nil {
			return err
		}
	}
	return nil
}

// burstOf is one trial.
func (w burstRun) burstOf(ctx context.Context, capacity float64, length time.Duration) error {
	s, err := w.gateway(ctx, classedConfig(true))
	if err != nil {
		return err
	}
	defer s.Stop()
	subs, err := readers(ctx, s.Addr)
	if err != nil {
		return err
	}
	defer subs.Close()
	w.progress("%s for %v", perSecond.Format(burstTimes*baseShare*capacity), length)
	settle, after := w.plan.settle, w.plan.settle+4*time.Second
	specs := mix("http://" + s.Addr)
	for i, part := range []float64{1 - orderShare, orderShare} {
		base := capacity * baseShare * part
		specs[i].Stages = []loadgen.Stage{
			{Duration: time.Millisecond, Rate: base}, {Duration: settle, Rate: base},
			{Duration: time.Millisecond, Rate: base * burstTimes}, {Duration: length, Rate: base * burstTimes},
			{Duration: time.Millisecond, Rate: base}, {Duration: after, Rate: base},
		}
	}
	started := w.since()
	stop := w.watch(ctx, s, 0, settle+length+after)
	defer stop()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	both, err := w.loadThen(ctx, "burst-"+length.String(), func() {
		waiting.Go(func() { w.inside(ctx, s, specs[0].Warmup+settle, length) })
	}, specs...)
	if err != nil {
		return err
	}
	waiting.Wait()
	w.ev.count("disconnects", subs.Ended(), marketReaders+1, "subscribers")
	w.weigh(both[0], both[1], capacity, settle, length, started)
	return nil
}

// inside adds what the admitted waited in the gateway's own queue in the burst: the rest of a response time is of
// the work itself, of sockets, and of the load generator.
func (w burstRun) inside(ctx context.Context, s *process.Server, after, length time.Duration) {
	if !sleep(ctx, after) {
		return
	}
	before, err := admissionWaits(ctx, s)
	if err != nil || !sleep(ctx, length) {
		return // it is only reported
	}
	if all, err := admissionWaits(ctx, s); err == nil {
		w.ev.value("inside", bucketQuantile(before, all, 0.95))
	}
}

// admissionWaits are the gateway's counts of requests that waited up to a bound, by the bound in seconds.
func admissionWaits(ctx context.Context, s *process.Server) (map[float64]float64, error) {
	b, err := get(ctx, s.Admin+"/metrics")
	if err != nil {
		return nil, err
	}
	sums := map[float64]float64{}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "weir_admission_wait_seconds_bucket{"); ok {
			var n float64
			_, bound, _ := strings.Cut(rest, `le="`)
			bound, count, _ := strings.Cut(bound, `"} `)
			le, err := strconv.ParseFloat(bound, 64)
			if _, scanned := fmt.Sscan(count, &n); err == nil && scanned == nil {
				sums[le] += n
			}
		}
	}
	return sums, nil
}

// bucketQuantile is the least bound that a share q of what came between two looks at a histogram is within; NaN if
// nothing came.
func bucketQuantile(before, after map[float64]float64, q float64) float64 {
	total := after[math.Inf(1)] - before[math.Inf(1)]
	for _, bound := range slices.Sorted(maps.Keys(after)) {
		if total > 0 && after[bound]-before[bound] >= q*total {
			return bound
		}
	}
	return math.NaN()
}

// weigh turns the windows of a burst into values.
func (w burstRun) weigh(market, orders *loadgen.Result, capacity float64, settle, length time.Duration, started float64) {
	var in, orderIn, base outcome
	var tail []late
	for k, r := range []*loadgen.Result{market, orders} {
		for i := range r.Windows {
			one := &r.Windows[i]
			at := one.Start.Sub(r.Windows[0].Start)
			v, ok := quantile(one, 0.95)
			if ok {
				w.ev.point([]string{"P95 market", "P95 orders"}[k], started+at.Seconds(), v)
			}
			switch end := at + one.Length; {
			case end <= settle:
				base.add(one)
			case at >= settle && end <= settle+length:
				in.add(one)
				if k == 1 {
					orderIn.add(one)
				}
			case at >= settle+length:
				tail = append(tail, lateOf(one, at-settle-length))
			}
			if k == 0 {
				w.ev.point("completed", started+at.Seconds(), float64(one.Completed)/one.Length.Seconds())
			}
		}
		n := r.Total.Reconnects
		for why, c := range r.Total.Errors {
			if strings.HasPrefix(why, "disconnect") || strings.HasPrefix(why, "connect") {
				n += c
			}
		}
		w.ev.count("disconnects", n, uint64(r.Spec.Conns))
	}
	w.ev.value("p95", in.quantile(95))
	w.ev.value("goodput", float64(in.completed)/(capacity*length.Seconds()))
	w.ev.count("refused orders", orderIn.refused+orderIn.failed, orderIn.offered)
	w.ev.count("overload", in.refused, in.offered)
	w.ev.value("recovery", recovered(tail, 1.5*base.quantile(99)))
}

// A late is a window after a burst.
type late struct {
	end time.Duration // after the burst
	p99 float64
}

func lateOf(w *loadgen.Window, at time.Duration) late {
	l := late{end: at + w.Length}
	if w.Response != nil {
		l.p99 = float64(w.Response.ValueAtPercentile(99)) / 1e6
	}
	return l
}

// recovered is when the last window ended whose P99 was above bound, in seconds after the
// burst.
func recovered(windows []late, bound float64) (at float64) {
	// One window in twenty may be above by the machine's stalls alone: the base's are too.
	var above []float64
	for _, l := range windows {
		if l.p99 > bound {
			above = append(above, l.end.Seconds())
		}
	}
	spare := len(windows) / 20
	if len(above) <= spare {
		return 0
	}
	return above[len(above)-1-spare]
}
