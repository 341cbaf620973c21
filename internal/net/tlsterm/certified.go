package tlsterm

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// certified are the established connections whose clients showed a certificate, while
// revocation lists are configured. They are closed when a list that comes later revokes it.
type certified struct {
	// Fixed at New.
	log     *slog.Logger
	revoked *atomic.Uint64 // counts those that were closed

	mu    sync.Mutex
	conns map[*certifiedConn]struct{}
}

// A certifiedConn is one of them. Immutable.
type certifiedConn struct {
	conn   *eventloop.Conn
	chains [][]*x509.Certificate
}

// certify has c closed when one of its client's certificates is revoked. It returns what
// is to be called when c is closed, or nil when there is nothing to watch. For c's loop.
func (t *Terminator) certify(c *eventloop.Conn, chains [][]*x509.Certificate) (forget func()) {
	if len(chains) == 0 || len(t.cfg.ClientCRLFiles) == 0 {
		return nil
	}
	x, set := &certifiedConn{c, chains}, &t.certified
	set.mu.Lock()
	set.conns[x] = struct{}{}
	set.mu.Unlock()
	if t.current.Load().revoked.revokes(chains) { // the lists were replaced during the handshake
		set.end(x)
	}
	return func() {
		set.mu.Lock()
		delete(set.conns, x)
		set.mu.Unlock()
	}
}

// end closes x, unless it has been closed meanwhile.
func (set *certified) end(x *certifiedConn) {
	x.conn.Loop().Post(func() {
		set.mu.Lock()
		_, open := set.conns[x]
		set.mu.Unlock()
		if !open {
			return
		}
		set.revoked.Add(1)
		set.log.Info("connection closed: its client's certificate is revoked", "conn", x.conn.ID(), "peer", x.conn.Peer(),
			"subject", x.chains[0][0].Subject.String(), "serial", x.chains[0][0].SerialNumber.Text(16))
		x.conn.Abort(errClientRevoked)
	})
}

// revoke closes the connections whose client's certificate s revokes.
func (set *certified) revoke(s *service) {
	set.mu.Lock()
	var gone []*certifiedConn
	for x := range set.conns {
		if s.revoked.revokes(x.chains) {
			gone = append(gone, x)
		}
	}
	set.mu.Unlock()
	for _, x := range gone {
		set.end(x)
	}
}

// revokes reports whether every one of chains has a certificate that a list names. That
// there is no list in date does not close what is established.
func (r *revocations) revokes(chains [][]*x509.Certificate) bool {
	if r == nil {
		return false
	}
	now := time.Now()
	for _, chain := range chains {
		if !errors.Is(r.chain(chain, now), errClientRevoked) {
			return false
		}
	}
	return true
}
