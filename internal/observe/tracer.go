package observe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// tracer follows single messages for the operator.
type tracer struct {
	hub   *hub.Hub
	probe *Probe

	mu    sync.Mutex
	known []*trace // the newest last, at most maxTraces
}

const (
	maxTraces     = 32
	traceTime     = 10 * time.Second
	maxTraceTime  = 60 * time.Second
	maxTraceWaits = 8 // of those known, that have not ended
)

// trace is one message that is, or will be, followed.
type trace struct {
	// Fixed at start.
	id      string
	channel string
	started time.Time
	request *followRequest
	timer   *time.Timer
	ended   chan struct{}

	flight *flight // guarded by probe.mu

	// Guarded by tracer.mu.
	state string
	err   error
}

// begin starts a trace: of data published now, or of what comes next on the channel.
func (t *tracer) begin(req *admin.TraceRequest) (*admin.Trace, error) {
	if err := hub.CheckChannel(req.Channel); err != nil {
		return nil, fmt.Errorf("%w: channel: %w", admin.ErrBad, err)
	}
	if _, err := t.hub.Namespace(req.Channel); err != nil {
		return nil, fmt.Errorf("%w: %w", admin.ErrNotFound, err)
	}
	patience := traceTime
	if s := req.Timeout; s != 0 {
		if patience = time.Duration(s * float64(time.Second)); patience <= 0 || patience > maxTraceTime {
			return nil, fmt.Errorf("%w: timeout_seconds: %v is not within 0..%v", admin.ErrBad, s, maxTraceTime.Seconds())
		}
	}
	data, err := compact(req.Data)
	if err != nil {
		return nil, fmt.Errorf("%w: data: %w", admin.ErrBad, err)
	}
	x := &trace{id: rand.Text(), channel: req.Channel, started: time.Now(), state: admin.TraceWaiting, ended: make(chan struct{})}
	x.request = &followRequest{channel: req.Channel, began: func(f *flight) { x.flight = f }, done: func(f *flight) { t.finish(x, f.err) }}
	if data != nil {
		x.request.data = &data[0]
	}
	if err := t.keep(x); err != nil {
		return nil, err
	}
	x.timer = time.AfterFunc(patience, func() { t.expire(x) })
	t.probe.follow(x.request)
	if data != nil {
		t.hub.Publish(hub.Publication{Channel: req.Channel, Data: data}, func(_ hub.Position, err error) {
			if err != nil {
				t.finish(x, err)
			}
		})
	}
	return t.view(x), nil
}

// compact returns data as one line of JSON in memory of its own; nil for none.
func compact(data json.RawMessage) ([]byte, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if !utf8.Valid(data) {
		return nil, errors.New("it is not UTF-8")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// keep remembers x, and forgets the oldest at the bound.
func (t *tracer) keep(x *trace) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := 0
	for _, k := range t.known {
		if !k.over() {
			open++
		}
	}
	if open >= maxTraceWaits {
		return fmt.Errorf("%w: %d messages are being traced", admin.ErrBusy, open)
	}
	t.known = append(t.known, x)
	for i := 0; len(t.known) > maxTraces; i++ {
		if t.known[i].over() {
			t.known = slices.Delete(t.known, i, i+1)
		}
	}
	return nil
}

// over reports whether x has ended. tracer.mu is held.
func (x *trace) over() bool { return x.state != admin.TraceWaiting }

// finish ends x: it is done, or was refused.
func (t *tracer) finish(x *trace, err error) {
	state := admin.TraceDone
	if err != nil {
		state = admin.TraceFailed
	}
	t.end(x, state, err)
}

func (t *tracer) expire(x *trace) {
	if t.end(x, admin.TraceExpired, nil) {
		t.probe.abandon(func() *flight { return x.flight })
	}
}

func (t *tracer) end(x *trace, state string, err error) bool {
	t.mu.Lock()
	first := !x.over()
	if first {
		x.state, x.err = state, err
	}
	t.mu.Unlock()
	if first {
		t.probe.drop(x.request)
		x.timer.Stop()
		close(x.ended)
	}
	return first
}

// get returns a trace by id; with wait when it is over, or ctx is.
func (t *tracer) get(ctx context.Context, id string, wait bool) (*admin.Trace, error) {
	t.mu.Lock()
	i := slices.IndexFunc(t.known, func(x *trace) bool { return x.id == id })
	var x *trace
	if i >= 0 {
		x = t.known[i]
	}
	t.mu.Unlock()
	if x == nil {
		return nil, fmt.Errorf("%w: trace %.40q is not known, or has been forgotten", admin.ErrNotFound, id)
	}
	if wait {
		select {
		case <-x.ended:
		case <-ctx.Done():
		}
	}
	return t.view(x), nil
}

// view reports how far x has come.
func (t *tracer) view(x *trace) *admin.Trace {
	t.mu.Lock()
	v := &admin.Trace{ID: x.id, Channel: x.channel, State: x.state, Started: x.started, Shards: []admin.TraceShard{}}
	if x.err != nil {
		v.Error = x.err.Error()
	}
	t.mu.Unlock()
	t.probe.mu.Lock()
	defer t.probe.mu.Unlock()
	f := x.flight
	if f == nil {
		return v
	}
	if v.State == admin.TraceWaiting {
		v.State = admin.TraceRunning
	}
	v.Accepted, v.Bytes, v.Stored, v.Delivered, v.Queued = f.accepted, len(f.data), f.stored.Seconds(), f.arrived.Seconds(), f.queued.Seconds()
	if f.answered && f.err == nil && !f.at.IsZero() {
		v.Position = f.at.String()
	}
	for _, w := range f.wrote {
		v.Shards = append(v.Shards, admin.TraceShard{
			Loop: w.loop, Woken: w.woken.Seconds(), Written: w.done.Seconds(), Delivered: w.delivered, Sends: w.sends, Bytes: w.bytes,
		})
	}
	slices.SortFunc(v.Shards, func(a, b admin.TraceShard) int { return cmp.Compare(a.Loop, b.Loop) })
	if v.State == admin.TraceDone {
		v.Done = max(v.Stored, v.Queued)
		for _, s := range v.Shards {
			v.Done = max(v.Done, s.Written)
		}
	}
	return v
}
