package http1

import (
	"strconv"
	"time"
)

// AppendRequestLine appends "method target HTTP/1.1" and CRLF. Both must come
// from a parsed request or be valid otherwise: they are not checked.
func AppendRequestLine[S ~string | ~[]byte](dst []byte, method, target S) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, target...)
	return append(dst, " HTTP/1.1\r\n"...)
}

// AppendStatusLine appends the status line with the status's own reason phrase.
func AppendStatusLine(dst []byte, status int) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, StatusText(status)...)
	return append(dst, "\r\n"...)
}

// AppendField appends a field line. CR, LF, NUL and other bytes that a value may
// not hold become spaces (RFC 9110 §5.5), so no value can start a line of its
// own. Nothing is appended if name is not a token; see ValidName.
func AppendField[S, T ~string | ~[]byte](dst []byte, name S, value T) []byte {
	if !tokens(name) {
		return dst
	}
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	start := len(dst)
	dst = append(dst, value...)
	for i := valueEnd(dst, start); i < len(dst); i = valueEnd(dst, i+1) {
		dst[i] = ' '
	}
	return append(dst, "\r\n"...)
}

// AppendIntField appends a field line with a decimal value.
func AppendIntField(dst []byte, name string, value int64) []byte {
	if !tokens(name) {
		return dst
	}
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = strconv.AppendInt(dst, value, 10)
	return append(dst, "\r\n"...)
}

// AppendDate appends a Date field (RFC 9110 §6.6.1).
func AppendDate(dst []byte, now time.Time) []byte {
	dst = append(dst, "Date: "...)
	dst = now.UTC().AppendFormat(dst, "Mon, 02 Jan 2006 15:04:05 GMT")
	return append(dst, "\r\n"...)
}

// AppendEnd appends the empty line that ends a head.
func AppendEnd(dst []byte) []byte { return append(dst, "\r\n"...) }

// AppendBodyHead appends the fields that end the head of a response whose body
// of length bytes follows, and the empty line: Content-Type unless it is empty,
// Content-Length where the status may have one, "Connection: close" unless keepAlive.
func AppendBodyHead(dst []byte, status int, keepAlive bool, contentType string, length int64) []byte {
	if contentType != "" {
		dst = AppendField(dst, "Content-Type", contentType)
	}
	if status >= 200 && status != 204 && status != 304 {
		dst = AppendIntField(dst, "Content-Length", length)
	}
	if !keepAlive {
		dst = append(dst, "Connection: close\r\n"...)
	}
	return AppendEnd(dst)
}

// AppendResponse appends a whole response: status line, AppendBodyHead and the
// body, which is left out for a status that has none. To add fields, append
// them between AppendStatusLine and AppendBodyHead instead.
func AppendResponse[S ~string | ~[]byte](dst []byte, status int, keepAlive bool, contentType string, body S) []byte {
	dst = AppendStatusLine(dst, status)
	dst = AppendBodyHead(dst, status, keepAlive, contentType, int64(len(body)))
	if status < 200 || status == 204 || status == 304 {
		return dst
	}
	return append(dst, body...)
}

// AppendChunkSize appends the size line of a chunk of n bytes, n > 0. Data and
// CRLF must follow.
func AppendChunkSize(dst []byte, n int) []byte {
	dst = strconv.AppendUint(dst, uint64(n), 16)
	return append(dst, "\r\n"...)
}

// AppendChunk appends data as one chunk, and nothing for empty data: an empty
// chunk would end the body.
func AppendChunk(dst, data []byte) []byte {
	if len(data) == 0 {
		return dst
	}
	dst = AppendChunkSize(dst, len(data))
	dst = append(dst, data...)
	return append(dst, "\r\n"...)
}

// AppendLastChunk appends what ends a chunked body. trailer are the fields behind it, as lines.
func AppendLastChunk(dst, trailer []byte) []byte {
	dst = append(dst, "0\r\n"...)
	dst = append(dst, trailer...)
	return append(dst, "\r\n"...)
}

// ValidName reports whether name may be a field name or a method: a token.
func ValidName[S ~string | ~[]byte](name S) bool { return tokens(name) }

// ValidValue reports whether AppendField would write value unchanged and a
// parser would read it back as it is.
func ValidValue[S ~string | ~[]byte](value S) bool {
	for i := range len(value) {
		if class[value[i]]&isValue == 0 {
			return false
		}
	}
	return len(value) == 0 || !isSpace(value[0]) && !isSpace(value[len(value)-1])
}
