package loadgen

import (
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A piece is what one shard saw in a piece of time: plain counters and histograms
// that only the shard's loop writes. The collector exchanges it for an empty one.
type piece struct {
	Counts
	Times

	responses   uint64  // in Response
	responseSum float64 // of it, seconds

	busy float64 // exchanges under way, times seconds
	open float64 // connections, times seconds

	delivery Delivery // Late and Reach are not counted here
	lost     int64    // may be negative: what came after it was given up
	misses   []miss
	missed   bool // some misses were forgotten
}

// maxReasons bounds the different errors that are distinguished: their words may be
// the server's.
const maxReasons = 64

func (p *piece) fail(reason string) {
	if p.Errors == nil {
		p.Errors = make(map[string]uint64)
	}
	if _, known := p.Errors[reason]; !known && len(p.Errors) >= maxReasons {
		reason = "other"
	}
	p.Errors[reason]++
}

func record(h **hdrhistogram.Histogram, ns int64) {
	if *h == nil {
		*h = newHistogram(fineDigits)
	}
	_ = (*h).RecordValue(min(max(ns, 0)/1000, highest)) // within its range
}

// answer records a response.
func (p *piece) answer(response, service int64) {
	record(&p.Response, response)
	record(&p.Service, service)
	p.responses++
	p.responseSum += float64(response) / 1e9
}

// reset empties p and keeps its memory.
func (p *piece) reset() {
	for _, h := range p.Times.all() {
		if *h != nil && (*h).TotalCount() > 0 {
			(*h).Reset()
		}
	}
	*p = piece{Times: p.Times, misses: p.misses[:0]}
}

// forget drops what does not count for the window that starts now: all that is not
// distinguished by when it was intended, but for how connections came about.
func (p *piece) forget() {
	p.busy, p.open, p.Reconnects, p.Carried = 0, 0, 0, 0
	d := p.delivery
	p.delivery = Delivery{Published: d.Published, Expected: d.Expected, Received: d.Received}
	p.lost, p.misses, p.missed = 0, p.misses[:0], false
	for why := range p.Errors {
		if strings.HasPrefix(why, "connect: ") || strings.HasPrefix(why, "disconnect ") {
			delete(p.Errors, why)
		}
	}
}

// add adds o to p.
func (p *piece) add(o *piece) {
	p.Counts.add(&o.Counts)
	p.Times.merge(&o.Times)
	p.responses += o.responses
	p.responseSum += o.responseSum
	p.busy += o.busy
	p.open += o.open
	p.delivery.Merge(&o.delivery)
	p.lost += o.lost
	p.misses = append(p.misses, o.misses...)
	p.missed = p.missed || o.missed
}

// into moves what p counted to w, which owns it from then on.
func (p *piece) into(w *Window) {
	w.Counts, w.Times = p.Counts, p.Times
	if s := w.Length.Seconds(); s > 0 {
		w.InFlight = p.busy / s
		w.Conns = p.open / s
	}
}
