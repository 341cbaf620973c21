package app

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/capacity"
	"github.com/weir-gateway/weir/internal/governor"
	"github.com/weir-gateway/weir/internal/metrics"
	"github.com/weir-gateway/weir/internal/push"
)

// buildGovernor makes what watches the process, and tells it where to look.
func (a *App) buildGovernor() (err error) {
	knee, err := readKnee(a.cfg.Admin.CapacityReport)
	if err != nil {
		return err
	}
	a.governor, err = governor.New(a.cfg.Governor, governor.Sources{
		Loops:       a.loopSamples,
		Delivery:    a.probe.delivery.AddTo,
		Delivered:   func() uint64 { return a.hub.Stats().Delivered },
		Published:   func() uint64 { return a.hub.Stats().Published },
		Connections: func() int { s := a.http2.stats(); return a.loops.Open() + int(s.SSE+s.WebSocket) },
		Roles:       a.roles,
		Activity:    a.activity,
		Broker:      a.brokerSample,
		Knee:        func() (governor.KneeReport, bool) { return knee, knee.Knee > 0 },
		Sockets:     a.socketSamples,
		Consumers:   a.consumers,
	}, a.log)
	return err
}

// histogramOf is c in the form of the governor's, whose buckets are the same.
func histogramOf(c *metrics.Counts) governor.Histogram {
	return governor.Histogram{Counts: c.N, Sum: time.Duration(c.SumNanos)}
}

// countsOf is the way back.
func countsOf(h *governor.Histogram) metrics.Counts {
	return metrics.Counts{N: h.Counts, SumNanos: uint64(max(h.Sum, 0))}
}

func (a *App) loopSamples(dst []governor.LoopSample) []governor.LoopSample {
	for _, l := range a.loops.Loops() {
		s, t := l.Stats(), l.Ticks()
		dst = append(dst, governor.LoopSample{
			ID: l.ID(), Ticks: s.Ticks, Tick: histogramOf(&t.Times), LastTick: t.Last, Busy: t.Busy, Working: t.Current,
			Inbox: t.Inbox, Stalled: int(s.Waiting), Conns: int(s.Open), Reads: s.Reads, BytesIn: s.BytesIn, Sends: s.Sends, BytesOut: s.BytesOut, Stalls: s.Stalls,
		})
	}
	return dst
}

// roles are the goroutines that the program knows of: loops, and those of HTTP/2, where
// a stream has one and its connection another.
func (a *App) roles(dst []governor.RoleCount) []governor.RoleCount {
	h := a.http2.stats()
	return append(dst,
		governor.RoleCount{Role: "loop", N: len(a.loops.Loops())},
		governor.RoleCount{Role: "http2-stream", N: int(h.SSE + h.WebSocket)},
	)
}

func (a *App) brokerSample() governor.BrokerSample {
	b := governor.BrokerSample{Failed: a.push.Stats().PublishErrors + a.http2.stats().PublishErrors}
	a.probe.store.AddTo(&b.Store)
	b.Waiting, b.Oldest = a.probe.waiting(time.Now())
	return b
}

func (a *App) consumers(n int) []governor.Consumer {
	c, err := a.connections(context.Background(), "lag", n)
	if err != nil {
		return nil
	}
	all := make([]governor.Consumer, len(c.Connections))
	for i, x := range c.Connections {
		all[i] = governor.Consumer{
			ID: x.ID, Peer: x.Peer, Protocol: x.Transport, Loop: x.Loop, Messages: uint64(x.Messages), Bytes: uint64(x.Bytes + x.Kernel), Seconds: x.Age,
		}
	}
	return all
}

// readKnee reads a report of `weir knee`; no file is no report.
func readKnee(file string) (k governor.KneeReport, err error) {
	if file == "" {
		return k, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return k, fmt.Errorf("admin: capacity_report: %w", err)
	}
	var r capacity.Report
	if err := json.Unmarshal(b, &r); err != nil {
		return k, fmt.Errorf("admin: capacity_report: %s: %w", file, err)
	}
	if !r.Knee.Known {
		return k, fmt.Errorf("admin: capacity_report: %s: it names no knee (%s)", file, r.Knee.By)
	}
	return governor.KneeReport{
		Knee: r.Knee.Rate.Point, Lo: r.Knee.Rate.Lo, Hi: r.Knee.Rate.Hi, Capacity: r.Max.Rate.Point, Time: r.Started, Confidence: r.Knee.Confidence,
		Build: r.Machine.Weir, Machine: r.Machine.CPU + ", " + strconv.Itoa(r.Machine.CPUs) + " processors",
	}, nil
}

// byTransport is who is connected, by transport.
func (a *App) byTransport() map[string]int64 {
	p, h := a.push.Stats(), a.http2.stats()
	return map[string]int64{
		"sse": p.SSE, "websocket": p.WebSocket, "http2_sse": h.SSE, "http2_websocket": h.WebSocket,
		"http": max(int64(a.loops.Open())-p.SSE-p.WebSocket, 0),
	}
}

// lagHistograms asks every loop how its subscribers lag; one that does not answer in time
// is missing from the counts.
func (a *App) lagHistograms() (all push.LagHistograms) {
	n := a.push.Loops()
	answers := make(chan push.LagHistograms, n)
	a.push.Histograms(func(h push.LagHistograms) { answers <- h })
	late := time.NewTimer(lagPatience)
	defer late.Stop()
	for waiting := n; waiting > 0; waiting-- {
		select {
		case h := <-answers:
			all.Messages.Merge(h.Messages)
			all.Bytes.Merge(h.Bytes)
			all.Seconds.Merge(h.Seconds)
		case <-late.C:
			return all
		}
	}
	return all
}
