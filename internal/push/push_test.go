package push

import (
	"bufio"
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
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// 10,000 idle clients have 10,000 of them. The bounds are size classes of the
// allocator: one byte more costs 16 or 32.
func TestSessionsAreSmall(t *testing.T) {
	f := func(name string, size, limit uintptr) {
		t.Helper()
		t.Logf("%s: %d bytes", name, size)
		if size > limit {
			t.Errorf("%s has %d bytes, want at most %d", name, size, limit)
		}
	}
	f("SSE", unsafe.Sizeof(sseSession{}), 96)
	f("WebSocket", unsafe.Sizeof(wsSession{}), 112)
}

// scripted is a broker without a log of its own: a test says what it delivers,
// and when and how a subscription is answered.
type scripted struct {
	// begin is what "S" and "W" speak.
	begin   func(socket.Transport) socket.Session
	deliver func(*hub.Message)
	// subscribed answers Subscribe; nil answers at once with an empty log "e1".
	subscribed func(ctx context.Context) error
	patience   time.Duration // replaces openingTime
	encoders   func([]hub.Encoder)
	mu         sync.Mutex
	subs       int
}

func (b *scripted) Start(_ context.Context, _ []hub.Namespace, deliver func(*hub.Message)) error {
	b.deliver = deliver
	return nil
}

func (b *scripted) Publish(_ *hub.Namespace, _ hub.Publication, done func(hub.Position, error)) {
	done(hub.Position{}, hub.ErrUnavailable)
}

func (b *scripted) Subscribe(ctx context.Context, _ *hub.Namespace, _ string, _ int) (hub.Snapshot, error) {
	b.mu.Lock()
	b.subs++
	b.mu.Unlock()
	if b.subscribed != nil {
		if err := b.subscribed(ctx); err != nil {
			return hub.Snapshot{}, err
		}
	}
	return hub.Snapshot{Top: hub.Position{Epoch: "e1"}}, nil
}

func (b *scripted) requested() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.subs > 0
}

func (b *scripted) Unsubscribe(*hub.Namespace, string) {}

func (b *scripted) History(context.Context, *hub.Namespace, string, uint64, int) (hub.Page, error) {
	return hub.Page{}, hub.ErrUnavailable
}

func (b *scripted) Prove(context.Context, *hub.Namespace, hub.Position) (hub.Check, error) {
	return 0, nil
}

func (b *scripted) Top(context.Context, *hub.Namespace) (hub.Position, error) {
	return hub.Position{Epoch: "e1"}, nil
}

func (b *scripted) Ready() error { return nil }
func (b *scripted) Close() error { return nil }

// stage is a Push on one loop whose clients need no request: the first byte
// they send says what they are, "s" for SSE and "w" for WebSocket, "S" and "W" for a
// protocol in a body and on a WebSocket.
type stage struct {
	*Push
	t    *testing.T
	addr netip.AddrPort
}

type greeter struct {
	p     *Push
	begin func(socket.Transport) socket.Session
}

func (h greeter) Data(c *eventloop.Conn, b []byte) int {
	sub := &Subscription{Subscription: wire.Subscription{Channels: []string{"a"}, Hello: true}, Key: []byte("dGhlIHNhbXBsZSBub25jZQ=="), Fields: []byte("X-Test: yes\r\n")}
	serve := h.p.ServeSSE
	switch b[0] {
	case 'S':
		h.p.ServeStream(c, &StreamOptions{ContentType: "text/plain", Protocol: 1}, h.begin)
		return 1
	case 'W':
		h.p.ServeSocket(c, &SocketOptions{Key: []byte("dGhlIHNhbXBsZSBub25jZQ=="), Protocol: 1}, h.begin)
		return 1
	case 'w':
		serve = h.p.ServeWebSocket
	}
	if err := serve(c, sub); err != nil {
		c.Close(err)
	}
	return 1
}
func (greeter) EndOfStream(*eventloop.Conn) bool { return false }
func (greeter) Drained(*eventloop.Conn)          {}
func (greeter) Timer(*eventloop.Conn, int64)     {}
func (greeter) Closed(*eventloop.Conn, error)    {}

func play(t *testing.T, b *scripted, ns hub.Namespace) *stage {
	t.Helper()
	ns.Name = "default"
	formats, err := wire.NewFormats([]hub.Namespace{ns})
	if err != nil {
		t.Fatal(err)
	}
	encoders := formats.Encoders()
	if b.encoders != nil {
		b.encoders(encoders)
	}
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{ns}, Encoders: encoders}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t}
	loops, err := eventloop.New(eventloop.Config{Loops: 1, NotSentLowat: 4 << 10, Engine: "epoll"},
		func(*eventloop.Conn) eventloop.Handler { return greeter{s.Push, b.begin} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Push, err = New(Config{}, Deps{Formats: formats, Hub: h, Loops: loops.Loops()}); err != nil {
		t.Fatal(err)
	}
	s.Protocol("restless")
	if b.patience != 0 {
		s.openingTime = int64(b.patience)
	}
	if s.addr, err = loops.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- loops.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if st := s.Stats(); st.SSE != 0 || st.WebSocket != 0 || st.Queued != 0 || st.QueuedBytes != 0 {
			t.Errorf("after the end: %+v", st)
		}
	})
	return s
}

// client connects and says what it is.
func (s *stage) client(kind string) (*net.TCPConn, *bufio.Reader) {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr.String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	tcp := c.(*net.TCPConn)
	_ = tcp.SetDeadline(time.Now().Add(trial.Patience))
	_ = tcp.SetReadBuffer(128 << 10)
	if _, err := io.WriteString(c, kind); err != nil {
		s.t.Fatal(err)
	}
	return tcp, bufio.NewReader(c)
}

// rest reads up to the end of the connection.
func (s *stage) rest(r io.Reader) string {
	s.t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		s.t.Fatalf("after %q: %v", b, err)
	}
	return string(b)
}

// until reads up to and including what ends with mark.
func until(t *testing.T, r *bufio.Reader, mark string) string {
	t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), mark) {
		line, err := r.ReadString(mark[len(mark)-1])
		b.WriteString(line)
		if err != nil {
			t.Fatalf("after %.200q: %v", b.String(), err)
		}
	}
	return b.String()
}

// A gap event keeps its place between messages, for a client that was
// behind when it was found as well.
func TestAGapDoesNotOvertakeHeldMessages(t *testing.T) {
	b := &scripted{}
	s := play(t, b, hub.Namespace{QueueMessages: 100_000, QueueBytes: 64 << 20})
	c, r := s.client("s")
	until(t, r, "\n\n")
	payload := `"` + strings.Repeat("x", 3000) + `"`
	send := func(epoch string, offset int) {
		b.deliver(&hub.Message{Channel: "a", Epoch: epoch, Offset: uint64(offset), Data: []byte(payload)})
	}
	n := 0
	for s.Stats().Queued < 50 {
		if n++; n > 20_000 {
			t.Fatal("nothing is ever held")
		}
		send("e1", n)
	}
	send("e2", 1)
	send("e2", 2)
	send("e3", 7)
	_ = c.SetReadBuffer(4 << 20)
	block := func() string { return until(t, r, "\n\n") }
	for i := 1; i <= n; i++ {
		if got := block(); got != fmt.Sprintf("id: e1-%d\ndata: %s\n\n", i, payload) {
			t.Fatalf("%.80q, want e1-%d", got, i)
		}
	}
	f := func(prefix string) {
		t.Helper()
		if got := block(); !strings.HasPrefix(got, prefix) {
			t.Errorf("%.120q, want %q", got, prefix)
		}
	}
	f("event: gap\nid: e2-0\ndata: {\"namespace\":\"default\",\"from\":\"e1-")
	f("id: e2-1\n")
	f("id: e2-2\n")
	f("event: gap\nid: e3-0\n")
	f("id: e3-7\n")
}

func TestASubscriptionThatDoesNotComeAboutIsAnswered(t *testing.T) {
	forever := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	refuse := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	f := func(what string, subscribed func(context.Context) error, sse, ws, last string, also func(*stage)) {
		t.Helper()
		b := &scripted{subscribed: subscribed, patience: 200 * time.Millisecond}
		if also != nil {
			b.patience = time.Hour
		}
		s := play(t, b, hub.Namespace{})
		c1, stream := s.client("s")
		c2, socket := s.client("w")
		if also != nil {
			trial.Eventually(t, "both wait", func() bool { st := s.Stats(); return b.requested() && st.SSE+st.WebSocket == 2 })
			also(s)
		}
		if got := s.rest(stream); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.Contains(got, sse) || !strings.Contains(got, "\nretry: ") && !strings.Contains(got, "\r\nretry: ") || !strings.Contains(got, "X-Test: yes\r\n") {
			t.Errorf("%s: SSE %q, want %q", what, got, sse)
		}
		if got := s.rest(socket); !strings.HasPrefix(got, ws) || !strings.Contains(got, last) || !strings.Contains(got, "X-Test: yes\r\n") {
			t.Errorf("%s: WebSocket %q, want %q", what, got, ws)
		}
		c1.Close()
		c2.Close()
		trial.Eventually(t, "no stream is left", func() bool { st := s.Stats(); return st.SSE+st.WebSocket == 0 })
	}
	f("never answered", forever, `"code":1013`, "HTTP/1.1 101 ", "\x03\xf5", nil)
	f("unavailable", refuse(hub.ErrUnavailable), `"code":1013`, "HTTP/1.1 101 ", "\x03\xf5", nil)
	f("broken", refuse(errors.New("broken")), `"code":1011`, "HTTP/1.1 500 ", `{"error":{"code":`, nil)
	f("drained while waiting", forever, `"code":1012`, "HTTP/1.1 101 ", "\x03\xf4", func(s *stage) { s.Drain(wire.DrainPlan{Over: 50 * time.Millisecond}) })
	f("drained at once", forever, `"code":1012`, "HTTP/1.1 101 ", "\x03\xf4", func(s *stage) { s.Drain(wire.DrainPlan{}) })
}

// A stream that starts in the middle of a drain ends with it, not a heartbeat later.
func TestAStreamThatStartsDuringADrainEndsWithIt(t *testing.T) {
	gate := make(chan struct{})
	s := play(t, &scripted{subscribed: func(context.Context) error { <-gate; return nil }}, hub.Namespace{})
	_, stream := s.client("s")
	trial.Eventually(t, "it waits", func() bool { return s.Stats().SSE == 1 })
	s.Drain(wire.DrainPlan{Over: time.Second})
	close(gate)
	begin := time.Now()
	if got := s.rest(stream); !strings.Contains(got, `"code":1012`) {
		t.Errorf("%q, want 1012", got)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestClientsThatGoWhileAChannelIsActivated(t *testing.T) {
	gate := make(chan struct{})
	b := &scripted{subscribed: func(context.Context) error { <-gate; return nil }}
	s := play(t, b, hub.Namespace{})
	var all []*net.TCPConn
	for i := range 20 {
		c, _ := s.client(string("sw"[i%2]))
		all = append(all, c)
	}
	_, stays := s.client("s")
	trial.Eventually(t, "all wait", func() bool { st := s.Stats(); return st.SSE+st.WebSocket == 21 })
	for i, c := range all {
		if i%3 == 0 {
			_ = c.SetLinger(0)
		}
		c.Close()
	}
	trial.Eventually(t, "one is left", func() bool { st := s.Stats(); return st.SSE+st.WebSocket == 1 })
	close(gate)
	until(t, stays, "\n\n")
	b.deliver(&hub.Message{Channel: "a", Epoch: "e1", Offset: 1, Data: []byte("1")})
	if got := until(t, stays, "\n\n"); got != "id: e1-1\ndata: 1\n\n" {
		t.Errorf("%q", got)
	}
}

func TestAPanicEndsItsOwnSubscriberOnly(t *testing.T) {
	b := &scripted{encoders: func(list []hub.Encoder) {
		sound := list[wire.SSE]
		list[wire.SSE] = func(dst []byte, m *hub.Message) []byte {
			if string(m.Data) == `"boom"` {
				panic("boom")
			}
			return sound(dst, m)
		}
	}}
	s := play(t, b, hub.Namespace{})
	_, victim := s.client("s")
	until(t, victim, "\n\n")
	_, other := s.client("w")
	until(t, other, `"}`)
	send := func(offset int, data string) {
		b.deliver(&hub.Message{Channel: "a", Epoch: "e1", Offset: uint64(offset), Data: []byte(data)})
	}
	send(1, `"boom"`)
	if rest := s.rest(victim); rest != "" {
		t.Errorf("the victim got %q before its end", rest)
	}
	until(t, other, `"data":"boom"}`)
	send(2, `"fine"`)
	until(t, other, `"data":"fine"}`)
	_, again := s.client("s")
	until(t, again, "\n\n")
	send(3, `"more"`)
	until(t, again, "data: \"more\"\n\n")
	if n := s.Stats().Panics; n != 1 {
		t.Errorf("%d panics counted, want 1", n)
	}
}
