package policy

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
)

// An AccessLog writes one JSON object per request and line:
//
//	time         RFC 3339 with milliseconds, UTC, of the end
//	route        the route's name; empty if there was none
//	status       of the answer
//	duration_ms  from head to end
//	bytes_in, bytes_out  of the bodies
//	upstream     the peer that answered; absent without one
//	retries      further peers that were tried; absent if none
//	trace_id, span_id    as the upstream got them; absent if the request got not so far
//	client       address of who made it, by the trusted proxies' words
//	sub, auth    who it was and what proved it; absent for nobody
//	method, host, path, query   path normalised; secrets in the query are "[redacted]"
//	headers      what the route asks for; of credentials only that they were there
//
// Loops never wait for it: lines gather in a bounded buffer that one goroutine
// writes out. A line that finds it full is dropped and counted.
type AccessLog struct {
	// Fixed at NewAccessLog.
	log   *slog.Logger
	bound int
	wake  chan struct{}

	mu    sync.Mutex // guards lines; held for a copy
	lines []byte

	writing sync.Mutex // guards w; held for a write
	w       io.Writer  // nil: lines are discarded

	// Any goroutine.
	written, dropped, failed atomic.Uint64
}

// DefaultAccessLogBytes is the bound of the buffer when 0 is asked for.
const DefaultAccessLogBytes = 1 << 20

// NewAccessLog returns an AccessLog that writes to w, nil discards, holding at most bound bytes
// that are not written yet; 0 means DefaultAccessLogBytes. The owner starts Run. A nil
// log discards.
func NewAccessLog(w io.Writer, bound int, log *slog.Logger) *AccessLog {
	if bound <= 0 {
		bound = DefaultAccessLogBytes
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &AccessLog{w: w, log: log, bound: bound, wake: make(chan struct{}, 1)}
}

// Redirect writes further lines to w in place of the writer until now; nil discards them. It
// waits for a write under way: afterwards the writer until now is not used any more.
func (a *AccessLog) Redirect(w io.Writer) {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.w = w
}

func (a *AccessLog) write(b []byte) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.w == nil {
		return nil
	}
	_, err := a.w.Write(b)
	return err
}

// add queues a line. It never waits for the writer.
func (a *AccessLog) add(line []byte) {
	a.mu.Lock()
	fits := len(a.lines)+len(line) <= a.bound
	first := len(a.lines) == 0
	if fits {
		a.lines = append(a.lines, line...)
	}
	a.mu.Unlock()
	if !fits {
		a.dropped.Add(1)
		return
	}
	a.written.Add(1)
	if first {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// Run writes until ctx ends, and then what is left. One call at a time.
func (a *AccessLog) Run(ctx context.Context) error {
	var out []byte
	failing := false
	for {
		done := false
		select {
		case <-a.wake:
		case <-ctx.Done():
			done = true
		}
		a.mu.Lock()
		out, a.lines = a.lines, out[:0]
		a.mu.Unlock()
		if len(out) > 0 {
			err := a.write(out)
			if err != nil {
				a.failed.Add(1)
			}
			if err != nil && !failing { // said once, not per line
				a.log.Error("access log cannot be written", "err", err)
			}
			failing = err != nil
		}
		if done {
			return nil
		}
	}
}

// AccessLogStats are running totals, for metrics.
type AccessLogStats struct {
	Lines   uint64 // taken
	Dropped uint64 // lost because the writer was too slow
	Failed  uint64 // writes that failed
}

// Stats returns the totals so far. Any goroutine.
func (a *AccessLog) Stats() AccessLogStats {
	return AccessLogStats{Lines: a.written.Load(), Dropped: a.dropped.Load(), Failed: a.failed.Load()}
}
