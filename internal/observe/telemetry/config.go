package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of OpenTelemetry. The zero value sends nothing and costs nothing.
type Config struct {
	// Endpoint is the collector's OTLP/HTTP address, like http://127.0.0.1:4318: traces
	// go to /v1/traces below it, metrics to /v1/metrics. Empty means that nothing is sent.
	Endpoint string `json:"endpoint"`
	// Headers go with everything that is sent, like a collector's key.
	Headers map[string]auth.Secret `json:"headers"`
	// Service is what the collector calls us (service.name). Empty means weir.
	Service string `json:"service"`
	// Sample is the part of the publishes without a caller's trace that are traced, 0
	// to 1; 0 means none but those whose caller's traceparent says sampled. Routes have
	// trace_sample for the requests that they pass on.
	Sample float64 `json:"sample"`
	// MessageTag gives a message the traceparent of its publish as a tag of that name, for
	// subscribers that continue with the trace.
	MessageTag bool `json:"message_tag"`
	// Traces sends spans.
	Traces setting.Switch `json:"traces"`
	// Metrics sends metrics; set it to false where Prometheus scrapes them already.
	Metrics setting.Switch `json:"metrics"`
	// Interval is the time between two deliveries of metrics; 0 means 15s.
	Interval hub.Duration `json:"interval"`
	// Queue bounds the spans that wait on one loop to be sent; more are dropped and
	// counted. 0 means 2,048.
	Queue int `json:"queue"`
}

// On reports whether anything is sent.
func (c Config) On() bool { return c.Endpoint != "" && (c.Traces.On() || c.Metrics.On()) }

// WithDefaults returns c with zeros replaced by what they mean.
func (c Config) WithDefaults() Config {
	c.Service = cmp.Or(c.Service, "weir")
	c.Interval = cmp.Or(c.Interval, hub.Duration(15*time.Second))
	c.Queue = cmp.Or(c.Queue, 2048)
	return c
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Endpoint != "" {
		errs = append(errs, checkURL("endpoint", c.Endpoint))
	}
	if c.Sample < 0 || c.Sample > 1 {
		errs = append(errs, fmt.Errorf("sample: %v is not within 0..1", c.Sample))
	}
	if c.Interval < 0 || c.Interval != 0 && c.Interval < hub.Duration(time.Second) {
		errs = append(errs, fmt.Errorf("interval: %v is under 1s", c.Interval))
	}
	if c.Queue < 0 || c.Queue > 1<<20 {
		errs = append(errs, fmt.Errorf("queue: %d is not within 1..%d", c.Queue, 1<<20))
	}
	return errors.Join(errs...)
}

func checkURL(key, s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%s: %.80q is not an address: write it like http://127.0.0.1:4318", key, s)
	}
	return nil
}

// MetricsConfig specifies how metrics are given away. The zero value serves them at /metrics
// of the admin listener.
type MetricsConfig struct {
	// NativeHistograms makes histograms native ones, four buckets to a doubling: for a
	// Prometheus that scrapes protobuf (scrape_native_histograms). Lag stays classic.
	NativeHistograms bool `json:"native_histograms"`
	// Pushgateway is for runs too short to be scraped.
	Pushgateway PushConfig `json:"pushgateway"`
}

// PushConfig of a Pushgateway.
type PushConfig struct {
	// URL is its address, like http://127.0.0.1:9091. Empty means that nothing is pushed.
	URL string `json:"url"`
	// Job is the label job of what is pushed. Empty means weir.
	Job string `json:"job"`
	// Grouping are further labels that what is pushed is known by, like an instance.
	Grouping map[string]string `json:"grouping"`
	// Interval is the time between two pushes, besides the one at the end; 0 means 15s,
	// negative none but that.
	Interval hub.Duration `json:"interval"`
	// User and Password are sent as HTTP Basic. Empty: neither.
	User string `json:"user"`
	// Password of User.
	Password auth.Secret `json:"password"`
}

// WithDefaults returns c with zeros replaced by what they mean.
func (c PushConfig) WithDefaults() PushConfig {
	c.Job = cmp.Or(c.Job, "weir")
	c.Interval = cmp.Or(c.Interval, hub.Duration(15*time.Second))
	return c
}

// Validate returns all that is wrong with c, joined.
func (c PushConfig) Validate() error {
	if c.URL == "" {
		return nil
	}
	return checkURL("url", c.URL)
}
