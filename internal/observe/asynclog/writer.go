// Package asynclog writes a log without ever blocking the goroutine that logs: a pipe or
// journal that is not read, or a slow disk, must not stop an event loop.
package asynclog

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultBound is how many bytes of lines that are not written yet a Writer keeps.
const DefaultBound = 1 << 20

// atomicBytes is the largest write that is not mixed with those of another process on the
// same pipe (PIPE_BUF, pipe(7)): during an upgrade two processes write to one.
const atomicBytes = 4096

// closeTime bounds Close.
const closeTime = time.Second

// errClosed is the error of Write after Close.
var errClosed = errors.New("asynclog: writer closed")

// A Writer is an io.Writer that queues lines for one goroutine, which writes them at once
// and in order. At the bound further lines are dropped and counted.
type Writer struct {
	// Fixed at New.
	to     io.Writer
	notice func(lines uint64) []byte
	bound  int
	wake   chan struct{} // holds one: there is something to write, or it is closed
	ended  chan struct{}

	mu     sync.Mutex // guards the fields below; held for a copy
	queue  []byte
	missed uint64 // lines dropped since the queue was last emptied
	closed bool

	// Owned by the goroutine.
	unreported uint64 // lines that are missing before what is written next

	// Any goroutine.
	dropped atomic.Uint64
}

// New returns a Writer to w that keeps at most bound bytes besides those that it is writing;
// 0 means DefaultBound. Once lines were dropped and w accepts writes again, what notice
// returns for their number is written where they are missing; a nil notice writes
// nothing. The caller closes the Writer.
func New(w io.Writer, bound int, notice func(lines uint64) []byte) *Writer {
	bound = cmp.Or(bound, DefaultBound)
	a := &Writer{to: w, notice: notice, bound: bound, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go a.run()
	return a
}

// Write queues b, which is one or more whole lines, or drops it if it does not fit. It
// never waits for the underlying writer and reports an error only after Close. Any
// goroutine.
func (a *Writer) Write(b []byte) (int, error) {
	a.mu.Lock()
	closed, fits := a.closed, len(a.queue)+len(b) <= a.bound
	switch {
	case closed:
	case fits:
		a.queue = append(a.queue, b...)
	default:
		a.missed += countLines(b)
	}
	a.mu.Unlock()
	if closed || !fits {
		a.dropped.Add(countLines(b))
	}
	if closed {
		return 0, errClosed
	}
	a.rouse()
	return len(b), nil
}

// Dropped is how many lines were not written so far: they did not fit, or writing them
// failed. Any goroutine.
func (a *Writer) Dropped() uint64 { return a.dropped.Load() }

// Close writes what is queued, but gives up after a second, since the underlying writer may
// block for ever; then its goroutine remains until that write ends. It does not close
// the underlying writer, and may be called again.
func (a *Writer) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.rouse()
	timeout := time.NewTimer(closeTime)
	defer timeout.Stop()
	select {
	case <-a.ended:
	case <-timeout.C:
	}
}

func (a *Writer) rouse() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run writes until the Writer is closed and its queue is empty.
func (a *Writer) run() {
	defer close(a.ended)
	var lines []byte
	for range a.wake {
		a.mu.Lock()
		lines, a.queue = a.queue, lines[:0]
		missed, closed := a.missed, a.closed
		a.missed = 0
		a.mu.Unlock()
		a.writeLines(lines)
		a.unreported += missed // they came when the queue was full: after its lines
		a.report()
		if closed { // nothing is queued any more
			return
		}
		if cap(lines) > a.bound/4 {
			lines = nil // not kept after a burst
		}
	}
}

// writeLines writes whole lines, as many at a time as are not mixed with others.
func (a *Writer) writeLines(lines []byte) {
	for len(lines) > 0 {
		n := min(len(lines), atomicBytes)
		if i := bytes.LastIndexByte(lines[:n], '\n'); i >= 0 {
			n = i + 1
		} else if i := bytes.IndexByte(lines[n:], '\n'); i >= 0 {
			n += i + 1
		} else {
			n = len(lines)
		}
		a.report()
		if written, err := a.to.Write(lines[:n]); err != nil {
			lost := countLines(lines[min(written, n):n])
			a.unreported += lost
			a.dropped.Add(lost)
		}
		lines = lines[n:]
	}
}

// report writes the notice if lines are missing. If that fails it is due again.
func (a *Writer) report() {
	if a.unreported == 0 || a.notice == nil {
		return
	}
	if _, err := a.to.Write(a.notice(a.unreported)); err == nil {
		a.unreported = 0
	}
}

// countLines counts the lines of b; the last one may have no line feed.
func countLines(b []byte) uint64 {
	n := bytes.Count(b, []byte{'\n'})
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return uint64(n)
}
