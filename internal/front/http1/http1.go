// Package http1 reads and writes HTTP/1.1 messages: heads, chunked bodies and
// query strings. It is pure: bytes in, values out, no I/O, no clock, no
// goroutine. The event loops, the proxy and the load generator share it.
//
// A server calls [ParseRequest] on what it has read so far. n > 0 is a complete
// head of n bytes; n == 0 without an error means more bytes are needed; an error
// is always an [*Error] with the status to answer before closing the connection.
// The parser reads strictly from left to right and each verdict depends only on
// the bytes before it, so it does not matter how the bytes were split into reads.
//
// What a message might be understood in two ways is refused, not repaired
// (RFC 9112 §11.2, request smuggling): framing is either one Content-Length of
// digits, or exactly "chunked", or absent; lines end with CRLF and nothing else.
package http1

import "strconv"

// Limits bound a head. The zero value means the defaults.
type Limits struct {
	// MaxLine bounds the request line or status line without its CRLF; 0 means 8 KiB.
	// A longer one is refused with 414.
	MaxLine int
	// MaxHead bounds the whole head, its final empty line included; 0 means 32 KiB.
	// A longer one is refused with 431.
	MaxHead int
	// MaxFields bounds the number of field lines; 0 means 100.
	// More are refused with 431.
	MaxFields int
}

const (
	defaultMaxLine   = 8 << 10
	defaultMaxHead   = 32 << 10
	defaultMaxFields = 100

	// maxMethod bounds a method. The longest registered one has 17 bytes.
	maxMethod = 32
	// firstFields is the capacity a Request or Response starts with: enough for
	// what browsers send.
	firstFields = 24
)

func (l Limits) withDefaults() Limits {
	if l.MaxLine <= 0 {
		l.MaxLine = defaultMaxLine
	}
	if l.MaxHead <= 0 {
		l.MaxHead = defaultMaxHead
	}
	if l.MaxFields <= 0 {
		l.MaxFields = defaultMaxFields
	}
	return l
}

// An Error reports why a message was refused. The connection must be closed after
// it: where the next message would start is not known.
type Error struct {
	// Status to answer a request with. It is 502 from ParseResponse.
	Status int
	// Reason in words, safe to show: it never quotes the input.
	Reason string
}

// Error returns the status and the reason.
func (e *Error) Error() string { return strconv.Itoa(e.Status) + ": " + e.Reason }

// The errors are values made once, so that a flood of bad requests allocates nothing.
var (
	errLineTooLong   = &Error{414, "request line is too long"}
	errHeadTooLarge  = &Error{431, "head is too large"}
	errTooManyFields = &Error{431, "too many fields"}

	errLeadingCR     = &Error{400, "bare CR before the request line"}
	errMethod        = &Error{400, "method is not a token"}
	errMethodTooLong = &Error{501, "method is too long"}
	errConnect       = &Error{501, "CONNECT is not supported"}
	errTargetEmpty   = &Error{400, "request target is empty"}
	errTargetByte    = &Error{400, "byte not allowed in the request target"}
	errTargetForm    = &Error{400, "request target is neither a path nor an http URI"}
	errTargetEscape  = &Error{400, "bad percent-encoding in the path"}
	errAsterisk      = &Error{400, "request target * is for OPTIONS only"}
	errAuthority     = &Error{400, "bad authority in the request target"}
	errVersionSyntax = &Error{400, "bad protocol version"}
	errVersion       = &Error{505, "protocol version is not supported"}

	errBareLF     = &Error{400, "line ends with a bare LF"}
	errBareCR     = &Error{400, "bare CR in the head"}
	errObsFold    = &Error{400, "field line starts with white space"}
	errNameEmpty  = &Error{400, "field name is empty"}
	errNameSpace  = &Error{400, "white space before the colon of a field"}
	errNameColon  = &Error{400, "field line without a colon"}
	errNameByte   = &Error{400, "byte not allowed in a field name"}
	errValueByte  = &Error{400, "byte not allowed in a field value"}
	errHostTwice  = &Error{400, "more than one Host"}
	errHostAbsent = &Error{400, "no Host"}
	errHost       = &Error{400, "bad Host"}
	errHostDiffer = &Error{400, "Host differs from the request target"}

	errLengthTwice  = &Error{400, "more than one Content-Length"}
	errLength       = &Error{400, "bad Content-Length"}
	errLengthAndTE  = &Error{400, "Content-Length together with Transfer-Encoding"}
	errTETwice      = &Error{400, "more than one Transfer-Encoding"}
	errTE           = &Error{400, "bad Transfer-Encoding"}
	errTEUnknown    = &Error{501, "transfer coding is not supported"}
	errTEOldVersion = &Error{400, "Transfer-Encoding in HTTP/1.0"}
	errExpect       = &Error{417, "unknown expectation"}
)
