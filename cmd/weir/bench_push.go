package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

const (
	// pushEvery is the time between two pushes while a run continues.
	pushEvery = time.Second
	// pushTimeout bounds one of them, and finalPushTimeout that of the result.
	pushTimeout      = 2 * time.Second
	finalPushTimeout = 10 * time.Second
)

// A benchPusher keeps a push gateway informed of a run: a snapshot every second, and
// the result in place of them at the end. At most one push is under way, and none
// of them changes the run or its verdict: what fails is counted and reported in one
// line. The zero value pushes nothing.
type benchPusher struct {
	url, target string
	client      *http.Client

	stop func() // ends the pushes of a run; nil before start
	// Of the pushes while the run went on: done, failed, and left out since the one
	// before took too long. err is the last failure.
	sent, failed, skipped uint64
	err                   error
}

// newBenchPusher checks the address; an empty one is not a gateway.
func newBenchPusher(address, target string) (*benchPusher, error) {
	if address == "" {
		return &benchPusher{}, nil
	}
	if !isHTTP(address) {
		return nil, usage("write it as http://gateway:9091", "--pushgateway: not a URL of a push gateway")
	}
	return &benchPusher{url: address, target: target, client: &http.Client{}}, nil
}

// start pushes the feed's snapshots until finish.
func (p *benchPusher) start(ctx context.Context, feed *benchFeed) {
	if p.url == "" {
		return
	}
	p.stop = repeat(ctx, pushEvery, func(ctx context.Context, _ time.Time) {
		s := feed.snapshot()
		if s.Phase == "" {
			return // nothing to report yet
		}
		began := time.Now()
		err := p.put(ctx, pushTimeout, p.live(&s))
		switch {
		case err == nil:
			p.sent++
		case ctx.Err() != nil:
			return // the run has ended meanwhile
		default:
			p.failed++
			p.err = err
		}
		if n := uint64(time.Since(began) / pushEvery); n > 1 {
			p.skipped += n - 1 // the ticker keeps one
		}
	})
}

// end waits for the pusher's goroutine. It may be called again.
func (p *benchPusher) end() {
	if p.stop != nil {
		p.stop()
	}
}

// finish pushes the result in place of the snapshots, since a run ends before it can
// be scraped, and returns a line on what failed; empty when nothing did.
func (p *benchPusher) finish(ctx context.Context, r *loadgen.Result, j runVerdict) string {
	if p.url == "" {
		return ""
	}
	p.end()
	err := p.put(context.WithoutCancel(ctx), finalPushTimeout, p.result(r, j))
	switch {
	case err != nil:
		return fmt.Sprintf("pushgateway: the result was not pushed: %v (of the pushes before, %d worked, %d failed, %d were left out)", err, p.sent, p.failed, p.skipped)
	case p.failed+p.skipped > 0:
		text := fmt.Sprintf("pushgateway: of the pushes while the run went on %d worked, %d failed, %d were left out", p.sent, p.failed, p.skipped)
		if p.err != nil {
			text += ": " + p.err.Error()
		}
		return text
	}
	return ""
}

// put replaces what the gateway has of this target.
func (p *benchPusher) put(ctx context.Context, timeout time.Duration, c prometheus.Collector) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		return err
	}
	err := push.New(p.url, "weir_bench").Client(p.client).Grouping("target", p.target).Gatherer(reg).PushContext(ctx)
	if err != nil { // what a gateway answers may have several lines
		return errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}

// A collector is a prometheus.Collector of the values that it passes to gauge. It describes
// nothing beforehand.
type collector func(gauge gaugeFunc)

type gaugeFunc func(d *prometheus.Desc, v float64, labels ...string)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c(func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	})
}

var (
	benchRunning  = prometheus.NewDesc("weir_bench_running", "1 during the run, 0 once it has a result.", []string{"phase"}, nil)
	benchRates    = prometheus.NewDesc("weir_bench_rate", "Per second, during the run.", []string{"of"}, nil)
	benchNow      = prometheus.NewDesc("weir_bench_under_way", "Exchanges in flight and open connections, during the run.", []string{"of"}, nil)
	benchPushes   = prometheus.NewDesc("weir_bench_pushes", "Pushes to this gateway while the run went on, by outcome.", []string{"outcome"}, nil)
	benchArrivals = prometheus.NewDesc("weir_bench_arrivals", "Exchanges by what became of them.", []string{"fate"}, nil)
	benchErrors   = prometheus.NewDesc("weir_bench_errors", "Errors by reason.", []string{"reason"}, nil)
	benchLatency  = prometheus.NewDesc("weir_bench_latency_seconds", "Response counts from the intended instant, service from the real send, lag is the generator's; of the last seconds of the run.", []string{"of", "quantile"}, nil)
	benchMessages = prometheus.NewDesc("weir_bench_messages", "Messages by what became of them.", []string{"fate"}, nil)
	benchSeconds  = prometheus.NewDesc("weir_bench_duration_seconds", "Measured time.", nil, nil)
	benchEnd      = prometheus.NewDesc("weir_bench_start_time_seconds", "When the run began.", nil, nil)
	benchVerdict  = prometheus.NewDesc("weir_bench_verdict", "1 for the verdict of the run.", []string{"verdict"}, nil)
)

// live is a snapshot as metrics.
func (p *benchPusher) live(s *loadgen.Snapshot) collector {
	return func(gauge gaugeFunc) {
		gauge(benchRunning, 1, s.Phase)
		for of, v := range map[string]float64{"offered": s.OfferedRate, "sent": s.SentRate, "completed": s.CompletedRate, "errors": s.ErrorRate, "received": s.ReceivedRate} {
			gauge(benchRates, v, of)
		}
		gauge(benchNow, float64(s.InFlight), "exchanges")
		gauge(benchNow, float64(s.Conns), "connections")
		gauge(benchArrivals, float64(s.Dropped), "dropped")
		gauge(benchArrivals, float64(s.Errors), "failed")
		for _, l := range []struct {
			of, quantile string
			v            time.Duration
		}{{"response", "0.5", s.P50}, {"response", "0.95", s.P95}, {"response", "0.99", s.P99}, {"service", "0.99", s.ServiceP99}, {"lag", "0.99", s.LagP99}} {
			if l.v > 0 {
				gauge(benchLatency, l.v.Seconds(), l.of, l.quantile)
			}
		}
		p.counts(gauge, s.Delivery)
	}
}

// result is a result as metrics.
func (p *benchPusher) result(r *loadgen.Result, j runVerdict) collector {
	return func(gauge gaugeFunc) {
		w := &r.Total
		gauge(benchRunning, 0, "done")
		gauge(benchSeconds, w.Length.Seconds())
		gauge(benchEnd, float64(r.Started.UnixMilli())/1e3)
		gauge(benchVerdict, 1, string(j.Verdict))
		for fate, n := range map[string]uint64{"offered": w.Offered, "sent": w.Sent, "completed": w.Completed + w.Drained, "dropped": w.Dropped} {
			gauge(benchArrivals, float64(n), fate)
		}
		for reason, n := range w.Errors {
			gauge(benchErrors, float64(n), reason)
		}
		for of, h := range map[string]*hdrhistogram.Histogram{"response": w.Response, "service": w.Service, "lag": w.Lag, "publish": w.Publish, "connect": w.Connect} {
			if h == nil || h.TotalCount() == 0 {
				continue
			}
			for q, name := range map[float64]string{50: "0.5", 95: "0.95", 99: "0.99", 99.9: "0.999", 100: "1"} {
				gauge(benchLatency, float64(h.ValueAtQuantile(q))/1e6, of, name)
			}
		}
		p.counts(gauge, w.Delivery)
	}
}

// counts are those of pushes and of messages; called from the pusher's goroutine, or after it.
func (p *benchPusher) counts(gauge gaugeFunc, d *loadgen.Delivery) {
	for outcome, n := range map[string]uint64{"ok": p.sent, "failed": p.failed, "skipped": p.skipped} {
		gauge(benchPushes, float64(n), outcome)
	}
	if d == nil {
		return
	}
	for fate, n := range map[string]uint64{"published": d.Published, "expected": d.Expected, "received": d.Received, "lost": d.Lost, "repeated": d.Repeated, "reordered": d.Reordered, "late": d.Late} {
		gauge(benchMessages, float64(n), fate)
	}
}
