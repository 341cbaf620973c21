package h3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/weir-gateway/weir/internal/net/sys"
)

const (
	// maxIdle ends a connection from which nothing came for that long; heartbeat is how
	// often one that is silent is asked for a sign of life.
	maxIdle   = time.Minute
	heartbeat = 25 * time.Second
	// What a client may send before any of it was taken: on a stream, and on all of a
	// connection's. They grow to the second one where the network is long.
	streamWindow, maxStreamWindow = 64 << 10, 1 << 20
	connWindow, maxConnWindow     = 256 << 10, 4 << 20
	// ownStreams are the streams in one direction that a client may open: three are of use.
	ownStreams = 8
	// wantedBuffer is what quic-go requests for the socket's buffers: all clients share it.
	wantedBuffer = 7 << 20
)

// Listen opens the UDP socket. config is for handshakes. An error says what is wrong with
// the address.
func (s *Server) Listen(addr netip.AddrPort, config *tls.Config) error {
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return err
	}
	_ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") // it would say past the log what checkBuffers says
	socket := &markedSocket{UDPConn: udp}
	t := &quic.Transport{Conn: socket, VerifySourceAddress: s.verifies, ConnContext: s.attempted, ConnectionIDLength: 8}
	if s.cfg.Key != nil {
		if key, ok := s.cfg.Key("quic stateless reset"); ok {
			t.StatelessResetKey = (*quic.StatelessResetKey)(&key)
		}
		if key, ok := s.cfg.Key("quic address token"); ok {
			t.TokenGeneratorKey = (*quic.TokenGeneratorKey)(&key)
		}
	}
	l, err := t.Listen(config, &quic.Config{
		HandshakeIdleTimeout: s.cfg.HandshakeTimeout / 2, MaxIdleTimeout: maxIdle, KeepAlivePeriod: heartbeat,
		InitialStreamReceiveWindow: streamWindow, MaxStreamReceiveWindow: maxStreamWindow,
		InitialConnectionReceiveWindow: connWindow, MaxConnectionReceiveWindow: maxConnWindow,
		MaxIncomingStreams: int64(s.cfg.MaxStreams), MaxIncomingUniStreams: ownStreams,
		// Requests of 0-RTT can be repeated by anyone who recorded them (RFC 9114 §10.9), and a
		// subscription gains little: there is none.
		Allow0RTT: false,
	})
	if err != nil {
		return errors.Join(err, udp.Close())
	}
	s.transport, s.listener, s.socket = t, l, socket
	s.checkBuffers(udp)
	return nil
}

// checkBuffers reports when the socket's buffers are smaller than was asked for.
func (s *Server) checkBuffers(udp *net.UDPConn) {
	raw, err := udp.SyscallConn()
	if err != nil {
		return
	}
	var in, out int
	if raw.Control(func(fd uintptr) { in, out = bufferOf(fd, sys.ReceiveBuffer), bufferOf(fd, sys.SendBuffer) }) != nil || in >= wantedBuffer && out >= wantedBuffer {
		return
	}
	s.log.Warn("HTTP/3: the buffers of the UDP socket are small: packets may be lost under load", "receive", in, "send", out, "wanted", wantedBuffer,
		"hint", fmt.Sprintf("sysctl -w net.core.rmem_max=%d net.core.wmem_max=%d", wantedBuffer, wantedBuffer))
}

// bufferOf is the size of one of the socket's buffers. The kernel counts twice as much.
func bufferOf(fd uintptr, o sys.SocketOption) int {
	s, err := sys.Setting{Option: o}.Read(int(fd))
	if err != nil {
		return wantedBuffer // it cannot be known
	}
	return s.Value / 2
}

// verifies reports whether a client has to prove its address before its handshake, which
// costs it one more round trip.
func (s *Server) verifies(net.Addr) bool {
	if s.handshakes.Load() < int64(s.cfg.MaxHandshakes/8) {
		return false
	}
	s.counters.retries.Add(1)
	return true
}

var errShed = errors.New("no further handshake is served")

type attemptKey struct{}

// An attempt is a handshake; established says that it has come to a connection.
type attempt struct{ established atomic.Bool }

// attempted is called before a handshake starts.
func (s *Server) attempted(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
	if s.draining.Load() || s.ended.Err() != nil || s.front.Busy() || s.handshakes.Load() >= int64(s.cfg.MaxHandshakes) {
		s.counters.shed.Add(1)
		return nil, errShed
	}
	s.handshakes.Add(1)
	a := &attempt{}
	context.AfterFunc(ctx, func() {
		if !a.established.Swap(true) {
			s.handshakes.Add(-1)
			s.counters.failed.Add(1)
			if s.front.Failed != nil {
				s.front.Failed()
			}
		}
	})
	return context.WithValue(ctx, attemptKey{}, a), nil
}

// established is called when a handshake is over.
func (s *Server) established(q *quic.Conn) {
	if a, ok := q.Context().Value(attemptKey{}).(*attempt); ok && !a.established.Swap(true) {
		s.handshakes.Add(-1)
	}
}
