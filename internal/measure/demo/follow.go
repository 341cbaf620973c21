package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/client"
)

// A follower subscribes to the demo's own channels, as any client does, and
// checks what arrives by its sequence numbers.
type follower struct {
	// Fixed at start.
	client  *client.Client
	run     string
	log     *slog.Logger
	ready   chan struct{} // closed once the first subscription is open
	arrived chan struct{} // has room for one; sent to, without waiting, per message

	// Owned by follow's goroutine. No lock.
	isUp bool // since the first stream
	seq  map[string]uint64

	mu      sync.Mutex
	count   counts
	latency *hdrhistogram.Histogram // microseconds
}

// counts is what a follower has seen of its run.
type counts struct{ delivered, lost, repeated, gaps, reconnects uint64 }

// longest is the greatest latency that is distinguished, in microseconds.
const longest = int64(time.Hour / time.Microsecond)

func newFollower(c *client.Client, run string, log *slog.Logger) *follower {
	return &follower{
		client: c, run: run, log: log, ready: make(chan struct{}), arrived: make(chan struct{}, 1),
		seq: map[string]uint64{}, latency: hdrhistogram.New(1, longest, 2),
	}
}

// follow runs until ctx is done, which is not an error, or until the server refuses
// in a way that trying again cannot help.
func (f *follower) follow(ctx context.Context) error {
	// From the start of the history: what is published before the subscription is in place comes too.
	s, err := f.client.Subscribe(ctx, client.SubscribeOptions{Channels: Channels(), Since: "0"})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	defer s.Close()
	for {
		ev, err := s.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("subscribe: %w", err)
		}
		switch ev := ev.(type) {
		case *client.Message:
			f.message(ev, time.Now())
		case *client.Gap:
			f.log.Warn("gap event", "namespace", ev.Namespace, "from", ev.From, "reason", ev.Reason)
			f.add(&f.count.gaps)
		case *client.State:
			f.state(ev)
		}
	}
}

func (f *follower) state(s *client.State) {
	switch {
	case !s.Connected:
		f.log.Debug("subscription ended", "err", s.Err)
	case f.isUp:
		f.add(&f.count.reconnects)
	default:
		f.isUp = true
		close(f.ready)
	}
}

func (f *follower) add(n *uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
}

// message checks one message by its sequence number.
func (f *follower) message(m *client.Message, now time.Time) {
	var data struct {
		Run string  `json:"run"`
		Seq uint64  `json:"seq"`
		T   float64 `json:"t"`
	}
	if err := json.Unmarshal(m.Data, &data); err != nil {
		f.log.Warn("message is not understood", "err", err)
		return
	}
	if data.Run != f.run {
		return // of another publisher, or of an earlier run
	}
	last := f.seq[m.Channel]
	f.mu.Lock()
	if data.Seq <= last {
		f.count.repeated++
	} else {
		f.count.lost += data.Seq - last - 1
		f.count.delivered++
		latency := now.Sub(time.UnixMicro(int64(data.T * 1000))).Microseconds()
		_ = f.latency.RecordValue(min(max(latency, 0), longest)) // within its range
		f.seq[m.Channel] = data.Seq
	}
	f.mu.Unlock()
	select {
	case f.arrived <- struct{}{}:
	default:
	}
}

func (f *follower) seen() counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// quantile is the latency that q, 0 to 1, of all messages do not exceed; 0 if there are none.
func (f *follower) quantile(q float64) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.latency.ValueAtQuantile(100*q)) * time.Microsecond
}
