package loadgen

import (
	"maps"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A piece is what one shard saw in a piece of time: plain counters and histograms
// that only the shard's loop writes. The collector exchanges it for an empty one.
type piece struct {
	offered, sent, completed, drained, carried, dropped, waited, reconnects uint64

	errors map[string]uint64

	response, service, lag, publish, connect *hdrhistogram.Histogram

	responses   uint64  // in response
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
	if p.errors == nil {
		p.errors = make(map[string]uint64)
	}
	if _, known := p.errors[reason]; !known && len(p.errors) >= maxReasons {
		reason = "other"
	}
	p.errors[reason]++
}

func record(h **hdrhistogram.Histogram, ns int64) {
	if *h == nil {
		*h = newHistogram(fineDigits)
	}
	_ = (*h).RecordValue(min(max(ns, 0)/1000, highest)) // within its range
}

// answer records a response.
func (p *piece) answer(response, service int64) {
	record(&p.response, response)
	record(&p.service, service)
	p.responses++
	p.responseSum += float64(response) / 1e9
}

// reset empties p and keeps its memory.
func (p *piece) reset() {
	hs := [...]*hdrhistogram.Histogram{p.response, p.service, p.lag, p.publish, p.connect}
	for _, h := range hs {
		if h != nil && h.TotalCount() > 0 {
			h.Reset()
		}
	}
	*p = piece{response: hs[0], service: hs[1], lag: hs[2], publish: hs[3], connect: hs[4], misses: p.misses[:0]}
}

// forget drops what does not count for the window that starts now: all that is not
// distinguished by when it was intended, but for how connections came about.
func (p *piece) forget() {
	p.busy, p.open, p.reconnects, p.carried = 0, 0, 0, 0
	d := p.delivery
	p.delivery = Delivery{Published: d.Published, Expected: d.Expected, Received: d.Received}
	p.lost, p.misses, p.missed = 0, p.misses[:0], false
	for why := range p.errors {
		if strings.HasPrefix(why, "connect: ") || strings.HasPrefix(why, "disconnect ") {
			delete(p.errors, why)
		}
	}
}

// add adds o to p.
func (p *piece) add(o *piece) {
	p.offered += o.offered
	p.sent += o.sent
	p.completed += o.completed
	p.drained += o.drained
	p.carried += o.carried
	p.dropped += o.dropped
	p.waited += o.waited
	p.reconnects += o.reconnects
	p.errors = addCounts(p.errors, o.errors)
	p.response = mergeHistogram(p.response, o.response)
	p.service = mergeHistogram(p.service, o.service)
	p.lag = mergeHistogram(p.lag, o.lag)
	p.publish = mergeHistogram(p.publish, o.publish)
	p.connect = mergeHistogram(p.connect, o.connect)
	p.responses += o.responses
	p.responseSum += o.responseSum
	p.busy += o.busy
	p.open += o.open
	p.delivery.merge(&o.delivery)
	p.lost += o.lost
	p.misses = append(p.misses, o.misses...)
	p.missed = p.missed || o.missed
}

// kept returns h if anything is in it.
func kept(h *hdrhistogram.Histogram) *hdrhistogram.Histogram {
	if h == nil || h.TotalCount() == 0 {
		return nil
	}
	return h
}

// into moves what p counted to w. p's histograms are w's from then on.
func (p *piece) into(w *Window) {
	w.Offered, w.Sent, w.Completed, w.Drained, w.Carried = p.offered, p.sent, p.completed, p.drained, p.carried
	w.Dropped, w.Waited, w.Reconnects = p.dropped, p.waited, p.reconnects
	w.Errors = maps.Clone(p.errors)
	w.Response, w.Service, w.Lag = kept(p.response), kept(p.service), kept(p.lag)
	w.Publish, w.Connect = kept(p.publish), kept(p.connect)
	if s := w.Length.Seconds(); s > 0 {
		w.InFlight = p.busy / s
		w.Conns = p.open / s
	}
}
