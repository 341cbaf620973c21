package push

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// protocol is one that endpoints speak, with its connections.
type protocol struct {
	name             string
	sockets, streams *atomic.Int64
}

func (p *protocol) gauge(socket bool) *atomic.Int64 {
	if socket {
		return p.sockets
	}
	return p.streams
}

// protocols are those of a process, by their number; the first is none.
type protocols []protocol

// maxProtocols bounds the protocols of a process.
const maxProtocols = 255

// Protocol returns the number of a protocol by its name. Before the loops run only.
func (p *protocols) Protocol(name string) uint8 {
	i := slices.IndexFunc(*p, func(x protocol) bool { return x.name == name })
	switch {
	case i >= 0:
		return uint8(i)
	case len(*p) == maxProtocols:
		return 0
	}
	*p = append(*p, protocol{name, new(atomic.Int64), new(atomic.Int64)})
	return uint8(len(*p) - 1)
}

// ProtocolStats are the connections of one protocol now. They are not among those of
// Stats too: in WebSocket and in SSE.
type ProtocolStats struct {
	Name             string
	Sockets, Streams int64
}

// Protocols returns what there is of each protocol. Any goroutine.
func (p protocols) Protocols() []ProtocolStats {
	var list []ProtocolStats
	for _, x := range p[1:] {
		list = append(list, ProtocolStats{x.name, x.sockets.Load(), x.streams.Load()})
	}
	return list
}

// ProtocolName returns the name of a protocol by its number; Weir's own is "native".
func (p protocols) ProtocolName(n uint8) string {
	if n == 0 {
		return "native"
	}
	return p[n].name
}

// SocketOptions say how a WebSocket handshake is answered.
type SocketOptions struct {
	Key         []byte
	Subprotocol string
	// Fields are complete header lines to add.
	Fields []byte
	// Protocol is Push.Protocol's.
	Protocol uint8
	// MaxMessage bounds what the client may send at a time; 0 means the configured bound.
	MaxMessage int
	// DrainCode and DrainReason are socket.WebSocketOptions'.
	DrainCode   int
	DrainReason string
}

// ServeSocket completes a handshake and makes c speak what open returns.
func (p *Push) ServeSocket(c *eventloop.Conn, o *SocketOptions, open func(socket.Transport) socket.Session) {
	if code, reason := p.rejection(); code != 0 {
		head := appendHandshake(nil, o.Key, "", o.Subprotocol, o.Fields)
		if o.DrainCode != 0 { // the code itself means that the client waits
			p.refuseSocketAs(c, head, code, o.DrainCode, o.DrainReason)
		} else {
			p.refuseSocket(c, head, code, reason)
		}
		return
	}
	l := p.LoopState(c)
	l.head = appendHandshake(l.head[:0], o.Key, "", o.Subprotocol, o.Fields)
	c.Write(l.head)
	t := &transport{conn: c, flags: isSocket, protocol: o.Protocol, limits: l.lentFor(o.MaxMessage)}
	t.start(open)
}

// rejection reports why new clients are not taken now; code 0 means that they
// are.
func (r *refusals) rejection() (code int, reason string) {
	switch {
	case r.Draining():
		return codeRestart, "draining"
	case r.refusing.Load(), r.full(0):
		return codeTryLater, "overloaded, try again later"
	}
	return 0, ""
}

// StreamOptions say how a request is answered with a body that stays open.
type StreamOptions struct {
	ContentType string
	// Fields are complete header lines to add.
	Fields []byte
	// Protocol is Push.Protocol's.
	Protocol uint8
	// Chunked is Subscription.Chunked.
	Chunked bool
}

// ServeStream answers 200 and makes c speak what open returns.
func (p *Push) ServeStream(c *eventloop.Conn, o *StreamOptions, open func(socket.Transport) socket.Session) {
	if code, reason := p.rejection(); code != 0 {
		p.away(c, o.ContentType, o.Fields, code, reason)
		return
	}
	l := p.LoopState(c)
	l.head = appendStreamHead(l.head[:0], o)
	c.Write(l.head)
	t := &transport{conn: c, protocol: o.Protocol}
	if o.Chunked {
		t.flags |= inChunks
	}
	t.start(open)
}

// Away answers a client of events that is to come back later, in a way that keeps a
// browser's EventSource trying.
func (r *refusals) Away(c *eventloop.Conn, fields []byte) {
	r.countRejected(codeTryLater)
	c.Write(appendSSEAnswer(nil, fields, r.appendRetry(nil, codeTryLater, true)))
	c.CloseAfterFlush()
}

// away answers a client of a stream that is not taken now.
func (r *refusals) away(c *eventloop.Conn, contentType string, fields []byte, code int, reason string) {
	if isEventStream(contentType) {
		r.countRejected(code)
		c.Write(appendSSEAnswer(nil, fields, r.appendRetry(nil, code, true)))
		c.CloseAfterFlush()
		return
	}
	r.refuse(c, fields, code, reason)
}

func isEventStream(contentType string) bool {
	return strings.HasPrefix(strings.ToLower(contentType), "text/event-stream")
}

func appendStreamHead(b []byte, o *StreamOptions) []byte {
	if isEventStream(o.ContentType) {
		f := wire.SSE
		if o.Chunked {
			f = wire.InChunks(f)
		}
		return appendSSEHead(b, o.Fields, f)
	}
	b = http1.AppendStatusLine(b, http.StatusOK)
	if o.ContentType != "" {
		b = http1.AppendField(b, "Content-Type", o.ContentType)
	}
	if o.Chunked {
		b = append(b, chunkedField...)
	}
	b = append(b, "Cache-Control: no-cache, no-transform\r\nX-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"...)
	b = http1.AppendDate(b, time.Now())
	b = append(b, o.Fields...)
	return append(b, "\r\n"...)
}
