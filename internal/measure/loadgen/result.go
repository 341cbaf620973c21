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
	Start   time.Time `json:"start"`
	Seconds float64   `json:"seconds"`
	Load    Load      `json:"load"`
	Conns   float64   `json:"conns"`
	Counts
	timesJSON
	Batches   []Batch        `json:"batches,omitempty"`
	InFlight  float64        `json:"in_flight"`
	Delivery  *Delivery      `json:"delivery,omitempty"`
	BytesIn   uint64         `json:"bytes_in"`
	BytesOut  uint64         `json:"bytes_out"`
	Generator GeneratorState `json:"generator"`
	Host      Host           `json:"host"`
}

type timesJSON struct {
	Response *histogramJSON `json:"response_us,omitempty"`
	Service  *histogramJSON `json:"service_us,omitempty"`
	Lag      *histogramJSON `json:"lag_us,omitempty"`
	Publish  *histogramJSON `json:"publish_us,omitempty"`
	Connect  *histogramJSON `json:"connect_us,omitempty"`
}

func (t *timesJSON) all() [len(timeNames)]**histogramJSON {
	return [...]**histogramJSON{&t.Response, &t.Service, &t.Lag, &t.Publish, &t.Connect}
}

// MarshalJSON writes w in the form of Version.
func (w Window) MarshalJSON() ([]byte, error) {
	j := windowJSON{
		Start: w.Start, Seconds: w.Length.Seconds(), Load: w.Load, Conns: w.Conns, Counts: w.Counts, Batches: w.Batches, InFlight: w.InFlight,
		Delivery: w.Delivery, BytesIn: w.BytesIn, BytesOut: w.BytesOut, Generator: w.Generator, Host: w.Host,
	}
	from := w.Times.all()
	for i, to := range j.timesJSON.all() {
		var err error
		if *to, err = encodeHistogram(*from[i]); err != nil {
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
		Start: j.Start, Length: time.Duration(j.Seconds*1e9 + 0.5), Load: j.Load, Conns: j.Conns, Counts: j.Counts, Batches: j.Batches, InFlight: j.InFlight,
		Delivery: j.Delivery, BytesIn: j.BytesIn, BytesOut: j.BytesOut, Generator: j.Generator, Host: j.Host,
	}
	from := j.timesJSON.all()
	for i, to := range w.Times.all() {
		var err error
		if *to, err = decodeHistogram(*from[i]); err != nil {
			return fmt.Errorf("%s_us: %w", timeNames[i], err)
		}
	}
	return nil
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
	type plain Result // without this method
	var j plain
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*r = Result(j)
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
	for i, h := range w.Times.all() {
		if *h == nil || (*h).TotalCount() == 0 {
			continue
		}
		c := (*h).Clone()
		c.SetTag(timeNames[i])
		c.SetStartTimeMs(w.Start.UnixMilli())
		c.SetEndTimeMs(w.end().UnixMilli())
		if err := lw.OutputIntervalHistogram(c); err != nil {
			return err
		}
	}
	return nil
}
