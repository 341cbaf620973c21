package main

import (
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"

	"github.com/weir-gateway/weir/internal/loadgen"
)

// pushPatience is how long a push gateway may take for a result.
const pushPatience = 10 * time.Second

// pushResult leaves a result at a push gateway, as a run ends before anybody could
// scrape it. What the last run of the same target left there is replaced.
func pushResult(ctx context.Context, url string, r *loadgen.Result, j judgement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushPatience)
	defer cancel()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(benchMetrics{r, j})
	if err := push.New(url, "weir_bench").Grouping("target", r.Spec.Target).Gatherer(reg).PushContext(ctx); err != nil {
		return fmt.Errorf("--pushgateway %s: %w", url, err)
	}
	return nil
}

// benchMetrics is a result as metrics.
type benchMetrics struct {
	r *loadgen.Result
	j judgement
}

var (
	benchArrivals = prometheus.NewDesc("weir_bench_arrivals", "Exchanges by what became of them.", []string{"fate"}, nil)
	benchErrors   = prometheus.NewDesc("weir_bench_errors", "Errors by reason.", []string{"reason"}, nil)
	benchLatency  = prometheus.NewDesc("weir_bench_latency_seconds", "Response counts from the intended instant, service from the real send, lag is the generator's.", []string{"of", "quantile"}, nil)
	benchMessages = prometheus.NewDesc("weir_bench_messages", "Messages by what became of them.", []string{"fate"}, nil)
	benchSeconds  = prometheus.NewDesc("weir_bench_duration_seconds", "Measured time.", nil, nil)
	benchEnd      = prometheus.NewDesc("weir_bench_start_time_seconds", "When the run began.", nil, nil)
	benchVerdict  = prometheus.NewDesc("weir_bench_verdict", "1 for the verdict of the run.", []string{"verdict"}, nil)
)

// Describe implements prometheus.Collector.
func (m benchMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{benchArrivals, benchErrors, benchLatency, benchMessages, benchSeconds, benchEnd, benchVerdict} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m benchMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	w := &m.r.Total
	gauge(benchSeconds, w.Length.Seconds())
	gauge(benchEnd, float64(m.r.Started.UnixMilli())/1e3)
	gauge(benchVerdict, 1, string(m.j.Verdict))
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
	if d := w.Delivery; d != nil {
		for fate, n := range map[string]uint64{"published": d.Published, "expected": d.Expected, "received": d.Received, "lost": d.Lost, "repeated": d.Repeated, "reordered": d.Reordered, "late": d.Late} {
			gauge(benchMessages, float64(n), fate)
		}
	}
}
