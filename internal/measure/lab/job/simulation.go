package job

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// random is a source that gives the same numbers for the same setting seed.
func (p Params) random() *rand.Rand {
	return rand.New(rand.NewPCG(uint64(p.number("seed", 1)), 2026))
}

// heartbeat plays connections through boxes that forget a silent one, as home
// routers and mobile networks do, and counts how often that cuts a stream. Time is
// simulated: setting interval is the server's heartbeat in seconds, 0 for none;
// backoff instead makes it 0.8 of each client's longest reconnect delay.
func heartbeat(ctx context.Context, p Params) (Values, error) {
	r := p.random()
	const (
		conns = 2000
		day   = 86400.0
		every = 600.0 // seconds between messages, exponential
	)
	boxes := []float64{30, 60, 120, 300, 900, math.Inf(1)} // seconds of silence each allows
	backoffs := []float64{5, 15, 30, 60, 120}
	cuts, blind, heartbeats := 0.0, 0.0, 0.0
	for range conns {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		box, interval := boxes[r.IntN(len(boxes))], p.number("interval", 0)
		if p.Set["backoff"] != "" {
			interval = p.number("backoff", 0.8) * backoffs[r.IntN(len(backoffs))]
		}
		if interval == 0 {
			interval = math.Inf(1)
		}
		message := r.ExpFloat64() * every
		for now := 0.0; now < day; {
			next := min(message, now+interval)
			if next-now > box {
				// Cut while silent. The next thing sent is lost and not acknowledged; 30 s
				// later the server knows, and the client is back.
				cuts++
				blind += next + 30 - (now + box)
				now = next + 30
				for message <= now {
					message += r.ExpFloat64() * every
				}
				continue
			}
			if next < message {
				heartbeats++
			} else {
				message += r.ExpFloat64() * every
			}
			now = next
		}
	}
	days := float64(conns)
	return Values{
		"cuts_per_day": cuts / days, "blind_share": blind / (days * day), "beats_per_hour": heartbeats / days / 24,
		// What was open at the end of the day counts as a life too.
		"life_seconds": (days*day - blind) / (cuts + conns),
	}, nil
}

// knee looks for the least utilisation of one simulated server (M/M/1) from which
// a step of its load by a share (setting step) makes P99 grow 2.5 times, over so
// many arrivals (setting arrivals).
func knee(ctx context.Context, p Params) (Values, error) {
	r, step := p.random(), p.number("step", 0.25)
	if step <= 0 {
		return nil, fmt.Errorf("step %v: must be over 0", step)
	}
	n := int(p.number("arrivals", 50_000))
	p99 := func(rho float64) float64 { return medianOf(3, func() float64 { return sojournP99(r, rho, n) }) }
	for rho := 0.2; rho*(1+step) < 0.998; rho += 0.01 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if ratio := p99(rho*(1+step)) / p99(rho); ratio >= 2.5 {
			return Values{"rho_before": rho, "rho_fires": rho * (1 + step), "ratio": ratio, "formula": stat.AlarmUtilization(2.5, step)}, nil
		}
	}
	return nil, fmt.Errorf("steps of %v: the ratio is never 2.5", step)
}

func medianOf(n int, f func() float64) float64 {
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = f()
	}
	return stat.Median(xs)
}

// sojournP99 is the P99 of the time in the system over n arrivals, by Lindley's
// recursion, after a tenth of them has warmed it up.
func sojournP99(r *rand.Rand, rho float64, n int) float64 {
	var wait float64
	times := make([]float64, 0, n)
	for i := range n + n/10 {
		service := r.ExpFloat64()
		if i >= n/10 {
			times = append(times, wait+service)
		}
		wait = max(0, wait+service-r.ExpFloat64()/rho)
	}
	return quantile(times, 0.99)
}

// burst simulates ten seconds of three times the usual load on two workers that
// carry 10,000 requests a second, a tenth of them orders: setting policy is none,
// bucket (a token bucket at rate times capacity, of size burst), or budget (what
// would wait longer than 10 ms, orders, or 4 ms, the rest, is refused, and
// orders go first).
func burst(ctx context.Context, p Params) (Values, error) {
	r, q := p.random(), gate{policy: p.Set["policy"], rate: p.number("rate", 0.9) * capacity, size: p.number("burst", 100)}
	q.tokens = q.size
	for now := 0.0; now < 12; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rate := 6000.0
		if now >= 1 && now < 11 {
			rate = 18000
		}
		now += r.ExpFloat64() / rate
		q.run(now, r)
		q.arrive(now, r.IntN(10) == 0, now >= 1 && now < 11)
	}
	q.run(math.Inf(1), r)
	return Values{
		"p95": quantile(q.all, 0.95), "p95_orders": quantile(q.orders, 0.95),
		"orders_admitted": float64(q.ordersIn) / float64(max(q.ordersCame, 1)),
		"goodput":         float64(len(q.all)) / 10,
	}, nil
}

// capacity of the simulated server in requests a second, on two workers.
const capacity = 10_000.0

// A job waits or is served.
type waiting struct {
	at       float64
	measured bool
	order    bool
}

// A gate is the simulated server with its admission.
type gate struct {
	policy                     string
	rate, size, tokens, filled float64
	free                       [2]float64 // when each worker is
	queues                     [2][]waiting
	all, orders                []float64 // seconds in the system
	ordersCame, ordersIn       int
}

// arrive admits a request or refuses it.
func (g *gate) arrive(now float64, order, measured bool) {
	class := 1
	if order && g.policy == "budget" {
		class = 0
	}
	if order && measured {
		g.ordersCame++
	}
	switch g.policy {
	case "bucket":
		g.tokens = min(g.size, g.tokens+(now-g.filled)*g.rate)
		g.filled = now
		if g.tokens < 1 {
			return
		}
		g.tokens--
	case "budget":
		ahead, limit := len(g.queues[0]), 0.010
		if class == 1 {
			ahead, limit = ahead+len(g.queues[1]), 0.004
		}
		if float64(ahead)/capacity > limit {
			return
		}
	}
	if order && measured {
		g.ordersIn++
	}
	g.queues[class] = append(g.queues[class], waiting{now, measured, order})
}

// run serves what waits until now.
func (g *gate) run(now float64, r *rand.Rand) {
	for {
		w := 0
		if g.free[1] < g.free[0] {
			w = 1
		}
		class := 0
		if len(g.queues[0]) == 0 {
			class = 1
		}
		if len(g.queues[class]) == 0 {
			return
		}
		next := g.queues[class][0]
		begin := max(g.free[w], next.at)
		if begin >= now {
			return
		}
		g.queues[class] = g.queues[class][1:]
		g.free[w] = begin + r.ExpFloat64()*2/capacity
		if next.measured {
			g.all = append(g.all, g.free[w]-next.at)
			if next.order {
				g.orders = append(g.orders, g.free[w]-next.at)
			}
		}
	}
}
