package gm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/emmansun/gmsm/smx509"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is one test chain, shared by all tests.
var world = sync.OnceValue(func() *testWorld {
	root := must(NewRoot("root", time.Hour))
	mid := must(root.Intermediate("intermediate", time.Hour))
	w := &testWorld{root: root, mid: mid}
	w.server = w.pair(mid, "server", "localhost")
	w.client = w.pair(mid, "client")
	w.other = w.pair(must(NewRoot("other", time.Hour)), "unknown", "localhost")
	w.pool = smx509.NewCertPool()
	w.pool.AddCert(must(smx509.ParseCertificate(root.Cert.Raw)))
	return w
})

type testWorld struct {
	root, mid             *Authority
	server, client, other *Pair
	pool                  *smx509.CertPool
}

func (w *testWorld) pair(a *Authority, name string, hosts ...string) *Pair {
	sign, signKey, err := a.Issue(Request{Name: name, Hosts: hosts, Lifetime: time.Hour, Usage: smx509.KeyUsageDigitalSignature})
	must(0, err)
	enc, encKey, err := a.Issue(Request{Name: name, Hosts: hosts, Lifetime: time.Hour, Usage: smx509.KeyUsageKeyEncipherment | smx509.KeyUsageKeyAgreement})
	must(0, err)
	p := &Pair{Sign: sign, Enc: enc, signKey: signKey, encKey: encKey}
	if !bytes.Equal(a.Cert.RawSubject, a.Cert.RawIssuer) {
		p.Chain = [][]byte{a.Cert.Raw}
	}
	return p
}

func (w *testWorld) serverConfig() *ServerConfig {
	keys := [][32]byte{{1}, {2}}
	return &ServerConfig{
		Pick: func(string) *Pair { return w.server }, ClientCAs: w.pool, Protocols: []string{"h2", "http/1.1"},
		TicketKeys: func() [][32]byte { return keys }, Sessions: NewSessionCache(16),
	}
}

func (w *testWorld) clientConfig(suite *Suite) *ClientConfig {
	return &ClientConfig{
		Version: suite.Version, Suites: []uint16{suite.ID}, ServerName: "localhost", RootCAs: w.pool, Protocols: []string{"http/1.1"},
	}
}

type outcome struct {
	state *State
	err   error
}

// shake runs both sides over a pipe with buffers, and closes what has failed.
func shake(s *ServerConfig, c *ClientConfig) (server, client outcome) {
	a, b := must2(tcpPair())
	defer a.Close()
	defer b.Close()
	return shakeOver(a, b, s, c, 30*time.Second)
}

func shakeOver(a, b net.Conn, s *ServerConfig, c *ClientConfig, patience time.Duration) (server, client outcome) {
	for _, conn := range []net.Conn{a, b} {
		_ = conn.SetDeadline(time.Now().Add(patience))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.state, server.err = Server(a, s, c.Version)
		if server.err != nil {
			_ = a.(*net.TCPConn).CloseWrite()
		}
	}()
	client.state, client.err = Client(b, c)
	if client.err != nil {
		_ = b.(*net.TCPConn).CloseWrite()
	}
	<-done
	if server.err == nil && client.err == nil && client.state.Tickets != nil && server.state.Out.Seq > 0 {
		c := newConn(b, c.Version)
		c.in.set(client.state.Suite, client.state.In)
		_, data, err := c.readRecord()
		client.err = err
		client.state.Tickets.Add(data)
		client.state.In = c.in.keys
	}
	return server, client
}

func must2(a, b net.Conn, err error) (net.Conn, net.Conn) {
	must(0, err)
	return a, b
}

func tcpPair() (a, b net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if b, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	a, err = l.Accept()
	return a, b, err
}

// exchange sends data each way under the keys of a handshake.
func exchange(t *testing.T, from, to *Keys, s *Suite, data []byte) {
	t.Helper()
	c, d := newConn(nil, s.Version), newConn(nil, s.Version)
	c.out.set(s, *from)
	c.record(recordData, data)
	d.in.set(s, *to)
	d.rw = struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(c.flight), io.Discard}
	var got []byte
	for len(got) < len(data) {
		typ, b, err := d.readRecord()
		if err != nil || typ != recordData {
			t.Fatalf("after %d of %d bytes: type %d, %v", len(got), len(data), typ, err)
		}
		got = append(got, b...)
	}
	if !bytes.Equal(got, data) {
		t.Error("data arrives changed")
	}
}

func TestEverySuiteWithAndWithoutClientCertificatesAndResumed(t *testing.T) {
	for _, s := range Suites {
		for _, auth := range []ClientAuth{NoClientCert, RequestClientCert, RequireClientCert} {
			if s.ecdhe && auth != RequireClientCert {
				continue
			}
			for _, tickets := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/auth=%d/tickets=%v", s.Name, auth, tickets), func(t *testing.T) {
					t.Parallel()
					w := world()
					sc, cc := w.serverConfig(), w.clientConfig(s)
					sc.ClientAuth = auth
					if auth == RequireClientCert {
						cc.Pair = w.client
					}
					if !tickets {
						sc.TicketKeys = nil
					}
					cc.Sessions, cc.SessionKey = NewClientSessions(4), "peer"
					for round := range 3 {
						server, client := shake(sc, cc)
						if server.err != nil || client.err != nil {
							t.Fatalf("round %d: server %v, client %v", round, server.err, client.err)
						}
						a, b := server.state, client.state
						want := round > 0 && (tickets || s.Version == VersionTLCP)
						if a.Resumed != want || b.Resumed != want {
							t.Errorf("round %d: server resumed %v, client %v, want %v", round, a.Resumed, b.Resumed, want)
						}
						if a.Suite != s || b.Suite != s || a.Protocol != "http/1.1" || b.Protocol != "http/1.1" || a.ServerName != "localhost" {
							t.Errorf("round %d: %+v, %+v", round, a, b)
						}
						if got := len(a.Chains) > 0; got != (auth == RequireClientCert) {
							t.Errorf("round %d: client verified: %v", round, got)
						}
						sizes := []int{1, 15, 16, 17, 1000}
						if round == 0 && auth == NoClientCert && tickets {
							sizes = append(sizes, maxPlaintext, maxPlaintext+1, 1<<20)
						}
						for _, n := range sizes {
							data := bytes.Repeat([]byte{'x'}, n)
							exchange(t, &a.Out, &b.In, s, data)
							exchange(t, &b.Out, &a.In, s, data)
						}
					}
				})
			}
		}
	}
}

func TestLoadPairNamesWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	files, err := WriteTestChain(TestChain{Dir: dir, Hosts: []string{"localhost"}, Client: "alice", Lifetime: time.Hour})
	if err != nil || len(files) != 9 {
		t.Fatalf("%v, %v", files, err)
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	good := PairFiles{SignCert: path("sign.pem"), SignKey: path("sign.key"), EncCert: path("enc.pem"), EncKey: path("enc.key")}
	p, err := LoadPair(good, time.Now())
	if err != nil || len(p.Chain) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	f := func(want string, change func(*PairFiles)) {
		t.Helper()
		bad := good
		change(&bad)
		_, err := LoadPair(bad, time.Now())
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	f("cannot be the signing one: key usage is keyEncipherment+dataEncipherment+keyAgreement", func(p *PairFiles) { p.SignCert, p.SignKey = p.EncCert, p.EncKey })
	f("cannot be the encryption one: key usage is digitalSignature", func(p *PairFiles) { p.EncCert, p.EncKey = p.SignCert, p.SignKey })
	f("the key does not belong to the certificate", func(p *PairFiles) { p.SignKey = p.EncKey })
	f("no PEM private key", func(p *PairFiles) { p.SignKey = p.SignCert })
	f("no PEM certificate", func(p *PairFiles) { p.EncCert = p.EncKey })
	f("no such file", func(p *PairFiles) { p.EncKey = path("missing") })
	if _, err := WriteTestChain(TestChain{Dir: dir, Hosts: []string{"localhost"}, Lifetime: time.Hour}); err == nil {
		t.Error("files are overwritten")
	}
}

// list is what a party presents.
func (p *Pair) list() []*smx509.Certificate { return []*smx509.Certificate{p.Sign, p.Enc} }

func isAlert(err error, alert uint8) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Alert == alert
}
