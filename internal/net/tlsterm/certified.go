package tlsterm

import (
	"crypto/x509"
	"errors"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// certified are the established connections whose clients showed a certificate, while
// revocation lists are configured. They are closed when a list that comes later revokes it.
type certified struct {
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
	x := &certifiedConn{c, chains}
	t.certified.mu.Lock()
	t.certified.conns[x] = struct{}{}
	t.certified.mu.Unlock()
	if t.current.Load().revoked.revokes(chains) { // the lists were replaced during the handshake
		t.revoke(x)
	}
	return func() {
		t.certified.mu.Lock()
		delete(t.certified.conns, x)
		t.certified.mu.Unlock()
	}
}

// revoke closes x, unless it has been closed meanwhile.
func (t *Terminator) revoke(x *certifiedConn) {
	x.conn.Loop().Post(func() {
		t.certified.mu.Lock()
		_, open := t.certified.conns[x]
		t.certified.mu.Unlock()
		if !open {
			return
		}
		t.counters.revokedOpen.Add(1)
		t.log.Info("connection closed: its client's certificate is revoked", "conn", x.conn.ID(), "peer", x.conn.Peer(),
			"subject", x.chains[0][0].Subject.String(), "serial", x.chains[0][0].SerialNumber.Text(16))
		x.conn.Abort(errClientRevoked)
	})
}

// revokeOpen closes the connections whose client's certificate s revokes.
func (t *Terminator) revokeOpen(s *service) {
	t.certified.mu.Lock()
	var gone []*certifiedConn
	for x := range t.certified.conns {
		if s.revoked.revokes(x.chains) {
			gone = append(gone, x)
		}
	}
	t.certified.mu.Unlock()
	for _, x := range gone {
		t.revoke(x)
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
