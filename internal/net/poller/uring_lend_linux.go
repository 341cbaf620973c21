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

// Quiesce implements Poller. What it stops reading from is not watched for a hang-up meanwhile:
// each either leaves or is read from again, and starting and cancelling such a watch is a good part of
// what a connection costs while all of them wait.
func (p *Uring) Quiesce(loans []Loan, h Handler, within time.Duration) {
	p.stopped = make(entrySet, len(p.conns)/64+1)
	for i := range loans {
		if idx := index(loans[i].FD); p.conns[idx].state&connReading != 0 {
			p.stopped.add(idx)
			p.SetReading(loans[i].Key, loans[i].FD, false)
		}
	}
	awaitQuiet(p, h, within)
	p.stopped = nil
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
func (p *Uring) Lend(loans []Loan) {
	p.installed = append(p.installed[:0], make([]int32, len(loans))...)
	p.installing = 0
	for i := range loans {
		idx := index(loans[i].FD)
		c := &p.conns[idx]
		p.installed[i] = -1
		if c.state&(connRecv|connBroken|connShut|connShutting|connReading) != 0 || c.send != 0 {
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
		if in := p.held[index(l.FD)]; in != nil {
			l.Input = in.b // an end of the stream is seen again in the socket
		}
	}
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

// Returned implements Poller.
func (p *Uring) Returned(loans []Loan) {
	for i := range loans {
		if loans[i].File >= 0 {
			sys.Close(loans[i].File)
		}
	}
}

// Leave implements Poller.
func (p *Uring) Leave(_ Key, fd int) { p.close(index(fd), false) }
