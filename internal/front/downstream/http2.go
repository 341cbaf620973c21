package downstream

import (
	"bytes"
	"slices"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/push"
)

// ServeHTTP2 makes a connection speak HTTP/2 from now on. seen is how much of the preface
// came already. Each of its streams comes to AcceptStream. Loop only.
type ServeHTTP2 func(c *eventloop.Conn, seen int)

// preface is made so that a parser of HTTP/1 refuses it, so it is looked for only then.
var preface = []byte(h2.Preface)

// speaksHTTP2 hands c over if what it began with is the preface. It returns how much of b
// that is.
func (h *conn) speaksHTTP2(c *eventloop.Conn, b []byte) (seen int, yes bool) {
	srv := h.loopState.srv
	seen = min(len(b), len(preface))
	if srv.http2 == nil || h.later || c.Shared() || !h.speaksAgreed(c, true) || !bytes.HasPrefix(preface, b[:seen]) {
		return 0, false
	}
	srv.http2(c, seen)
	return seen, true
}

// speaksAgreed reports whether the client speaks what its TLS handshake agreed on. HTTP/2
// over TLS needs ALPN (RFC 9113 §3.3); without an agreement there is HTTP/1.1. Without TLS
// either is fine.
func (h *conn) speaksAgreed(c *eventloop.Conn, http2 bool) bool {
	return tlsterm.PeerOf(c) == nil || http2 == agreedOnHTTP2(c)
}

// agreedOnHTTP2 reports whether the client's TLS handshake has agreed on HTTP/2.
func agreedOnHTTP2(c *eventloop.Conn) bool {
	peer := tlsterm.PeerOf(c)
	return peer != nil && peer.Protocol == "h2"
}

// Advertise has every answer say where else the same
// origin is served (RFC 7838): altSvc is the field's value. Before the loops run only.
func (s *Server) Advertise(altSvc string) {
	s.altSvc = slices.Clip(http1.AppendField(nil, "Alt-Svc", altSvc))
}

// versionOf is the minor version of HTTP/1 that c speaks, or the version of HTTP where c is
// one of several on a socket.
func versionOf(c *eventloop.Conn, minor uint8) uint8 {
	if c.Shared() {
		return push.HTTPVersion(c)
	}
	return minor
}

// shareOf is how much of most may wait for c: all of it, unless c is one of several connections
// on one socket.
func shareOf(c *eventloop.Conn, most int) int {
	if s, ok := c.CarriedBy().(interface{ Share(most int) int }); ok {
		return s.Share(most)
	}
	return most
}

// writeTrailer gives the fields behind a body to a connection that frames the body itself.
func writeTrailer(c *eventloop.Conn, lines []byte) {
	if c, ok := c.CarriedBy().(interface{ Trailer(lines []byte) }); ok {
		c.Trailer(lines)
	}
}
