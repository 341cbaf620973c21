package loadgen

import (
	"bytes"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/websocket"
)

// A fakeWire takes what is written, and ends like a connection.
type fakeWire struct {
	h      endpoint
	closed bool
	out    []byte
}

func (w *fakeWire) Write(b []byte)   { w.out = append(w.out, b...) }
func (w *fakeWire) SetTimer(int64)   {}
func (w *fakeWire) CloseAfterFlush() { w.Close(nil) }
func (w *fakeWire) Close(err error) {
	if !w.closed {
		w.closed = true
		w.h.Closed(nil, err)
	}
}

// feed shows h the bytes in pieces, as a loop does: what is not consumed comes again.
func (w *fakeWire) feed(pieces ...[]byte) {
	var parked []byte
	for _, p := range pieces {
		parked = append(parked, p...)
		for len(parked) > 0 && !w.closed {
			n := w.h.Data(nil, parked)
			parked = parked[n:]
			if n == 0 {
				break
			}
		}
		parked = bytes.Clone(parked)
	}
	if !w.closed {
		w.h.EndOfStream(nil)
		w.Close(nil)
	}
}

// alone is a shard without a loop, for what needs no other.
func alone(f *testing.F, spec Spec) *shard {
	spec.Target = "http://127.0.0.1:1/"
	g, err := New(spec, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = g.Close() })
	return g.shards[0]
}

// fresh makes s as it was.
func (s *shard) refresh() {
	*s.rec = piece{}
	s.free, s.waiting = freeConns{}, queue[int64]{}
	s.inFlight, s.open, s.sum = 0, 0, sums{}
}

type outcome struct {
	completed uint64
	errors    map[string]uint64
	delivery  Delivery
	inFlight  int
}

func (s *shard) outcome() outcome {
	return outcome{s.rec.Completed, s.rec.Errors, s.rec.delivery, s.inFlight}
}

// FuzzHTTPLoadConnection holds that any cut of the responses counts the same.
func FuzzHTTPLoadConnection(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 204 x\r\n\r\nHTTP/1.1 200 x\r\n\r\nuntil the end",
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\nmore", "HTTP/1.0 304 x\r\n\r\n", "nonsense",
		"HTTP/1.1 101 x\r\nUpgrade: y\r\nConnection: upgrade\r\n\r\n",
	} {
		f.Add([]byte(text), uint16(1))
		f.Add([]byte(text), uint16(20))
	}
	s := alone(f, Spec{Kind: HTTP, Pipeline: 3})
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		run := func(pieces ...[]byte) outcome {
			s.refresh()
			h := &httpConn{requestConn: requestConn{link: link{s: s, state: up, established: true}}}
			w := &fakeWire{h: h}
			h.w = w
			for range 3 {
				s.begin(1, 1)
				s.send(h, 1, 1)
			}
			w.feed(pieces...)
			return s.outcome()
		}
		one := run(bytes.Clone(b))
		k := int(cut) % (len(b) + 1)
		if two := run(bytes.Clone(b[:k]), bytes.Clone(b[k:])); !reflect.DeepEqual(one, two) {
			t.Fatalf("%q whole: %+v, cut at %d: %+v", b, one, k, two)
		}
		var each [][]byte
		for i := range b {
			each = append(each, []byte{b[i]})
		}
		if bytewise := run(each...); !reflect.DeepEqual(one, bytewise) {
			t.Fatalf("%q whole: %+v, byte by byte: %+v", b, one, bytewise)
		}
		if one.inFlight != 0 {
			t.Fatalf("%q: %d are still under way after the end", b, one.inFlight)
		}
	})
}

// FuzzFrame shows every adapter what a server might send in a message.
func FuzzFrame(f *testing.F) {
	p := newPayload(64)
	st := stamp{run: 1, seq: 1}
	st.put(p)
	for _, text := range []string{
		`{"type":"subscribed","id":"e-5"}`, `{"type":"gap","id":"e-9","reason":"retention"}`, `{"type":"pong"}`, `{"type":"`,
		`{"channel":"a","id":"e-6","offset":6,"data":"` + string(p) + `"}`, `{}`, "{}\n{}\n", "\n\n",
		`{"id":1,"connect":{"client":"x"}}` + "\n" + `{"id":2,"subscribe":{"epoch":"e","offset":7,"recovered":true,"publications":[{"data":"` + string(p) + `","offset":8}]}}`,
		`{"id":2,"error":{"code":103,"message":"permission denied"}}`, `{"push":{"channel":"a","pub":{"data":"` + string(p) + `","offset":99999999999999999999}}}`,
		`{"push":{"channel":"a","unsubscribe":{"code":2500}}}`, `"offset":`, `"id":"`,
	} {
		for i := range uint8(4) {
			f.Add([]byte(text), i)
		}
	}
	s := alone(f, Spec{Kind: PubSub, Adapter: "weir", Transport: "ws", Conns: 1, Publishers: 1, Reconnect: true})
	s.g.flows.last[0].Store(5)
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		s.refresh()
		s.g.flows.standing[0].Store(0)
		h := newStream(s, 0)
		w := &fakeWire{h: h}
		h.w, h.state, h.began = w, connecting, s.g.now()
		a := &adapter{name: []string{"weir", "centrifuge", "nchan", "plain"}[which%4], channel: "a"}
		a.opened(h)
		in := bytes.Clone(b)
		if !w.closed {
			a.frame(h, in)
		}
		if !bytes.Equal(in, b) {
			t.Fatal("the message was changed")
		}
		if !w.closed {
			h.w.Close(nil)
		}
		if s.open != 0 || s.g.flows.standing[0].Load() > 1 {
			t.Fatalf("%d open and %d standing after the end", s.open, s.g.flows.standing[0].Load())
		}
	})
}

// FuzzStream holds that any cut of an event stream or a WebSocket counts the same.
func FuzzStream(f *testing.F) {
	p := newPayload(64)
	st := stamp{run: 1, seq: 1}
	st.put(p)
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	f.Add([]byte(head+"retry: 5\nid: a\n\ndata: "+string(p)+"\n\nevent: gap\ndata: {}\n\nevent: end\ndata: {\"code\":1012}\n\n"), uint16(70), false)
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n0\r\n\r\n"), uint16(90), false)
	f.Add([]byte("HTTP/1.1 503 x\r\n\r\n"), uint16(3), false)
	frame := websocket.AppendFrame(nil, websocket.OpText, []byte(`{"type":"subscribed","id":"x-1"}`))
	frame = websocket.AppendFrame(frame, websocket.OpText, []byte(`{"channel":"a","data":"`+string(p)+`"}`))
	frame = websocket.AppendFrame(frame, websocket.OpPing, []byte("?"))
	f.Add(websocket.AppendClose(frame, 1012, "drain"), uint16(40), true)
	s := alone(f, Spec{Kind: PubSub, Adapter: "weir", Conns: 1, Publishers: 1})
	f.Fuzz(func(t *testing.T, b []byte, cut uint16, socket bool) {
		s.g.spec.Transport = "sse"
		if socket {
			s.g.spec.Transport = "ws"
		}
		s.g.run = 1
		run := func(pieces ...[]byte) outcome {
			s.refresh()
			s.g.flows.standing[0].Store(0)
			h := newStream(s, 0)
			w := &fakeWire{h: h}
			h.w, h.state, h.began = w, connecting, int64(time.Second)
			h.Connected((*eventloop.Conn)(nil))
			if socket {
				pieces = append([][]byte{websocket.AppendHandshakeResponse(nil, h.key(), "", "")}, pieces...)
			}
			w.feed(pieces...)
			return s.outcome()
		}
		one := run(bytes.Clone(b))
		k := int(cut) % (len(b) + 1)
		if two := run(bytes.Clone(b[:k]), bytes.Clone(b[k:])); !reflect.DeepEqual(one, two) {
			t.Fatalf("%q whole: %+v, cut at %d: %+v", b, one, k, two)
		}
		if s.open != 0 || s.g.flows.standing[0].Load() != 0 {
			t.Fatalf("%d open, %d standing after the end", s.open, s.g.flows.standing[0].Load())
		}
	})
}

// TestWaitingForTheTargetIsNotLag has arrivals wait for a link.
func TestWaitingForTheTargetIsNotLag(t *testing.T) {
	g, err := New(Spec{Kind: HTTP, Target: "http://127.0.0.1:1/"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	s := g.shards[0]
	h := &httpConn{requestConn: requestConn{link: link{s: s, state: up, established: true}}}
	w := &fakeWire{h: h}
	h.w = w
	s.free.offer(h)
	late := g.now() - int64(time.Hour) // intended an hour ago
	s.since = late
	s.take(late)
	s.take(g.now())
	lag := s.rec.Lag.Clone()
	if s.waiting.len() != 1 || lag.TotalCount() != 2 || lag.Max() < 3599e6 {
		t.Fatalf("%d wait, lag %v", s.waiting.len(), lag.Max())
	}
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	h.Data(nil, bytes.Clone(answer))
	h.Data(nil, bytes.Clone(answer))
	if s.rec.Completed != 2 || s.rec.Waited != 1 || !s.rec.Lag.Equals(lag) {
		t.Errorf("completed %d, waited %d; the lag is %v and was %v", s.rec.Completed, s.rec.Waited, s.rec.Lag, lag)
	}
}

func TestEndedLoopsAreAnErrorAndNotAResult(t *testing.T) {
	g, err := New(Spec{Kind: SSE, Target: "http://127.0.0.1:1/", Conns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if e := g.group.Engine(); e != "epoll" {
		t.Errorf("engine %s, want epoll unless requested another", e)
	}
	g.group.Release() // so that Run fails
	if err := g.Connect(t.Context()); err == nil {
		t.Error("connected without loops")
	}
	if w, err := g.Measure(t.Context(), Load{}, time.Second); err == nil {
		t.Errorf("measured %+v without loops", w)
	}
}
