package poller

import "time"

// addsPerWait bounds for how many connections of AddLater a Wait starts to receive. Each is a request or a system call.
const addsPerWait = 256

// A late is a connection that is not received from yet.
type late struct {
	key Key
	fd  int
}

// lates are they, in the order of AddLater. One that is closed meanwhile stays in it.
type lates struct{ list []late }

func (l *lates) add(k Key, fd int) { l.list = append(l.list, late{k, fd}) }

// patience is how long a Wait may wait: as long as some are left, what else waits for the processor has it.
func (l *lates) patience(timeout time.Duration) time.Duration {
	if len(l.list) > 0 && (timeout < 0 || timeout > time.Millisecond) {
		return time.Millisecond
	}
	return timeout
}

// next removes and returns those that are due in this Wait, valid until the next add.
func (l *lates) next() []late {
	n := min(len(l.list), addsPerWait)
	due := l.list[:n]
	if l.list = l.list[n:]; len(l.list) == 0 {
		l.list = nil
	}
	return due
}
