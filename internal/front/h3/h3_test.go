package h3

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEverythingHoldsWithEpoll(t *testing.T) { trial.Again(t, trial.Engine, "epoll") }

// answerer handles a stream: it answers a head with what it got, or does what it is asked
// by the path.
type answerer struct {
	got   []byte
	world *world
}

// Data implements eventloop.Handler.
func (a *answerer) Data(c *eventloop.Conn, b []byte) int {
	first := len(a.got) == 0
	a.got = append(a.got, b...)
	switch {
	case bytes.HasPrefix(a.got, []byte("GET /large")):
		c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
		for range 64 {
			c.Send(bytes.Repeat([]byte("x"), 32<<10))
		}
		c.CloseAfterFlush()
	case bytes.HasPrefix(a.got, []byte("GET /open")):
		if first {
			c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
			a.world.open.Store(c)
		}
	case bytes.HasPrefix(a.got, []byte("POST /slow")):
		if first {
			a.world.open.Store(c)
			c.PauseReading()
		}
		a.answerAtEnd(c)
	case bytes.HasPrefix(a.got, []byte("POST ")):
		a.answerAtEnd(c)
	default:
		a.answer(c)
	}
	return len(b)
}

func (a *answerer) answerAtEnd(c *eventloop.Conn) {
	if bytes.HasSuffix(a.got, []byte("0\r\n\r\n")) || bytes.HasSuffix(a.got, []byte("0\r\nx-end: yes\r\n\r\n")) {
		a.answer(c)
	}
}

func (a *answerer) answer(c *eventloop.Conn) {
	c.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\nX-Own: 1\r\n\r\n"))
	c.Write(a.got)
	c.CloseAfterFlush()
}

// EndOfStream implements eventloop.Handler.
func (a *answerer) EndOfStream(*eventloop.Conn) bool { return true }

// Drained implements eventloop.Handler.
func (a *answerer) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler.
func (a *answerer) Timer(*eventloop.Conn, int64) {}

// Closed implements eventloop.Handler.
func (a *answerer) Closed(_ *eventloop.Conn, err error) {
	if err == nil {
		err = io.EOF
	}
	select {
	case a.world.closed <- err:
	default:
	}
}

// world is a server with one loop.
type world struct {
	t      *testing.T
	srv    *Server
	loop   *eventloop.Loop
	addr   *net.UDPAddr
	pool   *x509.CertPool
	open   atomic.Pointer[eventloop.Conn]
	closed chan error // of streams
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	g, err := eventloop.New(eventloop.Config{Engine: os.Getenv(trial.Engine), Loops: 1}, func(*eventloop.Conn) eventloop.Handler { return nil }, trial.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, loop: g.Loops()[0], closed: make(chan error, 1000)}
	w.srv = New(cfg, Front{
		Busy: func() bool { return false }, Admit: func(*eventloop.Conn) bool { return true }, Established: func(*eventloop.Conn, *tls.ConnectionState) {},
		Accept: func(*eventloop.Conn) eventloop.Handler { return &answerer{world: w} },
	}, g.Loops(), trial.Log(t))
	var cert tls.Certificate
	cert, w.pool = selfSigned(t)
	if err := w.srv.Listen(netip.MustParseAddrPort("127.0.0.1:0"), &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{Protocol}}); err != nil {
		t.Fatal(err)
	}
	w.addr = w.srv.transport.Conn.LocalAddr().(*net.UDPAddr)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- g.Run(ctx) }()
	go func() { ended <- w.srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, w.srv.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// A client speaks frames by hand.
type client struct {
	*quic.Conn
	t *testing.T
}

func (w *world) dial(cfg *quic.Config) *client {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), trial.Patience)
	defer cancel()
	q, err := quic.DialAddr(ctx, w.addr.String(), &tls.Config{RootCAs: w.pool, NextProtos: []string{Protocol}}, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = q.CloseWithError(0, "") })
	return &client{q, w.t}
}

// fieldSection encodes pairs of names and values.
func fieldSection(fields ...string) []byte {
	var b bytes.Buffer
	e := qpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(qpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

func headers(fields ...string) []byte {
	p := fieldSection(fields...)
	return append(appendFrame(nil, frameHeaders, uint64(len(p))), p...)
}

func get(path string, more ...string) []byte {
	return headers(append([]string{":method", "GET", ":scheme", "https", ":authority", "a", ":path", path}, more...)...)
}

func post(path string, more ...string) []byte {
	return headers(append([]string{":method", "POST", ":scheme", "https", ":authority", "a", ":path", path}, more...)...)
}

func data(s string) []byte { return append(appendFrame(nil, frameData, uint64(len(s))), s...) }

// request sends frames on a stream of its own, and ends it.
func (c *client) request(frames ...[]byte) *quic.Stream {
	c.t.Helper()
	s := c.begin(frames...)
	_ = s.Close()
	return s
}

func (c *client) begin(frames ...[]byte) *quic.Stream {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), trial.Patience)
	defer cancel()
	s, err := c.OpenStreamSync(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = s.SetReadDeadline(time.Now().Add(trial.Patience))
	_, _ = s.Write(slices.Concat(frames...)) // the answer says what came of it
	return s
}

// answer reads an answer's body.
func (c *client) answer(s *quic.Stream) (string, error) {
	f := frames{bufio.NewReader(s)}
	var body []byte
	for {
		kind, n, err := f.next()
		if errors.Is(err, io.EOF) {
			return string(body), nil
		}
		if err != nil {
			return string(body), err
		}
		p, err := f.payload(nil, n)
		if err != nil {
			return string(body), err
		}
		if kind == frameData {
			body = append(body, p...)
		}
	}
}

// ends waits for the end of the connection and checks its code.
func (c *client) ends(what string, want Code) {
	c.t.Helper()
	select {
	case <-c.Context().Done():
	case <-time.After(trial.Patience):
		c.t.Errorf("%s: the connection continues", what)
		return
	}
	err := context.Cause(c.Context())
	if e, ok := errors.AsType[*quic.ApplicationError](err); !ok || Code(e.ErrorCode) != want {
		c.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// reset checks that a stream was reset.
func (c *client) reset(what string, s *quic.Stream, want Code) {
	c.t.Helper()
	_, err := c.answer(s)
	if e, ok := errors.AsType[*quic.StreamError](err); !ok || Code(e.ErrorCode) != want {
		c.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestARequestBecomesOneOfHTTP1(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial(nil)
	f := func(want string, frames ...[]byte) {
		t.Helper()
		if got, err := c.answer(c.request(frames...)); got != want || err != nil {
			t.Errorf("got %q %v, want %q", got, err, want)
		}
	}
	f("GET /a?b HTTP/1.1\r\nhost: a\r\nx: y\r\ncookie: c=1; d=2\r\n\r\n", get("/a?b", "x", "y", "cookie", "c=1", "cookie", "d=2"))
	f("POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nx-end: yes\r\n\r\n", post("/a"), data("abc"), data("de"), headers("x-end", "yes"))
	f("GET / HTTP/1.1\r\nhost: a\r\n\r\n", appendFrame(nil, 0x21, 0), get("/")) // greased
	if s := w.srv.Stats(); s.Streams != 3 || s.Open != 1 || s.Connections != 1 || s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestStreamErrorsStayWithTheirStream(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial(nil)
	f := func(what string, want Code, frames ...[]byte) {
		t.Helper()
		c.reset(what, c.request(frames...), want)
	}
	f("no head", RequestIncomplete)
	f("a capital", MessageError, get("/", "X-A", "b"))
	f("a field for the connection", MessageError, get("/", "connection", "close"))
	f("no path", MessageError, headers(":method", "GET", ":scheme", "https", ":authority", "a"))
	f("a pseudo-field late", MessageError, headers(":method", "GET", ":scheme", "https", "x", "y", ":path", "/", ":authority", "a"))
	f("more than was said", MessageError, post("/", "content-length", "2"), data("abc"))
	f("less than was said", MessageError, post("/", "content-length", "4"), data("abc"))
	f("pseudo-fields behind the body", MessageError, post("/"), data("abc"), headers(":path", "/"))
	if got, err := c.answer(c.request(get("/"))); err != nil || got == "" {
		t.Errorf("%q %v", got, err)
	}
	if s := w.srv.Stats(); s.Malformed != 8 || s.Open != 1 {
		t.Errorf("%+v", s)
	}
}

func TestConnectionErrors(t *testing.T) {
	w := newWorld(t, Config{})
	f := func(what string, want Code, own []byte, frames ...[]byte) {
		t.Helper()
		c := w.dial(nil)
		if own != nil {
			s, err := c.OpenUniStream()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = s.Write(own)
			if want == ClosedCriticalStream {
				_ = s.Close()
			}
		}
		if len(frames) > 0 {
			c.request(frames...)
		}
		c.ends(what, want)
	}
	control := appendSettings(nil, 1<<10)
	f("DATA first", FrameUnexpected, nil, data("x"))
	f("SETTINGS on a request", FrameUnexpected, nil, appendFrame(nil, frameSettings, 0))
	f("a frame of HTTP/2", FrameUnexpected, nil, get("/open"), appendFrame(nil, 0x6, 0))
	f("DATA behind trailers", FrameUnexpected, nil, post("/"), headers("x", "y"), data("x"))
	f("a frame cut short", FrameError, nil, appendFrame(nil, frameHeaders, 10), []byte("abc"))
	f("a table", DecompressionFailed, nil, append(appendFrame(nil, frameHeaders, 3), 0x02, 0x00, 0x80))
	f("no SETTINGS", MissingSettings, append([]byte{streamControl}, appendGoAway(nil, 0)...))
	f("SETTINGS twice", FrameUnexpected, append(control, appendFrame(nil, frameSettings, 0)...))
	f("a setting of HTTP/2", SettingsError, []byte{streamControl, frameSettings, 2, 0x2, 0})
	f("a setting twice", SettingsError, []byte{streamControl, frameSettings, 4, 0x6, 0, 0x6, 0})
	f("DATA on the control stream", FrameUnexpected, append(control, data("x")...))
	f("a push", StreamCreationError, []byte{streamPush, 0})
	f("an entry for the table", EncoderStreamError, []byte{streamEncoder, 0x80})
	f("the control stream closed", ClosedCriticalStream, control)
	f("a huge frame of an unknown type", ExcessiveLoad, append(control, appendFrame(nil, 0x21, 1<<30)...))
	c := w.dial(nil)
	for range 2 {
		s, err := c.OpenUniStream()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.Write(control)
	}
	c.ends("two control streams", StreamCreationError)
}

func TestFloodsEndTheConnection(t *testing.T) {
	w := newWorld(t, Config{})
	f := func(kind string, flood func(c *client)) {
		t.Helper()
		c := w.dial(nil)
		flood(c)
		c.ends(kind, ExcessiveLoad)
		if n := w.srv.Stats().Floods[kind]; n != 1 {
			t.Errorf("%s: counted %d times", kind, n)
		}
	}
	f("unknown_frame", func(c *client) { c.request(bytes.Repeat(appendFrame(nil, 0x21, 0), 2000)) })
	f("empty_data", func(c *client) { c.request(post("/"), bytes.Repeat(data(""), 2000)) })
	f("rapid_reset", func(c *client) {
		for range 2000 {
			s, err := c.OpenStreamSync(c.Context())
			if err != nil {
				return
			}
			_, _ = s.Write(post("/"))
			s.CancelWrite(quic.StreamErrorCode(RequestCancelled))
			s.CancelRead(quic.StreamErrorCode(RequestCancelled))
		}
	})
	f("made_you_reset", func(c *client) {
		for range 2000 {
			s, err := c.OpenStreamSync(c.Context())
			if err != nil {
				return
			}
			_, _ = s.Write(get("/", "Bad", "x"))
			_ = s.Close()
			s.CancelRead(quic.StreamErrorCode(RequestCancelled))
		}
	})
}

// TestALargeHeadIsForTheParser has a head that is too large reach the handler as one that its
// parser refuses in its own words.
func TestALargeHeadIsForTheParser(t *testing.T) {
	cfg := Config{}
	cfg.Head.MaxHead = 4 << 10
	w := newWorld(t, cfg)
	c := w.dial(nil)
	for _, size := range []int{5 << 10, 64 << 10} {
		s := c.begin(get("/", "x", strings.Repeat("y", size)))
		if got, err := c.answer(s); len(got) <= cfg.Head.MaxHead || err != nil {
			t.Errorf("%d bytes: %d %v", size, len(got), err)
		}
	}
}

func TestAClientThatTakesNothingIsLetGo(t *testing.T) {
	w := newWorld(t, Config{WriteStall: 200 * time.Millisecond})
	c := w.dial(&quic.Config{InitialStreamReceiveWindow: 16 << 10, MaxStreamReceiveWindow: 16 << 10})
	c.request(get("/large"))
	select {
	case err := <-w.closed:
		if !errors.Is(err, eventloop.ErrStalled) {
			t.Errorf("closed with %v", err)
		}
	case <-time.After(trial.Patience):
		t.Fatal("the stream stays")
	}
	if n := w.srv.Stats().Stalled; n != 1 {
		t.Errorf("%d counted", n)
	}
	s := c.request(get("/"))
	if got, err := c.answer(s); err != nil || got == "" {
		t.Errorf("another stream: %q %v", got, err)
	}
}

func TestALargeAnswerComesWhole(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial(&quic.Config{InitialStreamReceiveWindow: 16 << 10})
	got, err := c.answer(c.request(get("/large")))
	if len(got) != 64*32<<10 || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestAHandlerThatDoesNotReadHoldsItsClientBack(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial(nil)
	s := c.begin(post("/slow"))
	trial.Eventually(t, "the request to come", func() bool { return w.open.Load() != nil })
	written := atomic.Int64{}
	done := make(chan error, 1)
	const whole = 3 << 20
	go func() {
		piece := data(strings.Repeat("z", 64<<10))
		for range whole / (64 << 10) {
			if _, err := s.Write(piece); err != nil {
				done <- err
				return
			}
			written.Add(64 << 10)
		}
		_ = s.Close()
		done <- nil
	}()
	last := int64(-1)
	trial.Eventually(t, "the client to wait", func() bool {
		now := written.Load()
		same := now == last && now > 0
		last = now
		return same
	})
	if n := written.Load(); n > maxStreamWindow+1<<20 {
		t.Errorf("%d bytes went before any was taken", n)
	}
	w.loop.Post(func() { w.open.Load().ResumeReading() })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got, err := c.answer(s)
	if n := strings.Count(got, "z"); n != whole || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestAClientThatWantsNoAnswerEndsItsStream(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial(nil)
	s := c.request(get("/open"))
	trial.Eventually(t, "the stream to be established", func() bool { return w.open.Load() != nil })
	s.CancelRead(quic.StreamErrorCode(RequestCancelled))
	select {
	case err := <-w.closed:
		if e, ok := errors.AsType[*StreamError](err); !ok || !e.Peer || e.Code != RequestCancelled {
			t.Errorf("closed with %v", err)
		}
	case <-time.After(trial.Patience):
		t.Fatal("the stream stays")
	}
}

// TestADrainAnnouncesItsLastStream reads both GOAWAY frames, and has what is under way end in order.
func TestADrainAnnouncesItsLastStream(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial(nil)
	own, err := c.AcceptUniStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := frames{bufio.NewReader(own)}
	_ = own.SetReadDeadline(time.Now().Add(trial.Patience))
	if kind, _ := quicvarint.Read(f.in); kind != streamControl {
		t.Fatalf("a stream of type %d", kind)
	}
	next := func() (kind, value uint64) {
		t.Helper()
		kind, n, err := f.next()
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.payload(nil, n)
		if err != nil {
			t.Fatal(err)
		}
		if kind == frameGoAway {
			value, _, _ = quicvarint.Parse(p)
		}
		return kind, value
	}
	if kind, _ := next(); kind != frameSettings {
		t.Fatalf("the first frame is %#x", kind)
	}
	s := c.request(get("/open"))
	trial.Eventually(t, "the stream to be established", func() bool { return w.open.Load() != nil })
	w.srv.Drain()
	if kind, id := next(); kind != frameGoAway || id != uint64(lastStream) {
		t.Errorf("%#x of %d, want GOAWAY of the largest", kind, id)
	}
	late := c.request(get("/late"))
	if got, err := c.answer(late); err != nil || got == "" {
		t.Errorf("a request that crossed: %q %v", got, err)
	}
	if kind, id := next(); kind != frameGoAway || id != 8 {
		t.Errorf("%#x of %d, want GOAWAY of 8", kind, id)
	}
	c.reset("a request behind the last", c.request(get("/behind")), RequestRejected)
	w.loop.Post(func() {
		open := w.open.Load()
		open.Write([]byte("bye"))
		open.CloseAfterFlush()
	})
	if got, err := c.answer(s); got != "bye" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	c.ends("drained", NoError)
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	if _, err := quic.DialAddr(ctx, w.addr.String(), &tls.Config{RootCAs: w.pool, NextProtos: []string{Protocol}}, nil); err == nil {
		t.Error("a new connection is served")
	}
	trial.Eventually(t, "the server to see it ended", func() bool { return w.srv.Stats().Open == 0 })
	if s := w.srv.Stats(); s.Shed == 0 {
		t.Errorf("%+v", s)
	}
}

func TestAnIdleConnectionIsClosed(t *testing.T) {
	w := newWorld(t, Config{KeepAlive: 100 * time.Millisecond, HeadTimeout: time.Hour})
	c := w.dial(nil)
	c.request(get("/"))
	c.ends("idle", NoError)
	if n := w.srv.Stats().Streams; n != 1 {
		t.Errorf("%d streams were served, want 1", n)
	}
	w = newWorld(t, Config{KeepAlive: time.Hour, HeadTimeout: 500 * time.Millisecond})
	w.dial(nil).ends("without a request", NoError)
	// A client that is slow to open its stream has its connection closed before.
	trial.Eventually(t, "a head that does not come ends its stream", func() bool {
		c := w.dial(nil)
		s, err := c.OpenStream()
		if err != nil {
			return false
		}
		_ = s.SetReadDeadline(time.Now().Add(trial.Patience))
		_, _ = s.Write(get("/")[:5]) // reading reports what came of it
		_, err = c.answer(s)
		e, ok := errors.AsType[*quic.StreamError](err)
		return ok && Code(e.ErrorCode) == RequestIncomplete
	})
}
