package accept

import (
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// Small makes a run short and its machine quiet, so that only what is planted decides.
func (o *Options) Small() {
	o.scale = func(p *plan) {
		p.attempts = 1
		p.hold, p.kills, p.actions, p.trials, p.pairs = 4*time.Second, 2, 4, 1, 2
		p.sites = time.Second
		p.conns, p.connsFor, p.connsRate, p.piece = 60, time.Second, 300, 200*time.Millisecond
		p.tracked, p.trackedFor = 60, 2*time.Second
	}
	o.host = func() stat.Covariates { return stat.Covariates{Busy: 0.5, Own: 0.5} }
	o.every = 100 * time.Millisecond
	o.Rate = 250
}

// Noisy gives the machine other users.
func (o *Options) Noisy() {
	o.host = func() stat.Covariates { return stat.Covariates{Busy: 0.9, Own: 0.3, Steal: 0.1} }
}

// Plant puts something between the load and the gateway.
func (o *Options) Plant(f func(address string) (string, error)) { o.plant = f }

// Set adds settings to every gateway, and Skew says how far wrong clocks are off.
func (o *Options) Set(set ...string)    { o.set = set }
func (o *Options) Skew(d time.Duration) { o.skew = d }
