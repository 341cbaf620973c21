package poller

import (
	"bytes"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Recalling. A send in flight waits for its client, which may be long. Before its connection is lent it is
// cancelled, and what the kernel has not taken is lent with the socket; of a connection that is not lent it is sent after all,
// before anything else.

// recallTime bounds how long sends take to be cancelled.
const recallTime = 5 * time.Millisecond

// recalls are the sends that are being cancelled, and what is left of those that were. Owned by the loop's goroutine.
type recalls struct {
	wanted entrySet // nil mostly
	rest   map[uint32][]byte
}

// recallSends cancels the sends in flight of loans. Input that comes meanwhile is kept for when the loop reads again.
func recallSends(p *Uring, loans []Loan, h Handler) {
	p.recalls.wanted = make(entrySet, len(p.conns)/64+1)
	defer func() { p.recalls.wanted = nil }()
	for end := time.Now().Add(recallTime); p.locked && p.err == 0; {
		n := 0
		for i := range loans {
			if idx := index(loans[i].FD); mayRecall(&p.conns[idx]) {
				p.recalls.wanted.add(idx)
				cancelSend(p, p.conns[idx].send-1)
				n++
			}
		}
		if n == 0 || time.Now().After(end) {
			return
		}
		p.publish()
		p.batch++
		p.check(p.ring.Poll())
		p.collect()
		bufferResults(p, h)
	}
}

// mayRecall reports whether a send is in flight for c, and nothing is to follow it.
func mayRecall(c *uringConn) bool {
	return c.send != 0 && c.state&(connOpen|connShut|connShutting|connBroken|connReset|connGiveUp) == connOpen
}

func cancelSend(p *Uring, op int32) {
	s := p.request() // may submit, and that may end the send
	s.PrepCancel(opSend | uint64(op))
	s.UserData = opIgnore
}

// bufferResults is dispatch without notes, which may have a handler send.
func bufferResults(p *Uring, h Handler) {
	n := len(p.ready)
	for i := range n {
		p.result(p.ready[i], h)
	}
	p.ready = p.ready[:copy(p.ready, p.ready[n:])]
}

// recalled keeps what is left of a send that was cancelled, and reports whether it was.
func (r *recalls) recalled(f *inflight, e syscall.Errno) bool {
	if !r.wanted.has(f.idx) || f.done == len(f.b) || e != 0 && e != sys.EINTR && e != sys.ECANCELED {
		return false
	}
	if r.rest == nil {
		r.rest = map[uint32][]byte{}
	}
	r.rest[f.idx] = bytes.Clone(f.b[f.done:])
	return true
}

// resend sends what is left of the send of an entry that was recalled.
func resend(p *Uring, idx uint32) {
	b, ok := p.recalls.rest[idx]
	if !ok {
		return
	}
	delete(p.recalls.rest, idx)
	op := p.sends.take()
	p.sends.all[op] = inflight{b: b, idx: idx}
	p.conns[idx].send = op + 1
	p.push(op)
}

// resendAll is resend for all entries.
func resendAll(p *Uring) {
	for idx := range p.recalls.rest {
		resend(p, idx)
	}
}
