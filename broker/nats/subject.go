package nats

import (
	"strings"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Subjects, with <p> the prefix, <ns> the namespace, <e> the epoch and <c> the
// channel as one token:
//
//	<p>.log.<ns>.<c>        what is stored
//	<p>.live.<ns>.<e>.<c>   the same again after it is stored, by RePublish, with
//	                        its sequence in headers; the epoch is in the subject so
//	                        that every message says which life of the log it is of
//	<p>.live.<ns>.-.<c>     messages of a namespace with durability none
//	<p>.epoch.<ns>          that the log has a new epoch
//	<p>.log.<ns>.gone.<c>   in the same log: that something of <c> was removed
//	<p>.bus.<t>             what nodes send each other on topic <t>
//	<p>.bus.<t>.<node>      the same for one node
//	<p>.pulse               heartbeats of the nodes
//
// A channel name of 1,024 bytes has a token of up to 3,072. With all that comes
// besides, the line that names it stays under the 4,096 bytes that NATS servers
// accept by default.

// maxToken is the longest token that a channel can have.
const maxToken = 3 * hub.MaxChannelName

// noEpoch is the epoch token of a namespace without a log.
const noEpoch = "-"

// plain are the bytes a subject token holds as they are.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

func isPlain(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-'
}

// appendToken appends channel as one subject token: bytes outside A-Za-z0-9_-
// become "=" and two hex digits. Different channels have different tokens.
func appendToken(dst []byte, channel string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(channel) {
		if b := channel[i]; isPlain(b) {
			dst = append(dst, b)
		} else {
			dst = append(dst, '=', hex[b>>4], hex[b&15])
		}
	}
	return dst
}

// anyToken means all channels of a namespace; no channel has it as its token.
const anyToken = "*"

// token returns the subject token of a channel of namespace ns, anyToken for the
// whole of it. The namespace is in the subject already and left out.
func token(ns, channel string) string {
	if channel == hub.Whole(ns) {
		return anyToken
	}
	if len(channel) > len(ns) && channel[len(ns)] == ':' && strings.HasPrefix(channel, ns) && ns != hub.DefaultNamespace {
		channel = channel[len(ns)+1:]
	}
	return string(appendToken(make([]byte, 0, len(channel)+16), channel))
}

// channelOf returns the channel of namespace ns whose token is tok. ok is false
// for what token never returns.
func channelOf(ns, tok string) (channel string, ok bool) {
	name := make([]byte, 0, len(ns)+1+len(tok))
	if ns != hub.DefaultNamespace {
		name = append(append(name, ns...), ':')
	}
	empty := len(name)
	for i := 0; i < len(tok); i++ {
		switch b := tok[i]; {
		case isPlain(b):
			name = append(name, b)
		case b == '=' && i+2 < len(tok):
			hi, ok1 := unhex(tok[i+1])
			lo, ok2 := unhex(tok[i+2])
			if b = hi<<4 | lo; !ok1 || !ok2 || isPlain(b) {
				return "", false
			}
			name = append(name, b)
			i += 2
		default:
			return "", false
		}
	}
	return string(name), len(name) > empty
}

// unhex reads one digit of appendToken's.
func unhex(b byte) (byte, bool) {
	switch {
	case b >= '0' && b <= '9':
		return b - '0', true
	case b >= 'A' && b <= 'F':
		return b - 'A' + 10, true
	}
	return 0, false
}

// lastToken returns what follows the last dot.
func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// epochOf returns the epoch token of a live subject.
func epochOf(subject string) string {
	end := strings.LastIndexByte(subject, '.')
	if end < 0 {
		return ""
	}
	return subject[strings.LastIndexByte(subject[:end], '.')+1 : end]
}
