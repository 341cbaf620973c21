package alert

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// interval is how often rules are evaluated.
const interval = time.Second

// A Source is what alerts are made of.
type Source struct {
	// Alerts are the rules. Each expression has to be one that newRule reads.
	Alerts []governor.Alert
	// Numbers returns the series that the expressions name. It is called once a second.
	Numbers func() Numbers
	// Node is how this process is called in bodies: its host and public port.
	Node func() string
	// Runbooks is the address below which the alerts' pages are.
	Runbooks string
}

// Alerts evaluates the rules and posts to the webhooks. Make one with [New].
type Alerts struct {
	cfg     Config
	src     Source
	senders []*sender
	rules   []*rule // owned by Run
}

// New prepares the webhooks of cfg, or returns nil if there are none.
func New(cfg Config, src Source, log *slog.Logger) (*Alerts, error) {
	if len(cfg.Webhooks) == 0 {
		return nil, nil
	}
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Alerts{cfg: cfg, src: src}
	for _, alert := range src.Alerts {
		r, err := newRule(alert)
		if err != nil {
			return nil, err
		}
		a.rules = append(a.rules, r)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for i, w := range cfg.Webhooks {
		s := &sender{Webhook: w.WithDefaults(), runbooks: src.Runbooks, log: log, client: client, queue: make(chan *event, queueSize)}
		var err error
		if s.key, err = w.secret(); err != nil {
			return nil, fmt.Errorf("webhooks[%d]: %w", i, err)
		}
		a.senders = append(a.senders, s)
	}
	return a, nil
}

// Run evaluates and posts until ctx is done. It is called once. An alert that fires then is
// not resolved: the next process finds out anew what fires.
func (a *Alerts) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, s := range a.senders {
		s.node = a.src.Node()
		wg.Go(func() { s.run(ctx) })
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			a.evaluate(now)
		}
	}
}

func (a *Alerts) evaluate(now time.Time) {
	numbers := a.src.Numbers()
	for _, r := range a.rules {
		e := r.step(now, numbers, time.Duration(a.cfg.ResolveAfter))
		if e == nil {
			continue
		}
		for _, s := range a.senders {
			s.offer(e)
		}
	}
}

// Stats is what a webhook's deliveries have come to.
type Stats struct {
	// Sent were accepted, Failed rejected or given up, Dropped found the queue full.
	Sent, Failed, Dropped uint64
	// Retried are the attempts beyond the first.
	Retried uint64
	// Queued wait now.
	Queued int
}

// Stats are those of each webhook, by name. A nil Alerts has none.
func (a *Alerts) Stats() iter.Seq2[string, Stats] {
	return func(yield func(string, Stats) bool) {
		if a == nil {
			return
		}
		for _, s := range a.senders {
			if !yield(s.Name, Stats{s.sent.Load(), s.failed.Load(), s.dropped.Load(), s.retried.Load(), len(s.queue)}) {
				return
			}
		}
	}
}
