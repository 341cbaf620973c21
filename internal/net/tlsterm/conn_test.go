package tlsterm

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// versions and suites that a client may request.
var kinds = []struct {
	name    string
	version uint16
	suite   uint16 // TLS 1.2 only: a TLS 1.3 client does not choose
	rsa     bool
}{
	{"TLS 1.3", tls.VersionTLS13, 0, false},
	{"TLS 1.2 AES-128", tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, false},
	{"TLS 1.2 AES-256", tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, false},
	{"TLS 1.2 ChaCha", tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, false},
	{"TLS 1.2 RSA", tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, true},
}

func eachKind(t *testing.T, f func(t *testing.T, s *server, ask func(*tls.Config))) {
	dir := t.TempDir()
	s := serve(t, Config{Certificates: []Certificate{
		save(t, dir, "ecdsa", ca().leaf(t, nil, "localhost")),
		save(t, dir, "rsa", ca().leafOf(t, rsaKey(), nil, "localhost")),
	}}, echoes)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			f(t, s, func(c *tls.Config) {
				c.MinVersion, c.MaxVersion = k.version, k.version
				if k.suite != 0 {
					c.CipherSuites = []uint16{k.suite}
				}
			})
		})
	}
}

func roundTrip(t testing.TB, c io.ReadWriter, b []byte) {
	t.Helper()
	var sent sync.WaitGroup
	sent.Go(func() {
		if _, err := c.Write(b); err != nil {
			t.Errorf("write: %v", err)
		}
	})
	got := make([]byte, len(b))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("read: %v", err)
	}
	sent.Wait()
	if !bytes.Equal(got, b) {
		t.Fatalf("%d bytes came back changed", len(b))
	}
}

func text(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestBytesOfEverySizeComeBackInEveryVersion(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server, ask func(*tls.Config)) {
		c := dial(t, s, ask)
		for _, n := range []int{1, 2, 15, 16, 17, 255, 1000, 16383, 16384, 16385, 70_000, 3 << 20} {
			roundTrip(t, c, text(n))
		}
	})
}

func TestTheAgreedProtocolIsHTTP11(t *testing.T) {
	s := serve(t, Config{}, echoes)
	f := func(want string, offered ...string) {
		t.Helper()
		c := dial(t, s, func(c *tls.Config) { c.NextProtos = offered })
		if got := c.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("offered %v: agreed on %q, want %q", offered, got, want)
		}
	}
	f("")
	f("http/1.1", "http/1.1")
	f("http/1.1", "h2", "http/1.1")
	if _, err := tls.Dial("tcp", s.addr, client(func(c *tls.Config) { c.NextProtos = []string{"h2"} })); err == nil {
		t.Error("h2 alone was accepted")
	}
}

func TestOldVersionsAndCBCAreRefused(t *testing.T) {
	s := serve(t, Config{}, echoes)
	f := func(what string, change func(*tls.Config)) {
		t.Helper()
		if c, err := tls.Dial("tcp", s.addr, client(change)); err == nil {
			_ = c.Close()
			t.Errorf("%s was accepted", what)
		}
	}
	f("TLS 1.1", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })
	f("CBC", func(c *tls.Config) {
		c.MaxVersion = tls.VersionTLS12
		c.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA}
	})
	only13 := serve(t, Config{MinVersion: "1.3"}, echoes)
	if _, err := tls.Dial("tcp", only13.addr, client(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })); err == nil {
		t.Error("TLS 1.2 was accepted where 1.3 is the least")
	}
	only12 := serve(t, Config{MaxVersion: "1.2"}, echoes)
	if v := dial(t, only12, nil).ConnectionState().Version; v != tls.VersionTLS12 {
		t.Errorf("version %x where 1.2 is the most", v)
	}
}

// splitter sends what it is given in pieces of n bytes.
type splitter struct {
	net.Conn
	n int
}

func (s splitter) Write(b []byte) (int, error) {
	for at := 0; at < len(b); at += s.n {
		if _, err := s.Conn.Write(b[at:min(at+s.n, len(b))]); err != nil {
			return at, err
		}
	}
	return len(b), nil
}

func TestRecordsMaySplitAnywhere(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server, ask func(*tls.Config)) {
		for _, n := range []int{1, 2, 3, 5, 7, 64, 1000} {
			raw, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			c := tls.Client(splitter{raw, n}, client(ask))
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			roundTrip(t, c, text(700*n))
			roundTrip(t, c, text(3))
			_ = c.Close()
		}
	})
}

// corked holds what is written back until the handshake's last flight, and
// sends it together with what follows.
type corked struct {
	net.Conn
	hold bool
	held []byte
}

func (c *corked) Write(b []byte) (int, error) {
	if c.hold {
		c.held = append(c.held, b...)
		return len(b), nil
	}
	_, err := c.Conn.Write(append(c.held, b...))
	c.held = nil
	return len(b), err
}

// Data may be right behind the client's Finished, in the same segment; and so
// may be everything: a request, close_notify and the end of the stream.
func TestDataBehindTheHandshakeIsNotLost(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server, ask func(*tls.Config)) {
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		cork := &corked{Conn: raw}
		cfg := client(ask)
		// The server's certificate is seen after the first flight and before the last.
		cfg.VerifyConnection = func(tls.ConnectionState) error { cork.hold = cfg.MaxVersion == tls.VersionTLS13; return nil }
		c := tls.Client(cork, cfg)
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		want := text(40_000)
		cork.hold = true
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		cork.hold = false
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_ = raw.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes and %v came back, want %d", len(got), err, len(want))
		}
	})
}

// ends records why a connection was closed.
type ends struct {
	echo
	keep bool // after the peer's end
	why  chan error
}

func (e ends) Closed(_ *eventloop.Conn, err error) { e.why <- err }
func (e ends) EndOfStream(*eventloop.Conn) bool    { return e.keep }

func TestCloseNotifyEndsAStreamInOrder(t *testing.T) {
	why := make(chan error, 1)
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { return ends{why: why} })
	c := dial(t, s, nil)
	roundTrip(t, c, text(10))
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after close_notify the server answered %d bytes and %v, want its own close_notify", n, err)
	}
	if err := <-why; err != nil {
		t.Errorf("the handler was notified of %v", err)
	}
}

func TestAStreamCutShortIsAnError(t *testing.T) {
	why := make(chan error, 1)
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { return ends{why: why} })
	c := dial(t, s, nil)
	roundTrip(t, c, text(10))
	_ = c.NetConn().Close()
	if err := <-why; !errors.Is(err, eventloop.ErrTruncated) {
		t.Errorf("the handler was notified of %v, want %v", err, eventloop.ErrTruncated)
	}
}

// says sends its last words at once and closes.
type says struct {
	echo
	words []byte
}

func (h says) Data(c *eventloop.Conn, b []byte) int {
	c.Write(h.words[:1])
	c.Send(h.words[1:])
	c.CloseAfterFlush()
	return len(b)
}

func TestLastWordsArriveBeforeCloseNotify(t *testing.T) {
	words := text(2 << 20) // more than the socket takes
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { return says{words: words} })
	c := dial(t, s, nil)
	if _, err := c.Write([]byte("speak")); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, words) {
		t.Errorf("%d bytes and %v, want %d", len(got), err, len(words))
	}
}

// queues answers every byte by all three ways of sending, in order.
type queues struct{ echo }

func (queues) Data(c *eventloop.Conn, b []byte) int {
	for range b {
		c.Write([]byte("w"))
		c.Send([]byte("s"))
		c.Queue([]byte("q"))
		c.Queue(bytes.Repeat([]byte("Q"), 20_000))
		c.Write([]byte("x"))
	}
	return len(b)
}

func TestAllWaysOfSendingKeepTheirOrder(t *testing.T) {
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { return queues{} })
	c := dial(t, s, nil)
	if _, err := c.Write([]byte("12")); err != nil {
		t.Fatal(err)
	}
	one := "wsq" + string(bytes.Repeat([]byte("Q"), 20_000)) + "x"
	got := make([]byte, 2*len(one))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != one+one {
		t.Errorf("the order was not kept (%v)", err)
	}
}

// gulps consumes pairs of bytes only, and rests after each.
type gulps struct {
	echo
}

func (gulps) Data(c *eventloop.Conn, b []byte) int {
	if len(b) < 2 {
		return 0
	}
	c.Write(b[:2])
	c.PauseReading()
	c.Loop().Post(c.ResumeReading)
	return 2
}

func TestAPausedHandlerLosesNothing(t *testing.T) {
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { return gulps{} })
	c := dial(t, s, nil)
	roundTrip(t, c, text(30_000))
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the end was reported as %v", err)
	}
}

func TestASlowReaderGetsEverything(t *testing.T) {
	shared := text(300 << 10)
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { return sends{b: shared, n: 8} })
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c := dial(t, s, func(c *tls.Config) { c.MaxVersion = v })
		if _, err := c.Write([]byte("go")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a stalled connection", func() bool {
			var n uint64
			for _, l := range s.group.Loops() {
				n += l.Stats().Stalls
			}
			return n > 0
		})
		got := make([]byte, len(shared))
		for i := range 8 {
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, shared) {
				t.Fatalf("message %d: %v", i, err)
			}
		}
	}
}

// sends answers with n references to b.
type sends struct {
	echo
	b []byte
	n int
}

func (h sends) Data(c *eventloop.Conn, b []byte) int {
	for range h.n {
		c.Send(h.b)
	}
	return len(b)
}

func TestPlainHTTPIsAnsweredWithAHintToTLS(t *testing.T) {
	s := serve(t, Config{}, echoes)
	f := func(sent, want string) {
		t.Helper()
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, sent)
		got, err := io.ReadAll(c)
		if err != nil || !bytes.HasPrefix(got, []byte(want)) {
			t.Errorf("%.20q: got %.80q and %v, want %q", sent, got, err, want)
		}
	}
	f("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n")
	f("SSH-2.0-x\r\n", "\x15\x03\x01\x00\x02\x02\x0a")
	f("\x16\x03\x01\x00\x00", "\x15")                                             // an empty record
	f("\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", "\x15")                         // a ServerHello
	f("\x16\x03\x01\x00\x05\x01\xff\xff\xff\x00", "\x15\x03\x01\x00\x02\x02\x32") // 16 MB of ClientHello
	f("\x16\x03\x01\x40\x01\x01", "\x15\x03\x01\x00\x02\x02\x16")                 // a record of 16,385 bytes
	if n := s.Stats().NotTLS; n != 6 {
		t.Errorf("%d were counted, want 6", n)
	}
}

func TestEveryConnectionIsFiltered(t *testing.T) {
	saw := make(chan string, 1)
	s := serve(t, Config{}, func(c *eventloop.Conn) eventloop.Handler { return looks{saw: saw} })
	c := dial(t, s, nil)
	roundTrip(t, c, []byte("x"))
	if got, want := <-saw, fmt.Sprintf("%v tlsterm.looks", true); got != want {
		t.Errorf("the handler saw %q, want %q", got, want)
	}
}

type looks struct {
	echo
	saw chan string
}

func (h looks) Data(c *eventloop.Conn, b []byte) int {
	h.saw <- fmt.Sprintf("%v %T", c.Filtered(), c.Handler())
	return h.echo.Data(c, b)
}
