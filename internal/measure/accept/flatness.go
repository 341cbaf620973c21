package accept

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/net/sys"
)

func flatness() Indicator {
	return Indicator{
		Name: "flatness", Title: "Throughput with many connections",
		Definition: "Publications per second in a closed loop on a gateway with many idle subscribers, divided by those on one with a tenth of them.",
		Target:     "≥ 0.95 (full: 100,000 against 10,000 connections; quick: 10,000 against 1,000)",
		Method:     "Two gateways with the connections established, in tables of io_uring and from several processes where descriptors do not suffice; pieces in the order few, many, many, few. All idle subscribers are there after each pair. The interval is over the pairs.",
		criteria: []criterion{
			{name: "ratio", what: "rate with many connections, of that with few", kind: atLeast, limit: 0.95, timed: true},
			{name: "errors", what: "errors", kind: none},
			{name: "few", what: "rate with few", kind: info, unit: perSecond},
			{name: "many", what: "rate with many", kind: info, unit: perSecond},
		},
		measure: measureFlatness,
	}
}

// A crowd is a gateway with idle subscribers.
type crowd struct {
	s      *process.Server
	idle   int    // subscribers
	stop   func() // ends them
	active *loadgen.Generator
}

func (c *crowd) close() {
	if c.active != nil {
		_ = c.active.Close() // its connections end either way
	}
	if c.stop != nil {
		c.stop()
	}
	if c.s != nil {
		c.s.Stop()
	}
}

// crowdOf starts a gateway with the event loops of eventloop and connects n idle subscribers to it.
func (w *world) crowdOf(ctx context.Context, n int, eventloop string) (c *crowd, err error) {
	c = &crowd{idle: n}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.s, err = w.gateway(ctx, plainConfig+idleForLong+eventloop); err != nil {
		return c, err
	}
	url := "http://" + c.s.Addr
	spec, err := loadgen.Spec{Kind: loadgen.SSE, Target: url + "/sse?channel=idle-{n}", Adapter: "weir", Conns: n, ConnectRate: 3000, Timeout: time.Minute, Reconnect: true}.WithSourceAddresses(n)
	if err != nil {
		return c, err
	}
	if c.stop, err = idle(ctx, w, c.s, spec); err != nil {
		return c, err
	}
	if c.active, err = loadgen.New(publications(url, "active", 16, 128), nil); err != nil {
		return c, err
	}
	_, err = c.active.Measure(ctx, loadgen.Load{Concurrency: 16}, w.plan.piece/2) // warm up
	return c, err
}

// idle makes the connections of spec and keeps them until stop: in processes of their own where this one may not
// have both crowds.
func idle(ctx context.Context, w *world, s *process.Server, spec loadgen.Spec) (stop func(), err error) {
	if w.plan.few+w.plan.many <= room() {
		g, err := loadgen.New(spec, nil)
		if err != nil {
			return nil, err
		}
		stop = func() { _ = g.Close() } // its connections end either way
		return stop, g.Connect(ctx)
	}
	if w.opt.Processes == nil {
		return nil, &notRunError{fmt.Sprintf("%d connections are too many for the %d descriptors of one process", w.plan.few+w.plan.many, sys.MaxFiles())}
	}
	ctx, cancel := context.WithCancel(ctx)
	spec.Duration, spec.Window = 24*time.Hour, time.Minute // until stop
	ended := make(chan struct{})
	var why error // once ended is closed
	go func() {
		defer close(ended)
		_, why = w.opt.Processes(ctx, spec, processesFor(spec.Conns, room()), nil)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	for giveUp := time.Now().Add(3*time.Minute + connecting(spec.Conns)); ; {
		there, err := subscribers(ctx, s)
		if err != nil || there >= spec.Conns {
			return stop, err
		}
		if time.Now().After(giveUp) {
			return stop, fmt.Errorf("%d of %d subscribers are connected", there, spec.Conns)
		}
		select {
		case <-ended:
			return stop, fmt.Errorf("the processes with %d subscribers ended: %w", spec.Conns, cmp.Or(why, errors.New("no error")))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// subscribers is how many a gateway has over SSE.
func subscribers(ctx context.Context, s *process.Server) (int, error) {
	n, err := metric(ctx, s, `weir_connections{transport="sse"}`)
	return int(n), err
}

// whole is an error, by which nothing was measured, where a crowd has not all of its n idle subscribers.
func (c *crowd) whole(ctx context.Context) error {
	there, err := subscribers(ctx, c.s)
	if err == nil && there != c.idle {
		err = &notRunError{fmt.Sprintf("%d of %d idle subscribers were there at the end of a pair", there, c.idle)}
	}
	return err
}

// rate is what a piece of the closed loop completes per second.
func (w *world) rate(ctx context.Context, g *loadgen.Generator, concurrency int) (float64, error) {
	win, err := g.Measure(ctx, loadgen.Load{Concurrency: concurrency}, w.plan.piece)
	if err != nil {
		return 0, err
	}
	var n uint64
	for _, k := range win.Errors {
		n += k
	}
	w.ev.count("errors", n, win.Offered)
	return float64(win.Answered()) / win.Length.Seconds(), ctx.Err()
}

func measureFlatness(ctx context.Context, w *world) error {
	few, many := w.plan.few, w.plan.many
	if there := hold(w, many); there < many {
		few, many = few*there/many, there
	}
	eventloop := eventloopFor(many, room()) // the same for both
	w.progress("connecting %d and %d", few, many)
	a, err := w.crowdOf(ctx, few, eventloop)
	if err != nil {
		return err
	}
	defer a.close()
	b, err := w.crowdOf(ctx, many, eventloop)
	if err != nil {
		return err
	}
	defer b.close()
	stop := w.watch(ctx, a.s, 0, time.Duration(2*w.plan.pairs)*w.plan.piece)
	defer stop()
	return w.inPairs(ctx, "few", "many", func(second bool) (float64, error) {
		if second {
			return w.rate(ctx, b.active, 16)
		}
		return w.rate(ctx, a.active, 16)
	}, a.whole, b.whole)
}

// inPairs measures two sides in pairs, in the order first second, second first, so that what
// the machine does meanwhile falls on both alike, and notes both and the ratio second / first. What has to hold is
// looked at after each pair: without it the pair does not count.
func (w *world) inPairs(ctx context.Context, first, second string, measure func(second bool) (float64, error), hold ...func(context.Context) error) error {
	for i := range w.plan.pairs {
		var got [2]float64
		for _, side := range [2]int{i % 2, 1 - i%2} {
			v, err := measure(side == 1)
			if err != nil {
				return err
			}
			got[side] = v
		}
		if got[0] <= 0 || got[1] <= 0 {
			return fmt.Errorf("nothing was completed in pair %d", i+1)
		}
		for _, holds := range hold {
			if err := holds(ctx); err != nil {
				return err
			}
		}
		w.ev.value(first, got[0])
		w.ev.value(second, got[1])
		w.ev.value("ratio", got[1]/got[0])
		w.progress("pair %d of %d: ratio %.3f", i+1, w.plan.pairs, got[1]/got[0])
	}
	return ctx.Err()
}
