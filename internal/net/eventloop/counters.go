package eventloop

import (
	"sync/atomic"
	"unsafe"
)

// counts are a loop's plain counters; only its goroutine touches them.
type counts struct {
	ticks, accepted, closed, refused, acceptErrors, acceptPauses uint64
	reads, bytesIn, sends, bytesOut                              uint64
	stalls, stallCloses, queueFull, panics, open                 uint64
	dialed, dialFailed, adopted, waiting, queued, carried        uint64
	moved, arrived                                               uint64
}

func (c *counts) fields() [23]*uint64 {
	return [...]*uint64{&c.ticks, &c.accepted, &c.closed, &c.refused, &c.acceptErrors, &c.acceptPauses, &c.reads, &c.bytesIn,
		&c.sends, &c.bytesOut, &c.stalls, &c.stallCloses, &c.queueFull, &c.panics, &c.open,
		&c.dialed, &c.dialFailed, &c.adopted, &c.waiting, &c.queued, &c.carried,
		&c.moved, &c.arrived}
}

// published is a copy that any goroutine may read, as of the end of a tick.
type published [23]atomic.Uint64

func (p *published) publish(c *counts) {
	for i, f := range c.fields() {
		if v := *f; p[i].Load() != v { // most do not change in a tick, and a load is free
			p[i].Store(v)
		}
	}
}

// Stats are a loop's counters since its start, as of its last tick.
type Stats struct {
	Ticks        uint64
	Accepted     uint64
	Closed       uint64
	Refused      uint64 // closed at accept, not dialed or not adopted: Config.MaxConns
	AcceptErrors uint64 // out of descriptors or memory
	AcceptPauses uint64 // times a listener waited for room: nearly Config.MaxConns were open
	Reads        uint64 // receives that brought bytes
	BytesIn      uint64
	Sends        uint64 // send system calls or submissions
	BytesOut     uint64
	Stalls       uint64 // times a socket did not accept everything
	StallCloses  uint64 // closed by Config.WriteStall
	QueueFull    uint64 // closed by Config.MaxQueue
	Panics       uint64 // handlers that panicked
	Open         uint64 // connections now, those that are connecting included
	Dialed       uint64 // connections that Dial made
	DialFailed   uint64 // and that it or Adopt did not, for any reason; not in Closed
	Adopted      uint64
	Moved        uint64 // connections that went to another process, which are not in Closed
	Arrived      uint64 // and that came from one
	Carried      uint64 // connections on the socket of another one: streams of HTTP/2
	Waiting      uint64 // connections whose socket accepts no data now
	Queued       uint64 // bytes that wait for those, as of the last look: once a second at least
}

// ConnBytes is what an open connection takes without its handler and what waits for it.
const ConnBytes = int(unsafe.Sizeof(Conn{}))

// Stats may be called from any goroutine.
func (l *Loop) Stats() Stats {
	var c counts
	for i, f := range c.fields() {
		*f = l.counters[i].Load()
	}
	return Stats{
		Ticks: c.ticks, Accepted: c.accepted, Closed: c.closed, Refused: c.refused, AcceptErrors: c.acceptErrors, AcceptPauses: c.acceptPauses,
		Reads: c.reads, BytesIn: c.bytesIn, Sends: c.sends, BytesOut: c.bytesOut, Stalls: c.stalls,
		StallCloses: c.stallCloses, QueueFull: c.queueFull, Panics: c.panics, Open: c.open,
		Dialed: c.dialed, DialFailed: c.dialFailed, Adopted: c.adopted, Waiting: c.waiting, Queued: c.queued, Carried: c.carried, Moved: c.moved, Arrived: c.arrived,
	}
}
