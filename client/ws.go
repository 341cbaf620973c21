package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/websocket"
)

// wsLink is a stream over WebSocket.
type wsLink struct {
	s    *Stream
	conn *websocket.Conn
}

// openWS makes the handshake. The first frame has the stream's position.
func (s *Stream) openWS(ctx context.Context) (link, error) {
	query := url.Values{"channel": s.opts.Channels, "hello": {"1"}}
	if s.at.token != "" {
		query.Set("since", s.at.token)
	}
	s.c.setBackoff(query)
	u := s.c.endpoint("ws", query)
	u.Scheme = map[string]string{"http": "ws", "https": "wss"}[u.Scheme]
	o := websocket.DialOptions{Header: make(http.Header), TLS: s.c.cfg.TLS, DialContext: s.c.cfg.DialContext}
	o.MaxMessage, o.IdleTimeout = s.c.cfg.MaxMessage, s.c.cfg.IdleTimeout

	dialing, cancel := context.WithTimeoutCause(ctx, s.c.cfg.ConnectTimeout, errNoAnswer)
	defer cancel()
	if err := s.c.authorize(dialing, o.Header); err != nil {
		return nil, because(dialing, err)
	}
	conn, resp, err := websocket.Dial(dialing, u.String(), o)
	switch {
	case err == nil:
		return &wsLink{s, conn}, nil
	case resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	return nil, because(dialing, err)
}

func (l *wsLink) next(ctx context.Context) (Event, error) {
	for {
		op, b, err := l.conn.Read(ctx)
		if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
			return nil, &Error{Code: int(closed.Code), Message: closed.Reason}
		}
		if err != nil {
			return nil, err
		}
		if op != websocket.OpText {
			return nil, errors.New("the server sent a binary frame: is this a Weir server?")
		}
		e, err := parseEnvelope(b)
		if err != nil {
			return nil, err
		}
		before := l.s.at.token
		ev, err := l.event(&e)
		if ev != nil || err != nil || l.s.at.token != before {
			return ev, err
		}
	}
}

// event makes an event of an envelope and moves the cursor.
func (l *wsLink) event(e *envelope) (Event, error) {
	switch e.Type {
	case "":
		m, err := e.message()
		if err != nil {
			return nil, err
		}
		l.s.at.move(hub.NamespaceOf(m.Channel), m.Position.log(), false)
		return m, nil
	case "subscribed":
		if e.ID != "" {
			l.s.at.set(e.ID)
		}
	case "gap":
		g := e.gap()
		l.pass(e, g)
		return g, nil
	}
	return nil, nil
}

// pass moves the cursor to where a gap notice leaves the stream. Its id is the
// whole position if it has a part for every log, and else that of its own.
func (l *wsLink) pass(e *envelope, g *Gap) {
	at := &l.s.at
	ps, err := hub.ParsePositions(e.ID)
	if err == nil && len(ps) >= max(len(l.s.namespaces()), len(at.parts)) {
		at.set(e.ID)
		at.names[hub.LogOf(g.Namespace, g.To.Epoch)] = g.To.Epoch
		return
	}
	// A log of which no message has come is known by where the gap starts.
	if from, err := hub.ParsePosition(g.From); err == nil && at.names[hub.LogOf(g.Namespace, from.Epoch)] == "" {
		at.names[hub.LogOf(g.Namespace, from.Epoch)] = from.Epoch
	}
	if len(ps) == 1 {
		at.move(g.Namespace, ps[0], true)
	} else {
		at.move(g.Namespace, g.To.log(), true)
	}
}

// namespaces returns those of the stream's channels.
func (s *Stream) namespaces() map[string]bool {
	set := make(map[string]bool)
	for _, ch := range s.opts.Channels {
		set[hub.NamespaceOf(ch)] = true
	}
	return set
}

func (l *wsLink) close() { l.conn.CloseNow() }

var (
	_ link = (*sseLink)(nil)
	_ link = (*wsLink)(nil)
)
