package gm

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emmansun/gmsm/smx509"
)

// A tamper alters one record on its way. It returns what continues instead, and whether the
// connection ends behind it.
type tamper struct {
	name  string
	alter func(rec []byte) (out []byte, end bool)
}

// flip changes a byte of the body, or the type of a message without one: a length that
// grows would only make its reader wait.
func flip(part int) tamper {
	return tamper{fmt.Sprintf("byte at %d/4", part), func(rec []byte) ([]byte, bool) {
		out := bytes.Clone(rec)
		from := headerLen
		if len(rec) > headerLen+4 {
			from += 4
			out[min(from+(len(rec)-from)*part/4, len(rec)-1)] ^= 0x41
		} else {
			out[from] ^= 0x41
		}
		return out, false
	}}
}

var tampers = []tamper{
	flip(0), flip(1), flip(2), flip(3), flip(4),
	{"cut", func(rec []byte) ([]byte, bool) { return rec[:headerLen+(len(rec)-headerLen)/2], true }},
	{"cut in its head", func(rec []byte) ([]byte, bool) { return rec[:3], true }},
	{"oversized", func(rec []byte) ([]byte, bool) {
		out := append(bytes.Clone(rec), make([]byte, 0xffff-len(rec)+headerLen)...)
		binary.BigEndian.PutUint16(out[3:], 0xffff)
		return out, false
	}},
	{"twice", func(rec []byte) ([]byte, bool) { return append(bytes.Clone(rec), rec...), false }},
	{"left out", func([]byte) ([]byte, bool) { return nil, true }},
	{"of another type", func(rec []byte) ([]byte, bool) { return append([]byte{rec[0] ^ 1}, rec[1:]...), false }},
	{"of another version", func(rec []byte) ([]byte, bool) { return append([]byte{rec[0], 2, 0}, rec[3:]...), false }},
	{"a fatal alert", func(rec []byte) ([]byte, bool) { return []byte{recordAlert, rec[1], rec[2], 0, 2, 2, 80}, true }},
}

// relay passes records on and counts them; record n of it is tampered with.
type relay struct {
	n    int
	with *tamper
	seen int
}

func (r *relay) run(dst, src net.Conn) {
	defer func() { _ = dst.(*net.TCPConn).CloseWrite() }()
	for {
		head := make([]byte, headerLen)
		if _, err := io.ReadFull(src, head); err != nil {
			return
		}
		rec := append(head, make([]byte, binary.BigEndian.Uint16(head[3:]))...)
		if _, err := io.ReadFull(src, rec[headerLen:]); err != nil {
			return
		}
		end := false
		if r.with != nil && r.seen == r.n {
			rec, end = r.with.alter(rec)
		}
		r.seen++
		if _, err := dst.Write(rec); err != nil || end {
			return
		}
	}
}

// shakeThrough is shake with two relays between the sides.
func shakeThrough(s *ServerConfig, c *ClientConfig, up, down *relay) (server, client outcome) {
	a, fromServer := must2(tcpPair())
	b, fromClient := must2(tcpPair())
	var done sync.WaitGroup
	done.Go(func() { up.run(fromServer, fromClient) })
	done.Go(func() { down.run(fromClient, fromServer) })
	patience := 30 * time.Second
	if up.with != nil || down.with != nil {
		patience = 5 * time.Second // of a side that waits for what does not come
	}
	server, client = shakeOver(a, b, s, c, patience)
	for _, conn := range []net.Conn{a, b, fromServer, fromClient} {
		_ = conn.Close()
	}
	done.Wait()
	return server, client
}

// accepted reports whether the side that received the altered record came to its end all the
// same.
func accepted(o outcome) bool { return o.err == nil && o.state != nil }

func TestNoAlteredHandshakeIsAccepted(t *testing.T) {
	w := world()
	var mu sync.Mutex
	cases := 0
	for _, suite := range Suites {
		t.Run(suite.Name, func(t *testing.T) {
			t.Parallel()
			configs := func() (*ServerConfig, *ClientConfig) {
				sc, cc := w.serverConfig(), w.clientConfig(suite)
				sc.TicketKeys, sc.Sessions, sc.ClientAuth, cc.Pair = nil, nil, RequireClientCert, w.client
				return sc, cc
			}
			sc, cc := configs()
			var up, down relay
			if server, client := shakeThrough(sc, cc, &up, &down); server.err != nil || client.err != nil {
				t.Fatalf("unaltered: %v, %v", server.err, client.err)
			}
			total := [2]int{up.seen, down.seen}
			for direction := range 2 {
				for n := range total[direction] {
					for i := range tampers {
						last := n == total[direction]-1
						if tampers[i].name == "twice" && last {
							continue // what follows the handshake is not its affair
						}
						sc, cc := configs()
						relays := [2]*relay{{}, {}}
						relays[direction].n, relays[direction].with = n, &tampers[i]
						server, client := shakeThrough(sc, cc, relays[0], relays[1])
						hit := server
						if direction == 1 {
							hit = client
						}
						if accepted(hit) {
							t.Errorf("direction %d, record %d, %s: accepted", direction, n, tampers[i].name)
						}
						mu.Lock()
						cases++
						mu.Unlock()
					}
				}
			}
		})
	}
	t.Cleanup(func() {
		if cases < 200 {
			t.Errorf("%d cases, want 200", cases)
		}
	})
}

// modernChain is an SM2 leaf under an authority on P-256.
func modernChain(t *testing.T) (*Pair, *smx509.CertPool) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tmpl := &smx509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "P-256"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: smx509.KeyUsageCertSign,
	}
	root := must(smx509.ParseCertificate(must(smx509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key))))
	a := must(NewRoot("between", time.Hour))
	mid := &smx509.Certificate{
		SerialNumber: big.NewInt(2), Subject: a.Cert.Subject, NotBefore: tmpl.NotBefore, NotAfter: tmpl.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: smx509.KeyUsageCertSign, SubjectKeyId: a.Cert.SubjectKeyId,
	}
	cross := must(smx509.CreateCertificate(rand.Reader, mid, root, a.Cert.PublicKey, key))
	p := world().pair(a, "mixed", "localhost")
	p.Chain = [][]byte{cross}
	pool := smx509.NewCertPool()
	pool.AddCert(root)
	return p, pool
}

func TestCertificatesThatDoNotFitAreRefused(t *testing.T) {
	w := world()
	swapped := func(p *Pair) *Pair {
		return &Pair{Sign: p.Enc, Enc: p.Sign, Chain: p.Chain, signKey: p.encKey, encKey: p.signKey}
	}
	twice := func(p *Pair) *Pair {
		return &Pair{Sign: p.Sign, Enc: p.Sign, Chain: p.Chain, signKey: p.signKey, encKey: p.signKey}
	}
	mixed, modern := modernChain(t)
	for _, suite := range Suites {
		f := func(what string, change func(*ServerConfig, *ClientConfig), serverSees bool) {
			t.Helper()
			sc, cc := w.serverConfig(), w.clientConfig(suite)
			sc.ClientAuth, cc.Pair = RequireClientCert, w.client
			change(sc, cc)
			server, client := shake(sc, cc)
			err := client.err
			if serverSees {
				err = server.err
			}
			if err == nil {
				t.Errorf("%s: %s: accepted", suite.Name, what)
			}
		}
		serve := func(p *Pair) func(*ServerConfig, *ClientConfig) {
			return func(s *ServerConfig, _ *ClientConfig) { s.Pick = func(string) *Pair { return p } }
		}
		f("server's roles swapped", serve(swapped(w.server)), false)
		f("server of another authority", serve(w.other), false)
		f("server without its intermediate", serve(&Pair{Sign: w.server.Sign, Enc: w.server.Enc, signKey: w.server.signKey, encKey: w.server.encKey}), false)
		f("server with another's key", serve(&Pair{Sign: w.server.Sign, Enc: w.server.Enc, Chain: w.server.Chain, signKey: w.other.signKey, encKey: w.other.encKey}), false)
		f("another name", func(_ *ServerConfig, c *ClientConfig) { c.ServerName = "elsewhere.example" }, false)
		f("expired", func(_ *ServerConfig, c *ClientConfig) {
			c.Time = func() time.Time { return time.Now().Add(48 * time.Hour) }
		}, false)
		f("not valid yet", func(_ *ServerConfig, c *ClientConfig) {
			c.Time = func() time.Time { return time.Now().Add(-48 * time.Hour) }
		}, false)
		f("chain that ends on P-256", func(s *ServerConfig, c *ClientConfig) {
			s.Pick = func(string) *Pair { return mixed }
			c.RootCAs = modern
		}, false)
		f("client's roles swapped", func(_ *ServerConfig, c *ClientConfig) { c.Pair = swapped(w.client) }, true)
		f("client of another authority", func(_ *ServerConfig, c *ClientConfig) { c.Pair = w.other }, true)
		f("client with another's key", func(_ *ServerConfig, c *ClientConfig) {
			c.Pair = &Pair{Sign: w.client.Sign, Enc: w.client.Enc, Chain: w.client.Chain, signKey: w.other.signKey, encKey: w.other.encKey}
		}, true)
		f("client with a chain that ends on P-256", func(s *ServerConfig, c *ClientConfig) { c.Pair, s.ClientCAs = mixed, modern }, true)
		f("a client that the configuration refuses", func(s *ServerConfig, _ *ClientConfig) {
			s.VerifyClient = func([][]*smx509.Certificate) error { return io.EOF }
		}, true)
		f("no protocol in common", func(_ *ServerConfig, c *ClientConfig) { c.Protocols = []string{"other"} }, true)
		if suite.Version == VersionTLCP {
			f("server with one certificate for both", serve(twice(w.server)), false)
			f("client with one certificate for both", func(_ *ServerConfig, c *ClientConfig) { c.Pair = twice(w.client) }, true)
		}
		if !suite.ecdhe {
			f("no client certificate", func(_ *ServerConfig, c *ClientConfig) { c.Pair = nil }, true)
		}
	}
}

func TestNoDowngrade(t *testing.T) {
	w := world()
	f := func(what string, suite *Suite, version uint16, change func(*ClientConfig)) {
		t.Helper()
		a, b := must2(tcpPair())
		defer a.Close()
		defer b.Close()
		cc := w.clientConfig(suite)
		if change != nil {
			change(cc)
		}
		var server error
		var done sync.WaitGroup
		_ = a.SetDeadline(time.Now().Add(30 * time.Second))
		_ = b.SetDeadline(time.Now().Add(30 * time.Second))
		done.Go(func() {
			_, server = Server(a, w.serverConfig(), version)
			_ = a.Close()
		})
		_, client := Client(b, cc)
		_ = b.Close()
		done.Wait()
		if server == nil || client == nil {
			t.Errorf("%s: server %v, client %v", what, server, client)
		}
	}
	for _, s := range Suites {
		other := uint16(VersionTLS13)
		if s.Version == VersionTLS13 {
			other = VersionTLCP
		}
		f(s.Name+" to the other protocol", s, other, nil)
		f(s.Name+" with the other's suites", s, s.Version, func(c *ClientConfig) { c.Suites = []uint16{0x1301, 0xc02b} })
	}
}

func TestServerHelloThatWasNotOfferedIsRefused(t *testing.T) {
	for _, s := range Suites {
		f := func(what string, m serverHello) {
			t.Helper()
			if m.random == nil {
				m.random = make([]byte, randomLen)
			}
			c := newConn(nil, s.Version)
			c.write(m.marshal())
			rw := struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(c.flight), io.Discard}
			if _, err := Client(rw, world().clientConfig(s)); err == nil || strings.Contains(err.Error(), "EOF") {
				t.Errorf("%s: %s: %v", s.Name, what, err)
			}
		}
		version, selected := uint16(VersionTLCP), uint16(0)
		if s.Version == VersionTLS13 {
			version, selected = VersionTLS12, VersionTLS13
		}
		f("TLS 1.2", serverHello{version: VersionTLS12, suite: s.ID})
		f("TLS 1.1", serverHello{version: 0x0302, suite: s.ID})
		f("another suite", serverHello{version: version, selected: selected, suite: 0x1301})
		f("a session that was not offered", serverHello{version: version, selected: VersionTLS13, suite: s.ID, psk: true, share: keyShare{groupSM2, make([]byte, 65)}})
		f("a protocol that was not offered", serverHello{version: version, selected: selected, suite: s.ID, protocol: "other"})
		if s.Version == VersionTLS13 {
			f("another group", serverHello{version: version, selected: selected, suite: s.ID, share: keyShare{23, make([]byte, 65)}})
			f("a point that is not on the curve", serverHello{version: version, selected: selected, suite: s.ID, share: keyShare{groupSM2, append([]byte{4}, make([]byte, 64)...)}})
			f("a second hello for nothing", serverHello{version: version, selected: selected, suite: s.ID, random: []byte(retryRandom), retry: true, share: keyShare{group: groupSM2}})
			f("TLCP", serverHello{version: VersionTLCP, suite: s.ID})
		}
	}
}

func TestMessagesThatAreTooLongAreRefusedBeforeTheyAreRead(t *testing.T) {
	for _, version := range []uint16{VersionTLCP, VersionTLS13} {
		c := newConn(nil, version)
		c.record(recordHandshake, append([]byte{msgClientHello, 0xff, 0xff, 0xff}, make([]byte, 100)...))
		rw := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(c.flight), io.Discard}
		if _, err := Server(rw, world().serverConfig(), version); !isAlert(err, alertDecodeError) {
			t.Errorf("%#x: %v", version, err)
		}
	}
}
