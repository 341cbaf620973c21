package poller

import (
	"errors"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Lending. A direct descriptor is none that could be sent to another process: it is
// installed as one of the process's, for the moment in which it is sent (Linux 6.8). The
// entry in the table stays what the loop continues with, if the other process does not.

const (
	// sendPatience is how long sends may be under way when nothing else is: one that takes
	// longer waits for its client.
	sendPatience = 2 * time.Millisecond
	quiesceWait  = time.Millisecond
)

var errInFlight = errors.New("a request of the ring is in flight")

// Quiesce implements Poller.
func (p *Uring) Quiesce(h Handler, within time.Duration) {
	end := time.Now().Add(within)
	var settled time.Time
	for p.locked && p.err == 0 {
		p.publish()
		p.batch++
		p.check(p.ring.Poll())
		p.collect()
		p.dispatch(h)
		receiving, sending := p.inFlight()
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

// inFlight reports what is in flight for connections that are not read from.
func (p *Uring) inFlight() (receiving, sending bool) {
	for i := range p.conns {
		if c := &p.conns[i]; c.state&(connOpen|connAdded|connReading) == connOpen|connAdded {
			receiving = receiving || c.state&connRecv != 0
			sending = sending || c.send != 0
		}
	}
	return receiving, sending
}

// Lend implements Poller.
func (p *Uring) Lend(_ Key, fd int) (file int, input []byte, err error) {
	idx := index(fd)
	c := &p.conns[idx]
	if c.state&(connRecv|connBroken|connShut|connShutting|connReading) != 0 || c.send != 0 {
		return -1, nil, errInFlight
	}
	const pending = -1 << 31
	p.installed = pending
	s := p.request()
	s.PrepLend(idx)
	s.UserData = opInstall
	for range 1000 {
		if p.submit(); p.installed != pending || p.err != 0 {
			break
		}
	}
	if p.installed < 0 {
		return -1, nil, errors.New("io_uring gives no descriptor for a connection before Linux 6.8")
	}
	if in := p.held[idx]; in != nil {
		input = in.b // an end of the stream is seen again in the socket
	}
	return int(p.installed), input, nil
}

// Returned implements Poller.
func (p *Uring) Returned(file int) { sys.Close(file) }

// Leave implements Poller.
func (p *Uring) Leave(_ Key, fd int) { p.close(index(fd), false) }
