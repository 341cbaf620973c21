package websocket

import (
	"crypto/sha1" //nolint:gosec // RFC 6455 §1.3 requires SHA-1; nothing secret depends on it.
	"encoding/base64"
	"fmt"
)

// guid is the constant every server mixes into its accept key (RFC 6455 §1.3).
const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

// AcceptKey is the value of Sec-WebSocket-Accept for a Sec-WebSocket-Key. It
// allocates nothing for a key of the right length.
func AcceptKey(key []byte) (accept [28]byte) {
	var in [24 + len(guid)]byte
	sum := sha1.Sum(append(append(in[:0], key...), guid...)) //nolint:gosec // see the import
	base64.StdEncoding.Encode(accept[:], sum[:])
	return accept
}

// HandshakeError is why a request did not become a WebSocket, as an HTTP answer.
type HandshakeError struct {
	// Status is 400, 403, 405 or 426. An answer 426 carries "Upgrade: websocket"
	// (RFC 9110 §15.5.22) and "Sec-WebSocket-Version: 13" (RFC 6455 §4.4), one of
	// 405 "Allow: GET".
	Status int
	Reason string
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("websocket: handshake: %s (status %d)", e.Reason, e.Status)
}

var (
	errMethod     = &HandshakeError{405, "method is not GET"}
	errNotUpgrade = &HandshakeError{426, "not a WebSocket upgrade over HTTP/1.1"}
	errVersion    = &HandshakeError{426, "Sec-WebSocket-Version is not 13"}
	errKey        = &HandshakeError{400, "Sec-WebSocket-Key is not 16 bytes in base64"}
	errOrigin     = &HandshakeError{403, "origin not allowed"}
)

// IsUpgrade reports whether a request is for WebSocket at all, so that a route
// may serve both. header returns the value of a field, several lines joined by
// commas, nil if absent.
func IsUpgrade(header func(name string) []byte) bool {
	return hasToken(header("Upgrade"), "websocket") && hasToken(header("Connection"), "upgrade")
}

// CheckUpgrade checks the request of an opening handshake (RFC 6455 §4.2.1) and
// returns the Sec-WebSocket-Key out of it. http11 says that the request is
// HTTP/1.1: older versions have no upgrade, newer ones another (RFC 8441). header
// is as for IsUpgrade. The error is a *HandshakeError.
//
// Origin and subprotocol are the caller's policy; see SameOrigin and
// SelectSubprotocol.
func CheckUpgrade(method string, http11 bool, header func(name string) []byte) (key []byte, err error) {
	switch {
	case method != "GET":
		return nil, errMethod
	case !http11 || !IsUpgrade(header):
		return nil, errNotUpgrade
	case string(trim(header("Sec-WebSocket-Version"))) != "13":
		return nil, errVersion
	}
	key = trim(header("Sec-WebSocket-Key"))
	if !validKey(key) {
		return nil, errKey
	}
	return key, nil
}

// validKey reports whether key is the base64 of 16 bytes: 22 digits and "==".
func validKey(key []byte) bool {
	if len(key) != 24 || key[22] != '=' || key[23] != '=' {
		return false
	}
	var raw [18]byte
	n, err := base64.StdEncoding.Decode(raw[:], key)
	return err == nil && n == 16
}

// AppendHandshakeResponse appends the whole 101 answer to a request that
// CheckUpgrade accepted. extensions and subprotocol are left out if empty; both
// must be free of line breaks.
func AppendHandshakeResponse(dst, key []byte, extensions, subprotocol string) []byte {
	accept := AcceptKey(key)
	dst = append(dst, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "...)
	dst = append(dst, accept[:]...)
	if extensions != "" {
		dst = append(dst, "\r\nSec-WebSocket-Extensions: "...)
		dst = append(dst, extensions...)
	}
	if subprotocol != "" {
		dst = append(dst, "\r\nSec-WebSocket-Protocol: "...)
		dst = append(dst, subprotocol...)
	}
	return append(dst, "\r\n\r\n"...)
}

// SelectSubprotocol returns the first of the client's subprotocols (the value of
// Sec-WebSocket-Protocol, in its order of preference) that is among ours, or "".
// Names are compared exactly (RFC 6455 §4.1).
func SelectSubprotocol(offered []byte, ours ...string) string {
	for offered != nil {
		var name []byte
		name, offered = cut(offered, ',')
		name = trim(name)
		for _, o := range ours {
			if len(name) > 0 && string(name) == o {
				return o
			}
		}
	}
	return ""
}

// SameOrigin reports whether a browser's Origin names the host the request went
// to. No Origin means no browser, and is allowed; "null" never matches.
func SameOrigin(origin, host []byte) bool {
	origin = trim(origin)
	if len(origin) == 0 {
		return true
	}
	for _, scheme := range [...]string{"http://", "https://"} {
		if len(origin) > len(scheme) && equalFold(origin[:len(scheme)], scheme) {
			return equalFold(origin[len(scheme):], string(trim(host)))
		}
	}
	return false
}
