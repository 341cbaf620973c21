package observer

import (
	"fmt"
	"slices"
	"time"
)

// Thresholds of findings. Each is far from what a healthy process shows.
const (
	slowSync      = 0.010  // seconds that a flush to the disk took at P99
	convoyThreads = 3      // that waited for the same lock
	convoyShare   = 0.5    // seconds of waiting a second, over all threads
	faultStorm    = 20_000 // page faults a second
	majorStorm    = 50     // of those from a disk
	stoppedShare  = 0.5    // of the window, that a reader's window was closed
	slowQueue     = 0.010  // seconds on the run queue at P99
	queueShare    = 0.5    // seconds on the run queue a second, without the probe
	fewEvents     = 5      // below that a percentile says nothing
)

var syncCalls = []string{"fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync"}

// findings names what is wrong. overflows are full accept queues in the window.
func findings(r *Report, overflows uint64) []Finding {
	list := []Finding{}
	add := func(name, do, format string, a ...any) {
		list = append(list, Finding{Name: name, Text: fmt.Sprintf(format, a...), Do: do})
	}
	secs := max(r.Seconds, 1e-9)
	for _, s := range r.Syscalls {
		if slices.Contains(syncCalls, s.Name) && max(s.P99, s.Oldest) >= slowSync {
			add("slow-sync", "a faster disk, fewer flushes, or a weaker durability: namespaces of Weir choose it each",
				"%s took up to %s at P99 (%d calls, %s in all)%s", s.Name, text(s.P99), s.Count, text(s.Total), unended(s))
		}
	}
	for _, l := range r.Locks {
		if l.Threads >= convoyThreads && l.Seconds/secs >= convoyShare {
			add("lock-convoy", "find who holds the lock: a processor profile, of Go the mutex profile",
				"%d threads waited %d times for the lock at %s, %s of waiting a second", l.Threads, l.Waits, l.Address, text(l.Seconds/secs))
			break // the others wait for the same reason
		}
	}
	if n := max(r.Faults.User, r.Faults.Minor+r.Faults.Major); float64(n)/secs >= faultStorm {
		add("page-fault-storm", "memory is given back and taken again: keep buffers, raise GOGC or GOMEMLIMIT; look at madvise, mmap and munmap among the system calls",
			"%.0f page faults a second, each a stop of some hundred nanoseconds or more", float64(n)/secs)
	} else if float64(r.Faults.Major)/secs >= majorStorm {
		add("page-fault-storm", "memory was swapped out or a file is read by mmap: see /proc/pressure/memory", "%.0f page faults a second wait for a disk", float64(r.Faults.Major)/secs)
	}
	stopped(r, secs, add)
	switch {
	case r.RunQueue.Count >= fewEvents && r.RunQueue.P99 >= slowQueue:
		add("run-queue", "more processors, fewer threads, or fewer other processes on this machine",
			"threads that could run waited up to %s for a processor at P99", text(r.RunQueue.P99))
	case r.RunQueue.Count == 0 && r.RunDelay/secs >= queueShare:
		add("run-queue", "more processors, fewer threads, or fewer other processes on this machine",
			"threads that could run waited %s a second for a processor", text(r.RunDelay/secs))
	}
	var repeated uint64
	for _, t := range r.TCP.Retransmits {
		repeated += t.Count
	}
	if float64(repeated)/secs >= 10 {
		add("retransmits", "loss or congestion on the path; bbr suits lossy paths: weir tune check congestion",
			"%.0f segments a second were sent again", float64(repeated)/secs)
	}
	if overflows > 0 {
		add("accept-queue", "accept faster (more loops), or a longer queue: weir tune check somaxconn",
			"%d connections found a full accept queue", overflows)
	}
	if g := r.Go; g != nil && g.SyncWait/max(g.Seconds, 1e-9) >= 1 {
		add("go-contention", "go tool pprof on /debug/pprof/mutex names the lock",
			"goroutines waited %s a second for sync.Mutex and the like", text(g.SyncWait/max(g.Seconds, 1e-9)))
	}
	return list
}

// unended is about a call that had not returned, "" without.
func unended(s Syscall) string {
	if s.UnderWay == 0 {
		return ""
	}
	return fmt.Sprintf(", and one had not returned after %s", text(s.Oldest))
}

func stopped(r *Report, secs float64, add func(name, do, format string, a ...any)) {
	n := 0
	var worst Connection
	for _, c := range r.TCP.Connections {
		if c.Reader/secs >= stoppedShare {
			if n == 0 {
				worst = c
			}
			n++
		}
	}
	if n > 0 {
		add("stopped-reader", "the client is slow or has stopped: Weir bounds and ends such connections (eventloop.write_stall, max_queue)",
			"%d connections waited for their reader; that of %s for %s, with %d bytes unsent", n, worst.Peer, text(worst.Reader), worst.Unsent)
	}
}

// text is a duration in seconds with three digits.
func text(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
