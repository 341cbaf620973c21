package pusher

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// connect serves GET /app/{key}. What is wrong is reported after the handshake, by a close
// code: clients read no HTTP status, and come back for ever.
func (s *Server) connect(r socket.Request) {
	key, err := url.PathUnescape(strings.TrimPrefix(r.Path(), "/app/"))
	if err != nil || key == "" || strings.Contains(key, "/") {
		r.Fail(&wire.Error{Status: http.StatusNotFound, Message: "no such path", Hint: "clients connect to /app/<key>"})
		return
	}
	a := s.conf().byKey[key]
	code, reason := s.refusal(r, key, a)
	// A handshake that fails makes pusher-js wait for 15 seconds and more, a code for one.
	o := socket.WebSocketOptions{AnyOrigin: true, MaxMessage: s.conf().maxMessage(), DrainCode: protocol.CloseCapacity, DrainReason: "The server takes no connections now, please come back", RefusedCode: protocol.CloseUnauthorized}
	activity := r.HeartbeatInterval(time.Duration(s.conf().cfg.ActivityTimeout))
	r.WebSocket(o, func(t socket.Transport) socket.Session {
		c := &session{s: s, app: a, t: t}
		if code == 0 {
			c.open(activity)
			return c
		}
		s.counts.rejected.Add(1)
		c.close(code, reason)
		return c
	})
}

// maxMessage bounds what a client sends: a client event, or a subscription with its
// channel_data, all of it escaped.
func (x *settings) maxMessage() int {
	return 2*max(x.cfg.MaxEventData, 2*x.cfg.MaxMemberData) + 4<<10
}

// refusal reports why a client may not connect; code 0 means that it may.
func (s *Server) refusal(r socket.Request, key string, a *app) (code int, reason string) {
	params, err := protocol.Params(r.Query())
	if err != nil {
		return protocol.CloseProtocolForm, err.Error()
	}
	version := protocol.Get(params, "protocol")
	n, err := strconv.Atoi(version)
	origin, _ := r.Origin()
	switch {
	case version == "":
		return protocol.CloseNoProtocol, "No protocol version supplied"
	case err != nil:
		return protocol.CloseProtocolForm, "Invalid version string format"
	case n < protocol.MinProtocol || n > protocol.MaxProtocol:
		return protocol.CloseProtocol, "Unsupported protocol version"
	case a == nil:
		return protocol.CloseUnknownApp, "App key " + wire.Printable(key, 40) + " does not exist"
	case !a.Enabled.On():
		return protocol.CloseDisabled, "The app is disabled"
	case !a.allows(origin):
		r.LogRefusedOrigin("add its host to allowed_origins of the app " + strconv.Quote(a.ID) + " in pusher.apps")
		return protocol.CloseUnauthorized, "Origin not allowed"
	case a.MaxConnections > 0 && s.deps.Presence.Subscriptions(a.crowd, presence.Pusher) >= a.MaxConnections:
		return protocol.CloseQuota, "The app is over its connection quota"
	}
	return 0, ""
}

// allows reports whether pages of origin may connect. Anyone who has none is not a page.
func (a *app) allows(origin string) bool {
	if len(a.AllowedOrigins) == 0 || origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	host := strings.ToLower(u.Hostname())
	for _, o := range a.AllowedOrigins {
		o = strings.ToLower(o)
		below, wild := strings.CutPrefix(o, "*")
		if o == "*" || o == host || wild && len(host) > len(below) && strings.HasSuffix(host, below) {
			return true
		}
	}
	return false
}

// open greets the client, which is to ping after as much silence as activity.
func (c *session) open(activity time.Duration) {
	s := c.s
	c.id = newSocketID()
	s.counts.connected.Add(1)
	s.deps.Presence.Add(c.app.crowd, presence.Pusher, 1)
	c.opened = c.t.Now()
	c.events = bucket{float64(s.conf().cfg.ClientEventRate), c.opened}
	c.messages = bucket{float64(s.conf().cfg.burst()), c.opened}
	c.out.pace = bucket{float64(c.namespace().MaxRate), c.opened}
	c.send(protocol.AppendEstablished(nil, c.id, int(activity/time.Second)))
	c.arm(c.opened)
}
