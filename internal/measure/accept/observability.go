package accept

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func observability() Indicator {
	return Indicator{
		Name: "observability", Title: "Cost of observability",
		Definition: "Deliveries per second of a fan-out with everything on (the governor with its probes, a scrape a second, an open dashboard, the audit log), divided by those with all of it off.",
		Target:     "≥ 0.95",
		Method:     "Two gateways, pieces of a closed loop in the order off, on, on, off. The interval is over the pairs.",
		criteria: []criterion{
			{name: "ratio", what: "rate with everything on, of that with nothing", kind: atLeast, limit: 0.95, timed: true},
			{name: "scrapes", what: "scrapes and snapshots read meanwhile", kind: some},
			{name: "errors", what: "errors", kind: none},
			{name: "off", what: "rate with nothing", kind: info, unit: perSecond},
			{name: "on", what: "rate with everything", kind: info, unit: perSecond},
		},
		measure: measureObservability,
	}
}

const fanned = 200 // subscribers of the fan-out

// An observedRun is one measurement of observability.
type observedRun struct{ *world }

func measureObservability(ctx context.Context, of *world) error {
	w := observedRun{of}
	var loads [2]*loadgen.Generator // off, on
	var on *process.Server
	for i := range loads {
		config := plainConfig + "governor: {enabled: false}\n"
		if i == 1 {
			config = plainConfig + "governor: {enabled: true, evidence: {dir: " + strconv.Quote(filepath.Join(w.dir, "evidence")) + "}}\n"
		}
		s, err := w.gateway(ctx, config)
		if err != nil {
			return err
		}
		defer s.Stop()
		spec := fanSpec("http://" + s.Addr)
		spec.Conns, spec.Channels, spec.Publishers, spec.Closed, spec.Concurrency = fanned, 1, 16, true, 16
		if loads[i], err = loadgen.New(spec, nil); err != nil {
			return err
		}
		defer func() { _ = loads[i].Close() }() // its connections end either way
		if err := loads[i].Connect(ctx); err != nil {
			return err
		}
		on = s
	}
	stop := w.watch(ctx, on, 0, time.Duration(2*w.plan.pairs)*w.plan.piece)
	defer stop()
	return w.inPairs(ctx, "off", "on", func(second bool) (float64, error) {
		if !second {
			return w.rate(ctx, loads[0], 16)
		}
		watching, end := context.WithCancel(ctx)
		var all sync.WaitGroup
		all.Go(func() { w.scrape(watching, on) })
		all.Go(func() { w.follow(watching, on) })
		defer all.Wait()
		defer end()
		return w.rate(ctx, loads[1], 16)
	})
}

// scrape reads the metrics once a second, ten times as often as is usual.
func (w observedRun) scrape(ctx context.Context, s *process.Server) {
	for tick := time.Tick(time.Second); ; {
		if _, err := get(ctx, s.Admin+"/metrics"); err == nil {
			w.ev.count("scrapes", 1, 1)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}

// follow is a dashboard that is left open.
func (w observedRun) follow(ctx context.Context, s *process.Server) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Admin+"/api/live", nil)
	if err != nil {
		return
	}
	if res, err := http.DefaultClient.Do(req); err == nil {
		if n, _ := io.Copy(io.Discard, res.Body); n > 0 { // until the end, or ctx's
			w.ev.count("scrapes", 1, 1)
		}
		_ = res.Body.Close()
	}
}
