package h2

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// endless is a stream that stays open: it answers with its name and sends back the bytes of its
// request's body.
type endless struct {
	exchange
	name string
}

func newFlow(name string) *endless {
	return &endless{name: name, exchange: exchange{serve: func(c *eventloop.Conn, x *exchange) {
		c.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + name + " " + x.head))
	}}}
}

func (f *endless) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	return dst.String(1, f.head), takeover.KindSSE
}

func (f *endless) Moved(*eventloop.Conn) {}

// A collector answers a request with its body and trailer when all of it has come. It does not read a body
// before it is asked to.
type collector struct{ exchange }

func newCollector() *collector {
	return &collector{exchange{serve: func(c *eventloop.Conn, x *exchange) {
		c.Write(append(x.body, x.trailer...))
		c.CloseAfterFlush()
	}}}
}

func (x *collector) Data(c *eventloop.Conn, b []byte) int {
	if x.head != "" {
		return x.exchange.Data(c, b)
	}
	n, err := http1.ParseRequest(&x.req, b, http1.Limits{})
	if err != nil {
		panic(err)
	}
	x.head = string(b[:n])
	c.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"))
	c.PauseReading()
	return n
}

func (x *collector) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	return dst.String(1, x.head), takeover.KindSSE
}

func (x *collector) Moved(*eventloop.Conn) {}

// movedTo moves every connection of f to another front, where streams have handlers by arriving, and returns that.
func (f *front) movedTo(engine string, sizes *[]int, arriving func() eventloop.Handler) *front {
	f.t.Helper()
	other := serving(f.t, engine, Config{}, func(*eventloop.Conn) eventloop.Handler { return newFlow("new") })
	var records []takeover.Record
	pause, err := f.group.Pause(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	pause.Each(func(l *eventloop.Loop) {
		e, err := l.Export(true, func(_ int, body []byte, fds []int) (int, error) {
			frame := takeover.Frame{Type: takeover.Conns, Body: bytes.Clone(body)}
			for _, fd := range fds {
				d, err := syscall.Dup(fd)
				if err != nil {
					f.t.Error(err)
				}
				frame.Files = append(frame.Files, d)
			}
			first := len(records)
			list, err := frame.Records()
			records = append(records, list...)
			return first, err
		})
		if err != nil {
			f.t.Error(err)
		}
		*sizes = append(*sizes, e.Bytes())
		e.Wipe()
		e.Leave()
	})
	pause.Resume()
	for _, r := range records {
		m, err := eventloop.Import(r.State)
		if err != nil {
			f.t.Fatal(err)
		}
		a, err := other.server.ReadState(m.State, func(m *eventloop.Moving) (Open, error) {
			return func(*eventloop.Conn) (eventloop.Handler, error) { return arriving(), nil }, nil
		})
		if err != nil {
			f.t.Fatal(err)
		}
		done := make(chan error)
		other.group.Loops()[0].Post(func() {
			l, fds := other.group.Loops()[0], []int32{int32(r.Files[0])}
			if _, err := l.Receive(fds); err != nil {
				done <- err
				return
			}
			done <- l.Arrive(fds[0], m, nil, func(c *eventloop.Conn) (eventloop.Handler, error) { return other.server.Arrive(c, a, m.Timer) })
		})
		if err := <-done; err != nil {
			f.t.Fatal(err)
		}
	}
	return other
}

// onLoop calls do on f's loop.
func (f *front) onLoop(do func()) {
	done := make(chan struct{})
	f.group.Loops()[0].Post(func() {
		defer close(done)
		do()
	})
	<-done
}

// onStreams calls do for every stream of f, on its loop.
func (f *front) onStreams(do func(s *stream)) {
	f.t.Helper()
	f.onLoop(func() {
		var all []*stream
		f.group.Loops()[0].Conns(func(c *eventloop.Conn) bool {
			if s, ok := c.CarriedBy().(*stream); ok {
				all = append(all, s)
			}
			return true
		})
		for _, s := range all {
			do(s)
		}
	})
}

// A connection continues in another process with its header table, its windows, what waits for
// them, and every stream.
func TestConnectionsMoveWithTheirStreams(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) { moves(t, engine) })
	}
}

func moves(t *testing.T, engine string) {
	const window, streams, text = 100, 20, "0123456789"
	f := serving(t, engine, Config{}, func(*eventloop.Conn) eventloop.Handler { return newFlow("old") })
	c := f.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b) // with a table, which the server's has to follow
	enc.SetMaxDynamicTableSizeLimit(1024)
	request := func(id uint32) {
		t.Helper()
		b.Reset()
		for i := 0; i < 8; i += 2 {
			f := get("/stream")[i:]
			c.do(enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
		c.do(enc.WriteField(hpack.HeaderField{Name: "x-long", Value: strings.Repeat("v", 300)}))
		c.do(enc.WriteField(hpack.HeaderField{Name: "x-number", Value: fmt.Sprint(id)}))
		c.do(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndStream: true, EndHeaders: true}))
	}
	want := map[uint32]string{}
	head := func(id uint32, name string) {
		want[id] = fmt.Sprintf("%s GET /stream HTTP/1.1\r\nhost: a.example\r\nx-long: %s\r\nx-number: %d\r\n\r\n", name, strings.Repeat("v", 300), id)
	}
	received := func(id uint32) int {
		if b := c.body[id]; b != nil {
			return b.Len()
		}
		return 0
	}
	all := func(most int) func() bool {
		return func() bool {
			for id, w := range want {
				if received(id) < min(most, len(w)) {
					return false
				}
			}
			return true
		}
	}
	for i := range streams {
		request(uint32(2*i + 1))
		head(uint32(2*i+1), "old")
	}
	c.until("the windows are full", all(window))
	send := func(f *front) {
		f.onStreams(func(s *stream) { s.Conn.Write([]byte(text)) })
		for id := range want {
			want[id] += text
		}
	}
	send(f)
	for _, round := range []string{"one", "two"} {
		var sizes []int
		f = f.movedTo(engine, &sizes, func() eventloop.Handler { return newFlow("moved") })
		if len(sizes) != 1 || sizes[0] == 0 {
			t.Fatalf("%s: %v bytes moved", round, sizes)
		}
		id := uint32(2*len(want) + 1)
		request(id)
		head(id, "new")
		c.until(round+": the new stream is answered", all(window))
		send(f)
	}
	for id := range want {
		c.do(c.WriteWindowUpdate(id, 10_000))
	}
	c.until("everything arrives", all(1<<20))
	for id, w := range want {
		if got := c.body[id].String(); got != w {
			t.Errorf("stream %d: %q, want %q", id, got, w)
		}
	}
	if s := f.server.Stats(); s.Open != 1 || s.OpenStreams != int64(len(want)) {
		t.Errorf("%+v", s)
	}
	if c.away != nil || len(c.reset) > 0 {
		t.Errorf("%v", c)
	}
	c.conn.Close()
}

// What has come of a body that its handler does not read yet moves with its stream, and so does the end of the body.
func TestUnreadBodiesMove(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		f := serving(t, engine, Config{}, func(*eventloop.Conn) eventloop.Handler { return newCollector() })
		c := f.dial()
		body := bytes.Repeat([]byte("0123456789"), 1000)
		const pieces = 3 // both answers fit into the windows of the client
		for _, id := range []uint32{1, 3} {
			c.open(id, false, post("/")...)
			for range pieces {
				c.do(c.WriteData(id, false, body))
			}
		}
		c.open(3, true, "x-sum", "9") // its trailer
		trial.Eventually(t, "both bodies wait", func() bool {
			n := 0
			f.onStreams(func(s *stream) {
				if held := s.buffered(); held != nil && len(held.b) == pieces*len(body) && held.ends == (s.id == 3) {
					n++
				}
			})
			return n == 2
		})
		var sizes []int
		next := f.movedTo(engine, &sizes, func() eventloop.Handler {
			x := newCollector()
			x.head, x.req.Chunked = "moved", true
			return x
		})
		f.onLoop(func() {
			if n := len(f.server.loopStates[0].held); n != 0 {
				t.Errorf("%s: %d bodies stay", engine, n)
			}
		})
		next.onStreams(func(s *stream) { s.ResumeReading() })
		c.do(c.WriteData(1, true, []byte("end")))
		c.until("both are answered", func() bool { return c.over(1)() && c.over(3)() })
		for id, end := range map[uint32]string{1: "end\r\n", 3: "x-sum: 9\r\n\r\n"} {
			if got, want := c.body[id].String(), strings.Repeat(string(body), pieces)+end; got != want {
				t.Errorf("%s, stream %d: %d bytes, want %d: …%q", engine, id, len(got), len(want), got[max(0, len(got)-30):])
			}
		}
		c.conn.Close()
	}
}

// The client's header table is found by its entries' numbers, whatever its size and contents.
func TestHeaderTablesAreCopied(t *testing.T) {
	f := func(size uint32, fields ...string) {
		t.Helper()
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		enc.SetMaxDynamicTableSize(size)
		for i := 0; i < len(fields); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		x, y := &blockReader{}, &blockReader{}
		if err := x.fillTable(1<<15, b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := y.fillTable(1<<15, x.appendTable(nil)); err != nil {
			t.Fatal(err)
		}
		if x.shrunk != y.shrunk || x.shrunk != uint16(tableSize-size) {
			t.Errorf("%d: smaller by %d and %d bytes", size, x.shrunk, y.shrunk)
		}
		for i := range moreThanAll {
			number := appendInt(nil, indexedBit, 7, uint64(firstEntry+i))
			a, errA := x.decoder.DecodeFull(number)
			b, errB := y.decoder.DecodeFull(number)
			if (errA == nil) != (errB == nil) || !slices.Equal(a, b) {
				t.Fatalf("size %d, entry %d: %v, %v and %v, %v", size, firstEntry+i, a, errA, b, errB)
			}
			if errA != nil {
				return
			}
		}
		t.Errorf("size %d: no last entry", size)
	}
	f(4096)
	f(4096, ":path", "/a", "cookie", "a=b", "x-binary", "\x00\xff\x80", "x-long", strings.Repeat("~", 3000))
	f(200, "a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7")
	f(0, "a", "1")
	many := []string{}
	for i := range 200 {
		many = append(many, fmt.Sprint("n", i), fmt.Sprint(i))
	}
	f(4096, many...)
}

func FuzzReadState(f *testing.F) {
	s := New(Config{}, nil, 1, nil)
	h := &conn{loopState: s.loopStates[0], flags: gotSettings, writer: writer{maxFrame: maxFrameSize}}
	c := takeover.State{}.MustUint(moveFlags, marks(h.flags, connMarked[:])).MustUint(moveMaxFrame, maxFrameSize).MustBytes(moveTable, []byte("@\x01a\x01b")).Bytes(moveBudget, []byte("\x00\x01"))
	f.Add([]byte(c.MustBytes(moveStream, takeover.State{}.MustUint(streamNumber, 1).MustBytes(streamConn, takeover.State{}.MustUint(1, 1)).
		MustBytes(streamHeld, (&bufferedBody{b: []byte("body"), ends: true, trailer: []byte("a: b\r\n\r\n")}).state()))))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := s.ReadState(takeover.State(b), func(*eventloop.Moving) (Open, error) { return nil, nil })
		if err == nil && (a.conn.maxFrame < maxFrameSize || a.conn.window < 0 || len(a.conn.closed.stopped) > stoppedMost) {
			t.Fatalf("%x: %+v", b, a.conn)
		}
	})
}
