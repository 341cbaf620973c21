package wire

import (
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// chunked marks the formats whose messages are chunks of HTTP/1.1.
const chunked hub.Format = hub.MaxFormats / 2

// InChunks returns the format of f's messages as chunks (RFC 9112 §7.1), for bodies over
// HTTP/1.1. The head of a chunk is made once per message, and shared as the message is.
func InChunks(f hub.Format) hub.Format { return f | chunked }

// OutOfChunks undoes InChunks.
func OutOfChunks(f hub.Format) hub.Format { return f &^ chunked }

// IsChunked reports whether f is one of InChunks.
func IsChunked(f hub.Format) bool { return f&chunked != 0 }

// chunkRoom is what the size line of a chunk takes at most.
const chunkRoom = 18

// inChunks returns the encoder that writes what enc does as one chunk: the message where
// the longest size line leaves it, and then its own right before it.
func inChunks(enc hub.Encoder) hub.Encoder {
	return func(dst []byte, m *hub.Message) []byte {
		dst = grow(dst, len(m.Data)+len(m.Channel)+len(m.Key)+envelopeRoom)
		at := len(dst)
		dst = append(dst, make([]byte, chunkRoom)...)
		dst = enc(dst, m)
		n := len(dst) - at - chunkRoom
		if n == 0 {
			return dst[:at] // an empty chunk would end the body
		}
		var line [chunkRoom]byte
		size := http1.AppendChunkSize(line[:0], n)
		dst = append(dst, "\r\n"...)
		if at == 0 {
			copy(dst[chunkRoom-len(size):], size)
			return dst[chunkRoom-len(size):]
		}
		copy(dst[at:], size)
		n = copy(dst[at+len(size):], dst[at+chunkRoom:])
		return dst[:at+len(size)+n]
	}
}
