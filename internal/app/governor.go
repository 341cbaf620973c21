package app

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/capacity"
	"github.com/weir-gateway/weir/internal/config"
	"github.com/weir-gateway/weir/internal/downstream"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/governor"
	"github.com/weir-gateway/weir/internal/push"
)

// buildGovernor makes what watches the process, and tells it where to look.
func (a *App) buildGovernor() (err error) {
	knee, err := readKnee(a.cfg.Admin.CapacityReport)
	if err != nil {
		return err
	}
	cfg := a.cfg.Governor
	cfg.Evidence.Dir = a.evidenceDir()
	a.governor, err = governor.New(cfg, governor.Sources{
		Loops:       a.loopSamples,
		Delivery:    a.probe.delivery.AddTo,
		Delivered:   func() uint64 { return a.hub.Stats().Delivered },
		Published:   func() uint64 { return a.hub.Stats().Published },
		Connections: a.loops.Open,
		Roles:       a.roles,
		Activity:    a.activity,
		Broker:      a.brokerSample,
		Owners:      a.memoryOwners,
		Knee:        func() (governor.KneeReport, bool) { return knee, knee.Knee > 0 },
		Sockets:     a.socketSamples,
		Consumers:   a.consumers,
	}, a.log)
	return err
}

// evidenceDir is where bundles go: beside what the embedded broker stores, unless the
// configuration says otherwise.
func (a *App) evidenceDir() string {
	switch dir, n := a.cfg.Governor.Evidence.Dir, a.cfg.Broker.NATS; {
	case dir == "off":
		return ""
	case dir != "" || a.cfg.Broker.Kind != config.BrokerNATS || n.URL != "" || n.Dir == "":
		return dir
	default:
		return filepath.Join(n.Dir, "evidence")
	}
}

func (a *App) loopSamples(dst []governor.LoopSample) []governor.LoopSample {
	for _, l := range a.loops.Loops() {
		s, t := l.Stats(), l.Ticks()
		dst = append(dst, governor.LoopSample{
			ID: l.ID(), Ticks: s.Ticks, Tick: t.Times, LastTick: t.Last, Busy: t.Busy, Working: t.Current,
			Inbox: t.Inbox, Stalled: int(s.Waiting), Conns: int(s.Open), Reads: s.Reads, BytesIn: s.BytesIn, Sends: s.Sends, BytesOut: s.BytesOut, Stalls: s.Stalls,
		})
	}
	return dst
}

// roles are the goroutines that the program knows of.
func (a *App) roles(dst []governor.RoleCount) []governor.RoleCount {
	return append(dst, governor.RoleCount{Role: "loop", N: len(a.loops.Loops())})
}

func (a *App) brokerSample() governor.BrokerSample {
	s := a.push.Stats()
	b := governor.BrokerSample{Failed: s.PublishErrors}
	a.probe.store.AddTo(&b.Store)
	b.Waiting, b.Oldest = a.probe.waiting(time.Now())
	b.Waiting = max(b.Waiting, int(s.Storing))
	b.Oldest = max(b.Oldest, a.silence.look(s.Storing, s.Published+s.PublishErrors, time.Now()))
	return b
}

// memoryOwners is what connections, backlogs, wire forms and messages take.
func (a *App) memoryOwners() (o governor.MemoryOwners) {
	for _, l := range a.loops.Loops() {
		s := l.Stats()
		o.Connections += s.Open*uint64(eventloop.ConnBytes) + s.Queued
	}
	p := a.push.Stats()
	subscribers := uint64(max(p.SSE+p.WebSocket, 0))
	others := uint64(max(int64(a.loops.Open())-p.SSE-p.WebSocket, 0))
	o.Connections += subscribers*uint64(push.SessionBytes) + others*uint64(downstream.ConnBytes)
	o.Backlogs = uint64(max(p.HeldBytes, 0))
	s := a.hub.Stats()
	o.WireForms, o.Rings, o.LogCache = uint64(max(s.WireBytes, 0)), uint64(max(s.RingBytes, 0)), uint64(max(s.PageBytes, 0))
	if a.memory != nil { // the rings hold messages of this log
		log, _ := a.memory.Memory()
		o.LogCache += uint64(max(log-s.RingBytes, 0))
	}
	return o
}

// silence is how long the broker has said nothing to those who wait for it. Only some
// publications are followed, and none of them may be among those that a dead disk holds.
type silence struct {
	mu       sync.Mutex
	answered uint64
	since    time.Time // zero while nobody waits
}

// look is called now and then: waiting publications have no answer, answered is how many
// ever had. It returns for how long that has been so, to the time between two looks.
func (s *silence) look(waiting int64, answered uint64, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case waiting <= 0:
		s.since = time.Time{}
		return 0
	case s.since.IsZero() || answered != s.answered:
		s.since, s.answered = now, answered
	}
	return now.Sub(s.since)
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
	p := a.push.Stats()
	all := map[string]int64{
		"sse": p.SSE - p.SSEOverHTTP2 - p.SSEOverHTTP3, "websocket": p.WebSocket - p.WebSocketOverHTTP2 - p.WebSocketOverHTTP3,
		"http2_sse": p.SSEOverHTTP2, "http2_websocket": p.WebSocketOverHTTP2, "http": max(int64(a.loops.Open())-p.SSE-p.WebSocket, 0),
	}
	if a.http3 != nil {
		all["http3_sse"], all["http3_websocket"] = p.SSEOverHTTP3, p.WebSocketOverHTTP3
	}
	return all
}

// lagHistograms asks every loop how its subscribers lag; one that does not answer in time
// is missing from the counts.
func (a *App) lagHistograms() (all push.LagHistograms) {
	n := a.push.Loops()
	answers := make(chan push.LagHistograms, n)
	a.push.Histograms(func(h push.LagHistograms) { answers <- h })
	ctx, cancel := context.WithTimeout(context.Background(), lagPatience)
	defer cancel()
	for waiting := n; waiting > 0; waiting-- {
		select {
		case h := <-answers:
			all.Messages.Merge(h.Messages)
			all.Bytes.Merge(h.Bytes)
			all.Seconds.Merge(h.Seconds)
		case <-ctx.Done():
			return all
		}
	}
	return all
}
