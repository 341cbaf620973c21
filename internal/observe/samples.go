package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/observer"
	"github.com/weir-gateway/weir/internal/push"
)

// samples are what the governor looks at.
type samples struct {
	*Node
	clients *clients
	silence silence
	knee    governor.KneeReport
}

// sources are where the governor takes them from.
func (a *samples) sources() governor.Sources {
	return governor.Sources{
		Loops:       a.loopSamples,
		Delivery:    a.Probe.delivery.AddTo,
		Delivered:   func() uint64 { return a.Hub.Stats().Delivered },
		Published:   func() uint64 { return a.Hub.Stats().Published },
		Connections: a.Loops.Open,
		Roles:       a.roles,
		Activity:    a.Activity,
		Broker:      a.brokerSample,
		Owners:      a.memoryOwners,
		Knee:        func() (governor.KneeReport, bool) { return a.knee, a.knee.Knee > 0 },
		Sockets:     a.clients.SocketSamples,
		Consumers:   a.clients.consumers,
		Observe:     observeSelf,
	}
}

// observeSelf writes a report of this process. Its execution trace is a part of the evidence by
// itself.
func observeSelf(ctx context.Context, window time.Duration, w io.Writer) error {
	r, err := observer.Observe(ctx, observer.Options{PID: os.Getpid(), Duration: window})
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(r)
}

// silence is how long the broker has said nothing to those who wait for it. Only some
// publications are followed, and none of them may be among those that a dead disk holds.
type silence struct {
	mu       sync.Mutex
	answered uint64
	since    time.Time // zero without a waiter
}

func (a *samples) loopSamples(dst []governor.LoopSample) []governor.LoopSample {
	for _, l := range a.Loops.Loops() {
		s, t := l.Stats(), l.Ticks()
		dst = append(dst, governor.LoopSample{
			ID: l.ID(), Ticks: s.Ticks, Tick: t.Times, LastTick: t.Last, Busy: t.Busy, Working: t.Current,
			Inbox: t.Inbox, Stalled: int(s.Waiting), Conns: int(s.Open), Reads: s.Reads, BytesIn: s.BytesIn, Sends: s.Sends, BytesOut: s.BytesOut, Stalls: s.Stalls,
		})
	}
	return dst
}

// roles are the goroutines that the program knows of.
func (a *samples) roles(dst []governor.RoleCount) []governor.RoleCount {
	return append(dst, governor.RoleCount{Role: "loop", N: len(a.Loops.Loops())})
}

func (a *samples) brokerSample() governor.BrokerSample {
	s := a.Push.Stats()
	b := governor.BrokerSample{Failed: s.PublishErrors}
	a.Probe.store.AddTo(&b.Store)
	b.Waiting, b.Oldest = a.Probe.waiting(time.Now())
	b.Waiting = max(b.Waiting, int(s.Storing))
	b.Oldest = max(b.Oldest, a.silence.look(s.Storing, s.Published+s.PublishErrors, time.Now()))
	return b
}

// memoryOwners is what connections, backlogs, wire forms and messages take.
func (a *samples) memoryOwners() (o governor.MemoryOwners) {
	for _, l := range a.Loops.Loops() {
		s := l.Stats()
		o.Connections += s.Open*uint64(eventloop.ConnBytes) + s.Queued
	}
	p := a.Push.Stats()
	subscribers := uint64(max(p.SSE+p.WebSocket, 0))
	others := uint64(max(int64(a.Loops.Open())-p.SSE-p.WebSocket, 0))
	o.Connections += subscribers*uint64(push.SessionBytes) + others*uint64(downstream.ConnBytes)
	o.Backlogs = uint64(max(p.QueuedBytes, 0))
	s := a.Hub.Stats()
	o.WireForms, o.Rings, o.LogCache = uint64(max(s.WireBytes, 0)), uint64(max(s.RingBytes, 0)), uint64(max(s.PageBytes, 0))
	if a.Memory != nil { // the rings hold messages of this log
		log, _ := a.Memory.Memory()
		o.LogCache += uint64(max(log-s.RingBytes, 0))
	}
	return o
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

// readKnee reads a report of `weir knee`; no file is not a report.
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
