package rung

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/websocket"
)

// serveLoops is the rung d/loops: no goroutine per connection at all. A published
// message becomes one frame; each loop sends that same frame to its own
// connections.
func serveLoops(ctx context.Context, env *Env) error {
	h := &loopHub{}
	accept := func(c *eventloop.Conn) eventloop.Handler { return &loopConn{hub: h, part: h.part(c.Loop())} }
	g, err := eventloop.New(eventloop.Config{Engine: "epoll"}, accept, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	for _, l := range g.Loops() {
		h.parts = append(h.parts, &loopPart{loop: l, byName: map[string]map[*eventloop.Conn]struct{}{}})
	}
	at, err := g.Listen(env.Addr)
	if err != nil {
		g.Release()
		return err
	}
	env.Ready(at.String())
	return g.Run(ctx)
}

// A loopHub is the loops' parts and the numbering they share.
type loopHub struct {
	parts  []*loopPart // fixed before the loops run
	offset atomic.Uint64
}

// A loopPart is what one loop owns: the subscribers among its connections.
type loopPart struct {
	loop   *eventloop.Loop
	byName map[string]map[*eventloop.Conn]struct{}
}

func (h *loopHub) part(l *eventloop.Loop) *loopPart { return h.parts[l.ID()] }

// publish makes the frame and posts it to every loop.
func (h *loopHub) publish(name string, data []byte) uint64 {
	m := &message{channel: name, offset: h.offset.Add(1), time: time.Now().UnixMilli(), data: data}
	frame := websocket.AppendFrame(nil, websocket.OpText, appendEnvelope(nil, m))
	for _, p := range h.parts {
		p.loop.Post(func() {
			for c := range p.byName[name] {
				c.Send(frame)
			}
		})
	}
	return m.offset
}

// A loopConn is one connection: HTTP until its upgrade, frames after it.
type loopConn struct {
	hub      *loopHub
	part     *loopPart
	request  http1.Request
	frames   websocket.Parser
	upgraded bool
	echo     bool
	channel  string // "" until it subscribes
}

// Data implements eventloop.Handler.
func (k *loopConn) Data(c *eventloop.Conn, b []byte) int {
	used := 0
	for !k.upgraded && used < len(b) {
		n, err := http1.ParseRequest(&k.request, b[used:], http1.Limits{})
		if err != nil {
			k.refuse(c, 400)
			return len(b)
		}
		body := int(max(k.request.ContentLength, 0))
		if n == 0 || len(b)-used < n+body {
			return used
		}
		k.serve(c, b[used+n:used+n+body])
		used += n + body
	}
	if k.upgraded {
		used += k.read(c, b[used:])
	}
	return used
}

func (k *loopConn) refuse(c *eventloop.Conn, status int) {
	c.Write(http1.AppendResponse(nil, status, false, "text/plain", http1.StatusText(status)))
	c.CloseAfterFlush()
}

func (k *loopConn) serve(c *eventloop.Conn, body []byte) {
	switch string(k.request.Path) {
	case "/api/publish":
		var p publication
		if p.check(json.Unmarshal(body, &p)) != nil {
			k.refuse(c, 400)
			return
		}
		c.Write(http1.AppendResponse(nil, 200, true, "application/json", appendResult(nil, k.hub.publish(p.Channel, p.Data))))
	case "/ws", "/echo":
		k.upgrade(c, string(k.request.Path) == "/echo")
	default:
		k.refuse(c, 404)
	}
}

func (k *loopConn) upgrade(c *eventloop.Conn, echo bool) {
	key, err := websocket.CheckUpgrade(string(k.request.Method), k.request.Minor == 1, k.request.Get)
	if err != nil {
		k.refuse(c, 400)
		return
	}
	k.upgraded, k.echo = true, echo
	c.Write(websocket.AppendHandshakeResponse(nil, key, "", ""))
	if echo {
		return
	}
	if name, ok := http1.QueryValue(k.request.Query, "channel"); ok {
		k.channel = strings.Clone(string(name))
		if k.part.byName[k.channel] == nil {
			k.part.byName[k.channel] = map[*eventloop.Conn]struct{}{}
		}
		k.part.byName[k.channel][c] = struct{}{}
	}
	if _, ok := http1.QueryValue(k.request.Query, "hello"); ok {
		c.Write(websocket.AppendFrame(nil, websocket.OpText, hello()))
	}
}

// read takes frames; what an echo answers to one read leaves in one write.
func (k *loopConn) read(c *eventloop.Conn, b []byte) int {
	used := 0
	for {
		ev, n, ok, err := k.frames.Next(b[used:])
		used += n
		switch {
		case err != nil:
			c.Write(websocket.AppendClose(nil, websocket.CloseProtocolError, ""))
			c.CloseAfterFlush()
			return len(b)
		case !ok:
			return used
		case ev.Op == websocket.OpClose:
			c.Write(websocket.AppendClose(nil, ev.Code, ""))
			c.CloseAfterFlush()
			return len(b)
		case ev.Op == websocket.OpPing:
			c.Write(websocket.AppendFrame(nil, websocket.OpPong, ev.Payload))
		case k.echo && ev.Op != websocket.OpPong:
			c.Write(websocket.AppendFrame(nil, ev.Op, ev.Payload))
		}
	}
}

// EndOfStream implements eventloop.Handler.
func (k *loopConn) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (k *loopConn) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler.
func (k *loopConn) Timer(*eventloop.Conn, int64) {}

// Closed implements eventloop.Handler.
func (k *loopConn) Closed(c *eventloop.Conn, _ error) {
	if k.channel != "" {
		delete(k.part.byName[k.channel], c)
	}
	k.frames.Reset()
}
