package eventloop

import (
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/weir-gateway/weir/internal/net/poller"
)

// A socket is what moves a connection's bytes: a descriptor of its loop's poller, or the
// carrier of a connection that shares one. It knows who is at the other side and the state
// of both directions. It is the first field of a Conn, and belongs to its loop.
type socket struct {
	// Fixed at accept.
	loop     *Loop
	key      poller.Key
	peerIP   [16]byte // IPv4 as mapped
	fd       int32    // carried: it has none of its own; -1: not yet
	peerPort uint16
	listener uint8

	// Owned by loop's goroutine. No lock.
	flags flags
}

type flags uint8

const (
	flagClosed   flags = 1 << iota
	flagClosing        // CloseAfterFlush was called: handler is a *parting
	flagShut           // after that or CloseWrite: everything was sent, and the peer's side shut down
	flagHalf           // CloseWrite was called
	flagNoRead         // reading is paused
	flagEOF            // the peer sends no more
	flagNotified       // and the handler knows
	flagGathered       // bytes of it are in loop.gather
)

// carried is socket.fd of a Carried.
const carried = -2

// Loop returns the loop that owns the connection. Any goroutine.
func (s *socket) Loop() *Loop { return s.loop }

// Peer returns the other side's address; the zero AddrPort of a Unix socket. Any
// goroutine.
func (s *socket) Peer() netip.AddrPort {
	if s.peerPort == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(s.peerIP).Unmap(), s.peerPort)
}

// ID is unique among the open connections of the process. Any goroutine.
func (s *socket) ID() uint64 { return uint64(s.loop.id)<<56 | uint64(s.key)&(1<<56-1) }

// Listener is the index of the listener that accepted the connection, or -1 when Dial or
// Adopt made it. Any goroutine.
func (s *socket) Listener() int {
	if s.listener == noListener {
		return -1
	}
	return int(s.listener)
}

func (s *socket) isClosed() bool { return s.flags&flagClosed != 0 }

// Closing reports whether the connection is closed or about to be: nothing more is sent.
func (s *socket) Closing() bool { return s.flags&(flagClosed|flagClosing) != 0 }

// mute reports whether nothing may be written any more.
func (s *socket) mute() bool { return s.flags&(flagClosed|flagClosing|flagHalf) != 0 }

// carrying returns the connection as what it is if it has no socket of its own, or nil.
func (s *socket) carrying() *Carried {
	if s.fd != carried {
		return nil
	}
	return (*Carried)(unsafe.Pointer(s)) // s is its first field, and of no other is fd carried
}

// Shared reports whether the connection is one of several on one socket.
func (s *socket) Shared() bool { return s.fd == carried }

// CarriedBy returns what moves the bytes of a connection without a socket of its own, or nil.
func (s *socket) CarriedBy() Carrier {
	if v := s.carrying(); v != nil {
		return v.carrier
	}
	return nil
}

// send gives b to whatever carries the bytes. It returns how much of it was taken. keeps
// says that b never changes, so that it may be referred to for longer than the call.
func (s *socket) send(b []byte, keeps bool) (int, syscall.Errno) {
	switch {
	case s.fd == carried:
		return s.carrying().carrier.Send(b), 0
	case keeps:
		return s.loop.poller.Send(s.key, int(s.fd), b)
	}
	return s.loop.poller.SendCopy(s.key, int(s.fd), b)
}

// setReading sets in the carrier of the bytes whether input is wanted.
func (s *socket) setReading(on bool) {
	if v := s.carrying(); v != nil {
		v.carrier.Reading(on)
		return
	}
	s.loop.poller.SetReading(s.key, int(s.fd), on)
}

// shutdown ends the sending side.
func (s *socket) shutdown() {
	if v := s.carrying(); v != nil {
		v.carrier.Shutdown()
		return
	}
	s.loop.poller.Shutdown(s.key, int(s.fd))
}

// close gives the socket back. reset lets the peer see that it did not get all. orderly and
// err are for a carrier.
func (s *socket) close(err error, orderly, reset bool) {
	switch {
	case s.fd == carried:
		s.carrying().carrier.Close(err, orderly)
	case s.fd < 0: // it never had one
	default:
		if s.loop.sent.remove(s.key) != 0 {
			s.loop.poller.ShutdownShared(s.key, int(s.fd))
		}
		if reset {
			s.loop.poller.Abort(s.key, int(s.fd))
		} else {
			s.loop.poller.Close(s.key, int(s.fd))
		}
	}
}
