package app

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestInfoShowsWhatTheKernelMadeOfSocketOptions(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			g := start(t, func(c *config.Config) {
				c.EventLoop.Engine = engine
				c.EventLoop.Sockets = eventloop.SocketConfig{
					SendBuffer: 64 << 10, Congestion: "reno", KeepAlive: eventloop.KeepAlive{Idle: hub.Duration(time.Minute)},
				}
			})
			g.subscribers(t, 1, "")
			var v struct {
				Engine  string
				Sockets []struct {
					Listener, Option, Unit, From, Note string
					Requested                          any `json:"asked"`
					Effective                          any
				}
			}
			res, body := g.fetch(t, "/api/info")
			if err := json.Unmarshal(body, &v); err != nil || res.StatusCode != 200 || v.Engine != engine {
				t.Fatalf("%d %s: %v", res.StatusCode, body, err)
			}
			from := map[string]string{"epoll": "connection", "io_uring": "listener"}[engine]
			f := func(option string, requested, effective any) {
				t.Helper()
				for _, o := range v.Sockets {
					if o.Option == option {
						if o.Requested != requested || o.Effective != effective || o.From != from || o.Listener != g.Addr().String() {
							t.Errorf("%+v, want %v, %v from %s", o, requested, effective, from)
						}
						return
					}
				}
				t.Errorf("no %s in %s", option, body)
			}
			f("SO_SNDBUF", 65536., 131072.)
			f("SO_KEEPALIVE", 1., 1.)
			f("TCP_KEEPIDLE", 60., 60.)
			f("TCP_CONGESTION", "reno", "reno")
			f("TCP_NODELAY", 1., 1.)
			f("TCP_USER_TIMEOUT", 30000., 30000.)
		})
	}
}
