package telemetry

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"
)

// A Pusher gives metrics to a Pushgateway: for runs too short to be scraped. A nil one
// does nothing.
type Pusher struct {
	cfg PushConfig
	to  *push.Pusher
	log *slog.Logger
}

// NewPusher returns a Pusher of what g gathers; nil without a URL.
func NewPusher(cfg PushConfig, g prometheus.Gatherer, log *slog.Logger) (*Pusher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.URL == "" {
		return nil, nil //nolint:nilnil // a nil Pusher is the one that does nothing
	}
	cfg = cfg.WithDefaults()
	p := push.New(cfg.URL, cfg.Job).Gatherer(g)
	for _, name := range slices.Sorted(maps.Keys(cfg.Grouping)) {
		p = p.Grouping(name, cfg.Grouping[name])
	}
	if cfg.User != "" || cfg.Password != "" {
		p = p.BasicAuth(cfg.User, string(cfg.Password))
	}
	return &Pusher{cfg: cfg, to: p, log: log}, nil
}

// Run pushes at intervals until ctx is done, and then once more.
func (p *Pusher) Run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	var tick <-chan time.Time
	if p.cfg.Interval > 0 {
		t := time.NewTicker(time.Duration(p.cfg.Interval))
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-tick:
			p.push(ctx, sendTime)
		case <-ctx.Done():
			p.push(context.WithoutCancel(ctx), lastTime)
			return nil
		}
	}
}

func (p *Pusher) push(ctx context.Context, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.to.PushContext(ctx); err != nil {
		p.log.Warn("metrics are not pushed", "pushgateway", p.cfg.URL, "err", err)
	}
}
