package h2

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// What breaks a rule of HTTP/2 ends its stream, and no other.
func TestMalformedRequestsEndTheirStreamAlone(t *testing.T) {
	f := serving(t, "epoll", Config{}, answering(reply("ok")))
	c := f.dial()
	id := uint32(1)
	bad := func(what string, fields ...string) {
		t.Helper()
		c.open(id, true, fields...)
		if got := c.answer(id); got != "reset PROTOCOL_ERROR" {
			t.Errorf("%s: %q", what, got)
		}
		id += 2
	}
	bad("a capital", get("/", "X-Big", "1")...)
	bad("connection", get("/", "connection", "close")...)
	bad("transfer-encoding", get("/", "transfer-encoding", "chunked")...)
	bad("upgrade", get("/", "upgrade", "h2c")...)
	bad("te", get("/", "te", "gzip")...)
	bad("a line in a value", get("/", "x", "a\r\nb: c")...)
	bad("NUL in a value", get("/", "x", "a\x00b")...)
	bad("a name with a space", get("/", "a b", "c")...)
	bad("a name with a colon", get("/", "a:b", "c")...)
	bad("an empty name", get("/", "", "c")...)
	bad("no path", ":method", "GET", ":scheme", "http", ":authority", "a")
	bad("an empty path", get("")...)
	bad("a path that is none", get("a")...)
	bad("an absolute URI", get("http://b/")...)
	bad("a line in the path", get("/ HTTP/1.1\r\nx: y\r\n\r\nGET /b")...)
	bad("a space in the path", get("/a b")...)
	bad("a line in the method", ":method", "GET / HTTP/1.1\r\nx: y", ":scheme", "http", ":authority", "a", ":path", "/")
	bad("a line in the authority", ":method", "GET", ":scheme", "http", ":authority", "a\r\nx: y", ":path", "/")
	bad("no method", ":scheme", "http", ":authority", "a", ":path", "/")
	bad("no scheme", ":method", "GET", ":authority", "a", ":path", "/")
	bad("two paths", get("/", ":path", "/b")...)
	bad("a late pseudo-field", ":method", "GET", ":scheme", "http", ":authority", "a", "x", "y", ":path", "/")
	bad("a status", get("/", ":status", "200")...)
	bad("CONNECT with a path", ":method", "CONNECT", ":scheme", "http", ":authority", "a", ":path", "/")
	bad("a protocol without CONNECT", get("/", ":protocol", "websocket")...)
	bad("a length without a body", post("/", "content-length", "3")...)
	for _, value := range []string{" a", "a ", "\ta", "a\t"} { // Go's client would repeat what is reset alone
		c.open(id, true, get("/", "x", value)...)
		if got := c.answer(id); got != ":status: 400\n\n" {
			t.Errorf("the value %q: %q", value, got)
		}
		c.until("a reset", func() bool { return c.reset[id] == http2.ErrCodeProtocol })
		id += 2
	}
	c.open(id, true, get("/")...)
	if got := c.answer(id); !strings.HasSuffix(got, "ok") {
		t.Errorf("the next stream: %q", got)
	}
	if s := f.server.Stats(); s.Malformed != uint64(id/2) || s.Streams != uint64(id/2+1) {
		t.Errorf("%+v", s)
	}
}

// What the parser of HTTP/1.1 refuses is answered by it.
func TestHeadRulesAreThoseOfHTTP1(t *testing.T) {
	f := serving(t, "epoll", Config{}, answering(reply("ok")))
	c := f.dial()
	id := uint32(1)
	refused := func(what string, fields ...string) {
		t.Helper()
		c.open(id, true, fields...)
		if got := c.answer(id); !strings.HasPrefix(got, ":status: 400\n") {
			t.Errorf("%s: %q", what, got)
		}
		id += 2
	}
	refused("two hosts", get("/", "host", "b.example")...)
	refused("a host twice", ":method", "GET", ":scheme", "http", ":path", "/", "host", "a", "host", "a")
	refused("no host", ":method", "GET", ":scheme", "http", ":path", "/")
	refused("user information", ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "u:p@a")
	refused("* for GET", get("*")...)
	refused("a fragment", get("/a#b")...)
	refused("lengths that differ", get("/", "content-length", "0", "content-length", "1")...)
	large := block(get("/", "x", strings.Repeat("~", 40<<10))...)
	c.do(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: large[:16<<10], EndStream: true}))
	for large = large[16<<10:]; len(large) > 0; {
		n := min(len(large), 16<<10)
		c.do(c.WriteContinuation(id, n == len(large), large[:n]))
		large = large[n:]
	}
	if got := c.answer(id); !strings.HasPrefix(got, ":status: 400\n") {
		t.Errorf("a head that is too large: %q", got)
	}
}

func TestWhatAConnectionMayNotEndsIt(t *testing.T) {
	f := serving(t, "epoll", Config{}, answering(reply("ok")))
	bad := func(what string, code http2.ErrCode, do func(c *client)) {
		t.Helper()
		c := f.dial()
		do(c)
		c.end()
		if c.away == nil || c.away.ErrCode != code {
			t.Errorf("%s: GOAWAY %v, want %v", what, c.away, code)
		}
	}
	bad("DATA of an idle stream", http2.ErrCodeProtocol, func(c *client) { c.do(c.WriteData(1, true, nil)) })
	bad("a stream that the server starts", http2.ErrCodeProtocol, func(c *client) { c.open(2, true, get("/")...) })
	bad("numbers that fall", http2.ErrCodeProtocol, func(c *client) { c.open(5, true, get("/")...); c.open(3, true, get("/")...) })
	bad("PUSH_PROMISE", http2.ErrCodeProtocol, func(c *client) { c.do(c.WriteRawFrame(http2.FramePushPromise, 0, 1, []byte{0, 0, 0, 2})) })
	bad("a frame that is too large", http2.ErrCodeFrameSize, func(c *client) { c.do(c.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 20<<10))) })
	bad("a block that cannot be decoded", http2.ErrCodeCompression, func(c *client) {
		c.do(c.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff}))
	})
	bad("a window of all the world", http2.ErrCodeFlowControl, func(c *client) { c.do(c.WriteWindowUpdate(0, 1<<31-1)) })
	bad("a block that another frame breaks", http2.ErrCodeProtocol, func(c *client) {
		c.do(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(get("/")...)}))
		c.do(c.WritePing(false, [8]byte{}))
	})
}

// Each kind of flood ends its connection and is counted by its name.
func TestFloodsHaveBudgets(t *testing.T) {
	f := serving(t, "epoll", Config{MaxStreams: 4}, func(*eventloop.Conn) eventloop.Handler {
		return &exchange{serve: func(*eventloop.Conn, *exchange) {}} // says nothing
	})
	flooded := func(kind string, do func(c *http2.Framer, i int) error) {
		t.Helper()
		c := f.dial()
		w := http2.NewFramer(c.conn, nil) // c.Framer acknowledges meanwhile
		w.AllowIllegalWrites = true
		go func() {
			for i := range 20_000 {
				if do(w, i) != nil {
					return
				}
			}
		}()
		c.end()
		if c.away == nil || c.away.ErrCode != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("%s: GOAWAY %v", kind, c.away)
		}
		if n := f.server.Stats().Floods[kind]; n != 1 {
			t.Errorf("%s: counted %d times: %v", kind, n, f.server.Stats().Floods)
		}
	}
	head, malformed := block(get("/")...), block(get("/", "connection", "close")...)
	begin := func(c *http2.Framer, id uint32, ends bool) error {
		return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true, EndStream: ends})
	}
	flooded("rapid_reset", func(c *http2.Framer, i int) error {
		if err := begin(c, uint32(2*i+1), true); err != nil {
			return err
		}
		return c.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
	})
	flooded("made_you_reset", func(c *http2.Framer, i int) error {
		return c.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: malformed, EndHeaders: true, EndStream: true})
	})
	flooded("ping", func(c *http2.Framer, _ int) error { return c.WritePing(false, [8]byte{}) })
	flooded("settings", func(c *http2.Framer, _ int) error { return c.WriteSettings() })
	flooded("window_update", func(c *http2.Framer, _ int) error { return c.WriteWindowUpdate(0, 1) })
	flooded("priority", func(c *http2.Framer, _ int) error { return c.WritePriority(1, http2.PriorityParam{StreamDep: 3}) })
	flooded("streams", func(c *http2.Framer, i int) error { return begin(c, uint32(2*i+1), true) })
	flooded("unknown_frame", func(c *http2.Framer, _ int) error { return c.WriteRawFrame(0x77, 0, 0, nil) })
	flooded("empty_data", func(c *http2.Framer, i int) error {
		if i == 0 {
			if err := begin(c, 1, false); err != nil {
				return err
			}
		}
		return c.WriteData(1, false, nil)
	})
	flooded("continuation", func(c *http2.Framer, i int) error {
		if i == 0 {
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head})
		}
		return c.WriteContinuation(1, false, nil)
	})
	large := block(get("/", "x", strings.Repeat("a", 3000))...)
	flooded("header_list", func(c *http2.Framer, i int) error {
		// The table is filled once, and 40 bytes name a hundred kilobytes.
		b := large
		if i > 0 {
			b = append(block(":method", "GET", ":scheme", "http", ":path", "/"), bytes.Repeat([]byte{0x80 | 62}, 40)...)
		}
		if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: b, EndHeaders: true, EndStream: true}); err != nil {
			return err
		}
		return c.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
	})
}

func TestBodiesAndTrailersGoBothWays(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 40_000)
	seen := make(chan string, 1)
	f := serving(t, "io_uring", Config{}, answering(func(c *eventloop.Conn, x *exchange) {
		seen <- fmt.Sprintf("%d %s", len(x.body), x.trailer)
		c.Write([]byte("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\n"))
		c.Write([]byte(big))
		c.CarriedBy().(interface{ Trailer([]byte) }).Trailer([]byte("Grpc-Status: 0\r\n"))
		c.CloseAfterFlush()
	}))
	c := f.dial()
	c.open(1, false, post("/")...)
	for range 10 {
		c.do(c.WriteData(1, false, make([]byte, 6000)))
	}
	c.open(1, true, "x-sum", "7")
	if got := <-seen; got != "60000 x-sum: 7\r\n\r\n" {
		t.Errorf("the handler saw %q", got)
	}
	c.until("the window is used up", func() bool { return c.body[1] != nil && c.body[1].Len() == firstWindow })
	c.do(c.WriteWindowUpdate(0, 1<<20))
	c.do(c.WriteWindowUpdate(1, 1<<20))
	if got, want := c.answer(1), ":status: 103\nlink: </a>\n:status: 200\nx: y\n\n"+big+"grpc-status: 0\n"; got != want {
		t.Errorf("%d bytes, want %d: %.100q", len(got), len(want), got)
	}
}

// A client that reads nothing of one stream delays that one, and no other.
func TestAStreamThatIsNotReadHoldsBackNoOther(t *testing.T) {
	f := serving(t, "epoll", Config{}, answering(func(c *eventloop.Conn, _ *exchange) {
		c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
		c.Write(make([]byte, 200_000))
		c.CloseAfterFlush()
	}))
	c := f.dial()
	c.do(c.WriteWindowUpdate(0, 1<<24))
	c.open(1, true, get("/")...)
	c.until("the first window", func() bool { return c.body[1] != nil && c.body[1].Len() == firstWindow })
	c.open(3, true, get("/")...)
	c.until("the second stream", func() bool { return c.body[3] != nil && c.body[3].Len() == firstWindow })
	c.do(c.WriteWindowUpdate(3, 1<<20))
	c.until("the second stream's end", c.over(3))
	if c.body[3].Len() != 200_000 || c.body[1].Len() != firstWindow || c.ended[1] {
		t.Errorf("%d and %d bytes", c.body[1].Len(), c.body[3].Len())
	}
}

func TestDrainEndsConnectionsAfterTheirStreams(t *testing.T) {
	slow := make(chan *eventloop.Conn, 1)
	f := serving(t, "epoll", Config{}, answering(func(c *eventloop.Conn, _ *exchange) { slow <- c }))
	c := f.dial()
	c.open(1, true, get("/")...)
	one := <-slow
	f.server.Drain(f.group.Loops())
	c.until("both GOAWAY", func() bool { return c.aways == 2 })
	if c.away.LastStreamID != 1 || c.away.ErrCode != http2.ErrCodeNo {
		t.Errorf("GOAWAY %v", c.away)
	}
	c.open(3, true, get("/")...)
	if got := c.answer(3); got != "reset REFUSED_STREAM" {
		t.Errorf("a late stream: %q", got)
	}
	one.Loop().Post(func() { reply("done")(one, nil) })
	if got := c.answer(1); !strings.HasSuffix(got, "done") {
		t.Errorf("the stream under way: %q", got)
	}
	c.end()
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	f := serving(t, "epoll", Config{KeepAlive: 200 * time.Millisecond, HeadTimeout: 300 * time.Millisecond}, answering(reply("ok")))
	silent, used, wrong := f.dial(), f.dial(), f.dial()
	b := block(get("/", "connection", "close")...)
	wrong.do(wrong.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:2], EndStream: true}))
	wrong.do(wrong.WriteContinuation(1, true, b[2:]))
	wrong.end()
	used.open(1, true, get("/")...)
	used.answer(1)
	used.end()
	silent.end()
	if used.away == nil || used.away.ErrCode != http2.ErrCodeNo || silent.away == nil || silent.away.ErrCode != http2.ErrCodeNo || wrong.away == nil {
		t.Errorf("GOAWAY %v and %v", used.away, silent.away)
	}
	if got := f.server.Stats().Ended; got["idle"] != 2 || got["no_request"] != 1 {
		t.Errorf("%v", got)
	}
}

// A request that crosses the GOAWAY of a connection without streams is served, and the end is counted
// by its reason.
func TestARequestThatCrossesTheEndOfAnIdleConnectionIsServed(t *testing.T) {
	f := func(reason string, before int) {
		t.Helper()
		f := serving(t, "epoll", Config{KeepAlive: 200 * time.Millisecond, HeadTimeout: 200 * time.Millisecond}, answering(reply("ok")))
		c, id := f.dial(), uint32(1)
		for range before {
			c.open(id, true, get("/")...)
			c.answer(id)
			id += 2
		}
		c.until("a GOAWAY", func() bool { return c.away != nil })
		if c.away.LastStreamID != 1<<31-1 || c.away.ErrCode != http2.ErrCodeNo {
			t.Errorf("%s: GOAWAY %v", reason, c.away)
		}
		c.open(id, true, get("/")...) // was on its way
		if got := c.answer(id); !strings.HasSuffix(got, "ok") {
			t.Errorf("%s: stream %d: %q", reason, id, got)
		}
		c.end()
		if c.aways != 2 || c.away.LastStreamID != id {
			t.Errorf("%s: %d GOAWAY, the last one %v", reason, c.aways, c.away)
		}
		for why, n := range f.server.Stats().Ended {
			if (why == reason) != (n == 1) || n > 1 {
				t.Errorf("%s: %d ended as %s", reason, n, why)
			}
		}
	}
	f("no_request", 0)
	f("idle", 1)
}

func TestStreamsThatEndNotifyTheirHandler(t *testing.T) {
	closed := make(chan error, 3)
	f := serving(t, "epoll", Config{}, func(*eventloop.Conn) eventloop.Handler {
		return &exchange{serve: func(*eventloop.Conn, *exchange) {}, closed: closed}
	})
	c := f.dial()
	c.open(1, true, get("/")...)
	c.open(3, true, get("/")...)
	c.do(c.WriteRSTStream(1, http2.ErrCodeCancel))
	if err := <-closed; err == nil || err.Error() != "the client reset the stream: CANCEL" {
		t.Errorf("a reset: %v", err)
	}
	_ = c.conn.Close()
	if err := <-closed; err == nil {
		t.Error("a closed connection is an orderly end")
	}
}

// FuzzFrames takes any bytes after a good beginning: nothing panics, and what is answered
// is made of whole frames.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(post("/a")...), EndHeaders: true})
	_ = fr.WriteData(1, true, []byte("hello"))
	_ = fr.WriteWindowUpdate(1, 10)
	_ = fr.WritePing(false, [8]byte{})
	f.Add(b.Bytes())
	f.Add([]byte{})
	var group *front
	f.Fuzz(func(t *testing.T, in []byte) {
		group = serving(t, "epoll", Config{}, answering(reply("ok")))
		c := group.dial()
		if _, err := c.conn.Write(in); err != nil {
			return
		}
		_, _ = io.WriteString(c.conn, "")
		_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		for {
			if _, err := c.ReadFrame(); err != nil {
				break
			}
		}
		for _, l := range group.group.Loops() {
			if l.Stats().Panics != 0 {
				t.Errorf("%q makes a handler panic", in)
			}
		}
	})
}

// A client that is answered before its body has left may send on for a while, and a later
// stream is served as ever.
func TestARequestThatWasAnsweredMayEnd(t *testing.T) {
	f := serving(t, "epoll", Config{}, func(*eventloop.Conn) eventloop.Handler { return &hasty{} })
	c := f.dial()
	c.open(1, false, post("/", "content-length", "600000")...)
	c.until("an early answer", func() bool { return c.ended[1] })
	for sent := 0; sent < 600_000; {
		n := min(600_000-sent, 16_000)
		if sent%48_000 == 0 && sent > 0 {
			was := c.updated[1]
			c.until("room for more", func() bool { return c.updated[1] > was })
		}
		c.do(c.WriteData(1, sent+n == 600_000, make([]byte, n)))
		sent += n
	}
	c.open(3, true, get("/")...)
	if got := c.answer(3); !strings.HasPrefix(got, ":status: 413\n") {
		t.Errorf("the next stream: %q", got)
	}
	if code, ok := c.reset[1]; ok {
		t.Errorf("the first was reset: %v", code)
	}
}

// hasty answers every head at once.
type hasty struct{ exchange }

func (h *hasty) Data(c *eventloop.Conn, b []byte) int {
	c.Write([]byte("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	c.CloseAfterFlush()
	return len(b)
}
