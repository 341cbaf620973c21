package tlsterm

import (
	"crypto/tls"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A Peer is what a handshake found out about a client. Immutable, and shared.
type Peer struct {
	// Protocol is what ALPN agreed on; empty: nothing.
	Protocol string
	// Certificate is the client's, verified; nil: it has none.
	Certificate *auth.Certificate
	// chain are the certificates that the client sent after its own, in DER.
	chain [][]byte
}

// PeerOf returns what the handshake of c found out, or nil without TLS. For c's loop.
func PeerOf(c *eventloop.Conn) *Peer {
	switch f := c.Filter().(type) {
	case *records:
		return f.peer
	case *outside:
		return f.peer
	}
	return nil
}

// The peers without a certificate, which are most.
var bareHTTP1, bareHTTP2, bareNone = &Peer{Protocol: "http/1.1"}, &Peer{Protocol: "h2"}, &Peer{}

func newPeer(state *tls.ConnectionState) *Peer {
	switch {
	case len(state.VerifiedChains) > 0 && len(state.PeerCertificates) > 0:
		p := &Peer{Protocol: state.NegotiatedProtocol, Certificate: auth.NewCertificate(state.PeerCertificates[0])}
		for _, c := range state.PeerCertificates[1:] {
			p.chain = append(p.chain, c.Raw)
		}
		return p
	case state.NegotiatedProtocol == bareHTTP1.Protocol:
		return bareHTTP1
	case state.NegotiatedProtocol == bareHTTP2.Protocol:
		return bareHTTP2
	case state.NegotiatedProtocol == "":
		return bareNone
	}
	return &Peer{Protocol: state.NegotiatedProtocol}
}
