package h3

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// markedSocket is the UDP socket of all clients: each packet gets the DSCP of its client. It is
// what quic-go sends by, on any goroutine.
type markedSocket struct {
	*net.UDPConn
	marked  atomic.Int64 // clients; without, nothing is looked up
	clients sync.Map     // netip.AddrPort to uint8, their DSCP
}

// WriteMsgUDP implements quic.OOBCapablePacketConn.
func (s *markedSocket) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	if s.marked.Load() > 0 {
		if v, ok := s.clients.Load(unmapped(to.AddrPort())); ok {
			oob = sys.AppendDSCP(oob, v.(uint8), to.IP.To4() == nil)
		}
	}
	return s.UDPConn.WriteMsgUDP(b, oob, to)
}

// mark gives packets to a client a DSCP; 0 takes it away.
func (s *markedSocket) mark(client netip.AddrPort, dscp uint8) {
	if dscp == 0 {
		if _, was := s.clients.LoadAndDelete(client); was {
			s.marked.Add(-1)
		}
		return
	}
	if _, was := s.clients.Swap(client, dscp); !was {
		s.marked.Add(1)
	}
}

func unmapped(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

var _ eventloop.Marker = (*conn)(nil)

// Mark implements eventloop.Marker. The priority is the one that Linux derives from the DSCP: the
// socket is that of all clients.
func (h *conn) Mark(m eventloop.Mark) error {
	h.dscp = uint8(m.DSCP)
	h.srv.socket.mark(h.peer, h.dscp)
	return nil
}
