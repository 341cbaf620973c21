package h2

import (
	"bytes"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// headers takes a HEADERS frame (RFC 9113 §6.2).
func (h *conn) headers(f header, p []byte) {
	if f.stream%2 == 0 {
		h.fail(ProtocolError, "HEADERS for a stream that no client starts")
		return
	}
	block, complete, code, reason := h.blocks.start(f, p)
	switch {
	case reason != "":
		h.fail(code, reason)
	case complete:
		h.head(f.stream, block)
	default:
		h.sock.SetTimer(int64(h.loopState.srv.cfg.HeadTimeout))
	}
}

// continuation takes the next piece of a header block (§6.10).
func (h *conn) continuation(f header, p []byte) {
	block, complete, code, reason := h.blocks.add(f, p, 2*h.loopState.srv.cfg.Head.MaxHead)
	switch {
	case reason != "":
		if code == EnhanceYourCalm {
			h.loopState.counters.floods[floodContinuation].Add(1)
		}
		h.fail(code, reason)
		return
	case !complete:
		return
	}
	if h.flags&leaving == 0 {
		h.sock.SetTimer(0)
	}
	if len(h.streams) == 0 {
		h.rest() // unless a stream starts
	}
	h.head(f.stream, block)
}

// head takes a whole header block: it starts a stream, or ends one with trailers.
func (h *conn) head(id uint32, block []byte) {
	r := &h.loopState.req
	r.reset(h.loopState.srv.cfg.Head)
	if !h.blocks.decode(block, h.loopState.srv.cfg.Head.MaxHead, r.emit) {
		h.fail(CompressionError, "a header block cannot be decoded")
		return
	}
	ends := h.blocks.ends()
	if s := h.find(id); s != nil {
		s.trailers(r, ends)
		return
	}
	if id <= h.last {
		switch stopped, ended := h.closed.find(id); {
		case stopped: // the client did not know yet
		case ended:
			h.fail(StreamClosed, "HEADERS for a closed stream")
		default:
			h.fail(ProtocolError, "stream numbers do not rise")
		}
		return
	}
	h.last = id
	h.loopState.counters.streams.Add(1)
	switch {
	case h.flags&left != 0, len(h.streams) >= h.loopState.srv.cfg.MaxStreams: // it may be sent again elsewhere
		h.refuse(id)
		h.tolerate(floodStreams)
		return
	case h.blocks.flags&selfDependent != 0, r.bad != "":
		h.loopState.srv.log.Debug("malformed request", "conn", h.sock.ID(), "peer", h.sock.Peer(), "stream", id, "err", r.bad)
		if r.spaced {
			h.rejectSpaced(id)
			return
		}
		h.resetStream(id, ProtocolError)
		return
	case r.over && !h.tolerate(floodHeaders):
		return
	}
	h.begin(id, r, ends)
}

// refuse does not start a stream, and nothing was done for it (§8.7).
func (h *conn) refuse(id uint32) {
	h.loopState.counters.refused.Add(1)
	h.control(appendReset(nil, id, RefusedStream))
	h.closed.add(id, true)
}

// fields are what a header block says, as far as it is needed to make a head of it.
type fields struct {
	emit func(hpack.HeaderField) // r.add, made once

	method, scheme, path, authority, protocol string
	host                                      string
	cookie                                    []byte // all its pieces
	rest                                      []byte // the other fields, as lines
	length                                    int64  // of the body; -1: not said
	urgency                                   uint8
	seen                                      uint8 // of the pseudo-fields
	regular                                   bool  // one that is none was there
	hosts                                     int
	room, count                               int // what is left of the bounds
	over                                      bool
	bad                                       string // why it is malformed; empty: it is not
	spaced                                    bool   // it is malformed by white space around a value
}

const (
	seenMethod = 1 << iota
	seenScheme
	seenPath
	seenAuthority
	seenProtocol
)

func (r *fields) reset(lim http1.Limits) {
	*r = fields{emit: r.emit, cookie: r.cookie[:0], rest: r.rest[:0], length: -1, urgency: usualUrgency, room: lim.MaxHead, count: lim.MaxFields}
	if r.count == 0 {
		r.count = 1 << 10
	}
	r.count += 2 // the parser is to see that they are too many
	if r.emit == nil {
		r.emit = r.add
	}
}

// add takes one field (§8.2, §8.3).
func (r *fields) add(f hpack.HeaderField) {
	if r.bad != "" || r.over {
		return
	}
	if r.room -= len(f.Name) + len(f.Value) + 4; r.room < 0 {
		r.over = true
		return
	}
	if r.count == 0 {
		return // the parser refuses what there is
	}
	if r.spaced = trimmedValue(f.Value); r.spaced || !http1.ValidValue(f.Value) {
		r.bad = "a field value of " + strconv.Quote(f.Name)
		return
	}
	if len(f.Name) > 0 && f.Name[0] == ':' {
		r.pseudo(f.Name, f.Value)
		return
	}
	r.regular = true
	r.count--
	if !validName(f.Name) {
		r.bad = "a field name"
		return
	}
	r.field(f.Name, f.Value)
}

// trimmedValue reports whether v starts or ends with white space (§8.2.1).
func trimmedValue(v string) bool {
	return v != "" && (v[0] == ' ' || v[0] == '\t' || v[len(v)-1] == ' ' || v[len(v)-1] == '\t')
}

// validName reports whether name is a token without capitals.
func validName(name string) bool {
	for i := range len(name) {
		if 'A' <= name[i] && name[i] <= 'Z' {
			return false
		}
	}
	return http1.ValidName(name)
}

func (r *fields) pseudo(name, value string) {
	var bit uint8
	switch name {
	case ":method":
		bit, r.method = seenMethod, value
	case ":scheme":
		bit, r.scheme = seenScheme, value
	case ":path":
		bit, r.path = seenPath, value
	case ":authority":
		bit, r.authority = seenAuthority, value
	case ":protocol":
		bit, r.protocol = seenProtocol, value
	default:
		r.bad = "an unknown pseudo-field"
		return
	}
	if r.regular || r.seen&bit != 0 {
		r.bad = "a pseudo-field comes late or twice"
	}
	r.seen |= bit
}

// field takes a field that is no pseudo-field.
func (r *fields) field(name, value string) {
	switch name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade": // §8.2.2
		r.bad = "a field for the connection: " + name
	case "te":
		if value != "trailers" {
			r.bad = "TE is more than trailers"
			return
		}
		// It is a matter of this hop, which HTTP/1.1 says so.
		r.rest = http1.AppendField(r.rest, name, value)
	case "host":
		r.host = value
		r.hosts++
	case "cookie": // §8.2.3
		if len(r.cookie) > 0 {
			r.cookie = append(r.cookie, "; "...)
		}
		r.cookie = append(r.cookie, value...)
	case "content-length":
		r.contentLength(value)
	case "priority":
		r.urgency = urgencyOf([]byte(value))
		r.rest = http1.AppendField(r.rest, name, value)
	case "sec-websocket-key", "sec-websocket-accept":
		if r.protocol == "" {
			r.rest = http1.AppendField(r.rest, name, value)
		}
	default:
		r.rest = http1.AppendField(r.rest, name, value)
	}
}

// contentLength takes the length of the body. What is not a number, or another one than was
// said before, is for the parser to refuse.
func (r *fields) contentLength(value string) {
	n, err := strconv.ParseUint(value, 10, 62)
	if err == nil && r.length < 0 {
		r.length = int64(n)
	}
	r.rest = http1.AppendField(r.rest, "content-length", value)
}

// appendHead appends the head as one of HTTP/1.1. It returns false if it breaks a rule of
// HTTP/2; the rules of HTTP are for the parser.
func (r *fields) appendHead(b []byte, ends bool) ([]byte, bool) {
	connect := r.method == "CONNECT"
	need := uint8(seenMethod | seenScheme | seenPath)
	if connect && r.protocol == "" {
		if need = seenMethod | seenAuthority; r.seen&(seenScheme|seenPath) != 0 { // §8.5
			return b, false
		}
		r.path = r.authority
	}
	if r.seen&need != need || r.seen&seenProtocol != 0 && (!connect || r.seen&seenAuthority == 0) {
		return b, false
	}
	if r.seen&seenScheme != 0 && !validScheme(r.scheme) {
		return b, false
	}
	webSocket := connect && r.protocol == "websocket"
	method := r.method
	switch {
	case webSocket:
		method = "GET" // RFC 8441 §5: it replaces one
	case connect && r.protocol != "":
		r.path = r.authority // what is tunnelled is not known: as any CONNECT
	}
	if !visible(method) || !visible(r.path) || r.authority != "" && !visible(r.authority) || !connect && r.path[0] != '/' && r.path != "*" {
		return b, false
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, r.path...)
	b = append(b, " HTTP/1.1\r\n"...)
	switch {
	case r.seen&seenAuthority != 0:
		b = http1.AppendField(b, "host", r.authority)
		if r.hosts == 1 && http1.EqualFold([]byte(r.host), r.authority) {
			break
		}
		fallthrough // §8.3.1: two hosts are refused
	default:
		for range r.hosts {
			b = http1.AppendField(b, "host", r.host)
		}
	}
	b = append(b, r.rest...)
	if len(r.cookie) > 0 {
		b = http1.AppendField(b, "cookie", r.cookie)
	}
	switch {
	case webSocket:
		b = append(b, upgradeLines...)
	case !ends && r.length < 0 && !connect:
		b = append(b, "transfer-encoding: chunked\r\n"...)
	}
	return append(b, "\r\n"...), true
}

// upgradeLines make a WebSocket's handshake of RFC 8441 one of RFC 6455. The key is
// never answered.
const upgradeLines = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"

// visible reports whether s can appear in the first line of a head: it has no space and no
// control character, and is not empty.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return s != ""
}

// validScheme reports whether s is the scheme of a URI (RFC 3986 §3.1).
func validScheme(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || (s[i] < '0' || s[i] > '9') && s[i] != '+' && s[i] != '-' && s[i] != '.') {
			return false
		}
	}
	return s != ""
}

const usualUrgency = 3

// urgencyOf returns the urgency that a Priority field gives, 0 to 7 (RFC 9218 §4.1). What
// is not understood there is ignored.
func urgencyOf(field []byte) uint8 {
	for member := range bytes.SplitSeq(field, []byte(",")) {
		if m := bytes.TrimSpace(member); len(m) == 3 && m[0] == 'u' && m[1] == '=' && m[2] >= '0' && m[2] <= '7' {
			return m[2] - '0'
		}
	}
	return usualUrgency
}
