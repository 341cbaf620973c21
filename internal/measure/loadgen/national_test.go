package loadgen_test

import (
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// gmListener accepts connections with national cryptography.
type gmListener struct {
	net.Listener
	cfg     *gm.ServerConfig
	version uint16
}

func (l *gmListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s, err := gm.Server(raw, l.cfg, l.version)
	if err != nil {
		return raw, nil // http.Server finds that it says nothing
	}
	return gm.NewStream(raw, s), nil
}

func TestLoadOverNationalCryptography(t *testing.T) {
	dir := t.TempDir()
	if _, err := gm.WriteTestChain(gm.TestChain{Dir: dir, Hosts: []string{"localhost"}, Lifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	pair, err := gm.LoadPair(gm.PairFiles{SignCert: file("sign.pem"), SignKey: file("sign.key"), EncCert: file("enc.pem"), EncKey: file("enc.key")}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for kind, version := range map[string]uint16{"tlcp": gm.VersionTLCP, "tls13": gm.VersionTLS13} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(hello), ReadHeaderTimeout: time.Minute}
		go func() {
			_ = s.Serve(&gmListener{l, &gm.ServerConfig{Pick: func(string) *gm.Pair { return pair }}, version})
		}()
		win := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: "https://" + l.Addr().String() + "/", Insecure: true, GM: kind, Conns: 2, Arrival: loadgen.Uniform},
			loadgen.Load{Rate: 200}, 300*time.Millisecond)
		faultless(t, win, 60)
		_ = s.Close()
	}
}

func TestLoadOverNationalCryptographyNeedsTLS(t *testing.T) {
	for _, s := range []loadgen.Spec{
		{Kind: loadgen.HTTP, Target: "http://localhost/", GM: "tlcp"},
		{Kind: loadgen.HTTP, Target: "https://localhost/", GM: "sm4"},
		{Kind: loadgen.HTTP, Target: "https://localhost/", GM: "tls13", Version: "2"},
	} {
		if err := s.WithDefaults().Validate(); err == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}
