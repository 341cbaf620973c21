package loadgen

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"strings"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/websocket"
)

// maxMessage bounds what is taken from a server in one message.
const maxMessage = 16 << 20

// A socket is the client's side of a WebSocket: the handshake, then frames.
type socket struct {
	parser  websocket.Parser
	deflate bool
	open    bool
}

// key is the Sec-WebSocket-Key of a connection. It is made from what the
// connection is, so that it need not be kept until the answer.
func (l *link) key() []byte {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:], l.s.g.nonce^uint64(l.num)<<20^uint64(l.s.id))
	binary.BigEndian.PutUint64(raw[8:], uint64(l.began))
	return base64.StdEncoding.AppendEncode(make([]byte, 0, 24), raw[:])
}

// greet sends the handshake (RFC 6455 §4.1).
func (k *socket) greet(l *link, path, host string) {
	g := l.s.g
	*k = socket{}
	b := g.appendHead(l.s.scratch[:0], "GET", path, host,
		"Connection", "Upgrade", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Extensions", "Content-Length")
	b = http1.AppendField(b, "Connection", "Upgrade")
	b = http1.AppendField(b, "Upgrade", "websocket")
	b = http1.AppendField(b, "Sec-WebSocket-Version", "13")
	b = http1.AppendField(b, "Sec-WebSocket-Key", l.key())
	if g.spec.Deflate {
		b = http1.AppendField(b, "Sec-WebSocket-Extensions", "permessage-deflate; server_no_context_takeover; client_no_context_takeover")
	}
	b = http1.AppendEnd(b)
	l.w.Write(b)
	l.s.scratch = b
}

// shake reads the answer to greet. n is 0 when it is incomplete yet.
func (k *socket) shake(l *link, b []byte) (n int, err error) {
	head := &l.s.reader.head
	n, err = http1.ParseResponse(head, b, http1.Limits{}, "GET")
	if n == 0 || err != nil {
		return n, err
	}
	if head.Status < 200 && head.Status != 101 {
		return n, nil
	}
	if head.Status != 101 {
		return n, plainError(statusReason(head.Status))
	}
	if want := websocket.AcceptKey(l.key()); string(head.Get("Sec-WebSocket-Accept")) != string(want[:]) {
		return n, plainError("the handshake's answer is not to this request")
	}
	if ext := strings.ToLower(string(head.Get("Sec-WebSocket-Extensions"))); ext != "" {
		if !l.s.g.spec.Deflate || !strings.HasPrefix(ext, "permessage-deflate") || !strings.Contains(ext, "server_no_context_takeover") {
			return n, plainError("the server chose the extension " + ext + ", which was not offered so")
		}
		k.deflate = true
	}
	k.parser.Init(websocket.ParserOptions{Client: true, Deflate: k.deflate, Limits: &l.s.g.limits})
	k.open = true
	return n, nil
}

// maskKey is fresh for each frame (RFC 6455 §10.3).
func maskKey() (key [4]byte) {
	binary.NativeEndian.PutUint32(key[:], rand.Uint32())
	return key
}

// appendMessage appends a text message.
func (k *socket) appendMessage(dst, payload []byte) []byte {
	key := maskKey()
	if !k.deflate || len(payload) < 64 {
		return websocket.AppendMaskedFrame(dst, websocket.OpText, payload, key)
	}
	packed := websocket.Compress(nil, payload, 1)
	dst = websocket.AppendMaskedHeader(dst, true, true, websocket.OpText, len(packed), key)
	from := len(dst)
	dst = append(dst, packed...)
	websocket.Mask(dst[from:], key)
	return dst
}

// control answers a ping or a close; ended says why the socket is over.
func (k *socket) control(l *link, ev websocket.Event) (ended error) {
	switch ev.Op {
	case websocket.OpPing:
		l.s.rec.delivery.Pings++
		l.s.scratch = websocket.AppendMaskedFrame(l.s.scratch[:0], websocket.OpPong, ev.Payload, maskKey())
		l.w.Write(l.s.scratch)
	case websocket.OpClose:
		l.s.scratch = websocket.AppendMaskedClose(l.s.scratch[:0], ev.Code, "", maskKey())
		l.w.Write(l.s.scratch)
		return &websocket.CloseError{Code: ev.Code, Reason: string(ev.Payload)}
	}
	return nil
}

// An echoConn sends WebSocket messages and waits for each to come back. Publishers
// over WebSocket are its other use: nothing is waited for there.
type echoConn struct {
	requestConn
	socket
	seq uint64 // of the oldest outstanding message
	pub uint16
}

var _ sender = (*echoConn)(nil)

// Connected implements eventloop.Connector.
func (h *echoConn) Connected(*eventloop.Conn) {
	t := h.s.g.target
	if h.s.g.spec.Kind == PubSub {
		t = h.s.g.publish
	}
	h.greet(&h.link, fill(t.path, int(h.num), h.s.g.channelNumber(int(h.num))), t.host)
}

// transmit implements sender.
func (h *echoConn) transmit(ex *exchange) {
	s := h.s
	if s.g.spec.Kind == PubSub {
		s.publishes.nextFlow(int(h.pub), ex)
		payload := s.publishes.payload(int(h.pub), ex)
		s.scratch = h.appendMessage(s.scratch[:0], payload)
		h.w.Write(s.scratch)
		if len(h.out) > 0 { // it is open once it is sent: nothing answers
			s.complete(h.finish(), s.g.now())
		}
		return
	}
	ex.seq = h.seq + uint64(len(h.out)) - 1
	s.publishes.mine.stamp = stamp{run: s.g.run, publisher: uint32(h.num) & 0xffff, channel: uint32(h.num) >> 16, seq: ex.seq, intended: s.g.wall(ex.intended)}
	s.scratch = h.appendMessage(s.scratch[:0], s.publishes.mine.make())
	h.w.Write(s.scratch)
}

// Data implements eventloop.Handler.
func (h *echoConn) Data(_ *eventloop.Conn, b []byte) int {
	s := h.s
	s.touch()
	total := 0
	if !h.open {
		n, err := h.shake(&h.link, b)
		if err != nil {
			h.w.Close(err)
			return 0
		}
		if !h.open {
			return n
		}
		total, b = n, b[n:]
		s.established(h)
	}
	for h.state == up {
		ev, n, ok, err := h.parser.Next(b)
		total += n
		b = b[n:]
		if err != nil {
			h.w.Close(badResponse{err})
			break
		}
		if !ok {
			break
		}
		switch ev.Op {
		case websocket.OpText, websocket.OpBinary:
			err = h.message(ev.Payload)
		default:
			err = h.control(&h.link, ev)
		}
		if err != nil && h.w != nil {
			h.leave(err)
		}
	}
	s.serve()
	return total
}

// message is what came back. What has no stamp of this run is the server's own.
func (h *echoConn) message(b []byte) error {
	st, _, ok := nextStamp(b)
	if !ok || st.run != h.s.g.run || h.s.g.spec.Kind == PubSub {
		return nil
	}
	if len(h.out) == 0 || st.seq != h.seq || len(b) != h.s.g.spec.Payload || st.intended != h.s.g.wall(h.out[0].intended) {
		return errMismatch
	}
	h.seq++
	h.s.complete(h.finish(), h.s.now)
	if h.retiring && len(h.out) == 0 {
		return errRetired
	}
	h.s.free.offer(h)
	return nil
}

// Closed implements eventloop.Handler.
func (h *echoConn) Closed(_ *eventloop.Conn, err error) {
	h.parser.Reset()
	h.seq += uint64(len(h.out))
	h.open = false
	h.lost(h, err)
}
