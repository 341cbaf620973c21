package eventloop

import (
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/poller"
)

// Sending sockets ahead. To lend, send and adopt the socket of a connection costs both processes more than its state
// does, and can be done while the connection is served: the pause has the states alone then.

// sentSockets has for each slot the number, plus 1, by which another process knows the
// socket of the connection there; 0: it does not have it.
type sentSockets []int32

// put says that the other process has the socket of k by number.
func (s *sentSockets) put(k poller.Key, number int) {
	for len(*s) <= int(k.Slot()) {
		*s = append(*s, 0)
	}
	(*s)[k.Slot()] = int32(number) + 1
}

// number is what put was called with, plus 1; 0: not for this connection.
func (s sentSockets) number(k poller.Key) int32 {
	if slot := int(k.Slot()); slot < len(s) {
		return s[slot]
	}
	return 0
}

// remove is number, and forgets it.
func (s sentSockets) remove(k poller.Key) int32 {
	n := s.number(k)
	if n != 0 {
		s[k.Slot()] = 0
	}
	return n
}

// SendSockets hands the sockets of some connections to send while they are served: those from slot from on,
// as many as a frame has room for. next is from where to continue; negative: these were the last. A
// connection that is closed before it leaves ends for its client at once, although the other process has its socket.
// Export names it to that process by the number that send returned. Loop only.
func (l *Loop) SendSockets(from int, send func(loop int, fds []int) (first int, err error)) (next int, err error) {
	var loans []poller.Loan
	for next = from; next < len(l.table.conns) && len(loans) < takeover.MaxFiles; next++ {
		if c := l.table.conns[next]; c != nil && c.fd >= 0 && (c.listener != noListener || canAccompany(c)) && !c.isClosed() && l.sent.number(c.key) == 0 {
			loans = append(loans, poller.Loan{Key: c.key, FD: int(c.fd), Part: poller.SocketOnly})
		}
	}
	l.poller.Lend(loans)
	var files []int
	var keys []poller.Key
	for i := range loans {
		if loans[i].File >= 0 {
			files, keys = append(files, loans[i].File), append(keys, loans[i].Key)
		}
	}
	if len(files) > 0 {
		var first int
		if first, err = send(l.id, files); err == nil {
			for i, k := range keys {
				l.sent.put(k, first+i)
			}
		}
	}
	if l.poller.EndLend(loans); next == len(l.table.conns) {
		next = -1
	}
	return next, err
}

// ForgetSockets says that no other process has a socket that SendSockets sent and that has not left. Loop only.
func (l *Loop) ForgetSockets() { l.sent = nil }

// KeepShared is Keep for all of them when the other process may have their sockets for as long as it runs: each ends for
// its peer when it is closed here. Loop only.
func (e *Exported) KeepShared() {
	e.share()
	e.Keep(nil)
}

// Close ends all of them, after Wipe as well: the other process continues with none, and may have their sockets for as long as
// it runs. Loop only.
func (e *Exported) Close(err error) {
	e.share()
	for _, c := range e.conns {
		c.Close(err)
	}
	for _, x := range e.companions {
		x.conn.Close(err)
	}
	e.conns, e.companions = nil, nil
}

// share notes that another process has the sockets.
func (e *Exported) share() {
	for _, c := range e.conns {
		c.loop.sent.put(c.key, 0)
	}
	for _, x := range e.companions {
		x.conn.loop.sent.put(x.conn.key, 0)
	}
}

// Discard closes a socket that Receive returned and that becomes no connection. Loop only.
func (l *Loop) Discard(fd int32) {
	if !l.ended {
		l.poller.Close(0, int(fd))
	}
}
