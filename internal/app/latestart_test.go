package app

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// TestABackendThatStartsLateIsUsedAtOnce: with all peers down by their checks, the first
// request after a backend has started is answered by it, over both versions of HTTP and however
// long the interval of the checks is.
func TestABackendThatStartsLateIsUsedAtOnce(t *testing.T) {
	for name, client := range map[string]*http.Client{"h1": http.DefaultClient, "h2": overHTTP2(t, nil)} {
		t.Run(name, func(t *testing.T) {
			var addresses []string
			for range 2 { // ports where nothing listens yet
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				addresses = append(addresses, l.Addr().String())
				l.Close()
			}
			g := start(t, func(c *config.Config) {
				c.Clusters = []upstream.Config{{
					Name: "late", Peers: []upstream.PeerConfig{{Address: addresses[0]}, {Address: addresses[1]}},
					Health: upstream.HealthConfig{Check: upstream.CheckTCP, Interval: hub.Duration(time.Hour)},
				}}
				c.Routes = []policy.RouteConfig{{Path: "/*", Cluster: "late"}}
			})
			healthy := func() (n int) {
				for _, p := range g.wing.upstreams.Stats()[0].Peers {
					if p.Health == "up" {
						n++
					}
				}
				return n
			}
			get := func() (int, string) {
				res, err := client.Get(g.url + "/x")
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				b, _ := io.ReadAll(res.Body)
				return res.StatusCode, string(b)
			}
			trial.Eventually(t, "both are down", func() bool {
				p := g.wing.upstreams.Stats()[0].Peers
				return p[0].Health == "down" && p[1].Health == "down"
			})
			if status, body := get(); status != http.StatusBadGateway && status != http.StatusServiceUnavailable {
				t.Errorf("without a backend: %d %s", status, body)
			}
			if v := g.scraped(t, `weir_upstream_panic{cluster="late"}`); v != 1 {
				t.Errorf("weir_upstream_panic is %v without a usable peer", v)
			}
			l, err := net.Listen("tcp", addresses[0])
			if err != nil {
				t.Fatal(err)
			}
			backend := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "late") }), ReadHeaderTimeout: trial.Patience}
			served := make(chan error, 1)
			go func() { served <- backend.Serve(l) }()
			defer func() { backend.Close(); <-served }()
			if status, body := get(); status != http.StatusOK || body != "late" {
				t.Errorf("the first request after the backend started: %d %s", status, body)
			}
			trial.Eventually(t, "the checks have found it", func() bool { return healthy() == 1 })
			if v := g.scraped(t, `weir_upstream_panic{cluster="late"}`); v != 0 {
				t.Errorf("weir_upstream_panic is %v with a usable peer", v)
			}
			if v := g.scraped(t, `weir_upstream_panic_requests_total{cluster="late"}`); v < 1 {
				t.Errorf("weir_upstream_panic_requests_total is %v", v)
			}
			for range 20 {
				if status, body := get(); status != http.StatusOK {
					t.Errorf("with one peer up: %d %s", status, body)
				}
			}
		})
	}
}
