package policy

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
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
//	sub, auth    who it was and what proved it; absent if anonymous
//	method, host, path, query   path normalised; secrets in the query are "[redacted]"
//	headers      the fields that the route lists; of credentials only that they were there
//
// Loops never wait for it: lines gather in a bounded buffer that one goroutine
// writes out. A line that finds it full is dropped and counted.
type AccessLog struct {
	// Fixed at NewAccessLog.
	log   *slog.Logger
	bound int
	wake  chan struct{}

	mu      sync.Mutex // guards the fields below; held for a copy
	lines   []byte
	w       io.Writer     // nil: lines are discarded
	writing chan struct{} // closed after the write under way; nil: there is none

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
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &AccessLog{w: w, log: log, bound: bound, wake: make(chan struct{}, 1)}
}

// writeTime bounds the wait for a write under way: a pipe that is not read blocks for ever.
const writeTime = time.Second

// Redirect writes further lines to w in place of the writer until now; nil discards them. It
// waits for a write under way, a second at most: afterwards the writer until now is used
// for no other and may be closed.
func (a *AccessLog) Redirect(w io.Writer) {
	a.mu.Lock()
	a.w = w
	writing := a.writing
	a.mu.Unlock()
	if writing != nil {
		waitWritten(writing)
	}
}

// waitWritten waits for done, a second at most.
func waitWritten(done <-chan struct{}) {
	timeout := time.NewTimer(writeTime)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
	}
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

// Run writes until ctx ends, and then what is left, a second at most. One call at a time.
func (a *AccessLog) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // remains if its write blocks; the process ends without it
		defer close(done)
		a.writeUntil(ctx)
	}()
	<-ctx.Done()
	waitWritten(done)
	return nil
}

func (a *AccessLog) writeUntil(ctx context.Context) {
	var out []byte
	failing := false
	for ended := false; !ended; {
		select {
		case <-a.wake:
		case <-ctx.Done():
			ended = true
		}
		var err error
		if out, err = a.writeLines(out[:0]); err != nil {
			a.failed.Add(1)
			if !failing { // logged once, not per line
				a.log.Error("access log cannot be written", "err", err)
			}
		}
		if len(out) > 0 {
			failing = err != nil
		}
	}
}

// writeLines writes what is queued and returns it; empty becomes the queue's buffer.
func (a *AccessLog) writeLines(empty []byte) (out []byte, err error) {
	a.mu.Lock()
	out, a.lines = a.lines, empty
	w, writing := a.w, make(chan struct{})
	a.writing = writing
	a.mu.Unlock()
	if len(out) > 0 && w != nil {
		_, err = w.Write(out)
	}
	a.mu.Lock()
	a.writing = nil
	a.mu.Unlock()
	close(writing)
	return out, err
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
