package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/test/judge"
	"github.com/weir-gateway/weir/websocket"
)

// A frameReader is a client of HTTP/2 that sees the frames of a request for events and of one that is proxied.
type frameReader struct {
	*http2.Framer
	t             *testing.T
	events, reply bytes.Buffer
	// left: a GOAWAY came. eventsEnded: the stream of events was ended in order.
	left, eventsEnded bool
}

const (
	eventsStream = 1
	slowStream   = 3
)

func newFrameReader(t *testing.T, addr string) *frameReader {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	f := &frameReader{Framer: http2.NewFramer(c, c), t: t}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	f.open(eventsStream, "/sse?channel=a")
	f.open(slowStream, "/slow/one")
	return f
}

// open sends a request.
func (f *frameReader) open(stream uint32, path string) {
	f.t.Helper()
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", path}, {":authority", "a"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // into a buffer
	}
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: b.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		f.t.Fatal(err)
	}
}

// until reads until done holds; the connection's end is an error.
func (f *frameReader) until(done func() bool) error {
	for !done() {
		fr, err := f.ReadFrame()
		if err != nil {
			return err
		}
		switch fr := fr.(type) {
		case *http2.SettingsFrame:
			if !fr.IsAck() {
				err = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !fr.IsAck() {
				err = f.WritePing(true, fr.Data)
			}
		case *http2.GoAwayFrame:
			f.left = true
		case *http2.DataFrame:
			if fr.StreamID == eventsStream {
				f.events.Write(fr.Data())
				f.eventsEnded = fr.StreamEnded()
			} else {
				f.reply.Write(fr.Data())
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A connection that is busy during the upgrade, and that the new process refuses when it is idle, stays with the old process
// and ends as in any drain: with a GOAWAY, a delay to reconnect after, and a close code.
func TestWhatIsRefusedAfterAnUpgradeIsDrained(t *testing.T) {
	t.Parallel()
	onEngines(t, refusedLater)
}

func refusedLater(t *testing.T, engine string) {
	started, release := make(chan struct{}), make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		fmt.Fprint(w, "done")
	}))
	defer backend.Close()
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo()
	namespaces := []any{map[string]any{"name": "default", "anonymous": true}, map[string]any{"name": "other", "anonymous": true}}
	config := map[string]any{
		"namespaces": namespaces,
		"eventloop":  map[string]any{"engine": engine, "loops": 2}, "shutdown": map[string]any{"drain": "10s"},
		"clusters": []any{map[string]any{"name": "slow", "peers": []any{map[string]any{"address": backend.Listener.Addr().String()}}}},
		"routes":   []any{map[string]any{"path": "/slow/*", "cluster": "slow"}},
	}
	s := judge.New(t, judge.Options{Build: judge.Race, Memory: true, Config: config})
	defer func() {
		if t.Failed() {
			t.Log(s.Log())
		}
	}()
	f := newFrameReader(t, s.Public)
	if err := f.until(func() bool { return f.events.Len() > 0 }); err != nil {
		t.Fatal(err)
	}
	<-started
	ws, _, err := websocket.Dial(t.Context(), "ws://"+s.Public+"/ws?channel=other:a", websocket.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	_ = ws.NetConn().SetDeadline(time.Now().Add(time.Minute))
	part := func(first bool, op websocket.Opcode, text string) error {
		b := websocket.AppendMaskedHeader(nil, !first, false, op, len(text), [4]byte{})
		_, err := ws.NetConn().Write(append(b, text...))
		return err
	}
	if err := part(true, websocket.OpText, `{"type":`); err != nil {
		t.Fatal(err)
	}
	changed := maps.Clone(config)
	changed["downstream"] = map[string]any{"http2": false}
	changed["namespaces"] = namespaces[:1]
	s.Configure(changed)
	var later sync.WaitGroup
	later.Go(func() { // the upgrade is over when the old process has ended
		for end := time.Now().Add(time.Minute); !strings.Contains(s.Log(), "took over") && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		letGo()
		if err := part(false, websocket.OpContinuation, `"ping"}`); err != nil {
			t.Error(err)
		}
	})
	var wsEnd, h2End error
	later.Go(func() {
		for wsEnd == nil {
			_, _, wsEnd = ws.Read(t.Context())
		}
	})
	later.Go(func() { h2End = f.until(func() bool { return false }) })
	if r := s.Upgrade(); r.Step != "done" {
		t.Fatalf("%+v", r)
	}
	later.Wait()
	var e *websocket.CloseError
	if !errors.As(wsEnd, &e) || e.Code != 1012 {
		t.Errorf("the WebSocket ended with %v, want code 1012", wsEnd)
	}
	if !f.left {
		t.Errorf("the connection of HTTP/2 ended without a GOAWAY: %v", h2End)
	}
	if b := f.events.String(); !f.eventsEnded || !strings.Contains(b, "retry: ") || !strings.Contains(b, `"code":1012`) {
		t.Errorf("the stream of events ended with %q, in order: %v", b, f.eventsEnded)
	}
	if f.reply.String() != "done" {
		t.Errorf("the proxied reply is %q", f.reply.String())
	}
}
