package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A peer is a backend that reads and writes frames, and what our side makes of it.
type peer struct {
	*client  // the frames that came, by stream, as a client keeps them
	t        *testing.T
	loop     *eventloop.Loop
	caller   *Caller
	counters CallCounters
	session  *Session

	mu      sync.Mutex
	room    int
	leaving bool
	gone    bool
}

func (p *peer) Room(*Session)         { p.mu.Lock(); p.room++; p.mu.Unlock() }
func (p *peer) Leaving(*Session)      { p.mu.Lock(); p.leaving = true; p.mu.Unlock() }
func (p *peer) Ended(*Session, error) { p.mu.Lock(); p.gone = true; p.mu.Unlock() }
func (p *peer) is(f func() bool) func() bool {
	return func() bool { p.mu.Lock(); defer p.mu.Unlock(); return f() }
}

// A dialler starts the session when its socket is connected.
type dialler struct {
	p       *peer
	reached chan struct{}
}

func (d *dialler) Connected(c *eventloop.Conn) {
	d.p.session.Start(int64(time.Second), int64(time.Minute))
	close(d.reached)
}
func (d *dialler) Data(_ *eventloop.Conn, b []byte) int { return len(b) }
func (d *dialler) EndOfStream(*eventloop.Conn) bool     { return false }
func (d *dialler) Drained(*eventloop.Conn)              {}
func (d *dialler) Timer(*eventloop.Conn, int64)         {}
func (d *dialler) Closed(_ *eventloop.Conn, err error)  { d.p.session.Fail(err) }

// calling connects a session to a peer of raw frames, which has read the preface.
func calling(t *testing.T, engine string, settings ...http2.Setting) *peer {
	t.Helper()
	p := &peer{t: t, caller: NewCaller(http1.Limits{MaxHead: 32 << 10, MaxLine: 8 << 10, MaxFields: 100}, nil)}
	group, err := eventloop.New(eventloop.Config{Engine: engine, Loops: 1}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = group.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	p.loop = group.Loops()[0]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := &dialler{p, make(chan struct{})}
	p.do(func() {
		c := p.loop.Dial(eventloop.Endpoint{Addr: netip.MustParseAddrPort(l.Addr().String())}, eventloop.DialOptions{}, d)
		p.session = p.caller.Begin(c, p, &p.counters)
	})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(trial.Patience))
	preface := make([]byte, len(Preface))
	if _, err := io.ReadFull(conn, preface); err != nil || string(preface) != Preface {
		t.Fatalf("preface %q, %v", preface, err)
	}
	p.client = &client{Framer: http2.NewFramer(conn, conn), t: t, conn: conn, dec: hpack.NewDecoder(4096, nil), head: map[uint32]string{}, trailer: map[uint32]string{},
		body: map[uint32]*bytes.Buffer{}, ended: map[uint32]bool{}, reset: map[uint32]http2.ErrCode{}, settings: map[http2.SettingID]uint32{}}
	p.AllowIllegalWrites = true
	if settings != nil {
		p.client.do(p.WriteSettings(settings...))
	}
	return p
}

// usual is SETTINGS that say nothing.
var usual = []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 100}}

// do runs f on the loop.
func (p *peer) do(f func()) {
	done := make(chan struct{})
	p.loop.Post(func() { defer close(done); f() })
	<-done
}

// A rawClient writes a request and collects the reply.
type rawClient struct {
	p       *peer
	c       *eventloop.Conn
	request string

	mu     sync.Mutex
	got    bytes.Buffer
	err    error
	closed bool
	stuck  bool // it takes no input
}

func (k *rawClient) Connected(c *eventloop.Conn) { c.Write([]byte(k.request)) }
func (k *rawClient) Data(c *eventloop.Conn, b []byte) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stuck {
		c.PauseReading()
		return 0
	}
	k.got.Write(b)
	return len(b)
}
func (k *rawClient) EndOfStream(*eventloop.Conn) bool { return false }
func (k *rawClient) Drained(*eventloop.Conn)          {}
func (k *rawClient) Timer(*eventloop.Conn, int64)     {}
func (k *rawClient) Closed(_ *eventloop.Conn, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.closed = err, true
}

// call opens a call that writes request.
func (p *peer) call(request string) *rawClient {
	p.t.Helper()
	k := &rawClient{p: p, request: strings.ReplaceAll(request, "\n", "\r\n")}
	p.do(func() {
		if k.c = p.session.Open(k); k.c != nil && p.session.Ready() {
			k.Connected(k.c)
		}
	})
	if k.c == nil {
		p.t.Fatal("there is no room for the call")
	}
	return k
}

func (k *rawClient) write(b string) {
	k.p.do(func() { k.c.Write([]byte(strings.ReplaceAll(b, "\n", "\r\n"))) })
}
func (k *rawClient) hangUp() { k.p.do(func() { k.c.Close(nil) }) }
func (k *rawClient) reads(on bool) {
	k.p.do(func() {
		k.mu.Lock()
		k.stuck = !on
		k.mu.Unlock()
		if on {
			k.c.ResumeReading()
		}
	})
}

func (k *rawClient) has(want string) {
	k.p.t.Helper()
	want = strings.ReplaceAll(want, "\n", "\r\n")
	trial.Eventually(k.p.t, "the reply", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.got.String() == want || k.closed
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.got.String() != want {
		k.p.t.Fatalf("got %q, want %q; closed %v %v", k.got.String(), want, k.closed, k.err)
	}
}

// fails waits for the end of the call and returns why.
func (k *rawClient) fails() *PeerError {
	k.p.t.Helper()
	trial.Eventually(k.p.t, "the end of the call", func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.closed })
	e, _ := errors.AsType[*PeerError](k.err)
	if e == nil {
		k.p.t.Fatalf("closed with %v", k.err)
	}
	return e
}

func (p *peer) replies(id uint32, ends bool, fields ...string) {
	p.t.Helper()
	p.client.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(fields...), EndStream: ends, EndHeaders: true}))
}

func (p *peer) requested(id uint32) func() bool { return func() bool { return p.head[id] != "" } }

const get1 = "GET /a?b HTTP/1.1\nHost: x.example\nTE: trailers\nConnection: TE\nX-A: b\n\n"

func TestACallIsTranslated(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		p := calling(t, engine)
		k := p.call(get1) // it waits for the peer's SETTINGS
		p.client.do(p.WriteSettings(usual...))
		p.until("the request", func() bool { return p.ended[1] })
		if want := ":method: GET\n:scheme: http\n:authority: x.example\n:path: /a?b\nte: trailers\nx-a: b\n"; p.head[1] != want {
			t.Errorf("%s: %q, want %q", engine, p.head[1], want)
		}
		p.replies(1, false, ":status", "103", "link", "</x>")
		p.replies(1, false, ":status", "200", "x-b", "c")
		p.client.do(p.WriteData(1, false, []byte("hello")))
		p.replies(1, true, "grpc-status", "0")
		k.has("HTTP/1.1 103 Early Hints\nlink: </x>\n\nHTTP/1.1 200 OK\nx-b: c\ntransfer-encoding: chunked\n\n5\nhello\n0\ngrpc-status: 0\n\n")
		k.hangUp()

		k = p.call("POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n3\none\n")
		p.until("the beginning", func() bool { return p.body[3] != nil && p.body[3].String() == "one" })
		p.replies(3, false, ":status", "200", "content-length", "4") // before the request has ended
		p.client.do(p.WriteDataPadded(3, false, []byte("pa"), make([]byte, 9)))
		k.has("HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n2\npa\n")
		k.write("3\ntwo\n0\n\n")
		p.until("the end", func() bool { return p.ended[3] })
		if got := p.body[3].String(); got != "onetwo" {
			t.Errorf("%q", got)
		}
		p.client.do(p.WriteData(3, true, []byte("rt")))
		k.has("HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n2\npa\n2\nrt\n0\n\n")
		k.hangUp()

		k = p.call("POST / HTTP/1.1\nHost: x\nContent-Length: 3\n\nabc")
		p.until("the request", func() bool { return p.ended[5] })
		p.replies(5, true, ":status", "204")
		k.has("HTTP/1.1 204 No Content\n\n")
		k.hangUp()
		k = p.call("HEAD / HTTP/1.1\nHost: x\n\n")
		p.until("the request", func() bool { return p.ended[7] })
		p.replies(7, false, ":status", "200", "content-length", "9")
		k.has("HTTP/1.1 200 OK\ncontent-length: 9\n\n")
		k.hangUp()
		p.client.do(p.WriteData(7, true, nil))
		p.client.do(p.WritePing(false, [8]byte{1}))
		p.until("the answer to a PING", func() bool { return p.pongs == 1 })
		if len(p.reset) > 0 {
			t.Errorf("%s: streams were reset: %v", engine, p.reset)
		}
	}
}

func TestUnprocessedRequestsAreDistinguished(t *testing.T) {
	p := calling(t, "epoll", usual...)
	a, b, c := p.call(get1), p.call(get1), p.call(get1)
	p.until("three requests", p.requested(5))
	p.client.do(p.WriteRSTStream(1, http2.ErrCodeRefusedStream))
	if e := a.fails(); !e.Unprocessed {
		t.Errorf("REFUSED_STREAM: %+v", e)
	}
	p.client.do(p.WriteGoAway(3, http2.ErrCodeNo, nil))
	if e := c.fails(); !e.Unprocessed {
		t.Errorf("behind the last of GOAWAY: %+v", e)
	}
	trial.Eventually(t, "nothing new is sent there", p.is(func() bool { return p.leaving }))
	p.do(func() {
		if p.session.Open(&rawClient{}) != nil {
			t.Error("a call was opened after GOAWAY")
		}
	})
	p.replies(3, true, ":status", "200") // what was before it continues
	b.has("HTTP/1.1 200 OK\ncontent-length: 0\n\n")
	b.hangUp()
	p.end()
	trial.Eventually(t, "the end", p.is(func() bool { return p.gone }))
}

func TestResetsAndLostConnectionsOfAPeer(t *testing.T) {
	p := calling(t, "epoll", usual...)
	a, b := p.call(get1), p.call(get1)
	p.until("two requests", p.requested(3))
	p.client.do(p.WriteRSTStream(1, http2.ErrCodeInternal))
	if e := a.fails(); e.Unprocessed || e.Code != InternalError {
		t.Errorf("%+v", e)
	}
	p.conn.Close()
	if e := b.fails(); e.Unprocessed || !e.Lost {
		t.Errorf("%+v", e)
	}
}

func TestAClientThatLeavesCancelsItsStream(t *testing.T) {
	p := calling(t, "epoll", usual...)
	k := p.call(get1)
	p.until("the request", p.requested(1))
	p.replies(1, false, ":status", "200")
	k.has("HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n")
	k.hangUp()
	p.until("a reset", func() bool { return p.reset[1] == http2.ErrCodeCancel })
	p.client.do(p.WriteData(1, false, make([]byte, 16<<10))) // it did not know yet
	p.client.do(p.WritePing(false, [8]byte{1}))
	p.until("the connection continues", func() bool { return p.pongs == 1 })
}

func TestRequestsWaitForWindows(t *testing.T) {
	p := calling(t, "epoll", http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2})
	k := p.call("POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n5\nhello\n")
	p.until("two bytes", func() bool { return p.body[1] != nil && p.body[1].String() == "he" })
	p.client.do(p.WriteWindowUpdate(1, 1))
	p.until("three bytes", func() bool { return p.body[1].String() == "hel" })
	p.client.do(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4}))
	p.until("five bytes", func() bool { return p.body[1].String() == "hello" })
	k.write("0\n\n") // the end needs no window
	p.until("the end", func() bool { return p.ended[1] })
}

// A handler that accepts nothing is compared with its own stream alone, within a window.
func TestASlowReaderHoldsUpItsStreamAlone(t *testing.T) {
	p := calling(t, "epoll", usual...)
	k := p.call(get1)
	p.until("the request", p.requested(1))
	k.reads(false)
	p.replies(1, false, ":status", "200")
	sent := 0
	for range 6 { // of small pieces, whose frames are longer than they; a window of 64 KiB
		p.client.do(p.WriteData(1, false, []byte("x")))
		p.client.do(p.WriteData(1, false, bytes.Repeat([]byte("y"), 9_999)))
		sent += 10_000
	}
	other := p.call(get1)
	p.until("another request", p.requested(3))
	p.replies(3, true, ":status", "200")
	other.has("HTTP/1.1 200 OK\ncontent-length: 0\n\n")
	p.client.do(p.WriteData(1, true, []byte("z")))
	k.reads(true)
	trial.Eventually(t, "the whole reply", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return bytes.HasSuffix(k.got.Bytes(), []byte("0\r\n\r\n"))
	})
	var res http1.Response
	n, err := http1.ParseResponse(&res, k.got.Bytes(), http1.Limits{}, "GET")
	if err != nil {
		t.Fatal(err)
	}
	var chunks http1.Chunked
	body := 0
	for rest := k.got.Bytes()[n:]; len(rest) > 0; {
		data, used, _, err := chunks.Decode(rest)
		if err != nil {
			t.Fatal(err)
		}
		body += len(data)
		rest = rest[used:]
	}
	if body != sent+1 {
		t.Errorf("%d bytes, want %d", body, sent+1)
	}
}

func TestMalformedRepliesEndTheirStreamAlone(t *testing.T) {
	p := calling(t, "epoll", usual...)
	id := uint32(1)
	f := func(what string, send func(id uint32)) {
		t.Helper()
		k := p.call(get1)
		p.until("the request", p.requested(id))
		send(id)
		if e := k.fails(); !e.Malformed {
			t.Errorf("%s: %+v", what, e)
		}
		id += 2
	}
	head := func(ends bool, fields ...string) func(uint32) {
		return func(id uint32) { p.replies(id, ends, fields...) }
	}
	f("no status", head(true, "x", "y"))
	f("a status that is none", head(true, ":status", "20"))
	f("two", head(true, ":status", "200", ":status", "200"))
	f("a late one", head(true, "x", "y", ":status", "200"))
	f("101", head(false, ":status", "101"))
	f("the end with 100", head(true, ":status", "100"))
	f("a pseudo-field of requests", head(true, ":status", "200", ":path", "/"))
	f("capitals", head(true, ":status", "200", "X-A", "b"))
	f("a field of connections", head(true, ":status", "200", "connection", "close"))
	f("a chunked one", head(true, ":status", "200", "transfer-encoding", "chunked"))
	f("a line break", head(true, ":status", "200", "x", "a\r\nb: c"))
	f("two lengths", head(false, ":status", "200", "content-length", "1", "content-length", "2"))
	f("a length that is none", head(false, ":status", "200", "content-length", "-1"))
	f("a length without a body", head(true, ":status", "200", "content-length", "1"))
	f("too many fields", head(true, append([]string{":status", "200"}, strings.Split(strings.Repeat("a b ", 150)[:599], " ")...)...))
	var long []string
	for range 20 {
		long = append(long, "x", strings.Repeat("y", 2000))
	}
	f("too long", head(true, append([]string{":status", "200"}, long...)...))
	f("a body before the head", func(id uint32) { p.client.do(p.WriteData(id, false, []byte("x"))) })
	f("an end before the head", func(id uint32) { p.client.do(p.WriteData(id, true, nil)) })
	f("less than was said", func(id uint32) {
		p.replies(id, false, ":status", "200", "content-length", "3")
		p.client.do(p.WriteData(id, true, []byte("ab")))
	})
	f("more than was said", func(id uint32) {
		p.replies(id, false, ":status", "200", "content-length", "3")
		p.client.do(p.WriteData(id, false, []byte("abcd")))
	})
	f("trailers that continue", func(id uint32) { p.replies(id, false, ":status", "200"); p.replies(id, false, "x", "y") })
	f("a second head", func(id uint32) { p.replies(id, false, ":status", "200"); p.replies(id, true, ":status", "200") })
	f("more than its window", func(id uint32) {
		p.replies(id, false, ":status", "200", "content-length", "9")
		p.client.do(p.WriteWindowUpdate(id, 1<<31-1))
	})
}

func TestHostilePeersLoseTheirConnection(t *testing.T) {
	f := func(what, flood string, send func(p *peer)) {
		t.Helper()
		p := calling(t, "epoll", usual...)
		k := p.call(get1)
		p.until("the request", p.requested(1))
		go send(p)
		p.until("GOAWAY", func() bool { return p.away != nil })
		if e := k.fails(); e.Unprocessed {
			t.Errorf("%s: %+v", what, e)
		}
		if flood == "" {
			return
		}
		var st CallStats
		if p.counters.Add(&st); st.Floods[flood] != 1 || p.away.ErrCode != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("%s: %v, counted %v", what, p.away, st.Floods)
		}
	}
	many := func(send func(p *peer) error) func(p *peer) {
		return func(p *peer) {
			for range 5000 {
				if send(p) != nil {
					return
				}
			}
		}
	}
	f("PING", "ping", many(func(p *peer) error { return p.WritePing(false, [8]byte{}) }))
	f("SETTINGS", "settings", many(func(p *peer) error { return p.WriteSettings() }))
	f("WINDOW_UPDATE", "window_update", many(func(p *peer) error { return p.WriteWindowUpdate(0, 1) }))
	f("PRIORITY", "priority", many(func(p *peer) error { return p.WritePriority(1, http2.PriorityParam{}) }))
	f("unknown frames", "unknown_frame", many(func(p *peer) error { return p.WriteRawFrame(99, 0, 1, nil) }))
	f("empty DATA", "empty_data", func(p *peer) {
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "200"), EndHeaders: true})
		many(func(p *peer) error { return p.WriteData(1, false, nil) })(p)
	})
	f("CONTINUATION", "continuation", func(p *peer) {
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "200")})
		many(func(p *peer) error { return p.WriteContinuation(1, false, nil) })(p)
	})
	f("heads for closed streams", "header_list", func(p *peer) {
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "2")})
		_ = p.WriteContinuation(1, true, nil)
		many(func(p *peer) error {
			return p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "200"), EndHeaders: true})
		})(p)
	})
	f("PUSH_PROMISE", "", func(p *peer) {
		_ = p.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: block(":path", "/"), EndHeaders: true})
	})
	f("a frame that is too large", "", func(p *peer) { _ = p.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 16<<10+1)) })
	f("an idle stream", "", func(p *peer) { _ = p.WriteData(9, false, []byte("x")) })
	f("even numbers", "", func(p *peer) { _ = p.WriteRSTStream(2, http2.ErrCodeCancel) })
	f("a block that is none", "", func(p *peer) {
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
	})
	f("a window that is too large", "", func(p *peer) { _ = p.WriteWindowUpdate(0, 1<<31-1) })
	f("more than the window", "", func(p *peer) {
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "200"), EndStream: true, EndHeaders: true})
		many(func(p *peer) error { return p.WriteData(1, false, make([]byte, 16<<10)) })(p)
	})
}

// What does not speak HTTP/2 gets no request.
func TestAPeerOfAnotherProtocolGetsNoRequest(t *testing.T) {
	p := calling(t, "epoll")
	k := p.call(get1)
	fmt.Fprintf(p.conn, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	if e := k.fails(); !e.Malformed || e.Unprocessed {
		t.Errorf("%+v", e)
	}
	p.until("GOAWAY", func() bool { return p.away != nil })
	if len(p.head) > 0 {
		t.Errorf("it got %v", p.head)
	}
}

func TestCallsOverTheBoundOfAPeerGoElsewhere(t *testing.T) {
	p := calling(t, "epoll")
	calls := []*rawClient{p.call(get1), p.call(get1), p.call(get1)}
	p.client.do(p.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2}))
	p.until("two requests", p.requested(3))
	trial.Eventually(t, "the third is closed", func() bool { calls[2].mu.Lock(); defer calls[2].mu.Unlock(); return calls[2].closed })
	if !errors.Is(calls[2].err, ErrElsewhere) {
		t.Errorf("%v", calls[2].err)
	}
	p.do(func() {
		if p.session.Free() != 0 || p.session.Open(calls[2]) != nil {
			t.Error("there is room")
		}
	})
	p.replies(1, true, ":status", "200")
	calls[0].has("HTTP/1.1 200 OK\ncontent-length: 0\n\n")
	calls[0].hangUp()
	p.do(func() {
		if p.session.Free() != 1 {
			t.Errorf("room for %d", p.session.Free())
		}
	})
}
