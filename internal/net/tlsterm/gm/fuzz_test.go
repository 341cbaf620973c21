package gm

import (
	"bytes"
	"crypto/rand"
	"io"
	"testing"

	"github.com/emmansun/gmsm/ecdh"
)

// hellos are what clients of both protocols start with.
func hellos(t testing.TB) (list [][]byte) {
	t.Helper()
	for _, s := range Suites {
		var sent bytes.Buffer
		_, _ = Client(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(nil), &sent}, world().clientConfig(s))
		list = append(list, sent.Bytes())
	}
	return list
}

// FuzzServer gives a server any bytes: none may make it panic, and none are a handshake.
func FuzzServer(f *testing.F) {
	for _, h := range hellos(f) {
		f.Add(h)
		f.Add(h[:len(h)/2])
		f.Add(append(bytes.Clone(h), h...))
	}
	sc := world().serverConfig()
	sc.ClientAuth = RequireClientCert
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, version := range []uint16{VersionTLCP, VersionTLS13} {
			if _, err := Server(struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(b), io.Discard}, sc, version); err == nil {
				t.Fatal("a handshake without a client")
			}
		}
	})
}

// FuzzClient gives a client any answer.
func FuzzClient(f *testing.F) {
	for _, s := range Suites {
		m := serverHello{version: VersionTLCP, random: make([]byte, randomLen), suite: s.ID}
		if s.Version == VersionTLS13 {
			m.version, m.selected, m.share = VersionTLS12, VersionTLS13, keyShare{groupSM2, must(ecdh.P256().GenerateKey(rand.Reader)).PublicKey().Bytes()}
		}
		c := newConn(nil, s.Version)
		c.write(m.marshal())
		if s.Version == VersionTLCP {
			c.write(certificateList(world().server))
		}
		f.Add(c.flight)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, s := range Suites {
			if _, err := Client(struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(b), io.Discard}, world().clientConfig(s)); err == nil {
				t.Fatal("a handshake without a server")
			}
		}
	})
}

// FuzzMessages parses any bytes as each message.
func FuzzMessages(f *testing.F) {
	for _, h := range hellos(f) {
		f.Add(h[headerLen:])
	}
	w := world()
	f.Add(certificateList(w.server))
	f.Add(certificateEntries(w.server, []byte{1, 2, 3}))
	f.Add((&serverHello{version: VersionTLCP, random: make([]byte, 32), suite: ECC_SM4_GCM_SM3, ticket: true, protocol: "h2"}).marshal())
	f.Add((&serverHello{version: VersionTLS12, random: make([]byte, 32), suite: TLS_SM4_GCM_SM3, selected: VersionTLS13, share: keyShare{groupSM2, []byte{4}}}).marshal())
	s := session{version: VersionTLCP, secret: make([]byte, 48), peer: w.client.list()}
	f.Add(append([]byte{msgNewSessionTicket, 0, 0, 0}, s.marshal()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		Sniff(b)
		if len(b) < 4 {
			return
		}
		var ch clientHello
		if ch.parse(b) {
			again := ch
			raw := again.marshal()
			var twice clientHello
			if len(ch.psk) == 0 && len(raw) < maxMessage && !twice.parse(raw) {
				t.Fatalf("%x is parsed, and %x is not", b, raw)
			}
		}
		var sh serverHello
		if sh.parse(b) {
			sh.marshal()
		}
		_, _ = parseCertificateList(b)
		_, _ = parseCertificateEntries(b)
		_, _ = signatureOf(b)
		body := bodyOf(b)
		_, _, _ = readKeyParams(&body)
		var s session
		if s.parse(b[4:]) {
			if again := s.marshal(); !bytes.Equal(again, b[4:]) {
				t.Fatalf("%x comes back as %x", b[4:], again)
			}
		}
		keys := [][32]byte{{1}}
		if openTicket(keys, b) != nil {
			t.Fatal("a forged ticket")
		}
		tickets := Tickets{sessions: NewClientSessions(1), key: "x", master: make([]byte, HashLen)}
		tickets.Add(b)
		_ = checkStaple(b, w.server.Sign, w.server.Sign.NotBefore)
	})
}

// FuzzCBC opens any record, and what was sealed.
func FuzzCBC(f *testing.F) {
	f.Add([]byte("hello"), uint16(3), byte(1))
	f.Add(make([]byte, 300), uint16(0), byte(0))
	suite := SuiteOf(VersionTLCP, ECC_SM4_CBC_SM3)
	a := suite.AEAD(make([]byte, KeyLen), make([]byte, HashLen))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, change byte) {
		if len(b) > maxPlaintext {
			return
		}
		ad := func() []byte { return make([]byte, 13) }
		with := ad()
		with[11], with[12] = byte(len(b)>>8), byte(len(b))
		sealed := a.Seal(nil, nil, b, with)
		if len(sealed) != suite.SealedLen(len(b)) {
			t.Fatalf("%d bytes sealed to %d, want %d", len(b), len(sealed), suite.SealedLen(len(b)))
		}
		sealed[int(at)%len(sealed)] ^= change
		plain, err := a.Open(nil, nil, sealed, ad())
		if change == 0 && (err != nil || !bytes.Equal(plain, b)) {
			t.Fatalf("%x: %x, %v", b, plain, err)
		}
		if change != 0 && err == nil {
			t.Fatalf("an altered record opens: byte %d ^ %x", at, change)
		}
		_, _ = a.Open(nil, nil, bytes.Clone(b), ad())
	})
}
