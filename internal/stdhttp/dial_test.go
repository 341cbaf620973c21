package stdhttp_test

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/setting"
	"github.com/weir-gateway/weir/internal/upstream"
)

// secureBackend is a server over TLS for 127.0.0.1 and example.com, and the file with
// who vouches for it.
func secureBackend(t *testing.T, cfg *tls.Config, h http.HandlerFunc) (addr, caFile string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.TLS = cfg
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(caFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return "https://" + s.Listener.Addr().String(), caFile
}

func secureSite(t *testing.T, addr string, how upstream.TLSConfig, start func(*httptest.Server)) *site {
	t.Helper()
	return newSite(t, []policy.RouteConfig{{Cluster: "main"}}, []upstream.Config{{Name: "main", TLS: how, Peers: []upstream.PeerConfig{{Address: addr}},
		Retry: upstream.RetryConfig{Attempts: 1}, Timeouts: upstream.TimeoutConfig{Connect: hub.Duration(10 * time.Second)},
		Outlier: upstream.OutlierConfig{Enabled: setting.Off}, Breaker: upstream.BreakerConfig{Enabled: setting.Off}}}, nil, start)
}

func TestBackendsAreAskedOverTLS(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		addr, ca := secureBackend(t, &tls.Config{MaxVersion: version}, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Resumed", fmt.Sprint(r.TLS.DidResume))
			if r.URL.Path == "/close" {
				w.Header().Set("Connection", "close")
			}
			fmt.Fprintf(w, "%s %s %x %s", r.Proto, r.TLS.NegotiatedProtocol, r.TLS.Version, b)
		})
		s := secureSite(t, addr, upstream.TLSConfig{CAFiles: []string{ca}}, overHTTP2)
		for range 5 {
			if res, got := s.do("POST", "/", "hello"); res.ProtoMajor != 2 || got != fmt.Sprintf("HTTP/1.1 http/1.1 %x hello", version) {
				t.Errorf("%s %d %q", res.Proto, res.StatusCode, got)
			}
		}
		s.do("POST", "/close", "")
		if res, _ := s.do("POST", "/", ""); res.Header.Get("X-Resumed") != "true" {
			t.Errorf("TLS %x: the session does not resume", version)
		}
		if n := s.ups.Stats()[0].Handshakes; n["full"] != 1 || n["resumed"] != 1 {
			t.Errorf("handshakes %v", n)
		}
	}
}

func TestBackendsThatAreNotWhoTheyShouldBe(t *testing.T) {
	f := func(what string, server *tls.Config, how upstream.TLSConfig, trust bool, want int, result string) {
		t.Helper()
		addr, ca := secureBackend(t, server, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
		if trust {
			how.CAFiles = []string{ca}
		}
		s := secureSite(t, addr, how, overHTTP2)
		res, got := s.do("POST", "/", "body")
		st := s.ups.Stats()[0]
		if res.StatusCode != want || st.Handshakes[result] != 1 {
			t.Errorf("%s: %d %q, handshakes %v, want %d %s", what, res.StatusCode, got, st.Handshakes, want, result)
		}
		if want != 200 && (st.Peers[0].ConnectErrors != 1 || st.Peers[0].TLSError == "") {
			t.Errorf("%s: %+v", what, st.Peers[0])
		}
	}
	f("all is well", nil, upstream.TLSConfig{}, true, 200, "full")
	f("its other name", nil, upstream.TLSConfig{ServerName: "example.com"}, true, 200, "full")
	f("a wrong name", nil, upstream.TLSConfig{ServerName: "other.example"}, true, 502, "wrong_name")
	f("the system's authorities", nil, upstream.TLSConfig{}, false, 502, "unknown_authority")
	f("nothing is verified", nil, upstream.TLSConfig{Verify: setting.Off}, false, 200, "full")
	f("too old", &tls.Config{MaxVersion: tls.VersionTLS12}, upstream.TLSConfig{MinVersion: "1.3"}, true, 502, "refused")
	f("a client certificate is wanted, TLS 1.2", &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, upstream.TLSConfig{}, true, 502, "refused")
}

func TestACutReplyOverTLSIsNotTakenForWhole(t *testing.T) {
	f := func(whole bool) {
		t.Helper()
		addr, ca := secureBackend(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it")
			if whole {
				_ = c.Close()
			} else {
				_ = c.(*tls.Conn).NetConn().Close()
			}
		})
		s := secureSite(t, addr, upstream.TLSConfig{CAFiles: []string{ca}}, overHTTP2)
		res, err := s.c.Get(s.url + "/")
		if err == nil {
			defer res.Body.Close()
			_, err = io.ReadAll(res.Body)
		}
		if (err == nil) != whole {
			t.Errorf("whole %v: %v", whole, err)
		}
	}
	f(true)
	f(false)
}

func TestAHandshakeThatHangsIsGivenUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newSite(t, []policy.RouteConfig{{Cluster: "main"}}, []upstream.Config{{Name: "main", Peers: []upstream.PeerConfig{{Address: "https://" + l.Addr().String()}},
		Retry: upstream.RetryConfig{Attempts: 1}, Timeouts: upstream.TimeoutConfig{Connect: hub.Duration(200 * time.Millisecond)}}}, nil, overHTTP2)
	if res, got := s.do("GET", "/", ""); res.StatusCode != 502 || s.ups.Stats()[0].Handshakes["timeout"] != 1 {
		t.Errorf("%d %q, %v", res.StatusCode, got, s.ups.Stats()[0].Handshakes)
	}
}

func TestTunnelsPassOverTLS(t *testing.T) {
	addr, ca := secureBackend(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(c, rw)
	})
	s := secureSite(t, addr, upstream.TLSConfig{CAFiles: []string{ca}}, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(c)
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, %v", res, err)
	}
	_, _ = io.WriteString(c, "hello")
	b := make([]byte, 5)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}
