package h2

import (
	"bytes"
	"errors"
	"unsafe"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// Answers translates what is written to streams in the form of HTTP/1.1 into the heads and
// trailers of HTTP/2, and of HTTP/3. There is one for each loop. The zero value is ready.
type Answers[S comparable] struct {
	res  http1.Response
	name []byte // of a field, in small letters
	// What few streams have: a part of a head, and the fields behind the body, as lines.
	partial, trailer map[S][]byte
}

// answerLimits bound what we ourselves send.
var answerLimits = http1.Limits{MaxLine: 64 << 10, MaxHead: 1 << 20, MaxFields: 1 << 12}

// Head reads the head that b, the next bytes written to s, starts with. It returns how much
// of b that used, and nil if the head is not complete: then b is kept. The Response is valid
// until the next call.
func (a *Answers[S]) Head(s S, b []byte) (res *http1.Response, used int, err error) {
	whole := b
	if kept := a.partial[s]; kept != nil {
		whole = append(kept, b...)
	}
	n, err := http1.ParseResponse(&a.res, whole, answerLimits, "GET")
	switch {
	case err != nil:
		return nil, len(b), err
	case n == 0:
		if a.partial == nil {
			a.partial = map[S][]byte{}
		}
		a.partial[s] = append([]byte(nil), whole...)
		return nil, len(b), nil
	}
	delete(a.partial, s)
	return &a.res, n - (len(whole) - len(b)), nil
}

var (
	errSwitches = errors.New("status 101 without an upgrade")
	errChunked  = errors.New("the body is chunked")
)

// Status returns the status that res is sent with. tunnel: the request opens one (RFC 8441
// §5, RFC 9220 §3). An error says that res cannot be sent.
func (a *Answers[S]) Status(res *http1.Response, tunnel bool) (int, error) {
	switch {
	case res.Body == http1.BodyChunked: // what is sent here has frames of its own
		return 0, errChunked
	case res.Status == 101 && !tunnel:
		return 0, errSwitches
	case res.Status == 101:
		return 200, nil
	case tunnel && res.Status/100 == 2: // there it would say that the tunnel is open
		return 502, nil
	}
	return res.Status, nil
}

// Fields gives write the fields of a head with status, in the form of HTTP/2 (RFC 9113
// §8.3.2), without those about a connection of HTTP/1.1 (§8.2.2). write keeps nothing.
func (a *Answers[S]) Fields(status int, res *http1.Response, write func(name string, value []byte)) {
	a.name = append(a.name[:0], byte('0'+status/100), byte('0'+status/10%10), byte('0'+status%10))
	write(":status", a.name)
	for i := range res.Fields {
		a.field(res.Fields[i].Name, res.Fields[i].Value, write)
	}
}

func (a *Answers[S]) field(name, value []byte, write func(name string, value []byte)) {
	var sent bool
	if a.name, sent = appendFieldName(a.name[:0], name); sent {
		write(unsafe.String(unsafe.SliceData(a.name), len(a.name)), value)
	}
}

// SetTrailer notes the fields behind the body of s, lines as HTTP/1.1 has them.
func (a *Answers[S]) SetTrailer(s S, lines []byte) {
	if a.trailer == nil {
		a.trailer = map[S][]byte{}
	}
	a.trailer[s] = append([]byte(nil), lines...)
}

// HasTrailer reports whether there are such fields.
func (a *Answers[S]) HasTrailer(s S) bool { return a.trailer[s] != nil }

// Trailer is Fields for the fields behind the body of s.
func (a *Answers[S]) Trailer(s S, write func(name string, value []byte)) {
	for line := range bytes.Lines(a.trailer[s]) {
		name, value, ok := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		if ok && http1.ValidName(name) {
			a.field(name, bytes.TrimSpace(value), write)
		}
	}
}

// Keeps reports whether there is something that Forget drops.
func (a *Answers[S]) Keeps(s S) bool { return a.partial[s] != nil || a.trailer[s] != nil }

// Forget drops what is kept for s.
func (a *Answers[S]) Forget(s S) {
	delete(a.partial, s)
	delete(a.trailer, s)
}
