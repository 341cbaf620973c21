package downstream

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/push"
)

// grpcWeb is a call of gRPC-Web, which is gRPC for browsers (PROTOCOL-WEB.md of gRPC): the
// trailers are the last frame of the body, and in the text form the body is base64. Such a
// call continues as one of gRPC, and its reply is turned back.
type grpcWeb struct {
	format   string // "+proto", or empty
	textIn   bool   // the request's body is base64
	textOut  bool   // and the reply's is to be
	answered bool   // a reply of gRPC has started, which is turned back
	in       base64Stream
	buf      []byte // a piece of a body, turned
}

const (
	webName     = "application/grpc-web"
	webTextName = "application/grpc-web-text"
	// webTrailer is the flag of a frame with trailers.
	webTrailer = 0x80
)

// webContentType takes the content type of gRPC-Web apart.
func webContentType(v []byte) (format string, text, ok bool) {
	var rest []byte
	switch {
	case hasPrefixFold(v, webTextName):
		rest, text = v[len(webTextName):], true
	case hasPrefixFold(v, webName):
		rest = v[len(webName):]
	default:
		return "", false, false
	}
	rest, _, _ = bytes.Cut(rest, semicolon)
	rest = bytes.TrimSpace(rest)
	return string(rest), text, len(rest) == 0 || rest[0] == '+'
}

func hasPrefixFold(v []byte, prefix string) bool {
	return len(v) >= len(prefix) && http1.EqualFold(v[:len(prefix)], prefix)
}

// beginWeb makes r a call of gRPC if it is one of gRPC-Web.
func (r *forwarding) beginWeb(req *http1.Request) {
	format, text, ok := webContentType(req.Get("Content-Type"))
	if !ok {
		return
	}
	w := &grpcWeb{format: format, textIn: text, textOut: text}
	if accept := req.Get("Accept"); hasPrefixFold(accept, webName) {
		w.textOut = hasPrefixFold(accept, webTextName)
	}
	r.web, r.grpc = w, true
	setField(req.Fields, "content-type", "application/grpc"+format)
}

// setField replaces the value of a field that is there.
func setField(fields []http1.Field, name, value string) {
	for i := range fields {
		if http1.EqualFold(fields[i].Name, name) {
			fields[i].Value = []byte(value)
		}
	}
}

// composeWeb frames what goes to the upstream: a body in base64 has another length there, and
// the trailers of the reply are wanted.
func (r *forwarding) composeWeb(e *proxy.Exchange, f *policy.Framing) {
	r.reply.acceptsTrailers, e.Trailers, f.Extra = true, true, acceptTrailers
	if r.unread {
		e.Length, e.Chunked, f.Length, f.Chunked = -1, true, -1, true
	}
}

// decode turns a piece of the request's body. It is valid until the next call.
func (w *grpcWeb) decode(b []byte) ([]byte, error) {
	if !w.textIn {
		return b, nil
	}
	var ok bool
	if w.buf, ok = w.in.decode(w.buf[:0], b); !ok {
		return nil, errNotBase64
	}
	return w.buf, nil
}

// whole returns an error if the request's body ends within four characters of base64.
func (w *grpcWeb) whole() error {
	if w.in.n != 0 {
		return errNotBase64
	}
	return nil
}

var errNotBase64 = &http1.Error{Status: http.StatusBadRequest, Reason: "the body is not base64"}

// head turns the head of a reply, if it is one of gRPC. It reports whether the body has a
// length of its own then.
func (w *grpcWeb) head(res *http1.Response) bool {
	const name = "application/grpc"
	v := res.Get("Content-Type")
	if !hasPrefixFold(v, name) || len(v) > len(name) && v[len(name)] != '+' && v[len(name)] != ';' {
		return false // an error of HTTP, which clients know
	}
	format, _, _ := bytes.Cut(v[len(name):], semicolon)
	w.format = string(bytes.TrimSpace(format))
	setField(res.Fields, "content-type", w.contentType())
	w.answered = res.Get("grpc-status") == nil // otherwise the head is all
	return w.answered
}

func (w *grpcWeb) contentType() string {
	if w.textOut {
		return webTextName + w.format
	}
	return webName + w.format
}

// encode turns a piece of the reply's body. Each piece is base64 by itself, so that nothing
// of it waits for the next. It is valid until the next call.
func (w *grpcWeb) encode(b []byte) []byte {
	if !w.textOut {
		return b
	}
	w.buf = base64.StdEncoding.AppendEncode(w.buf[:0], b)
	return w.buf
}

// trailers is the last frame of a body, from field lines as HTTP/1.1 has them.
func (w *grpcWeb) trailers(lines []byte) []byte {
	b := append(make([]byte, 0, 5+len(lines)), webTrailer, 0, 0, 0, 0)
	for line := range bytes.Lines(lines) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		b = append(append(append(b, bytes.ToLower(name)...), ':'), value...)
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-5))
	return w.encode(b)
}

// endWeb ends the body of a reply with trailers.
func (r *reply) endWeb(lines []byte) {
	r.writeBody(r.web.trailers(lines))
	if r.chunkedOut {
		r.c.Write(lastChunk)
	}
}

// notWhole ends a request whose body is not base64.
func (r *forwarding) notWhole(err error) {
	r.h.loopState.counters.bad.Add(1)
	r.h.abandon()
	if r.reply.began && r.reply.cutGRPC(http.StatusBadRequest, err.Error()) {
		return
	}
	r.reply.stop(func() { r.fail(&push.APIError{Status: http.StatusBadRequest, Message: errNotBase64.Reason}) })
}

// base64Stream decodes base64 in pieces, each of which may be padded.
type base64Stream struct {
	quad [4]byte
	n    int
}

// decode appends what b encodes to dst. It returns false if b is not base64.
func (s *base64Stream) decode(dst, b []byte) ([]byte, bool) {
	for len(b) > 0 {
		var src []byte
		if s.n > 0 || len(b) < 4 || bytes.IndexByte(b[:4], '=') >= 0 { // byte by byte up to four
			s.quad[s.n] = b[0]
			s.n++
			if b = b[1:]; s.n < 4 {
				continue
			}
			src, s.n = s.quad[:], 0
		} else {
			n := len(b) &^ 3
			if i := bytes.IndexByte(b[:n], '='); i >= 0 {
				n = i &^ 3
			}
			src, b = b[:n], b[n:]
		}
		was := len(dst)
		var err error
		if dst, err = base64.StdEncoding.AppendDecode(dst, src); err != nil || len(dst)-was < len(src)/4*3-2 {
			return dst, false
		}
	}
	return dst, true
}
