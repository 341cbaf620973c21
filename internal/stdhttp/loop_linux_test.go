package stdhttp_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/upstream"
)

// taking gives every connection of its loop to a Front with its first bytes.
type taking struct {
	f     *stdhttp.Front
	local netip.AddrPort
}

func (h *taking) Data(c *eventloop.Conn, b []byte) int {
	h.f.TakeFromLoop(c, b, h.local)
	return len(b)
}
func (h *taking) EndOfStream(*eventloop.Conn) bool { return false }
func (h *taking) Drained(*eventloop.Conn)          {}
func (h *taking) Timer(*eventloop.Conn, int64)     {}
func (h *taking) Closed(*eventloop.Conn, error)    {}

func TestConnectionsOfALoopSpeakHTTP2(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}))
	defer ts.Close()
	cluster := upstream.Config{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(ts.URL, "http://")}}}
	s := newSite(t, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}, []upstream.Config{cluster}, nil, nil)
	for _, engine := range []string{"epoll", "io_uring"} {
		var addr netip.AddrPort
		g, err := eventloop.New(eventloop.Config{Engine: engine, Loops: 2}, func(*eventloop.Conn) eventloop.Handler { return &taking{s.front, addr} }, nil)
		if err != nil {
			t.Fatal(err)
		}
		if addr, err = g.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		if engine == "epoll" {
			go func() { _ = s.front.ServeTaken() }()
		}
		var p http.Protocols
		p.SetUnencryptedHTTP2(true)
		tr := &http.Transport{Protocols: &p}
		c := &http.Client{Transport: tr, Timeout: 30 * time.Second}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				res, err := c.Post("http://"+addr.String()+"/echo", "text/plain", strings.NewReader(big)) //nolint:noctx // bounded by the client
				if err != nil {
					t.Errorf("%s: %v", engine, err)
					return
				}
				defer func() { _ = res.Body.Close() }()
				b, err := io.ReadAll(res.Body)
				if err != nil || res.ProtoMajor != 2 || string(b) != big {
					t.Errorf("%s: %s %d bytes, %v", engine, res.Proto, len(b), err)
				}
			})
		}
		all.Wait()
		tr.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
