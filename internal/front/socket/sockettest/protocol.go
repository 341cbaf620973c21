// Package sockettest is one suite for everything that implements package socket: the
// event loops and net/http are to look the same to a protocol, and its clients to see
// the same. It brings a small protocol of its own.
package sockettest

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// Name is the protocol's.
const Name = "test"

// A Protocol is what the endpoints of the suite speak.
type Protocol struct {
	// Fixed at New.
	text, line hub.Format

	// Any goroutine.
	opened, closed atomic.Int64
	thens, drained atomic.Int64
	began, ended   atomic.Int64
	unsent         atomic.Int64 // the most that a session saw waiting
	mu             sync.Mutex
	block          chan struct{} // what "do" waits for; nil: nothing
}

// New adds the protocol's formats to f, before the hub is made.
func New(f *wire.Formats) *Protocol {
	p := &Protocol{}
	p.text = f.Add(func(dst []byte, m *hub.Message) []byte {
		return wire.AppendFrame(dst, websocket.OpText, len(m.Data), func(dst []byte) []byte { return append(dst, m.Data...) })
	})
	p.line = f.Add(func(dst []byte, m *hub.Message) []byte { return append(append(dst, m.Data...), '\n') })
	return p
}

// Endpoints are to be mounted on the front under test.
func (p *Protocol) Endpoints() []socket.Endpoint {
	e := func(path, methods string, body int, serve socket.Handler) socket.Endpoint {
		return socket.Endpoint{Path: path, Protocol: Name, Methods: methods, MaxBody: body, Serve: serve}
	}
	events := e("/test/events", "GET, HEAD", 0, p.events)
	events.Stream = true
	return []socket.Endpoint{
		e("/test/socket", "GET", 0, p.socket), e("/test/lines", "GET, HEAD", 0, p.lines), events,
		e("/test/ask", "GET, HEAD, POST", 1024, p.answerRequest), e("/test/below/*", "GET", 0, p.answerRequest), e("/test/below/more/*", "GET", 0, p.answerRequest),
		e("/test/unread", "POST", 0, p.answerRequest),
	}
}

func (p *Protocol) socket(r socket.Request) {
	chosen := ""
	o := socket.WebSocketOptions{Subprotocols: []string{"test.v2", "test.v1"}, Chosen: &chosen, MaxMessage: 16 << 10}
	o.AnyOrigin = strings.Contains(r.Query(), "any")
	open := func() { r.WebSocket(o, func(t socket.Transport) socket.Session { return p.open(t, chosen) }) }
	if strings.Contains(r.Query(), "later") {
		r.Do(func(context.Context) {}, open)
		return
	}
	open()
}

func (p *Protocol) lines(r socket.Request) {
	_, channel, _ := strings.Cut(r.Query(), "channel=")
	r.Stream(socket.StreamOptions{ContentType: "application/x-lines", Fields: []socket.Field{{Name: "X-Test", Value: "yes"}, {Name: "X-Bad", Value: "a\r\nb: c"}}},
		func(t socket.Transport) socket.Session {
			s := p.open(t, "")
			s.stream = true
			s.subscribe(channel)
			return s
		})
}

func (p *Protocol) open(t socket.Transport, subprotocol string) *session {
	p.opened.Add(1)
	return &session{p: p, t: t, subprotocol: subprotocol, subs: map[string]*follower{}}
}

// session is a client.
type session struct {
	p           *Protocol
	t           socket.Transport
	subprotocol string
	stream      bool
	subs        map[string]*follower
	calls       int // not atomic: the race detector sees who calls
}

func (s *session) sendf(format string, a ...any) {
	b := fmt.Appendf(nil, format, a...)
	if s.stream {
		s.t.Write(append(b, '\n'))
		return
	}
	s.t.Write(websocket.AppendFrame(nil, websocket.OpText, b))
}

func (s *session) note() {
	s.calls++
	n := int64(s.t.Unsent())
	for old := s.p.unsent.Load(); n > old && !s.p.unsent.CompareAndSwap(old, n); old = s.p.unsent.Load() {
	}
}

func (s *session) Message(b []byte, binary bool) {
	s.note()
	if binary {
		s.t.Write(websocket.AppendFrame(nil, websocket.OpBinary, b))
		return
	}
	word, rest, _ := strings.Cut(string(b), " ")
	switch word {
	case "sub", "subpanic":
		s.subscribe(rest)
		s.subs[rest].panics = word == "subpanic"
	case "all": // what the channel has, and where it ends
		s.follow(&follower{s: s, channel: rest, all: true})
	case "unsub":
		s.t.Unsubscribe(&s.subs[rest].sub)
		delete(s.subs, rest)
		s.sendf("unsubscribed")
	case "pub":
		channel, text, _ := strings.Cut(rest, " ")
		s.t.Publish(hub.Publication{Channel: channel, Data: []byte(text), Attributes: &hub.Attributes{Payload: hub.Text}}, func(_ hub.Position, err error) {
			s.sendf("published %v", err)
		})
	case "do":
		if !s.t.Do(s.p.wait, func() { s.p.thens.Add(1); s.sendf("done") }) {
			s.sendf("busy")
		}
	case "timer":
		s.t.SetTimer(time.Millisecond)
	case "ping":
		s.t.Ping()
	case "panic":
		panic("asked to")
	case "close":
		code, reason, _ := strings.Cut(rest, " ")
		n, _ := strconv.Atoi(code)
		s.sendf("closing")
		s.t.Close(n, reason)
		s.sendf("no client reads this")
	case "cut":
		s.t.Cut()
	case "flood":
		n, _ := strconv.Atoi(rest)
		frame := websocket.AppendFrame(nil, websocket.OpBinary, bytes.Repeat([]byte("f"), 32<<10))
		for range n {
			s.t.Send(frame)
		}
	case "who":
		s.sendf("%v %q %v", s.t.Peer().Addr(), s.subprotocol, s.t.LastRead() <= s.t.Now())
	case "post":
		t := s.t
		go t.Post(func() { s.sendf("posted") })
	default:
		s.t.Send(websocket.AppendFrame(nil, websocket.OpText, b))
	}
}

func (s *session) Pong()    { s.note(); s.sendf("pong") }
func (s *session) Drained() { s.note(); s.p.drained.Add(1) }
func (s *session) Timer()   { s.note(); s.sendf("timer") }
func (s *session) Drain()   { s.note(); s.sendf("bye"); s.t.Close(1012, "draining") }
func (s *session) Closed()  { s.calls++; s.p.closed.Add(1) }

// Subject implements socket.Identified.
func (s *session) Subject() string { return "someone" }

func (s *session) subscribe(channel string) {
	s.follow(&follower{s: s, channel: channel})
}

func (s *session) follow(f *follower) {
	s.subs[f.channel] = f
	if err := s.t.Subscribe(&f.sub, f, hub.SubscribeOptions{Channels: []string{f.channel}, All: f.all}); err != nil {
		s.sendf("refused %v", err)
	}
}

// follower is a subscription of a client's.
type follower struct {
	s       *session
	channel string
	sub     hub.Subscriber
	panics  bool
	all     bool // the client is notified when it is live
}

func (f *follower) Start(hub.Positions) { f.s.note(); f.s.sendf("subscribed %s", f.channel) }

func (f *follower) Live() {
	f.s.note()
	if f.all {
		f.s.sendf("live %s", f.channel)
	}
}

func (f *follower) Deliver(b *hub.Batch) {
	f.s.note()
	if f.panics {
		panic("asked to")
	}
	format := f.s.p.text
	if f.s.stream {
		format = f.s.p.line
	}
	f.s.t.Deliver(b, format)
}

func (f *follower) Gap(hub.Gap)      { f.s.sendf("gap") }
func (f *follower) Failed(err error) { f.s.sendf("failed %v", err) }
func (f *follower) Room() bool       { return !f.s.t.Stalled() }

// wait is work that takes as long as the test says.
func (p *Protocol) wait(ctx context.Context) {
	p.mu.Lock()
	block := p.block
	p.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
		}
	}
}

// pause makes work wait until release is called.
func (p *Protocol) pause() (release func()) {
	block := make(chan struct{})
	p.mu.Lock()
	p.block = block
	p.mu.Unlock()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.block = nil
		p.mu.Unlock()
		close(block)
	})
}

// events is a stream of the hub's own sessions.
func (p *Protocol) events(r socket.Request) {
	s := &socket.Subscription{
		Options: hub.SubscribeOptions{Channels: []string{"news"}}, Format: wire.Mercure, Identity: auth.Anonymous,
		Select:   func(m *hub.Message) bool { return !bytes.Contains(m.Data, []byte("unwanted")) },
		Fields:   []socket.Field{{Name: "X-Test", Value: "yes"}},
		Preamble: []byte(": welcome\n\n"),
		Gap:      func(g hub.Gap) []byte { return fmt.Appendf(nil, "event: hole\ndata: %s\n\n", g.Reason) },
		Began:    func() { p.began.Add(1) }, Ended: func() { p.ended.Add(1) },
	}
	q := r.Query()
	s.Options.Public = strings.Contains(q, "public")
	if strings.Contains(q, "life") {
		s.Life = 50 * time.Millisecond
	}
	if strings.Contains(q, "pulse") {
		s.Heartbeat = 10 * time.Millisecond
	}
	if strings.Contains(q, "unknown") {
		s.Options.Unknown = "what"
	}
	if strings.Contains(q, "nowhere") {
		s.Options.Channels = []string{"no:such"}
	}
	if strings.Contains(q, "away") {
		r.Away(true)
		return
	}
	if strings.Contains(q, "identify") {
		r.Identify(func(id *auth.Identity) { s.Identity = id; r.Subscribe(s) })
		return
	}
	r.Subscribe(s)
}

// answerRequest answers with what it was asked.
func (p *Protocol) answerRequest(r socket.Request) {
	origin, access := r.Origin()
	answer := func() {
		r.Answer(200, "text/plain", fmt.Appendf(nil, "%s %s %s host=%s x=%s origin=%s,%v secure=%v local=%v body=%s", r.Method(), r.Path(), r.Query(), r.Host(),
			r.Header("X-Test"), origin, access, r.Secure(), r.Peer().Addr() == netip.MustParseAddr("127.0.0.1"), r.Body()),
			socket.Field{Name: "X-Field", Value: "yes"}, socket.Field{Name: "Bad Name", Value: "x"}, socket.Field{Name: "X-Bad", Value: "a\nb"})
	}
	switch {
	case strings.Contains(r.Query(), "do"):
		r.Do(p.wait, func() { p.thens.Add(1); answer() })
	case strings.Contains(r.Query(), "identify"):
		r.Identify(func(id *auth.Identity) {
			r.Answer(200, "", fmt.Appendf(nil, "%q %v", id.Subject, id == auth.Anonymous))
		})
	case strings.Contains(r.Query(), "topics"):
		r.PublishTopics([]string{"news", "more"}, hub.Publication{Data: r.Body()}, func(at hub.Position, err error) {
			r.Answer(200, "", fmt.Appendf(nil, "%v %v", at.Offset > 0, err))
		})
	case strings.Contains(r.Query(), "publish"):
		r.Publish(hub.Publication{Channel: "news", Data: r.Body()}, func(at hub.Position, err error) {
			r.Publish(hub.Publication{Channel: "no:such", Data: r.Body()}, func(_ hub.Position, bad error) {
				r.Answer(200, "", fmt.Appendf(nil, "%v %v %v", at.Offset > 0, err, bad != nil))
			})
		})
	case strings.Contains(r.Query(), "fail"):
		r.Fail(&wire.Error{Status: 403, Message: "no", Hint: "ask another server"})
	case strings.Contains(r.Query(), "away"):
		r.Away(false)
	case strings.Contains(r.Query(), "nothing"):
	case strings.Contains(r.Query(), "latepanic"):
		r.Do(p.wait, func() { panic("asked to") })
	default:
		answer()
		r.Answer(500, "", []byte("a second answer")) // is none
	}
}
