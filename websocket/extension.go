package websocket

import (
	"bytes"
	"strconv"
	"strings"
)

// Deflate is an agreement on permessage-deflate, always without context takeover
// in both directions: each message is compressed for itself, so a connection
// keeps no compression state between messages and a compressed message can be
// shared.
type Deflate struct {
	// WindowBits bounds the window of what the server sends, 8 to 15. 0 means it
	// was not spoken of, which is 15.
	WindowBits int
}

// ext is what both sides say first.
const ext = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"

// String is the value of Sec-WebSocket-Extensions that states the agreement.
func (d Deflate) String() string {
	if d.WindowBits == 0 {
		return ext
	}
	return ext + "; server_max_window_bits=" + strconv.Itoa(d.WindowBits)
}

// Fits reports whether a message of n bytes (before compression) may be sent
// compressed by the server. Compress uses the full window, and no message that is
// itself shorter than a smaller window shows the difference; longer ones go uncompressed,
// which is allowed for any message (RFC 7692 §6).
func (d Deflate) Fits(n int) bool {
	return d.WindowBits == 0 || d.WindowBits >= 15 || n <= 1<<d.WindowBits
}

// NegotiateDeflate picks the first offer of permessage-deflate it can keep out of
// the client's Sec-WebSocket-Extensions (several header lines joined by commas).
// Not ok means none: answer without the extension. Otherwise Deflate.String is
// what to answer.
//
// A server_max_window_bits of the offer is kept and answered (see Fits); a
// client_max_window_bits needs no answer, because any window can be inflated.
// Unknown, repeated or malformed parameters decline that offer (§7.1).
func NegotiateDeflate(offers []byte) (d Deflate, ok bool) { return negotiate(offers, 0) }

// NegotiateSharedDeflate is NegotiateDeflate for a server that compresses messages of
// up to n bytes once for all clients: an offer with a window that such a message does
// not fit (see Fits) is passed over for the next.
func NegotiateSharedDeflate(offers []byte, n int) (d Deflate, ok bool) { return negotiate(offers, n) }

// negotiate picks the first offer that messages of up to n bytes fit.
func negotiate(offers []byte, n int) (d Deflate, ok bool) {
	for offers != nil {
		var offer []byte
		offer, offers = cut(offers, ',')
		name, params := cut(offer, ';')
		if !equalFold(trim(name), "permessage-deflate") {
			continue
		}
		if p, sound := parseDeflate(params, true); sound {
			if d := (Deflate{WindowBits: p.serverBits}); d.Fits(n) {
				return d, true
			}
		}
	}
	return Deflate{}, false
}

// acceptDeflate checks the server's answer to our offer. used is false if there
// was no answer; ok is false if the answer is one we can not live with.
func acceptDeflate(answer []byte) (d Deflate, used, ok bool) {
	if len(trim(answer)) == 0 {
		return Deflate{}, false, true
	}
	name, params := cut(answer, ';')
	p, sound := parseDeflate(params, false)
	// Context takeover of the server would need a window kept per connection: we
	// requested none and the server must have agreed (§7.1.1.1). We did not offer
	// client_max_window_bits, so it must not be there (§7.1.2.2).
	if !sound || !equalFold(trim(name), "permessage-deflate") || !p.serverNoTakeover || p.clientBits != 0 {
		return Deflate{}, true, false
	}
	return Deflate{WindowBits: p.serverBits}, true, true
}

type deflateParams struct {
	serverNoTakeover, clientNoTakeover bool
	serverBits, clientBits             int // 0: absent
}

// parseDeflate reads the parameters of permessage-deflate (§7.1).
func parseDeflate(params []byte, offer bool) (p deflateParams, ok bool) {
	for params != nil {
		var param []byte
		param, params = cut(params, ';')
		name, value := cut(param, '=')
		name = trim(name)
		switch {
		case equalFold(name, "server_no_context_takeover"):
			if p.serverNoTakeover || value != nil {
				return p, false
			}
			p.serverNoTakeover = true
		case equalFold(name, "client_no_context_takeover"):
			if p.clientNoTakeover || value != nil {
				return p, false
			}
			p.clientNoTakeover = true
		case equalFold(name, "server_max_window_bits"):
			if p.serverBits != 0 {
				return p, false
			}
			if p.serverBits = windowBits(value); p.serverBits == 0 {
				return p, false
			}
		case equalFold(name, "client_max_window_bits"):
			if p.clientBits != 0 {
				return p, false
			}
			if offer && value == nil {
				p.clientBits = 15 // "I can", without a number
			} else if p.clientBits = windowBits(value); p.clientBits == 0 {
				return p, false
			}
		default:
			return p, false
		}
	}
	return p, true
}

// windowBits reads 8 to 15 without leading zeros, quoted or not; 0 means malformed.
func windowBits(v []byte) int {
	v = trim(v)
	if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		v = v[1 : len(v)-1]
	}
	switch {
	case len(v) == 1 && v[0] >= '8' && v[0] <= '9':
		return int(v[0] - '0')
	case len(v) == 2 && v[0] == '1' && v[1] >= '0' && v[1] <= '5':
		return 10 + int(v[1]-'0')
	}
	return 0
}

// cut splits b at the first sep that is outside a quoted string. rest is nil when
// there is no sep, not nil (maybe empty) when there is one.
func cut(b []byte, sep byte) (first, rest []byte) {
	quoted := false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == sep && !quoted:
			return b[:i], b[i+1:]
		}
	}
	return b, nil
}

// trim takes optional white space off (RFC 9110 §5.6.3).
func trim(b []byte) []byte { return bytes.Trim(b, " \t") }

func equalFold(b []byte, s string) bool {
	return len(b) == len(s) && strings.EqualFold(string(b), s)
}

// hasToken reports whether the comma-separated list has the token, in any case.
func hasToken(list []byte, token string) bool {
	for list != nil {
		var item []byte
		item, list = cut(list, ',')
		if equalFold(trim(item), token) {
			return true
		}
	}
	return false
}
