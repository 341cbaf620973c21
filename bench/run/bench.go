package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// A bench runs scenarios. Everything it needs is set by main.
type bench struct {
	load    string // the load client
	scratch string // a directory for the servers', removed at the end
	port    int    // 0: any free one
	runs    int
	seconds float64
	until   time.Time // no further round of the scenario starts after it
	out     io.Writer // progress

	weir, limit *adapter
	peers       []*adapter
	commands    map[string][]string // by what they were for, the last of each
}

func (b *bench) note(what string, args []string) { b.commands[what] = args }

// A round has one run of each server, within seconds of each other.
type round map[string]measure

// A result is a scenario with its rounds.
type result struct {
	scenario *scenario
	rate     float64 // publishes a second, where the scenario has a rate
	rounds   []round
	cannot   map[string]string // peers that cannot do it, and why
	owners   *ownership
	err      error // why there is nothing to compare
}

// run measures one scenario.
func (b *bench) run(ctx context.Context, sc *scenario) *result {
	r := &result{scenario: sc, rate: sc.rate, cannot: map[string]string{}}
	if sc.half {
		if r.rate, r.err = b.halfRate(ctx, sc); r.err != nil {
			return r
		}
	}
	for i := range b.runs {
		if i > 0 && time.Now().After(b.until) {
			fmt.Fprintf(b.out, "  %s: its time is up after %d of %d rounds\n", sc.Name, i, b.runs)
			break
		}
		round, err := b.round(ctx, sc, r)
		if err != nil {
			r.err = err
			return r
		}
		r.rounds = append(r.rounds, round)
		fmt.Fprintf(b.out, "  %s %d/%d\n", sc.Name, i+1, b.runs)
	}
	if sc.owners {
		r.owners, r.err = b.owners(ctx, sc)
	}
	return r
}

// reference is what weir is divided by: the limit, net/http, or weir itself.
func (sc *scenario) reference() string {
	switch {
	case sc.tls:
		return netHTTP
	case sc.withItself:
		return "weir, all reading"
	}
	return "limit"
}

func (b *bench) round(ctx context.Context, sc *scenario, r *result) (round, error) {
	if sc.tls {
		return b.tlsRound(ctx, sc)
	}
	got := round{}
	m, err := b.once(ctx, b.weir, sc, r.rate, true, true)
	if err != nil {
		return nil, err
	}
	got["weir"] = m
	if sc.withItself {
		m, err = b.once(ctx, b.weir, sc, r.rate, true, false)
	} else {
		m, err = b.once(ctx, b.limit, sc, r.rate, !sc.singleReference, true)
	}
	if err != nil {
		return nil, err
	}
	got[sc.reference()] = m
	if sc.withItself {
		stopped := float64(sc.n) * float64(sc.slow) / 100
		got["weir"]["slow_bytes"] = (got["weir"]["rss_peak_kb"] - m["rss_peak_kb"]) * 1024 / stopped
		return got, nil
	}
	for _, p := range b.peers {
		if !p.isFor(sc) {
			continue
		}
		m, err := b.once(ctx, p, sc, r.rate, true, true)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			r.cannot[p.Name] = err.Error() // a peer's trouble is not ours: say it and continue
			continue
		}
		got[p.Name] = m
	}
	return got, nil
}

// once starts a fresh server, measures it and ends it.
func (b *bench) once(ctx context.Context, a *adapter, sc *scenario, rate float64, batch, slow bool) (measure, error) {
	speak, err := a.load(sc, place{}, batch)
	if err != nil {
		return nil, err
	}
	s, err := b.start(ctx, a, sc)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	return b.apply(ctx, s, a.Name+" "+sc.Name, append(sc.options(b.seconds, rate, batch, slow), speak...))
}

// halfRate finds what weir carries with two publishes outstanding, and halves it.
func (b *bench) halfRate(ctx context.Context, sc *scenario) (float64, error) {
	full := *sc
	full.half, full.window, full.publishers = false, 2, 2
	m, err := b.once(ctx, b.weir, &full, 0, true, true)
	if err != nil {
		return 0, err
	}
	if m["deliveries_per_second"] <= 0 {
		return 0, errors.New("nothing was delivered while the full rate was looked for")
	}
	return m["deliveries_per_second"] / float64(sc.n) / 2, nil
}
