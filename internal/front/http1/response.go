package http1

// A Body reports how the end of a response's body is found (RFC 9112 §6.3).
type Body uint8

const (
	// BodyNone: the head is the whole message.
	BodyNone Body = iota
	// BodyLength: ContentLength bytes follow.
	BodyLength
	// BodyChunked: a chunked body follows.
	BodyChunked
	// BodyUntilClose: everything until the connection closes is body.
	BodyUntilClose
	// BodyTunnel: HTTP ends here, after 101 or a successful CONNECT.
	BodyTunnel
)

// MaxInterim bounds the 1xx replies before the final one to a request. Each is passed on,
// so that without a bound a backend keeps clients busy, and us, for as long as it likes.
const MaxInterim = 32

// A Response is the head of a response. All slices point into the parsed input,
// as in Request, and it is reused in the same way.
type Response struct {
	// Minor is 1 for HTTP/1.1 and 0 for HTTP/1.0.
	Minor uint8
	// Status is 100 to 999. After a 1xx other than 101 another head follows.
	Status int
	// Reason is the reason phrase, often empty.
	Reason []byte
	// Fields are all field lines in the order sent.
	Fields
	// Body reports how the body is delimited, ContentLength alone does not:
	// with HEAD and 304 it describes a body that is not sent.
	Body Body
	// ContentLength is -1 without the field.
	ContentLength int64
	// KeepAlive reports whether the connection may carry another request afterwards.
	KeepAlive bool
	// Upgrade is the value of the Upgrade field if Connection lists "upgrade".
	Upgrade []byte
}

var (
	errStatusLine   = &Error{502, "bad status line"}
	errStatusNoBody = &Error{502, "a body announced for a status that has none"}
)

// ParseResponse reads the head of a response to a requestMethod at the start of
// b, in the way of ParseRequest. It is as strict: an upstream whose framing can
// be read in two ways is not passed on. The status of every error is 502.
func ParseResponse(r *Response, b []byte, lim Limits, requestMethod string) (n int, err error) {
	n, e := parseResponse(r, b, lim.withDefaults(), requestMethod)
	if e == nil {
		return n, nil
	}
	if e.Status != 502 {
		e = &Error{502, e.Reason}
	}
	return 0, e
}

func parseResponse(r *Response, b []byte, lim Limits, requestMethod string) (int, *Error) {
	if r.Fields == nil {
		r.Fields = make([]Field, 0, firstFields)
	}
	*r = Response{Fields: r.Fields[:0], ContentLength: -1}
	i, err := r.parseLine(b[:min(len(b), lim.MaxLine+2, lim.MaxHead)])
	if err != nil {
		return 0, err
	}
	if i == 0 {
		if len(b) >= min(lim.MaxLine+2, lim.MaxHead) {
			return 0, errStatusLine
		}
		return 0, nil
	}
	n, err := r.parseFields(b[:min(len(b), lim.MaxHead)], i, lim, requestMethod)
	if err == nil && n == 0 && len(b) >= lim.MaxHead {
		err = errHeadTooLarge
	}
	return n, err
}

// parseLine reads the status line (RFC 9112 §4) and returns where the fields
// begin, 0 if b ends before. The space after the status is optional: some
// servers leave it out with the reason phrase, and nothing is ambiguous without.
func (r *Response) parseLine(b []byte) (next int, err *Error) {
	major, minor, i, err := version(b, 0)
	if i == 0 {
		if err != nil {
			err = errStatusLine
		}
		return 0, err
	}
	if major != '1' || minor > '1' {
		return 0, errVersion
	}
	r.Minor = minor - '0'
	for k := range len(" 200") {
		switch {
		case i == len(b):
			return 0, nil
		case k == 0 && b[i] != ' ',
			k == 1 && b[i] == '0',
			k > 0 && class[b[i]]&isDigit == 0:
			return 0, errStatusLine
		case k > 0:
			r.Status = r.Status*10 + int(b[i]-'0')
		}
		i++
	}
	if i < len(b) && b[i] == ' ' {
		end := valueEnd(b, i)
		r.Reason = b[i+1 : end : end]
		i = end
	}
	return lineEnd(b, i, errStatusLine)
}

func (r *Response) parseFields(b []byte, i int, lim Limits, requestMethod string) (int, *Error) {
	f := framing{length: -1}
	fields := r.Fields
	for {
		name, value, next, err := cutField(b, i)
		if next == 0 {
			return 0, err
		}
		i = next
		if name == nil {
			break
		}
		if len(fields) >= lim.MaxFields {
			return 0, errTooManyFields
		}
		fields = append(fields, Field{name, value})
		if err := f.readField(name, value, r.Minor); err != nil {
			return 0, err
		}
	}
	r.Fields = fields
	r.ContentLength = f.length
	r.Upgrade = f.upgraded(r.Minor)
	switch {
	case r.Status < 200 || r.Status == 204:
		// RFC 9110 §8.6 and RFC 9112 §6.1 forbid both fields here. "Content-Length: 0"
		// is a common slip and harmless; anything else may be followed by bytes
		// that would be treated as the next response.
		if f.chunked || f.length > 0 {
			return 0, errStatusNoBody
		}
		if r.Status == 101 {
			r.Body = BodyTunnel
		}
	case requestMethod == "CONNECT" && r.Status < 300:
		r.Body = BodyTunnel
	case requestMethod == "HEAD" || r.Status == 304:
	case f.chunked:
		r.Body = BodyChunked
	case f.length >= 0:
		r.Body = BodyLength
	default:
		r.Body = BodyUntilClose
	}
	r.KeepAlive = r.Body < BodyUntilClose && f.keepAlive(r.Minor)
	return i, nil
}
