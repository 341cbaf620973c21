package poller

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Lending. A direct descriptor is none that could be sent to another process: it is
// installed as one of the process's, while it is sent (Linux 6.8). The
// entry in the table stays what the loop continues with, if the other process does not.

const (
	// sendPatience is how long sends may be under way when nothing else is: one that takes
	// longer waits for its client.
	sendPatience = 2 * time.Millisecond
	quiesceWait  = time.Millisecond
)

// lending is what p lends. Owned by the loop's goroutine.
type lending struct {
	p *Uring
	// installed are the results of requests to install, installing of which are under way.
	installed  []int32
	installing int
	// stopped are the entries that Quiesce stopped reading from; nil when there is none.
	stopped entrySet
	// paused: until the next Wait nothing may let a receive in flight continue.
	paused bool
	// ended are the entries whose socket another process has, too, and that are closed.
	ended   entrySet
	recalls recalls
}

// Quiesce implements Poller. What it stops reading from is not watched for a hang-up meanwhile:
// each either leaves or is read from again, and starting and cancelling such a watch is a good part of
// what a connection costs while all of them wait.
//
// The kernel reads for a ring like this one in calls that look for results alone: without such a
// call a receive in flight takes nothing from its socket. If it is cancelled before the next one, it
// never does (io_uring/poll.c, io_poll_check_events, looks at that first); so a pause needs to cancel nothing.
func (l *lending) Quiesce(loans []Loan, h Handler, within time.Duration, paused bool) {
	p := l.p
	l.stopped = make(entrySet, len(p.conns)/64+1)
	l.paused = paused && p.locked && p.ring.Deferred()
	for i := range loans {
		idx := index(loans[i].FD)
		c := &p.conns[idx]
		if c.state&connReading == 0 {
			continue
		}
		if l.stopped.add(idx); l.paused {
			c.state &^= connReading
		} else {
			p.SetReading(loans[i].Key, loans[i].FD, false)
		}
	}
	if l.paused {
		bufferReceived(p, h)
		recallSends(p, loans, h)
		return
	}
	recallSends(p, loans, h)
	awaitQuiet(p, h, within)
	l.stopped = nil
}

// bufferReceived submits what p has, and keeps the input that the kernel had received before for when the loop
// reads again.
func bufferReceived(p *Uring, h Handler) {
	for range 100 {
		p.submit()
		if len(p.ready) == 0 && p.ring.Pending() == 0 || p.err != 0 {
			return
		}
		bufferResults(p, h)
	}
}

// An entrySet has entries of the table; nil: none.
type entrySet []uint64

func (s entrySet) add(idx uint32)      { s[idx/64] |= 1 << (idx % 64) }
func (s entrySet) has(idx uint32) bool { return int(idx/64) < len(s) && s[idx/64]&(1<<(idx%64)) != 0 }

func (s entrySet) drop(idx uint32) {
	if s.has(idx) {
		s[idx/64] &^= 1 << (idx % 64)
	}
}

// awaitQuiet returns when nothing is received for connections that are not read from, and nothing
// sent that does not wait for its client; after within at the latest.
func awaitQuiet(p *Uring, h Handler, within time.Duration) {
	end := time.Now().Add(within)
	var settled time.Time
	for p.locked && p.err == 0 {
		p.publish()
		p.batch++
		p.check(p.ring.Poll())
		p.collect()
		p.dispatch(h)
		receiving, sending := p.conns.inFlight()
		now := time.Now()
		if settled.IsZero() && !receiving {
			settled = now
		}
		if !receiving && (!sending || now.Sub(settled) >= sendPatience) || now.After(end) {
			return
		}
		p.publish()
		p.check(p.ring.Wait(quiesceWait))
		p.collect()
	}
}

// Lend implements Poller. The requests are submitted together.
func (l *lending) Lend(loans []Loan) {
	p := l.p
	p.installed = append(p.installed[:0], make([]int32, len(loans))...)
	p.installing = 0
	for i := range loans {
		idx, part := index(loans[i].FD), loans[i].Part
		p.installed[i] = -1
		if part != SocketOnly && !l.canLend(&p.conns[idx]) {
			continue
		}
		if part == InputOnly {
			p.installed[i] = 0
			continue
		}
		p.installing++
		s := p.request()
		s.PrepLend(idx)
		s.UserData = opInstall | uint64(i)
	}
	awaitInstalled(p)
	for i := range loans {
		l := &loans[i]
		if l.File = int(p.installed[i]); l.File < 0 {
			l.File = -1 // in flight, or Linux before 6.8
			continue
		}
		if l.Part == SocketOnly {
			continue
		}
		if in := p.held[index(l.FD)]; in != nil {
			l.Input = in.b // an end of the stream is seen again in the socket
		}
		l.Unsent = p.recalls.rest[index(l.FD)]
	}
}

// canLend reports whether nothing is in flight for c that could take or send bytes.
func (l *lending) canLend(c *uringConn) bool {
	flight := connRecv
	if l.paused {
		flight = 0
	}
	return c.state&(flight|connBroken|connShut|connShutting|connReading) == 0 && c.send == 0
}

// awaitInstalled submits what p has and returns when all opInstall have their results.
func awaitInstalled(p *Uring) {
	for range 1000 {
		if p.installing == 0 || p.err != 0 {
			return
		}
		p.submit()
	}
	if p.err == 0 { // the ring is beyond repair, and Wait says so
		p.err = sys.EAGAIN
	}
}

// EndLend implements Poller.
func (*lending) EndLend(loans []Loan) {
	for i := range loans {
		if loans[i].File >= 0 && loans[i].Part != InputOnly {
			sys.Close(loans[i].File)
		}
	}
}

// CloseShared implements Poller.
func (l *lending) CloseShared(_ Key, fd int) {
	delete(l.recalls.rest, index(fd))
	l.p.close(index(fd), false)
}

// ShutdownShared implements Poller. The entry is shut down before it is closed.
func (l *lending) ShutdownShared(_ Key, fd int) {
	if l.ended == nil {
		l.ended = make(entrySet, l.p.files/64+1)
	}
	l.ended.add(index(fd))
}

// shutdownEnded shuts down what waits for that when the ring ends: another process has the socket, so that the ring's end is none
// for the peer. A request of the ring would be cancelled with it.
func shutdownEnded(p *Uring) {
	var loans []Loan
	for i := range p.conns {
		if c := &p.conns[i]; c.state&(connTaken|connOpen) == connTaken && (c.state&connShutting != 0 || p.ended.has(uint32(i))) {
			loans = append(loans, Loan{Key: c.key, FD: i + directBase, Part: SocketOnly})
		}
	}
	if len(loans) == 0 {
		return
	}
	p.Lend(loans)
	for i := range loans {
		if loans[i].File >= 0 {
			sys.Shutdown(loans[i].File)
		}
	}
	p.EndLend(loans)
}
