package wire

import (
	"bytes"
	"math/rand/v2"
	"strconv"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
	"github.com/weir-gateway/weir/sse"
)

// AppendEnd appends what a stream of events ends with: the client's own reconnection
// time, and an end event.
func AppendEnd(b []byte, retryMillis, code int, reason string) []byte {
	b = sse.AppendType(sse.AppendRetry(b, retryMillis), "end")
	b = append(b, `data: {"code":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	b = append(b, `,"reason":`...)
	b = jsontext.AppendString(b, reason)
	return append(b, "}\n\n"...)
}

// CodeTokenExpired ends a stream whose token has expired, and is the answer to an event
// stream that is opened with such a token.
const CodeTokenExpired = 4401

// CodeAccessRevoked ends a stream whose client may not read its channels any more.
const CodeAccessRevoked = 4403

// ExpiredRetryMillis is the reconnection time of an event stream that was opened with an
// expired token, 30 to 60 s: a browser's EventSource comes back with the same URL, which
// helps only once its page has renewed a cookie.
func ExpiredRetryMillis() int { return 30_000 + rand.IntN(30_001) }

// AcceptsEvents reports whether an Accept field names text/event-stream, as every
// EventSource does. Such a client gives up for good after a status other than 200, and
// shows its page neither status nor body.
func AcceptsEvents(accept []byte) bool {
	return bytes.Contains(bytes.ToLower(accept), []byte("text/event-stream"))
}
