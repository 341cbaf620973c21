package loadgen

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// highest is what a histogram can hold, one hour in microseconds; what is
	// beyond counts as that.
	highest = int64(time.Hour / time.Microsecond)
	// Significant digits of what is measured, and of what is kept for each window of a
	// run: a sixth of the memory.
	fineDigits   = 3
	coarseDigits = 2
)

func newHistogram(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(1, highest, digits)
}

// mergeHistogram returns dst with src added; either may be nil. dst is changed,
// src is not kept.
func mergeHistogram(dst, src *hdrhistogram.Histogram) *hdrhistogram.Histogram {
	if src == nil || src.TotalCount() == 0 {
		return dst
	}
	if dst == nil {
		return src.Clone()
	}
	dst.Merge(src)
	return dst
}

// coarse returns h with two significant digits, or nil for an empty one.
func coarse(h *hdrhistogram.Histogram) *hdrhistogram.Histogram {
	if h == nil || h.TotalCount() == 0 {
		return nil
	}
	c := newHistogram(coarseDigits)
	c.Merge(h)
	return c
}

func (w *Window) end() time.Time { return w.Start.Add(w.Length) }

// Merge adds o to w. Windows that follow each other give their union, in which
// counts add and means are weighted by length; windows of the same time in
// several processes add in everything, connections and rates too. o is not
// changed and not kept.
func (w *Window) Merge(o *Window) {
	if o.Length == 0 && o.Offered == 0 && o.Start.IsZero() {
		return
	}
	if w.Length == 0 && w.Offered == 0 && w.Start.IsZero() {
		*w = o.clone()
		return
	}
	if o.Start.Before(w.end()) && w.Start.Before(o.end()) && w.overlap(o) > min(w.Length, o.Length)/2 {
		w.mergeBeside(o)
	} else {
		w.mergeAfter(o)
	}
	w.Counts.add(&o.Counts)
	w.Times.merge(&o.Times)
	w.BytesIn += o.BytesIn
	w.BytesOut += o.BytesOut
	if o.Delivery != nil {
		if w.Delivery == nil {
			w.Delivery = &Delivery{Reach: 1}
		}
		w.Delivery.Merge(o.Delivery)
	}
	w.Generator.merge(o.Generator)
}

func (c *Counts) add(o *Counts) {
	c.Offered += o.Offered
	c.Sent += o.Sent
	c.Completed += o.Completed
	c.Drained += o.Drained
	c.Carried += o.Carried
	c.Dropped += o.Dropped
	c.Waited += o.Waited
	c.Reconnects += o.Reconnects
	c.Errors = addCounts(c.Errors, o.Errors)
}

func (t *Times) merge(o *Times) {
	from := o.all()
	for i, h := range t.all() {
		*h = mergeHistogram(*h, *from[i])
	}
}

func (w *Window) overlap(o *Window) time.Duration {
	from, to := w.Start, w.end()
	if o.Start.After(from) {
		from = o.Start
	}
	if o.end().Before(to) {
		to = o.end()
	}
	return to.Sub(from)
}

// mergeAfter is Merge of what depends on time, for windows one after the other.
func (w *Window) mergeAfter(o *Window) {
	a, b := w.Length.Seconds(), o.Length.Seconds()
	mean := func(x, y float64) float64 {
		if a+b == 0 {
			return x
		}
		return (x*a + y*b) / (a + b)
	}
	if o.Start.Before(w.Start) {
		w.Start = o.Start
		w.Batches = append(slices.Clone(o.Batches), w.Batches...)
	} else {
		w.Batches = append(slices.Clip(w.Batches), o.Batches...)
	}
	w.Load.Rate = mean(w.Load.Rate, o.Load.Rate)
	w.Load.Concurrency = max(w.Load.Concurrency, o.Load.Concurrency)
	w.Load.Conns = max(w.Load.Conns, o.Load.Conns)
	w.Conns = mean(w.Conns, o.Conns)
	w.InFlight = mean(w.InFlight, o.InFlight)
	w.Generator.CPU = mean(w.Generator.CPU, o.Generator.CPU)
	w.Host = Host{
		Steal: mean(w.Host.Steal, o.Host.Steal), Pressure: mean(w.Host.Pressure, o.Host.Pressure),
		Busy: mean(w.Host.Busy, o.Host.Busy), Wait: mean(w.Host.Wait, o.Host.Wait),
	}
	w.Length += o.Length
}

// mergeBeside is Merge of what depends on time, for windows of the same time.
func (w *Window) mergeBeside(o *Window) {
	end := w.end()
	if o.end().After(end) {
		end = o.end()
	}
	if o.Start.Before(w.Start) {
		w.Start = o.Start
	}
	w.Length = end.Sub(w.Start)
	w.Load.Rate += o.Load.Rate
	w.Load.Concurrency += o.Load.Concurrency
	w.Load.Conns += o.Load.Conns
	w.Conns += o.Conns
	w.InFlight += o.InFlight
	w.Generator.CPU += o.Generator.CPU
	w.Host = Host{ // of the same machine
		Steal: max(w.Host.Steal, o.Host.Steal), Pressure: max(w.Host.Pressure, o.Host.Pressure),
		Busy: max(w.Host.Busy, o.Host.Busy), Wait: max(w.Host.Wait, o.Host.Wait),
	}
	w.Batches = slices.Clone(w.Batches)
	for i, b := range o.Batches {
		if i >= len(w.Batches) {
			w.Batches = append(w.Batches, b)
			continue
		}
		a := &w.Batches[i]
		if n := float64(a.Completed + b.Completed); n > 0 {
			a.MeanResponse = (a.MeanResponse*float64(a.Completed) + b.MeanResponse*float64(b.Completed)) / n
		}
		a.Completed += b.Completed
		a.InFlight += b.InFlight
	}
}

func (w *Window) clone() Window {
	c := *w
	c.Errors = maps.Clone(w.Errors)
	c.Batches = slices.Clone(w.Batches)
	for _, h := range c.Times.all() {
		if *h != nil {
			*h = (*h).Clone()
		}
	}
	if w.Delivery != nil {
		d := *w.Delivery
		d.Closes = maps.Clone(d.Closes)
		c.Delivery = &d
	}
	return c
}

// Merge adds o to d.
func (d *Delivery) Merge(o *Delivery) {
	d.Published += o.Published
	d.Expected += o.Expected
	d.Received += o.Received
	d.Lost += o.Lost
	d.Repeated += o.Repeated
	d.Reordered += o.Reordered
	d.Late += o.Late
	d.Carried += o.Carried
	d.Foreign += o.Foreign
	d.Gaps += o.Gaps
	d.Reconnects += o.Reconnects
	d.Resumed += o.Resumed
	d.Pings += o.Pings
	d.Closes = addCounts(d.Closes, o.Closes)
	d.Reach = min(d.Reach, o.Reach)
}

func (s *GeneratorState) merge(o GeneratorState) {
	s.GCPauses += o.GCPauses
	if !o.Limited {
		return
	}
	s.Limited, s.Crowded = true, s.Crowded || o.Crowded
	switch {
	case s.Why == "":
		s.Why = o.Why
	case o.Why != "" && !strings.Contains(s.Why, o.Why) && len(s.Why) < 400:
		s.Why += "; " + o.Why
	}
}

func addCounts(dst, src map[string]uint64) map[string]uint64 {
	if len(src) > 0 && dst == nil {
		dst = make(map[string]uint64, len(src))
	}
	for k, n := range src {
		dst[k] += n
	}
	return dst
}

// Merge adds the result of another process of the same run to r: its windows to
// r's of the same time. Both must have been made from the parts of one Spec (see
// Spec.Split). o is not changed.
func (r *Result) Merge(o *Result) error {
	if r.Version != o.Version {
		return fmt.Errorf("merge: results of versions %d and %d", r.Version, o.Version)
	}
	if r.Spec.Kind != o.Spec.Kind || r.Spec.Target != o.Spec.Target {
		return errors.New("merge: results of different loads")
	}
	if r.Total.Start.IsZero() && len(r.Windows) == 0 {
		r.Windows = nil
	}
	for i := range o.Windows {
		if i < len(r.Windows) {
			r.Windows[i].Merge(&o.Windows[i])
		} else {
			r.Windows = append(r.Windows, o.Windows[i].clone())
		}
	}
	r.Total.Merge(&o.Total)
	r.Spec.join(o.Spec)
	r.Partial = r.Partial || o.Partial
	if o.Started.Before(r.Started) {
		r.Started = o.Started
	}
	slices.SortStableFunc(r.Windows, func(a, b Window) int { return cmp.Compare(a.Start.UnixNano(), b.Start.UnixNano()) })
	return nil
}
