package loadgen

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Version is the version of the form of a Result.
const Version = 1

// quantiles are what a histogram's summary names.
var quantiles = []float64{0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999}

// histogramJSON is a histogram as in a result: a summary for anyone who only
// reads, and the whole of it as HdrHistogram V2, compressed, base64.
type histogramJSON struct {
	Count     int64            `json:"count"`
	Min       int64            `json:"min"`
	Mean      float64          `json:"mean"`
	Max       int64            `json:"max"`
	StdDev    float64          `json:"stddev"`
	Quantiles map[string]int64 `json:"quantiles"`
	HDR       string           `json:"hdr"`
}

func encodeHistogram(h *hdrhistogram.Histogram) (*histogramJSON, error) {
	if h == nil || h.TotalCount() == 0 {
		return nil, nil
	}
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, err
	}
	j := &histogramJSON{
		Count: h.TotalCount(), Min: h.Min(), Mean: h.Mean(), Max: h.Max(), StdDev: h.StdDev(),
		Quantiles: make(map[string]int64, len(quantiles)), HDR: string(b),
	}
	for _, q := range quantiles {
		j.Quantiles[strconv.FormatFloat(q, 'g', -1, 64)] = h.ValueAtPercentile(q * 100)
	}
	return j, nil
}

func decodeHistogram(j *histogramJSON) (*hdrhistogram.Histogram, error) {
	if j == nil {
		return nil, nil
	}
	return hdrhistogram.Decode([]byte(j.HDR))
}

// windowJSON is a Window in a result. Lengths are seconds, histograms microseconds.
type windowJSON struct {
	Start      time.Time         `json:"start"`
	Seconds    float64           `json:"seconds"`
	Load       loadJSON          `json:"load"`
	Conns      float64           `json:"conns"`
	Offered    uint64            `json:"offered"`
	Sent       uint64            `json:"sent"`
	Completed  uint64            `json:"completed"`
	Drained    uint64            `json:"drained"`
	Carried    uint64            `json:"carried,omitempty"`
	Dropped    uint64            `json:"dropped"`
	Waited     uint64            `json:"waited"`
	Reconnects uint64            `json:"reconnects"`
	Errors     map[string]uint64 `json:"errors,omitempty"`
	Response   *histogramJSON    `json:"response_us,omitempty"`
	Service    *histogramJSON    `json:"service_us,omitempty"`
	Lag        *histogramJSON    `json:"lag_us,omitempty"`
	Publish    *histogramJSON    `json:"publish_us,omitempty"`
	Connect    *histogramJSON    `json:"connect_us,omitempty"`
	Batches    []batchJSON       `json:"batches,omitempty"`
	InFlight   float64           `json:"in_flight"`
	Delivery   *deliveryJSON     `json:"delivery,omitempty"`
	BytesIn    uint64            `json:"bytes_in"`
	BytesOut   uint64            `json:"bytes_out"`
	Generator  GeneratorState    `json:"generator"`
	Host       Host              `json:"host"`
}

type loadJSON struct {
	Rate        float64 `json:"rate,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	Conns       int     `json:"conns,omitempty"`
}

type batchJSON struct {
	MeanResponse float64 `json:"mean_response_s"`
	Completed    uint64  `json:"completed"`
	InFlight     float64 `json:"in_flight"`
}

type deliveryJSON struct {
	Published  uint64            `json:"published"`
	Expected   uint64            `json:"expected"`
	Received   uint64            `json:"received"`
	Lost       uint64            `json:"lost"`
	Repeated   uint64            `json:"repeated"`
	Reordered  uint64            `json:"reordered"`
	Late       uint64            `json:"late"`
	Carried    uint64            `json:"carried,omitempty"`
	Foreign    uint64            `json:"foreign,omitempty"`
	Gaps       uint64            `json:"gaps"`
	Reconnects uint64            `json:"reconnects"`
	Resumed    uint64            `json:"resumed"`
	Pings      uint64            `json:"pings,omitempty"`
	Closes     map[string]uint64 `json:"closes,omitempty"`
	Reach      float64           `json:"reach"`
}

// MarshalJSON writes w in the form of Version.
func (w Window) MarshalJSON() ([]byte, error) {
	j := windowJSON{
		Start: w.Start, Seconds: w.Length.Seconds(), Load: loadJSON(w.Load), Conns: w.Conns,
		Offered: w.Offered, Sent: w.Sent, Completed: w.Completed, Drained: w.Drained, Carried: w.Carried, Dropped: w.Dropped,
		Waited: w.Waited, Reconnects: w.Reconnects, Errors: w.Errors, InFlight: w.InFlight,
		BytesIn: w.BytesIn, BytesOut: w.BytesOut, Generator: w.Generator, Host: w.Host,
	}
	for _, b := range w.Batches {
		j.Batches = append(j.Batches, batchJSON(b))
	}
	if w.Delivery != nil {
		d := deliveryJSON(*w.Delivery)
		j.Delivery = &d
	}
	var err error
	for _, h := range []struct {
		to   **histogramJSON
		from *hdrhistogram.Histogram
	}{{&j.Response, w.Response}, {&j.Service, w.Service}, {&j.Lag, w.Lag}, {&j.Publish, w.Publish}, {&j.Connect, w.Connect}} {
		if *h.to, err = encodeHistogram(h.from); err != nil {
			return nil, err
		}
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (w *Window) UnmarshalJSON(b []byte) error {
	var j windowJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*w = Window{
		Start: j.Start, Length: time.Duration(j.Seconds*1e9 + 0.5), Load: Load(j.Load), Conns: j.Conns,
		Offered: j.Offered, Sent: j.Sent, Completed: j.Completed, Drained: j.Drained, Carried: j.Carried, Dropped: j.Dropped,
		Waited: j.Waited, Reconnects: j.Reconnects, Errors: j.Errors, InFlight: j.InFlight,
		BytesIn: j.BytesIn, BytesOut: j.BytesOut, Generator: j.Generator, Host: j.Host,
	}
	for _, b := range j.Batches {
		w.Batches = append(w.Batches, Batch(b))
	}
	if j.Delivery != nil {
		d := Delivery(*j.Delivery)
		w.Delivery = &d
	}
	var err error
	for _, h := range []struct {
		name string
		to   **hdrhistogram.Histogram
		from *histogramJSON
	}{
		{"response_us", &w.Response, j.Response}, {"service_us", &w.Service, j.Service}, {"lag_us", &w.Lag, j.Lag},
		{"publish_us", &w.Publish, j.Publish}, {"connect_us", &w.Connect, j.Connect},
	} {
		if *h.to, err = decodeHistogram(h.from); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	return nil
}

type resultJSON struct {
	Version int       `json:"version"`
	Spec    Spec      `json:"spec"`
	Started time.Time `json:"started"`
	Partial bool      `json:"partial,omitempty"`
	Machine Machine   `json:"machine"`
	Total   Window    `json:"total"`
	Windows []Window  `json:"windows"`
	Uses    []Use     `json:"target,omitempty"`
}

// MarshalJSON writes r in the form of Version.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(resultJSON{
		Version: r.Version, Spec: r.Spec, Started: r.Started, Partial: r.Partial, Machine: r.Machine, Total: r.Total, Windows: r.Windows, Uses: r.Uses,
	})
}

// UnmarshalJSON reads what MarshalJSON wrote; another version is an error.
func (r *Result) UnmarshalJSON(b []byte) error {
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	switch {
	case v.Version == nil:
		return fmt.Errorf("no result: it has no version")
	case *v.Version != Version:
		return fmt.Errorf("result of version %d: this program reads version %d", *v.Version, Version)
	}
	var j resultJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*r = Result{
		Version: j.Version, Spec: j.Spec, Started: j.Started, Partial: j.Partial, Machine: j.Machine, Total: j.Total, Windows: j.Windows, Uses: j.Uses,
	}
	return nil
}

// ReadResult reads a result that was written as JSON.
func ReadResult(src io.Reader) (*Result, error) {
	b, err := io.ReadAll(src)
	if err != nil {
		return nil, err
	}
	r := new(Result)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	return r, nil
}

// WriteHDR writes the histograms of all windows as an HdrHistogram log, version
// 1.3, with the tags "response", "service", "lag", "publish" and "connect". Values
// are microseconds, Interval_Max is in seconds.
func (r *Result) WriteHDR(dst io.Writer) error {
	lw := hdrhistogram.NewHistogramLogWriter(dst)
	ms := r.Started.UnixMilli()
	for _, step := range []func() error{
		lw.OutputLogFormatVersion,
		func() error { return lw.OutputComment("[values in microseconds]") },
		func() error { return lw.OutputStartTime(ms) },
		func() error { return lw.OutputBaseTime(ms) },
		lw.OutputLegend,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	lw.SetBaseTime(ms)
	for i := range r.Windows {
		if err := r.Windows[i].writeHDR(lw); err != nil {
			return err
		}
	}
	return nil
}

func (w *Window) writeHDR(lw *hdrhistogram.HistogramLogWriter) error {
	for _, h := range []struct {
		tag string
		h   *hdrhistogram.Histogram
	}{{"response", w.Response}, {"service", w.Service}, {"lag", w.Lag}, {"publish", w.Publish}, {"connect", w.Connect}} {
		if h.h == nil || h.h.TotalCount() == 0 {
			continue
		}
		c := h.h.Clone()
		c.SetTag(h.tag)
		c.SetStartTimeMs(w.Start.UnixMilli())
		c.SetEndTimeMs(w.end().UnixMilli())
		if err := lw.OutputIntervalHistogram(c); err != nil {
			return err
		}
	}
	return nil
}
