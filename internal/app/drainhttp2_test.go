package app

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	h2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// frames is a client that sees the frames of HTTP/2.
type frames struct {
	*h2.Framer
	t    *testing.T
	got  map[uint32]*bytes.Buffer // data by stream
	over map[uint32]bool          // streams that were ended
	away *h2.GoAwayFrame          // the last one
	late bool                     // the WebSocket had ended before the first
}

func dialFrames(t *testing.T, g *gateway) *frames {
	t.Helper()
	c, err := net.Dial("tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(trial.Patience))
	if _, err := c.Write([]byte(h2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f := &frames{Framer: h2.NewFramer(c, c), t: t, got: map[uint32]*bytes.Buffer{}, over: map[uint32]bool{}}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// open sends the head of a request.
func (f *frames) open(stream uint32, ends bool, fields ...string) {
	f.t.Helper()
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	if err := f.WriteHeaders(h2.HeadersFrameParam{StreamID: stream, BlockFragment: b.Bytes(), EndStream: ends, EndHeaders: true}); err != nil {
		f.t.Fatal(err)
	}
	f.got[stream] = &bytes.Buffer{}
}

// until reads frames until done holds, and reports whether the connection ended before.
func (f *frames) until(what string, done func() bool) (ended bool) {
	f.t.Helper()
	for !done() {
		fr, err := f.ReadFrame()
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			f.t.Fatalf("%s: nothing comes; away %v, ended streams %v", what, f.away, f.over)
		}
		if err != nil {
			return true
		}
		switch fr := fr.(type) {
		case *h2.SettingsFrame:
			if !fr.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *h2.DataFrame:
			f.got[fr.StreamID].Write(fr.Data())
			f.over[fr.StreamID] = f.over[fr.StreamID] || fr.StreamEnded()
		case *h2.GoAwayFrame:
			if f.away == nil {
				f.late = f.over[3]
			}
			away := *fr // the Framer uses it again
			f.away = &away
		}
	}
	return false
}

// A drain announces to clients of HTTP/2 which requests are the last of their connection,
// closes streams and WebSockets as over HTTP/1.1, and then the connection: clients come
// back by a new one, and find another node or the next process.
func TestDrainOverHTTP2(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, engine := range []string{"epoll", "io_uring"} {
		g := start(t, func(c *config.Config) { c.EventLoop.Engine = engine })
		f := dialFrames(t, g)
		f.open(1, true, ":method", "GET", ":scheme", "http", ":path", "/sse?channel=a", ":authority", "a")
		f.open(3, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":path", "/ws?channel=a&hello=1", ":authority", "a", "sec-websocket-version", "13")
		f.open(5, true, ":method", "GET", ":scheme", "http", ":path", "/healthz", ":authority", "a")
		f.until("all are served", func() bool {
			return f.got[1].Len() > 0 && strings.Contains(f.got[3].String(), "subscribed") && f.over[5]
		})
		g.push.Leave()
		(&departure{App: g.App}).start(wire.DrainPlan{Spread: 100 * time.Millisecond}, false)
		f.until(engine+": the streams end", func() bool { return f.over[1] && bytes.Contains(f.got[3].Bytes(), []byte{0x03, 0xf4}) })
		if b := f.got[1].String(); !strings.Contains(b, "retry: ") || !strings.Contains(b, `event: end
data: {"code":1012,"reason":"draining"}`) {
			t.Errorf("%s: the event stream ends with %q", engine, b)
		}
		f.until(engine+": GOAWAY", func() bool { return f.away != nil })
		if f.late {
			t.Errorf("%s: GOAWAY came when the last stream had ended: the client used the connection until then", engine)
		}
		// The peer of a WebSocket closes after the close frame: an empty one, masked.
		if err := f.WriteData(3, true, []byte{0x88, 0x80, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if !f.until(engine+": the connection ends", func() bool { return false }) {
			t.Errorf("%s: the connection stays open", engine)
		}
		if f.away == nil || f.away.LastStreamID != 5 || f.away.ErrCode != h2.ErrCodeNo {
			t.Errorf("%s: GOAWAY %+v, want one with stream 5 and no error", engine, f.away)
		}
		// A connection that comes now is served, gets a GOAWAY, and is closed.
		f = dialFrames(t, g)
		f.open(1, true, ":method", "GET", ":scheme", "http", ":path", "/sse?channel=a", ":authority", "a")
		if !f.until(engine+": a late connection ends", func() bool { return false }) || f.away == nil || !strings.Contains(f.got[1].String(), `"code":1012`) {
			t.Errorf("%s: a late stream: %q, GOAWAY %v", engine, f.got[1], f.away)
		}
	}
}
