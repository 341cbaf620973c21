package stdhttp_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/socket/sockettest"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/wire"
)

// mounted starts a front that serves the suite's protocol.
func mounted(t *testing.T) *sockettest.Front {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := memory.New(memory.Config{})
	must(err)
	formats, err := wire.NewFormats(nil)
	must(err)
	p := sockettest.New(formats)
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{{Name: "default", Anonymous: true}}, Encoders: formats.Encoders()}, b)
	must(err)
	a, err := auth.New(auth.Config{APIKeys: []auth.APIKey{{Name: "me", Key: key, Subscribe: []string{"**"}}}}, nil)
	must(err)
	push := pushhttp.New(pushhttp.Config{}, formats, h, nil)
	front := stdhttp.New(stdhttp.Config{}, stdhttp.Deps{Hub: h, Push: push, Auth: a, Ready: h.Ready})
	must(front.Mount(p.Endpoints()))
	ctx, cancel := context.WithCancel(context.Background())
	must(h.Start(ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); push.Run(ctx) }()
	ts := httptest.NewServer(front)
	t.Cleanup(func() {
		cancel()
		ts.CloseClientConnections()
		<-ended
		ts.Close()
		_ = front.Close(context.Background())
		must(h.Close())
		must(a.Close())
	})
	return &sockettest.Front{
		Protocol: p, Addr: ts.Listener.Addr().String(), Hub: h, Key: key, Subject: "me", Drain: push.Drain,
		Panics: func() uint64 { return push.Stats().Panics },
		Counts: func() (sockets, streams int64) {
			for _, x := range push.Protocols() {
				if x.Name == sockettest.Name {
					sockets, streams = x.Sockets, x.Streams
				}
			}
			return sockets, streams
		},
	}
}

func TestProtocolsOnNetHTTP(t *testing.T) { sockettest.Run(t, mounted) }

func TestEndpointsThatCannotBe(t *testing.T) {
	serve := func(socket.Request) {}
	s := newSite(t, []policy.RouteConfig{{Path: "/route", Reply: policy.Reply{Status: 200}}, {Path: "/under/*", Reply: policy.Reply{Status: 200}}}, nil, nil, nil)
	f := func(want string, e socket.Endpoint) {
		t.Helper()
		e.Protocol = "test"
		if err := s.front.Mount([]socket.Endpoint{e}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", e.Path, err, want)
		}
	}
	f("taken", socket.Endpoint{Path: "/sse", Methods: "GET", Serve: serve})
	f("is below it, and one of Weir's own", socket.Endpoint{Path: "/api/*", Methods: "GET", Serve: serve})
	f("a path is", socket.Endpoint{Path: "a", Methods: "GET", Serve: serve})
	f("no method", socket.Endpoint{Path: "/a", Serve: serve})
	f(`route "`, socket.Endpoint{Path: "/route", Methods: "GET", Serve: serve})
	f(`route "`, socket.Endpoint{Path: "/under/*", Methods: "GET", Serve: serve})
}
