package pushhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// wsStream carries a stream over a WebSocket, one text frame per message.
type wsStream struct {
	srv   *Server
	st    *stream
	conn  *websocket.Conn
	hello bool
}

var _ transport = (*wsStream)(nil)

// ServeWebSocket serves the subscription on c, whose handshake is done, and
// returns when the stream has ended; c is closed then. See SocketConfig.
func (s *Server) ServeWebSocket(ctx context.Context, c *websocket.Conn, sub *wire.Subscription, id *auth.Identity) {
	defer c.CloseNow()
	if f := s.turnedAway(); f != nil {
		s.hold(ctx, f.code)
		_ = c.Close(uint16(f.code), f.reason) // it is over either way
		return
	}
	defer s.streams.Done()
	s.counters.ws.Add(1)
	defer s.counters.ws.Add(-1)
	st, err := s.subscribe(sub.Options(), id, wire.WebSocket, !s.access.Granted(id, sub.Channels))
	if err != nil {
		s.counters.failed.Add(1)
		f := failure(err)
		_ = c.Close(uint16(f.code), f.reason) // it is over either way
		return
	}
	defer st.leave()
	t := &wsStream{srv: s, st: st, conn: c, hello: sub.Hello}
	ctx, cancel := context.WithCancel(ctx)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer cancel()
		t.read(ctx)
	}()
	s.serve(ctx, st, t)
	cancel()
	c.CloseNow()
	<-reading
}

// read answers what the client says until it is gone.
func (t *wsStream) read(ctx context.Context) {
	for {
		op, b, err := t.conn.Read(ctx)
		if err != nil {
			if _, ok := errors.AsType[*websocket.ProtocolError](err); ok {
				t.srv.counters.clientErrs.Add(1)
			}
			return
		}
		switch {
		case op != websocket.OpText:
			t.srv.counters.clientErrs.Add(1)
			_ = t.conn.Close(websocket.CloseUnsupported, "binary messages are not understood here") // it is over either way
			return
		case isPing(b):
			if t.conn.Write(websocket.OpText, []byte(`{"type":"pong"}`)) != nil {
				return
			}
		}
	}
}

func isPing(b []byte) bool {
	if len(b) > 64 || !bytes.Contains(b, []byte(`ping`)) {
		return false
	}
	var m struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(b, &m) == nil && m.Type == "ping"
}

func (t *wsStream) text(b []byte) error {
	t.st.sending.Store(int64(len(b)))
	defer t.st.sending.Store(0)
	return t.conn.Write(websocket.OpText, b)
}

func (t *wsStream) open(at hub.Positions) error {
	if !t.hello {
		return nil
	}
	b := at.AppendTo([]byte(`{"type":"subscribed","id":"`))
	return t.text(append(b, `"}`...))
}

func (t *wsStream) message(m *hub.Message) error {
	return t.text(payloadOf(t.srv.hub.Encode(m, t.st.format)))
}

// payloadOf returns what follows the header of a server's frame (RFC 6455 §5.2).
func payloadOf(frame []byte) []byte {
	switch frame[1] & 0x7f {
	case 126:
		return frame[4:]
	case 127:
		return frame[10:]
	}
	return frame[2:]
}

func (t *wsStream) gap(g hub.Gap) error {
	id := ""
	if !g.At.IsZero() {
		id = g.At.String()
	}
	return t.text(wire.AppendGap(nil, "gap", g, id))
}

func (t *wsStream) flush() error { return nil }

func (t *wsStream) beat() error { return t.conn.Ping(nil) }

func (t *wsStream) close(f *farewell, _ bool) {
	if f != nil {
		_ = t.conn.Close(uint16(f.code), f.reason) // it is over either way
	}
}

// AcceptWebSocket judges the handshake of r and serves the subscription on it.
// checkOrigin is as in websocket.AcceptOptions.
func (s *Server) AcceptWebSocket(w http.ResponseWriter, r *http.Request, checkOrigin func(*http.Request) bool, sub *wire.Subscription, id *auth.Identity) {
	c, err := websocket.Accept(w, r, websocket.AcceptOptions{Config: s.SocketConfig(), CheckOrigin: checkOrigin})
	if err != nil {
		return // Accept has answered
	}
	s.ServeWebSocket(r.Context(), c, sub, id)
}

// SocketConfig is what a WebSocket for ServeWebSocket should be made with: silence
// for more than two heartbeats ends it.
func (s *Server) SocketConfig() websocket.Config {
	return websocket.Config{IdleTimeout: max(60*time.Second, 2*s.cfg.Heartbeat), WriteTimeout: s.cfg.WriteStall}
}
