package downstream

import (
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// Announced is an accept function for listeners behind a proxy that starts each
// connection with a PROXY header (v1 or v2): it reads that header and then lets next
// accept the connection, which has the client's address as its peer. A peer that
// trust does not trust, and a connection that starts with anything else, is closed:
// who could choose might pretend to be anyone. It comes before TLS.
func (s *Server) Announced(trust *limit.Trust, next func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler {
	return func(c *eventloop.Conn) eventloop.Handler {
		if !trust.Trusts(c.Peer().Addr()) {
			s.loopStates[c.Loop().ID()].counters.bad.Add(1)
			s.log.Debug("PROXY header from an untrusted address", "conn", c.ID(), "peer", c.Peer())
			return nil
		}
		c.SetTimer(s.bounds.head)
		return &announced{srv: s, next: next}
	}
}

// announced is a connection whose PROXY header is still to come.
type announced struct {
	srv  *Server
	next func(*eventloop.Conn) eventloop.Handler
}

var _ eventloop.Handler = (*announced)(nil)

// Data implements eventloop.Handler.
func (a *announced) Data(c *eventloop.Conn, b []byte) int {
	h, n, err := limit.ParseProxy(b)
	switch {
	case err != nil:
		a.srv.loopStates[c.Loop().ID()].counters.bad.Add(1)
		a.srv.log.Debug("bad PROXY header", "conn", c.ID(), "peer", c.Peer(), "err", err)
		c.Close(err)
		return len(b)
	case n == 0:
		return 0
	}
	if !h.Local {
		c.SetPeer(h.Source)
	}
	c.SetTimer(0)
	handler := a.next(c)
	if handler == nil {
		c.Close(nil)
		return len(b)
	}
	c.SetHandler(handler)
	return n
}

// EndOfStream implements eventloop.Handler.
func (a *announced) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (a *announced) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler: the header did not come.
func (a *announced) Timer(c *eventloop.Conn, _ int64) {
	a.srv.loopStates[c.Loop().ID()].counters.timeouts.Add(1)
	c.Close(nil)
}

// Closed implements eventloop.Handler.
func (a *announced) Closed(*eventloop.Conn, error) {}
