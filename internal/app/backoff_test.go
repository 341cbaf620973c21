package app

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// A client that says its longest back-off is sent something sooner than others, of whom no one would be within
// this test: over both versions of HTTP, both engines, and in every protocol.
func TestHeartbeatsAdaptToTheClientsBackoff(t *testing.T) {
	trial.Long(t)
	t.Parallel() // it mostly waits
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if strings.HasPrefix(r.URL.Path, "/held") {
			w.Header().Set("Weir-Hold", "stream")
			w.Header().Set("Weir-Channel", "a")
			return
		}
		_, _ = io.WriteString(w, "data: one\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	for _, engine := range []string{"epoll", "io_uring"} {
		g := start(t, func(c *config.Config) {
			c.EventLoop.Engine = engine
			c.Push.Heartbeat, c.Push.HeartbeatMin = hub.Duration(time.Hour), hub.Duration(time.Millisecond)
			c.Push.IdleTimeout = hub.Duration(3 * time.Hour)
			c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(silent.URL, "http://")}}}}
			c.Routes = []policy.RouteConfig{
				{Path: "/held", Cluster: "b", Hold: policy.Hold{Channels: []string{"a"}}},
				{Path: "/recorded", Cluster: "b", Record: policy.Record{Namespace: "private"}.WithDefaults()},
			}
			c.Mercure.Enabled, c.Mercure.Anonymous, c.Mercure.Namespace = true, true, "default"
			c.Centrifuge.Enabled, c.Centrifuge.Insecure = true, true
			c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: "app-key-1", Secret: "app-secret-0123456"}}
		})
		f := func(what string, c *http.Client, path, want string, times int, fields ...string) {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), "GET", g.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(fields); i += 2 {
				req.Header.Set(fields[i], fields[i+1])
			}
			res, err := c.Do(req)
			if err != nil {
				t.Errorf("%s, %s: %v", engine, what, err)
				return
			}
			defer res.Body.Close()
			for n, b := 0, bufio.NewScanner(res.Body); ; {
				if !b.Scan() {
					t.Errorf("%s, %s: ended without a heartbeat: %d %v", engine, what, res.StatusCode, b.Err())
					return
				}
				if b.Text() == want {
					if n++; n == times {
						return
					}
				}
			}
		}
		for version, c := range versions(t) {
			f("sse over "+version, c, "/sse?channel=a&max_backoff=0.05", ":", 2)
			f("sse with a field over "+version, c, "/sse?channel=a", ":", 2, "Weir-Max-Backoff", "50ms")
			f("mercure over "+version, c, "/.well-known/mercure?topic=a&max_backoff=50ms", ":", 3)
			f("centrifuge over "+version, c, "/connection/uni_sse?cf_connect={}&max_backoff=1.5", "data: {}", 1)
			f("held over "+version, c, "/held?max_backoff=50ms", ":", 2)
			f("held, with a field over "+version, c, "/held", ":", 2, "Weir-Max-Backoff", "50ms")
			f("held, with a query of the backend's over "+version, c, "/held?max_backoff=theirs", "", 1)
			f("recorded over "+version, c, "/recorded?by="+url.QueryEscape(version)+"&max_backoff=50ms", ":", 2)
			f("recorded, with a field over "+version, c, "/recorded?by="+url.QueryEscape(version), ":", 2, "Weir-Max-Backoff", "50ms")
			res, body := requested(t, c, "GET", g.url+"/sse?channel=a&max_backoff=soon", "")
			wantError(t, "a back-off that is none, over "+version, res, body, 400)
		}
		if op, _ := g.ws(t, "channel=a&max_backoff=50ms", "").Frame(); op != websocket.OpPing {
			t.Errorf("%s: %v, want a ping", engine, op)
		}
		p := g.dial(t)
		p.Upgrade("/app/app-key-1?protocol=7&max_backoff=10", "")
		if _, b := p.Frame(); !strings.Contains(string(b), `activity_timeout\":8`) {
			t.Errorf("%s: pusher: %s, want 8 s", engine, b)
		}
	}
}
