package proxy

import (
	"errors"
	"io"
	"net"

	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// TLS to a peer: what is written waits until the handshake is over, which counts as
// part of connecting, and its failures as failures to connect.

// shaking reports whether u waits for its handshake, for the connection before, or for its
// link to be established.
func (u *upConn) shaking() bool { return (u.secure != nil || u.link != nil) && !u.isEstablished }

// current reports whether u was connected under what holds for its peer now.
func (u *upConn) current() bool { return u.secure == nil || u.secure == u.pool.key.peer.TLS() }

// write sends b, or keeps it until it may be sent. What waits is bounded by Full, as
// what waits in the connection is.
func (u *upConn) write(b []byte) {
	if u.shaking() || len(u.early) > 0 {
		u.early = append(u.early, b...)
		return
	}
	u.c.Write(b)
}

// backlog is what was written and not sent.
func (u *upConn) backlog() int { return len(u.early) + u.c.Unsent() }

func (u *upConn) beginTLS() {
	a := u.pool.key.peer.Address()
	if cfg := u.secure.GM(a, "http/1.1"); cfg != nil {
		u.shake = u.loopState.proxy.tls.ShakeGM(u.c, u.line, cfg, u.shook)
		return
	}
	u.shake = u.loopState.proxy.tls.Shake(u.c, u.line, u.secure.Config(a), a.String(), u.shook)
}

// endTLS gives up a handshake whose connection is closed.
func (u *upConn) endTLS() {
	u.early = nil
	if s := u.shake; s != nil {
		u.shake = nil
		s.Cancel()
	}
}

// shook takes the outcome of the handshake.
func (u *upConn) shook(err error) {
	s, x := u.shake, u.x
	u.shake = nil
	switch {
	case x == nil:
		u.c.Close(nil)
		return
	case err != nil:
		u.shakeFailed(x, err)
		return
	}
	x.Cluster.Shook(u.pool.key.peer, s.Resumed())
	u.isEstablished = true
	s.Install() // what was there right behind the handshake may end x
	u.established(x)
}

// established sends what waited until the connection was open.
func (u *upConn) established(x *Exchange) {
	early := u.early
	u.early = nil
	u.c.Write(early)
	if u.x != x {
		return
	}
	if u.phase != readingHead || !x.complete {
		u.noDeadline()
		x.room()
		return
	}
	at := u.firstByteBy
	if x.hedgeAt > 0 {
		at = min(at, x.hedgeAt)
	}
	u.deadlineIn(max(at-u.loopState.loop.Now(), 1))
}

// shakeFailure returns how the cluster counts a failed handshake, and how its exchange ends.
func shakeFailure(err error) (cause Cause, counted error) {
	switch {
	case err == nil:
		return TLSFailed, io.EOF
	case errors.Is(err, tlsterm.ErrBusy):
		return TLSFailed, upstream.ErrHandshakeBusy
	case errors.Is(err, upstream.ErrHandshakeTimeout):
		return TLSTimeout, err
	}
	return TLSFailed, err
}

// shakeFailed ends the attempt on u: nothing of the request was sent.
func (u *upConn) shakeFailed(x *Exchange, err error) {
	cause, err := shakeFailure(err)
	x.Cluster.ShakeFailed(u.pool.key.peer, err, u.loopState.loop.Now())
	x.broken(u, upstream.ConnectError, cause)
}

// refused reports whether err is the peer's word on what it was shown in the
// handshake, which u took for complete: nothing else was received on it.
func (u *upConn) refused(err error) bool {
	alert, ok := errors.AsType[tlsterm.AlertError](err)
	return ok && !u.got && u.served == 1 && upstream.ClientAlert(uint8(alert))
}

// refusal is the form in which crypto/tls reports an alert.
func refusal(err error) error { return &net.OpError{Op: "remote error", Err: err} }
