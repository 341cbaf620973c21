package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emmansun/gmsm/smx509"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// nationalListener accepts connections of TLCP or RFC 8998 for net/http.
type nationalListener struct {
	net.Listener
	cfg     *gm.ServerConfig
	version uint16
	shaken  chan net.Conn
	closed  chan struct{}
}

// run does the handshakes, until the listener is closed.
func (l *nationalListener) run(t *testing.T) {
	defer close(l.closed)
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return
		}
		_ = raw.SetDeadline(time.Now().Add(trial.Patience))
		state, err := gm.Server(raw, l.cfg, l.version)
		if err != nil {
			t.Logf("backend: %v", err)
			_ = raw.Close()
			continue
		}
		_ = raw.SetDeadline(time.Time{})
		l.shaken <- gm.NewStream(raw, state)
	}
}

func (l *nationalListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.shaken:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

type streamKey struct{}

// nationalBackend serves HTTP/1.1 and HTTP/2 over one of the protocols and reports what the
// handshake agreed on.
func nationalBackend(t *testing.T, cfg *gm.ServerConfig, version uint16) (address string) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &nationalListener{Listener: raw, cfg: cfg, version: version, shaken: make(chan net.Conn, 64), closed: make(chan struct{})}
	s := &http.Server{
		Protocols: new(http.Protocols),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, streamKey{}, c)
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), 500)
				return
			}
			state := r.Context().Value(streamKey{}).(*gm.Stream).State
			client := "none"
			if len(state.Peer) > 0 {
				client = state.Peer[0].Subject.CommonName
			}
			fmt.Fprintf(w, "%s %s client=%s %d %s", r.Proto, state.Suite.Name, client, len(b), b)
		}),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true) // to net/http the stream is not TLS
	var done sync.WaitGroup
	done.Go(func() { l.run(t) })
	done.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		done.Wait()
	})
	return "https://" + raw.Addr().String()
}

// A cluster with tls.gm is reached over its protocol and no other, whatever version of
// HTTP is on either side.
func TestClustersOverNationalCryptography(t *testing.T) {
	dir := t.TempDir()
	if _, err := gm.WriteTestChain(gm.TestChain{Dir: dir, Hosts: []string{"127.0.0.1"}, Client: "weir", Lifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	roots, _, err := gm.LoadPool([]string{file("ca.pem")})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := gm.LoadPair(gm.PairFiles{SignCert: file("sign.pem"), SignKey: file("sign.key"), EncCert: file("enc.pem"), EncKey: file("enc.key")}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cases := nationalClusters(t, file, roots, pair)
	for _, engine := range []string{"epoll", "io_uring"} {
		g := start(t, func(c *config.Config) {
			c.EventLoop.Engine = engine
			for _, n := range cases {
				c.Clusters = append(c.Clusters, n.cluster)
				c.Routes = append(c.Routes, policy.RouteConfig{Path: "/" + n.cluster.Name, Cluster: n.cluster.Name})
			}
		})
		for version, client := range versions(t) {
			for _, n := range cases {
				for _, size := range []int{0, 1, 100_000} {
					body := strings.Repeat("x", size)
					res, got := requested(t, client, "POST", g.url+"/"+n.cluster.Name, body)
					if n.want == "" {
						if res.StatusCode != 502 {
							t.Errorf("%s, %s, %s: %d %.80q, want 502", engine, version, n.cluster.Name, res.StatusCode, got)
						}
						break
					}
					if want := fmt.Sprintf("%s %d %s", n.want, size, body); res.StatusCode != 200 || got != want {
						t.Errorf("%s, %s, %s: %d %.80q, want %.80q", engine, version, n.cluster.Name, res.StatusCode, got, want)
					}
				}
			}
		}
	}
}

// A nationalCluster is one configuration of tls.gm and what its backend reports; empty: the
// handshake is refused.
type nationalCluster struct {
	cluster upstream.Config
	want    string
}

func nationalClusters(t *testing.T, file func(string) string, roots *smx509.CertPool, pair *gm.Pair) (list []nationalCluster) {
	t.Helper()
	protocols := []string{"h2", "http/1.1"}
	pick := func(string) *gm.Pair { return pair }
	open := &gm.ServerConfig{Pick: pick, Protocols: protocols}
	strict := &gm.ServerConfig{Pick: pick, Protocols: protocols, ClientAuth: gm.RequireClientCert, ClientCAs: roots}
	own := upstream.GMClientConfig{
		SignCertFile: file("client-sign.pem"), SignKeyFile: file("client-sign.key"), EncCertFile: file("client-enc.pem"), EncKeyFile: file("client-enc.key"),
	}
	with := func(name, address, protocol, httpVersion, want string, c upstream.GMClientConfig) {
		c.Protocol = protocol
		list = append(list, nationalCluster{upstream.Config{
			Name: name, Peers: []upstream.PeerConfig{{Address: address}}, Protocol: httpVersion,
			TLS: upstream.TLSConfig{CAFiles: []string{file("ca.pem")}, GM: c},
		}, want})
	}
	for _, p := range []struct {
		name                 string
		version              uint16
		suite, mutual, other string
	}{
		{"tlcp", gm.VersionTLCP, "ECC_SM4_GCM_SM3", "ECDHE_SM4_GCM_SM3", "tls13"},
		{"tls13", gm.VersionTLS13, "TLS_SM4_GCM_SM3", "TLS_SM4_GCM_SM3", "tlcp"},
	} {
		plain, mutual := nationalBackend(t, open, p.version), nationalBackend(t, strict, p.version)
		for version, proto := range map[string]string{upstream.HTTP1: "HTTP/1.1", upstream.HTTP2: "HTTP/2.0"} {
			name := p.name + "-" + version
			with(name, plain, p.name, version, proto+" "+p.suite+" client=none", upstream.GMClientConfig{})
			with(name+"-mutual", mutual, p.name, version, proto+" "+p.mutual+" client=weir", own)
			with(name+"-other", plain, p.other, version, "", upstream.GMClientConfig{})
			with(name+"-anonymous", mutual, p.name, version, "", upstream.GMClientConfig{})
		}
	}
	return list
}
