package http1

import "bytes"

// A Request is the head of a request. All slices point into the parsed input
// and are valid for as long as its owner leaves that alone; nothing may write
// through them. A Request is meant to be reused: parsing keeps the capacity of Fields.
type Request struct {
	// Method is a token of at most 32 bytes, as sent: methods have case.
	Method []byte
	// Target is the request target as sent.
	Target []byte
	// Path and Query are Target's, percent-encoding left as it is. An http URI
	// without a path has "/"; OPTIONS * has "*". Query is nil without a "?".
	Path, Query []byte
	// Minor is 1 for HTTP/1.1 and 0 for HTTP/1.0.
	Minor uint8
	// Host is the authority of Target if it has one, else the Host field; nil
	// when an HTTP/1.0 request names none. It may end with a port.
	Host []byte
	// Fields are all field lines in the order sent, those understood here included.
	Fields
	// ContentLength is -1 without the field. Without it and without Chunked
	// there is no body.
	ContentLength int64
	// Chunked reports that a chunked body follows.
	Chunked bool
	// KeepAlive reports whether the client expects the connection to stay open.
	KeepAlive bool
	// Expect100 reports that the client waits for 100 (Continue) before it sends
	// the body. It is false in HTTP/1.0 and without a body (RFC 9110 §10.1.1).
	Expect100 bool
	// Upgrade is the value of the Upgrade field if Connection lists "upgrade"
	// and the version is 1.1 (RFC 9110 §7.8), else nil.
	Upgrade []byte
}

// HeadPending reports that parsing b again would be in vain: b[:seen] was an
// incomplete head and what has come since neither ends a line nor reaches a
// limit. It keeps a client that sends byte by byte from costing a whole parse
// for each. Bad bytes in the unfinished line are found when it ends.
func HeadPending(b []byte, seen int, lim Limits) bool {
	lim = lim.withDefaults()
	if bytes.IndexByte(b[seen:], '\n') >= 0 || len(b) >= lim.MaxHead {
		return false
	}
	// Past the first line, and the empty line that may precede it, only MaxHead counts.
	return len(b) < lim.MaxLine || seen > lim.MaxLine+4
}

// ParseRequest reads the head of a request at the start of b into r and returns
// its length. n == 0 without an error means that b is not a whole head yet: call
// again with more. Limits and rules are applied to what is there, so a client
// that is wrong gets its error at once. Every error is an *Error; r is then undefined.
//
// One empty line before the request is skipped (RFC 9112 §2.2) and counted in n.
func ParseRequest(r *Request, b []byte, lim Limits) (n int, err error) {
	n, e := parseRequest(r, b, lim.withDefaults())
	if e != nil {
		return 0, e
	}
	return n, nil
}

func parseRequest(r *Request, b []byte, lim Limits) (int, *Error) {
	if r.Fields == nil {
		r.Fields = make([]Field, 0, firstFields)
	}
	*r = Request{Fields: r.Fields[:0], ContentLength: -1}
	skipped := 0
	if len(b) > 0 && b[0] == '\r' {
		if len(b) > 1 && b[1] != '\n' {
			return 0, errLeadingCR
		}
		skipped = min(2, len(b))
		b = b[skipped:]
	}
	i, err := r.parseLine(b[:min(len(b), lim.MaxLine+2, lim.MaxHead)])
	if err != nil {
		return 0, err
	}
	if i == 0 {
		if len(b) >= min(lim.MaxLine+2, lim.MaxHead) {
			return 0, errLineTooLong
		}
		return 0, nil
	}
	n, err := r.parseFields(b[:min(len(b), lim.MaxHead)], i, lim)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		if len(b) >= lim.MaxHead {
			return 0, errHeadTooLarge
		}
		return 0, nil
	}
	return skipped + n, nil
}

// parseLine reads the request line (RFC 9112 §3) and returns where the fields
// begin, 0 if b ends before.
func (r *Request) parseLine(b []byte) (next int, err *Error) {
	i := 0
	for i < len(b) && class[b[i]]&isToken != 0 {
		i++
	}
	switch {
	case i > maxMethod:
		return 0, errMethodTooLong
	case i == len(b):
		return 0, nil
	case b[i] != ' ' || i == 0:
		return 0, errMethod
	}
	r.Method = b[:i:i]
	i++

	start := i
	for i < len(b) && class[b[i]]&isTarget != 0 {
		i++
	}
	switch {
	case i == len(b):
		return 0, nil
	case b[i] == '\n':
		return 0, errBareLF
	case b[i] == '\r':
		return 0, errVersionSyntax // HTTP/0.9, or a cut line
	case b[i] != ' ':
		return 0, errTargetByte
	case i == start:
		return 0, errTargetEmpty
	}
	r.Target = b[start:i:i]

	major, minor, next, err := version(b, i+1)
	if next == 0 {
		return 0, err
	}
	if next, err = lineEnd(b, next, errVersionSyntax); next == 0 {
		return 0, err
	}
	if major != '1' || minor > '1' {
		return 0, errVersion
	}
	r.Minor = minor - '0'
	return next, r.parseTarget()
}

// version reads "HTTP/", DIGIT, ".", DIGIT at b[i:] (RFC 9112 §2.3). next is 0
// if b ends before or on an error.
func version(b []byte, i int) (major, minor byte, next int, err *Error) {
	const form = "HTTP/d.d"
	for k := range len(form) {
		if i+k == len(b) {
			return 0, 0, 0, nil
		}
		c := b[i+k]
		if form[k] == 'd' && class[c]&isDigit == 0 || form[k] != 'd' && form[k] != c {
			return 0, 0, 0, errVersionSyntax
		}
	}
	return b[i+5], b[i+7], i + len(form), nil
}

// parseFields reads the field lines at b[i:] up to the empty line and returns
// the index after it, 0 if b ends before.
func (r *Request) parseFields(b []byte, i int, lim Limits) (n int, err *Error) {
	var expect bool
	var host []byte
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
		switch {
		case len(name) == len("Host") && EqualFold(name, "host"):
			host, err = r.setHost(host, value)
		case len(name) == len("Expect") && EqualFold(name, "expect"):
			expect = true
			if !EqualFold(value, "100-continue") {
				err = errExpect
			}
		default:
			err = f.readField(name, value, r.Minor)
		}
		if err != nil {
			return 0, err
		}
	}
	r.Fields = fields
	if host == nil && r.Minor > 0 {
		return 0, errHostAbsent
	}
	if r.Host == nil {
		r.Host = host
	}
	r.ContentLength, r.Chunked = f.length, f.chunked
	r.KeepAlive = f.keepAlive(r.Minor)
	r.Expect100 = expect && r.Minor > 0 && (f.chunked || f.length > 0)
	r.Upgrade = f.upgraded(r.Minor)
	return i, nil
}

// setHost takes the one Host field. When the target has an authority of its
// own the two must agree: a client must send them equal (RFC 9112 §3.2), and a
// request that says both is routed by one and served by the other.
func (r *Request) setHost(before, value []byte) ([]byte, *Error) {
	switch {
	case before != nil:
		return nil, errHostTwice
	case !validHost(value):
		return nil, errHost
	case r.Host != nil && !sameAuthority(r.Host, value, r.defaultPort()):
		return nil, errHostDiffer
	}
	return value, nil
}
