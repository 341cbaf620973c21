package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/weir-gateway/weir/sse"
)

// A follower subscribes to the demo's own channels, as any client does, and
// checks what arrives: it resumes by Last-Event-ID after every disconnect.
type follower struct {
	// Fixed at start.
	client  *http.Client
	url     string
	run     string
	log     *slog.Logger
	ready   chan struct{} // closed once the first subscription is open
	arrived chan struct{} // has room for one; sent to, without waiting, per message

	// Owned by follow's goroutine. No lock.
	lastID string
	retry  time.Duration
	isUp   bool // since the first stream
	thisUp bool // this stream
	seq    map[string]uint64

	mu    sync.Mutex
	count counts
}

// counts is what a follower has seen of its run.
type counts struct {
	delivered, lost, repeated, gaps, reconnects uint64

	latency latency
}

// An envelope is one message on a stream of several channels.
type envelope struct {
	Channel string `json:"channel"`
	Data    struct {
		Run string  `json:"run"`
		Seq uint64  `json:"seq"`
		T   float64 `json:"t"`
	} `json:"data"`
}

// follow runs until ctx is done, which is not an error, or until the server refuses
// in a way that trying again cannot help.
func (f *follower) follow(ctx context.Context) error {
	var b backoff
	for {
		err := f.stream(ctx, &b)
		if ctx.Err() != nil {
			return nil
		}
		if isFinal(err) {
			return fmt.Errorf("subscribe: %w", err)
		}
		f.log.Debug("subscription ended", "err", err, "position", f.lastID)
		requested := f.retry
		if answer, ok := errors.AsType[*PublishError](err); ok {
			requested = answer.RetryAfter
		}
		if !b.wait(ctx, requested) {
			return nil
		}
	}
}

// stream is one connection, from request to its end.
func (f *follower) stream(ctx context.Context, b *backoff) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", sse.ContentType)
	if f.lastID != "" {
		req.Header.Set("Last-Event-ID", f.lastID)
	}
	res, err := f.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return answerOf(res)
	}
	f.thisUp = false
	events := sse.NewReader(res.Body)
	for {
		e, err := events.Next()
		if err != nil {
			return err
		}
		if e.HasRetry {
			f.retry = time.Duration(e.Retry) * time.Millisecond
		}
		if e.HasID {
			f.lastID = string(e.ID)
		}
		switch {
		case string(e.Type) == "end":
			return fmt.Errorf("the server ends the stream: %s", e.Data)
		case string(e.Type) == "gap":
			f.up(b)
			f.gap(e.Data)
		case e.HasData:
			f.up(b)
			f.message(e.Data, time.Now())
		case e.HasID:
			f.up(b)
		}
	}
}

// up notes that the subscription is open: the server has said where. An answer
// that only ends the stream again, as under overload, does not count.
func (f *follower) up(b *backoff) {
	switch {
	case f.thisUp:
		return
	case f.isUp:
		f.mu.Lock()
		f.count.reconnects++
		f.mu.Unlock()
	default:
		f.isUp = true
		close(f.ready)
	}
	f.thisUp = true
	b.last = 0
}

func (f *follower) gap(data []byte) {
	f.log.Warn("gap event", "gap", string(data))
	f.mu.Lock()
	f.count.gaps++
	f.mu.Unlock()
}

// message checks one message by its sequence number.
func (f *follower) message(data []byte, now time.Time) {
	var m envelope
	if err := json.Unmarshal(data, &m); err != nil {
		f.log.Warn("message is not understood", "err", err)
		return
	}
	if m.Data.Run != f.run {
		return // of another publisher, or of an earlier run
	}
	last := f.seq[m.Channel]
	f.mu.Lock()
	switch {
	case m.Data.Seq <= last:
		f.count.repeated++
	default:
		f.count.lost += m.Data.Seq - last - 1
		f.count.delivered++
		f.count.latency.add(now.Sub(time.UnixMicro(int64(m.Data.T * 1000))))
		f.seq[m.Channel] = m.Data.Seq
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
