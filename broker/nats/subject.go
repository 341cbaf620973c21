package nats

import (
	"strings"
)

// Subjects, with <p> the prefix, <ns> the namespace, <e> the epoch and <c> the
// channel as one token:
//
//	<p>.log.<ns>.<c>        what is stored
//	<p>.live.<ns>.<e>.<c>   the same again after it is stored, by RePublish, with
//	                        its sequence in headers; the epoch is in the subject so
//	                        that every message says which life of the log it is of
//	<p>.live.<ns>.-.<c>     messages of a namespace with durability none

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

// token returns the subject token of a channel of namespace ns. The namespace
// is in the subject already and left out.
func token(ns, channel string) string {
	if len(channel) > len(ns) && channel[len(ns)] == ':' && strings.HasPrefix(channel, ns) && ns != "default" {
		channel = channel[len(ns)+1:]
	}
	return string(appendToken(make([]byte, 0, len(channel)+16), channel))
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
