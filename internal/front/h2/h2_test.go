package h2

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A front is a server on one loop, and what its streams were asked.
type front struct {
	t      *testing.T
	group  *eventloop.Group
	server *Server
	addr   string
}

// exchange handles a stream: it reads the request as one of HTTP/1.1 and answers by serve.
type exchange struct {
	serve func(c *eventloop.Conn, x *exchange)
	req   http1.Request
	head  string
	body  []byte
	err   error

	hasBody, whole bool
	chunks         http1.Chunked
	left           int64
	trailer        []byte
	closed         chan error
}

func (x *exchange) Data(c *eventloop.Conn, b []byte) int {
	used := 0
	if x.head == "" {
		n, err := http1.ParseRequest(&x.req, b, http1.Limits{})
		if err != nil || n == 0 {
			x.err = err
			if err != nil {
				c.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
				c.CloseAfterFlush()
			}
			return len(b)
		}
		x.head = string(b[:n])
		used = n
		x.left, x.hasBody = max(x.req.ContentLength, 0), x.req.Chunked || x.req.ContentLength > 0
		if !x.hasBody {
			x.whole = true
			x.serve(c, x)
			return used
		}
		b = b[n:]
	}
	for len(b) > 0 && !x.whole {
		data, n, done, err := b, len(b), false, error(nil)
		if x.req.Chunked {
			data, n, done, err = x.chunks.DecodeTrailer(b, &x.trailer)
		} else {
			x.left -= int64(len(b))
			done = x.left == 0
		}
		if err != nil {
			panic(err)
		}
		x.body = append(x.body, data...)
		b = b[n:]
		used += n
		if x.whole = done; done {
			x.serve(c, x)
		}
	}
	return used
}

func (x *exchange) EndOfStream(*eventloop.Conn) bool { return true }
func (x *exchange) Drained(*eventloop.Conn)          {}
func (x *exchange) Timer(*eventloop.Conn, int64)     {}
func (x *exchange) Closed(_ *eventloop.Conn, err error) {
	if x.closed != nil {
		x.closed <- err
	}
}

// reply answers with text and ends the stream.
func reply(text string) func(*eventloop.Conn, *exchange) {
	return func(c *eventloop.Conn, _ *exchange) {
		c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: " + fmt.Sprint(len(text)) + "\r\nConnection: close\r\n\r\n" + text))
		c.CloseAfterFlush()
	}
}

// serving starts a front whose streams are handled by handle.
func serving(t *testing.T, engine string, cfg Config, handle func(c *eventloop.Conn) eventloop.Handler) *front {
	t.Helper()
	f := &front{t: t}
	var err error
	f.group, err = eventloop.New(eventloop.Config{Engine: engine, Loops: 1}, func(c *eventloop.Conn) eventloop.Handler {
		f.server.ServeConn(c, 0)
		return c.Handler()
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.server = New(cfg, handle, 1, nil)
	addr, err := f.group.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	f.addr = addr.String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.group.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func answering(serve func(*eventloop.Conn, *exchange)) func(*eventloop.Conn) eventloop.Handler {
	return func(*eventloop.Conn) eventloop.Handler { return &exchange{serve: serve} }
}

// A client writes and reads frames.
type client struct {
	*http2.Framer
	t    *testing.T
	conn net.Conn
	dec  *hpack.Decoder

	head, trailer map[uint32]string
	body          map[uint32]*bytes.Buffer
	ended         map[uint32]bool
	reset         map[uint32]http2.ErrCode
	away          *http2.GoAwayFrame
	aways         int
	acks, pongs   int
	updated       map[uint32]int // WINDOW_UPDATE frames
	settings      map[http2.SettingID]uint32
}

func (f *front) dial(settings ...http2.Setting) *client {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(trial.Patience))
	c := &client{Framer: http2.NewFramer(conn, conn), t: f.t, conn: conn, dec: hpack.NewDecoder(4096, nil), head: map[uint32]string{}, trailer: map[uint32]string{},
		body: map[uint32]*bytes.Buffer{}, ended: map[uint32]bool{}, reset: map[uint32]http2.ErrCode{}, settings: map[http2.SettingID]uint32{}}
	c.AllowIllegalWrites = true
	if _, err := io.WriteString(conn, Preface); err != nil {
		f.t.Fatal(err)
	}
	c.do(c.WriteSettings(settings...))
	return c
}

func (c *client) do(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func block(fields ...string) []byte {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

func get(path string, more ...string) []string {
	return append([]string{":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", path}, more...)
}

func post(path string, more ...string) []string {
	return append([]string{":method", "POST", ":scheme", "http", ":authority", "a.example", ":path", path}, more...)
}

func (c *client) open(id uint32, ends bool, fields ...string) {
	c.t.Helper()
	c.do(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(fields...), EndStream: ends, EndHeaders: true}))
}

// step reads a frame; false: the connection has ended.
func (c *client) step() bool {
	c.t.Helper()
	fr, err := c.ReadFrame()
	if err != nil {
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			c.t.Fatalf("nothing comes: %v", c)
		}
		return false
	}
	switch fr := fr.(type) {
	case *http2.SettingsFrame:
		if fr.IsAck() {
			c.acks++
			return true
		}
		_ = fr.ForeachSetting(func(s http2.Setting) error { c.settings[s.ID] = s.Val; return nil })
		c.do(c.WriteSettingsAck())
	case *http2.HeadersFrame:
		var b strings.Builder
		fragment := bytes.Clone(fr.HeaderBlockFragment())
		id, ends := fr.StreamID, fr.StreamEnded()
		for whole := fr.HeadersEnded(); !whole; {
			next, err := c.ReadFrame()
			c.do(err)
			fragment = append(fragment, next.(*http2.ContinuationFrame).HeaderBlockFragment()...)
			whole = next.(*http2.ContinuationFrame).HeadersEnded()
		}
		c.dec.SetEmitFunc(func(f hpack.HeaderField) { fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Value) })
		if _, err := c.dec.Write(fragment); err != nil {
			c.t.Fatal(err)
		}
		c.do(c.dec.Close())
		if _, ok := c.body[id]; ok {
			c.trailer[id] = b.String()
		} else {
			c.head[id] += b.String()
		}
		c.ended[id] = c.ended[id] || ends
	case *http2.DataFrame:
		if c.body[fr.StreamID] == nil {
			c.body[fr.StreamID] = &bytes.Buffer{}
		}
		c.body[fr.StreamID].Write(fr.Data())
		c.ended[fr.StreamID] = c.ended[fr.StreamID] || fr.StreamEnded()
	case *http2.RSTStreamFrame:
		if _, ok := c.reset[fr.StreamID]; !ok {
			c.reset[fr.StreamID] = fr.ErrCode
		}
	case *http2.WindowUpdateFrame:
		if c.updated == nil {
			c.updated = map[uint32]int{}
		}
		c.updated[fr.StreamID]++
	case *http2.PingFrame:
		if fr.IsAck() {
			c.pongs++
		} else {
			c.do(c.WritePing(true, fr.Data))
		}
	case *http2.GoAwayFrame:
		away := *fr
		c.away = &away
		c.aways++
	}
	return true
}

func (c *client) String() string {
	return fmt.Sprintf("heads %v, bodies %v, ended %v, reset %v, away %v", c.head, len(c.body), c.ended, c.reset, c.away)
}

// until reads until done holds, and fails if the connection ends before.
func (c *client) until(what string, done func() bool) {
	c.t.Helper()
	for !done() {
		if !c.step() {
			c.t.Fatalf("%s: the connection ended: %v", what, c)
		}
	}
}

// end reads until the connection ends.
func (c *client) end() {
	c.t.Helper()
	for c.step() {
	}
}

func (c *client) over(id uint32) func() bool {
	return func() bool { _, reset := c.reset[id]; return c.ended[id] || reset }
}

// answer sends a request and returns what came, head and body.
func (c *client) answer(id uint32) string {
	c.t.Helper()
	c.until("an answer", c.over(id))
	if code, ok := c.reset[id]; ok && !c.ended[id] {
		return "reset " + code.String()
	}
	body := ""
	if b := c.body[id]; b != nil {
		body = b.String()
	}
	return c.head[id] + "\n" + body + c.trailer[id]
}

func TestRequestsAreAnswered(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		heads := make(chan string, 10)
		f := serving(t, engine, Config{}, answering(func(c *eventloop.Conn, x *exchange) {
			heads <- x.head + string(x.body) + string(x.trailer)
			reply("hello")(c, x)
		}))
		c := f.dial()
		f1 := func(id uint32, want string, ends bool, fields ...string) {
			t.Helper()
			c.open(id, ends, fields...)
			if !ends {
				c.do(c.WriteData(id, false, []byte("one ")))
				c.do(c.WriteDataPadded(id, false, nil, make([]byte, 20)))
				c.do(c.WriteDataPadded(id, true, []byte("two"), make([]byte, 3)))
			}
			if got := c.answer(id); got != ":status: 200\ncontent-length: 5\n\nhello" {
				t.Errorf("%s, stream %d: %q", engine, id, got)
			}
			if got := <-heads; got != want {
				t.Errorf("%s, stream %d: the handler saw %q, want %q", engine, id, got, want)
			}
		}
		f1(1, "GET /a?b=c HTTP/1.1\r\nhost: a.example\r\nx: y\r\ncookie: a=1; b=2\r\n\r\n", true, get("/a?b=c", "cookie", "a=1", "x", "y", "cookie", "b=2")...)
		f1(3, "POST / HTTP/1.1\r\nhost: a.example\r\ntransfer-encoding: chunked\r\n\r\none two\r\n", false, post("/")...)
		f1(5, "POST / HTTP/1.1\r\nhost: a.example\r\ncontent-length: 7\r\n\r\none two", false, post("/", "content-length", "7")...)
		f1(9, "OPTIONS * HTTP/1.1\r\nhost: a.example\r\nte: trailers\r\n\r\n", true, ":method", "OPTIONS", ":scheme", "https", ":path", "*", "te", "trailers", "host", "a.example")
	}
}

func TestWindowsHoldAnswersBack(t *testing.T) {
	f := serving(t, "epoll", Config{}, answering(reply("hello")))
	c := f.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.open(1, true, get("/")...)
	c.until("the head", func() bool { return c.head[1] != "" && c.acks == 1 })
	c.do(c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
	c.until("one byte", func() bool { return c.body[1] != nil && c.body[1].String() == "h" })
	c.do(c.WriteWindowUpdate(1, 2))
	c.until("three bytes", func() bool { return c.body[1].String() == "hel" })
	c.do(c.WriteWindowUpdate(1, 100))
	if got := c.answer(1); !strings.HasSuffix(got, "\nhello") {
		t.Errorf("%q", got)
	}
}
