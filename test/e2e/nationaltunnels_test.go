package e2e

import (
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
	"github.com/weir-gateway/weir/test/judge"
)

// A nationalListener does the handshakes of TLCP or RFC 8998 for net/http.
type nationalListener struct {
	net.Listener
	t       *testing.T
	cfg     *gm.ServerConfig
	version uint16
}

func (l *nationalListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		shrink(c)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		state, err := gm.Server(c, l.cfg, l.version)
		if err == nil {
			_ = c.SetDeadline(time.Time{})
			return gm.NewStream(c, state), nil
		}
		l.t.Logf("backend: %v", err)
		_ = c.Close()
	}
}

// newNationalBackend is newTunnelBackend over national cryptography: its clusters are called by their protocol.
func newNationalBackend(t *testing.T) *tunnelBackend {
	t.Helper()
	dir := t.TempDir()
	if _, err := gm.WriteTestChain(gm.TestChain{Dir: dir, Hosts: []string{"127.0.0.1"}, Client: "weir", Lifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	pair, err := gm.LoadPair(gm.PairFiles{SignCert: file("sign.pem"), SignKey: file("sign.key"), EncCert: file("enc.pem"), EncKey: file("enc.key")}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots, _, err := gm.LoadPool([]string{file("ca.pem")})
	if err != nil {
		t.Fatal(err)
	}
	b := &tunnelBackend{gone: map[string]error{}}
	add := func(name, protocol string, version uint16, own map[string]any) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg := &gm.ServerConfig{Pick: func(string) *gm.Pair { return pair }, Protocols: []string{"http/1.1"}}
		if len(own) > 0 {
			cfg.ClientAuth, cfg.ClientCAs = gm.RequireClientCert, roots
		}
		s := &http.Server{Handler: b, ReadHeaderTimeout: time.Minute}
		var served sync.WaitGroup
		served.Go(func() { _ = s.Serve(&nationalListener{l, t, cfg, version}) })
		t.Cleanup(func() { _ = s.Close(); served.Wait() })
		national := map[string]any{"protocol": protocol}
		maps.Copy(national, own)
		b.clusters = append(b.clusters, map[string]any{
			"name": name, "peers": []any{map[string]any{"address": "https://" + l.Addr().String()}},
			"tls": map[string]any{"ca_files": []any{file("ca.pem")}, "gm": national},
		})
		b.routes = append(b.routes, map[string]any{"name": name, "path": "/" + name + "/*", "cluster": name})
	}
	client := map[string]any{
		"sign_cert_file": file("client-sign.pem"), "sign_key_file": file("client-sign.key"), "enc_cert_file": file("client-enc.pem"), "enc_key_file": file("client-enc.key"),
	}
	add("tlcp", "tlcp", gm.VersionTLCP, nil)
	add("mutual", "tlcp", gm.VersionTLCP, client)
	add("tls13", "tls13", gm.VersionTLS13, nil)
	return b
}

// Tunnels to backends of TLCP and RFC 8998 continue in the new process, in the middle of what is under way, and are drained
// there as others are.
func TestNationalTunnelsMoveInAnUpgrade(t *testing.T) {
	t.Parallel()
	onEngines(t, nationalUpgrades)
}

func nationalUpgrades(t *testing.T, engine string) {
	b := newNationalBackend(t)
	config := map[string]any{
		"clusters": b.clusters, "routes": b.routes, "shutdown": map[string]any{"drain": "5s"}, "eventloop": map[string]any{"engine": engine, "loops": 2},
	}
	s := judge.New(t, judge.Options{Build: judge.Race, Memory: true, Config: config})
	defer func() {
		if t.Failed() {
			t.Log(s.Log())
		}
	}()
	u := &tunnelUser{t: t, hurry: &b.hurry, over: map[string]error{}, header: http.Header{}}
	streams := &nodetest.Bridge{To: s.Public}
	streams.Start(t, t.Cleanup)
	var all, bulk []*duplex
	want := map[string]float64{}
	for _, c := range b.clusters {
		name := c.(map[string]any)["name"].(string)
		all = append(all, u.open("ws", s.Public, "/"+name+"/direct"), u.open("ws", streams.Addr, "/"+name+"/stream"))
		bulk = append(bulk, u.open("ws", s.Public, "/"+name+"/direct.bulk"))
		want[name] = 3
	}
	for i := range 2 {
		u.progress(slices.Concat(all, bulk), 20)
		if r := s.Upgrade(); r.Step != "done" || r.Refused > 0 {
			t.Fatalf("upgrade %d: %+v", i, r)
		}
		wantTunnels(t, s, want)
	}
	u.progress(slices.Concat(all, bulk), 20)
	b.hurry.Store(true)
	for _, d := range bulk {
		d.end()
		judge.Eventually(t, 30*time.Second, d.name+" ends", func() bool { _, over := u.ended(d); return over })
		if err, _ := u.ended(d); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if err := d.c.Close(1000, ""); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
	}
	s.Terminate()
	for _, d := range all {
		u.wantClose(d, 1012)
	}
	u.wait.Wait()
	s.Start()
}
