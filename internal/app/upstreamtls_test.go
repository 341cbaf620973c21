package app

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// overTLS routes everything to s, whose CA is in the file that is returned.
func overTLS(t *testing.T, s *httptest.Server, own upstream.TLSConfig) (change func(*config.Config), caFile string) {
	t.Helper()
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	own.CAFiles = []string{caFile}
	return func(c *config.Config) {
		c.Clusters = []upstream.Config{{Name: "shop", Peers: []upstream.PeerConfig{{Address: "https://" + s.Listener.Addr().String()}}, TLS: own}}
		c.Routes = []policy.RouteConfig{{Cluster: "shop"}}
	}, caFile
}

func TestAReloadReadsTheCertificatesForUpstreamsAnew(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].SerialNumber.String())
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	own, _ := selfSigned(t, dir, 1)
	change, caFile := overTLS(t, s, upstream.TLSConfig{CertFile: own.CertFile})
	g := start(t, change)
	f := func(want string) {
		t.Helper()
		if code, got := g.get(t, "/"); code != 200 || got != want {
			t.Errorf("%d %q, want certificate %s", code, got, want)
		}
	}
	f("1")
	selfSigned(t, dir, 2)
	if done, err := g.Reload(t.Context()); err != nil || len(done.Applied) != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	f("2")
	if err := os.WriteFile(caFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), `cluster "shop": tls.ca_files[0]: `+caFile) {
		t.Errorf("a broken file: %v", err)
	}
	f("2")
	if _, b := g.fetch(t, "/metrics"); !strings.Contains(string(b), `weir_upstream_tls_handshakes_total{cluster="shop",result="full"} `) {
		t.Errorf("the handshakes are not shown: %s", b)
	}
}

func TestDrainEndsStreamsOfUpstreamsInOrder(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = rc.Flush()
			<-r.Context().Done()
			return
		}
		c, rw, err := rc.Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, wiretest.CRLF("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\n"))
		_, _ = c.Write(websocket.AppendFrame(nil, websocket.OpText, []byte("hello")))
		_, _ = io.Copy(io.Discard, rw)
	}))
	defer s.Close()
	change, _ := overTLS(t, s, upstream.TLSConfig{})
	const over = time.Second
	g := start(t, func(c *config.Config) { change(c); c.Shutdown.Drain = hub.Duration(over) })
	var all sync.WaitGroup
	for range 10 {
		events := g.dial(t)
		events.Send(wiretest.CRLF("GET /events HTTP/1.1\nHost: a\n\n"))
		res := events.Response()
		socket := g.dial(t)
		socket.Upgrade("/chat", "")
		all.Go(func() {
			b, err := io.ReadAll(res.Body)
			if events, last, _ := strings.Cut(string(b), "retry: "); err != nil || events != "data: 1\n\n" || last == "" {
				t.Errorf("%q, %v", b, err)
			}
		})
		all.Go(func() {
			if code := socket.CloseCode(); code != 1012 {
				t.Errorf("closed with %d", code)
			}
			socket.Close()
		})
	}
	trial.Eventually(t, "all open", func() bool { return g.wing.proxy.Stats().Tunnels == 10 && g.front.Waiting() == 10 })
	g.stop()
	all.Wait()
	err := <-g.done
	g.done <- err
	if err != nil {
		t.Errorf("Run: %v", err)
	}
}
