package downstream

import (
	"bytes"
	"net/netip"

	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/tlsterm"
)

// TakeHTTP2 takes over a connection whose client speaks HTTP/2. early is what came
// so far, from the preface on; it is valid until the call returns. Loop only.
type TakeHTTP2 func(c *eventloop.Conn, early []byte, local netip.AddrPort)

// UseHTTP2 makes connections that begin with HTTP/2's preface go to take: with TLS
// after ALPN, without it by prior knowledge. Before the loops run only.
func (s *Server) UseHTTP2(take TakeHTTP2) { s.http2 = take }

// preface begins every HTTP/2 connection (RFC 9113 §3.4). It is made so that a
// parser of HTTP/1 refuses it, so it is looked for only then.
var preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

// speaksHTTP2 hands c over if what it began with is the preface.
func (h *conn) speaksHTTP2(c *eventloop.Conn, b []byte) bool {
	srv := h.lane.srv
	if srv.http2 == nil || h.later || !h.speaksAgreed(c, true) || !bytes.HasPrefix(preface, b[:min(len(b), len(preface))]) {
		return false
	}
	local := netip.AddrPort{}
	if l := c.Listener(); l < len(srv.local) {
		local = srv.local[l]
	}
	srv.http2(c, b, local)
	return true
}

// speaksAgreed reports whether the client speaks what its TLS handshake agreed on. HTTP/2
// over TLS needs ALPN (RFC 9113 §3.3); without an agreement there is HTTP/1.1. Without TLS
// either is fine.
func (h *conn) speaksAgreed(c *eventloop.Conn, http2 bool) bool {
	peer := tlsterm.PeerOf(c)
	return peer == nil || http2 == (peer.Protocol == "h2")
}
