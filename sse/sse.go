// Package sse reads and writes text/event-stream (WHATWG HTML §9.2), the format
// of server-sent events.
//
// How do I write an event? [AppendEvent] for a whole block, or [AppendID],
// [AppendType], [AppendRetry] and [AppendData] for its fields and [AppendEnd]
// for the blank line that makes the other side dispatch it. All append to the
// caller's slice and do nothing else.
//
// How do I read a stream? [Reader] over an io.Reader, one event per call; or
// [Parser], which does no I/O: an event loop feeds it whatever bytes arrived.
//
// No payload can forge a field: data is split at CR, LF and CRLF alike, and an
// id or type that cannot appear on one line is left out (ask [CheckField] first).
package sse

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// ContentType is the media type of an event stream.
const ContentType = "text/event-stream"

// ErrBadField is returned for an id or a type that cannot be written.
var ErrBadField = errors.New("bad event field")

// An Event is one block of a stream, the lines up to a blank one. The zero
// Event is a block without effect.
//
// Not every block is an event for the application: one without data only moves
// the last event id or the reconnection time. Look at HasData first.
type Event struct {
	// ID is the event's id. Of a block to write it counts only with HasID. Of a
	// block that was read it is the stream's last event id after this block,
	// whether this block set it or an earlier one did.
	ID []byte
	// HasID reports that the block itself sets the id; with an empty ID it resets
	// it, and the client sends no Last-Event-ID any more.
	HasID bool
	// Type is the name listeners register for; empty means "message".
	Type []byte
	// Data is the payload; it counts only with HasData. Empty data is an event
	// as well. Once read, its lines are separated by LF, whatever was written.
	Data []byte
	// HasData reports that the block is an event for the application. Without it
	// the block is a checkpoint, a reconnection time or both.
	HasData bool
	// Retry is the reconnection time in milliseconds; it counts only with HasRetry.
	Retry int
	// HasRetry reports that the block sets the reconnection time; 0 is a valid one.
	HasRetry bool
}

// Check returns ErrBadField, in words, if the id or the type of e cannot be
// written. Data needs no check.
func (e *Event) Check() error {
	if e.HasID {
		if err := CheckField(e.ID); err != nil {
			return fmt.Errorf("id: %w", err)
		}
	}
	if err := CheckField(e.Type); err != nil {
		return fmt.Errorf("type: %w", err)
	}
	return nil
}

// CheckField returns ErrBadField, in words, for text that cannot be an id or a
// type: CR and LF would end the line and let the rest pass for another field,
// and readers ignore an id with NUL.
func CheckField[T string | []byte](text T) error {
	for i := range len(text) {
		if c := text[i]; c == '\n' || c == '\r' || c == 0 {
			return fmt.Errorf("%w: byte %q at %d", ErrBadField, c, i)
		}
	}
	return nil
}

// AppendEvent appends e as one block, blank line included. An ID or a Type that
// [Event.Check] refuses is left out; the rest is written.
func AppendEvent(dst []byte, e *Event) []byte {
	if e.HasRetry {
		dst = AppendRetry(dst, e.Retry)
	}
	if e.HasID {
		dst = AppendID(dst, e.ID)
	}
	if len(e.Type) > 0 {
		dst = AppendType(dst, e.Type)
	}
	if e.HasData {
		dst = AppendData(dst, e.Data)
	}
	return AppendEnd(dst)
}

// AppendEnd appends the blank line that ends a block.
func AppendEnd(dst []byte) []byte { return append(dst, '\n') }

// AppendID appends an id line. An empty id resets the reader's last event id. An
// id that [CheckField] refuses is left out.
func AppendID[T string | []byte](dst []byte, id T) []byte {
	return appendField(dst, "id: ", id)
}

// AppendType appends an event line. A name that [CheckField] refuses is left out.
func AppendType[T string | []byte](dst []byte, name T) []byte {
	return appendField(dst, "event: ", name)
}

func appendField[T string | []byte](dst []byte, field string, text T) []byte {
	was := len(dst)
	dst = append(dst, field...)
	for i := range len(text) {
		if c := text[i]; c == '\n' || c == '\r' || c == 0 {
			return dst[:was]
		}
	}
	dst = append(dst, text...)
	return append(dst, '\n')
}

// AppendRetry appends a retry line: how many milliseconds a client waits before
// it reconnects. Less than 0 is written as 0: readers know digits only.
func AppendRetry(dst []byte, ms int) []byte {
	dst = append(dst, "retry: "...)
	dst = strconv.AppendInt(dst, int64(max(ms, 0)), 10)
	return append(dst, '\n')
}

// AppendData appends one data line per line of data, split at CR, LF and CRLF.
// Empty data is one empty line, which is an event too.
func AppendData[T string | []byte](dst []byte, data T) []byte {
	return appendLines(dst, "data: ", data)
}

// AppendComment appends text as comment lines, which readers skip. Without text
// it is the shortest sign of life a stream has: one colon on a line.
func AppendComment[T string | []byte](dst []byte, text T) []byte {
	if len(text) == 0 {
		return append(dst, ':', '\n')
	}
	return appendLines(dst, ": ", text)
}

func appendLines[T string | []byte](dst []byte, field string, text T) []byte {
	dst = append(dst, field...)
	from := len(dst)
	dst = append(dst, text...)
	// The copy is searched and not the text, so that strings need no conversion.
	// Nearly every payload is one line of JSON and is done here.
	if i := indexEOL(dst[from:]); i >= 0 {
		dst = splitLines(dst[:from+i], field, text[i:])
	}
	return append(dst, '\n')
}

// splitLines appends text, which starts with a line end, with field written
// after each of its line ends.
func splitLines[T string | []byte](dst []byte, field string, text T) []byte {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\r', '\n':
			if c == '\r' && i+1 < len(text) && text[i+1] == '\n' {
				i++
			}
			dst = append(dst, '\n')
			dst = append(dst, field...)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// indexEOL returns where the first CR or LF of b is, or -1. It goes by windows:
// a whole search for one of them would be repeated for every line of a stream
// that only uses the other.
func indexEOL(b []byte) int {
	const window = 512
	for at := 0; at < len(b); at += window {
		w := b[at:min(at+window, len(b))]
		lf := bytes.IndexByte(w, '\n')
		if lf >= 0 {
			w = w[:lf]
		}
		if cr := bytes.IndexByte(w, '\r'); cr >= 0 {
			return at + cr
		}
		if lf >= 0 {
			return at + lf
		}
	}
	return -1
}
