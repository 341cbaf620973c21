package accept

import (
	"context"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

func priority() Indicator {
	return Indicator{
		Name: "priority", Title: "Fairness and priorities, 7 : 2 : 1",
		Definition: "Market data, orders and cancels as 7 : 2 : 1, of classes market, order and control. Orders and cancels are first sent alone, then with market data of three times the capacity of the mix. Market data come from four equal publishers. Priorities here are those of admission, above the socket.",
		Target:     "orders' P99 at most 1.5 times what it is alone, P95 ≤ 5 ms; no order or cancel refused; Jain's index of the equal publishers ≥ 0.95",
		Method:     "An open model; the processors are divided as in a burst. Pieces alone and mixed take turns; the interval is over the pairs.",
		criteria: []criterion{
			{name: "isolation", what: "orders' P99 mixed, of that alone", kind: atMost, limit: 1.5, timed: true},
			{name: "p95", what: "orders' P95 mixed", kind: atMost, limit: 0.005, unit: seconds, timed: true},
			{name: "refused", what: "orders and cancels refused or failed", kind: none, timed: true},
			{name: "jain", what: "Jain's index of equal publishers", kind: atLeast, limit: 0.95, timed: true},
			{name: "overload", what: "market data refused: there was more than could be carried", kind: some},
		},
		measure: measurePriority,
	}
}

const equals = 4 // publishers of market data

func measurePriority(ctx context.Context, w *world) error {
	defer pin(w)()
	capacity, err := w.capacityOf(ctx)
	if err != nil {
		return err
	}
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
	url := "http://" + s.Addr
	orders, cancels := publications(url, "orders:new", orderPublishers, 128), publications(url, "cancels:new", orderPublishers, 64)
	orders.Rate, cancels.Rate = 0.2*baseShare*capacity, 0.1*baseShare*capacity
	alone := []loadgen.Spec{orders, cancels}
	mixed := alone
	for range equals {
		m := publications(url, "market:EURUSD", marketPublishers/equals, quoteSize)
		m.Rate = 3 * capacity / equals
		mixed = append(mixed, m)
	}
	// Long enough for a P99 of the orders.
	length := max(2*w.plan.piece, min(time.Duration(1200/orders.Rate*float64(time.Second)), 30*time.Second))
	stop := w.watch(ctx, s, 0, time.Duration(w.plan.trials)*2*length)
	defer stop()
	for i := range w.plan.trials {
		var got [2]float64
		for side, specs := range [][]loadgen.Spec{alone, mixed} {
			all, err := w.load(ctx, []string{"alone", "mixed"}[side], lasting(specs, length)...)
			if err != nil {
				return err
			}
			got[side], _ = quantile(&all[0].Total, 0.99)
			if side == 1 {
				addMixed(w, all)
			}
		}
		if got[0] > 0 && got[1] > 0 {
			w.ev.value("isolation", got[1]/got[0])
			w.progress("trial %d of %d: orders' P99 %s alone, %s mixed", i+1, w.plan.trials, seconds.Format(got[0]), seconds.Format(got[1]))
		}
	}
	return nil
}

// lasting is specs with a length, and another name of the evidence for each.
func lasting(specs []loadgen.Spec, d time.Duration) []loadgen.Spec {
	out := append([]loadgen.Spec(nil), specs...)
	for i := range out {
		out[i].Duration, out[i].Warmup = d, d/4
	}
	return out
}

// mixed adds what a mixed piece gave: orders, cancels, then the equal publishers.
func addMixed(w *world, all []*loadgen.Result) {
	var shares []float64
	for i, r := range all {
		var o outcome
		o.add(&r.Total)
		switch {
		case i < 2:
			w.ev.count("refused", o.refused+o.failed, o.offered)
			if i == 0 {
				w.ev.value("p95", o.quantile(95))
			}
		default:
			shares = append(shares, float64(o.completed))
			w.ev.count("overload", o.refused, o.offered)
		}
	}
	w.ev.value("jain", stat.Jain(shares))
}
