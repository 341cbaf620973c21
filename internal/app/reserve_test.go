package app

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// Subscribers take no more than their part of the connections: publishers and health
// checks get in, and one log line says so.
func TestConnectionsAreReservedForPublishers(t *testing.T) {
	var text loggedText
	g := startApp(t, func(c *config.Config) {
		c.EventLoop.MaxConns = 32
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true}}
		c.Auth.APIKeys = []auth.APIKey{{Name: "test", Key: testKey}}
	}, Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
	served, refused := 0, 0
	for i := range 60 {
		if i%2 == 0 {
			if s := g.sse(t, "channel=a", ""); strings.Contains(s.block(), `"code":1013`) {
				refused++
				s.res.Body.Close()
				continue
			}
		} else {
			w := g.ws(t, "channel=a&hello=1", "")
			if op, _ := w.Frame(); op == websocket.OpClose {
				refused++
				w.Close()
				continue
			}
		}
		served++
	}
	if served != 24 || refused != 36 {
		t.Errorf("%d served, %d refused; want 24 of 32 connections for subscribers", served, refused)
	}
	for range 20 {
		g.publish(t, "a", "1")
	}
	if n := strings.Count(text.String(), "new subscribers are refused"); n != 1 {
		t.Errorf("%d lines in the log, want 1", n)
	}
	trial.Eventually(t, "none is left of the refused", func() bool { return g.loops.Open() <= 25 })
}

// What a connection owns is a matter of hundreds of bytes, whatever the process takes.
func TestMemoryPerConnectionIsWhatConnectionsOwn(t *testing.T) {
	g := start(t, governed(1<<40, 0.9, 0.99))
	streams, _ := g.subscribers(t, 50, "")
	trial.Eventually(t, "the subscribers are accounted for", func() bool {
		m := g.watching.watch.Governor.Snapshot().Memory
		return m.PerConnection > 100 && m.PerConnection < 2048 && m.Owners.Other > m.Owners.Connections
	})
	for _, s := range streams {
		s.Close()
	}
}
