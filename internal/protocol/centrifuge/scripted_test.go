package centrifuge

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// scripted is a transport that a test drives by hand: its owner is the test, its clock
// is stopped until the test moves it, and what is sent is counted.
type scripted struct {
	hub     *hub.Hub
	shard   *hub.Shard
	session socket.Session
	now     int64
	timer   int64
	stalled bool
	sent    int
	frames  []string
	keep    bool
	closed  int // the code

	mu    sync.Mutex
	posts []func()
}

func (s *scripted) Send(b []byte) {
	s.sent++
	if s.keep {
		s.frames = append(s.frames, string(b))
	}
}
func (s *scripted) Write(b []byte)        { s.Send(b) }
func (s *scripted) Ping()                 {}
func (s *scripted) LastRead() int64       { return s.now }
func (s *scripted) Stalled() bool         { return s.stalled }
func (s *scripted) Unsent() int           { return 0 }
func (s *scripted) Close(c int, _ string) { s.closed = c }
func (s *scripted) Cut()                  { s.closed = 1006 }
func (s *scripted) Now() int64            { return s.now }
func (s *scripted) SetTimer(d time.Duration) {
	if s.timer = 0; d > 0 {
		s.timer = s.now + int64(d)
	}
}

func (s *scripted) Subscribe(x *hub.Subscriber, sink hub.Sink, opt hub.SubscribeOptions) error {
	return s.shard.Subscribe(x, sink, opt)
}

func (s *scripted) Deliver(b *hub.Batch, f hub.Format) {
	if w, ok := b.Once(f); ok {
		s.Write(w)
	} else {
		s.Send(b.Bytes(f))
	}
}
func (s *scripted) Unsubscribe(x *hub.Subscriber) { s.shard.Unsubscribe(x) }
func (s *scripted) Publish(p hub.Publication, done func(hub.Position, error)) {
	s.hub.Publish(p, func(at hub.Position, err error) { s.Post(func() { done(at, err) }) })
}

func (s *scripted) Do(work func(ctx context.Context), then func()) bool {
	work(context.Background())
	s.Post(then)
	return true
}

func (s *scripted) Post(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts = append(s.posts, f)
}
func (s *scripted) Peer() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:9") }
func (s *scripted) ID() uint64           { return 7 }

// run does what was posted, and what the hub has.
func (s *scripted) run() {
	for {
		s.shard.Run()
		s.mu.Lock()
		posts := s.posts
		s.posts = nil
		s.mu.Unlock()
		if len(posts) == 0 {
			return
		}
		for _, f := range posts {
			f()
		}
	}
}

// advance moves the clock to when the timer is due.
func (s *scripted) advance() {
	s.now, s.timer = s.timer, 0
	s.session.Timer()
	s.run()
}

// bench is a Server without a front.
type bench struct {
	hub    *hub.Hub
	server *Server
	wall   time.Time
}

func newBench(t testing.TB, cfg Config) *bench {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := auth.New(auth.Config{KeySet: auth.KeySet{HMACSecret: "0123456789abcdef0123456789abcdef", RequireExpiry: setting.Off}}, nil)
	must(err)
	broker, err := memory.New(memory.Config{})
	must(err)
	formats, err := wire.NewFormats(nil)
	must(err)
	numbers := AddFormats(formats.Add)
	h, err := hub.New(hub.Config{Encoders: formats.Encoders()}, broker)
	must(err)
	must(h.Start(context.Background()))
	cfg.Enabled = true
	s, err := New(cfg, Deps{Hub: h, Formats: numbers, Auth: a})
	must(err)
	must(s.Start())
	b := &bench{hub: h, server: s, wall: time.Unix(1_700_000_000, 0)}
	s.now = func() time.Time { return b.wall }
	t.Cleanup(func() { _ = s.Close(); _ = h.Close(); _ = a.Close() })
	return b
}

// open returns a client of a kind, on a shard of its own.
func (b *bench) open(k *kind) *scripted {
	x := &scripted{hub: b.hub, shard: b.hub.NewShard(func() {}), keep: true, now: int64(time.Hour)}
	x.session = k.begin(x, nil, time.Hour)
	return x
}

// send is a message of the client.
func (s *scripted) send(text string) {
	s.session.Message([]byte(text), false)
	s.run()
}

// await runs until ok.
func (s *scripted) await(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		s.run()
		if time.Now().After(end) {
			t.Fatalf("it does not come: %q", s.frames)
		}
	}
}

func (s *scripted) has(text string) func() bool {
	return func() bool { return strings.Contains(strings.Join(s.frames, "\n"), text) }
}

func everything() map[string]Namespace {
	return map[string]Namespace{"default": {
		AllowRecovery: true, AllowPositioning: true, ForceRecovery: true, AllowSubscribeForClient: true, AllowSubscribeForAnonymous: true,
		AllowPublishForClient: true, AllowPublishForAnonymous: true, AllowHistoryForClient: true, AllowHistoryForAnonymous: true,
		AllowDelta: true, AllowTagsFilter: true, AllowUserLimited: true,
	}}
}

// An idle subscriber is what there is most of: these are size classes of the allocator.
func TestSizes(t *testing.T) {
	f := func(what string, got, most uintptr) {
		t.Helper()
		if got > most {
			t.Errorf("%s: %d bytes, want at most %d", what, got, most)
		}
	}
	f("session", unsafe.Sizeof(session{}), 96)
	f("subscription", unsafe.Sizeof(subscription{}), 64)
}

func TestPlainClientsKeepNothingRare(t *testing.T) {
	b := newBench(t, Config{AnonymousConnect: true, Namespaces: everything()})
	c := b.open(b.server.kinds.ws[protocol.JSON])
	c.send(`{"id":1,"connect":{}}` + "\n" + `{"id":2,"subscribe":{"channel":"a"}}`)
	c.await(t, c.has(`"id":2,"subscribe"`))
	s := c.session.(*session)
	if s.account != b.server.kinds.ws[protocol.JSON].anonymous {
		t.Errorf("an account of its own: %+v", s.account)
	}
}

func TestDeliveryAllocatesNothingOfItsOwn(t *testing.T) {
	b := newBench(t, Config{AnonymousConnect: true, Namespaces: everything()})
	c := b.open(b.server.kinds.ws[protocol.JSON])
	c.send(`{"id":1,"connect":{}}` + "\n" + `{"id":2,"subscribe":{"channel":"a"}}`)
	c.await(t, c.has(`"id":2,"subscribe"`))
	c.keep = false
	p := hub.Publication{Channel: "a", Data: []byte("1")}
	nothing := func(hub.Position, error) {}
	b.hub.Publish(p, nothing)
	c.run()
	before := c.sent
	with := testing.AllocsPerRun(200, func() { b.hub.Publish(p, nothing); c.shard.Run() })
	if c.sent-before != 201 {
		t.Fatalf("%d sent", c.sent-before)
	}
	c.session.(*session).first.drop()
	without := testing.AllocsPerRun(200, func() { b.hub.Publish(p, nothing); c.shard.Run() })
	if with-without > 1 { // its bytes, where they cannot be used again
		t.Errorf("%v allocations with a subscriber, %v without", with, without)
	}
}

func TestPingsAndPongsByTheClock(t *testing.T) {
	b := newBench(t, Config{AnonymousConnect: true, Namespaces: everything()})
	c := b.open(b.server.kinds.ws[protocol.JSON])
	c.send(`{"id":1,"connect":{}}`)
	c.frames = nil
	begin := c.now
	c.advance()
	if first := time.Duration(c.now - begin); first < 12*time.Second || first > 26*time.Second || len(c.frames) != 1 {
		t.Fatalf("the first ping after %v: %q", first, c.frames)
	}
	for range 3 {
		c.send("{}")
		at := c.now
		c.advance() // the pong is there
		c.advance()
		if took := time.Duration(c.now - at); took < 24*time.Second || took > 26*time.Second || c.closed != 0 {
			t.Fatalf("the next ping after %v, closed %d", took, c.closed)
		}
	}
	at := c.now
	c.advance()
	if took := time.Duration(c.now - at); took > 9*time.Second || c.closed != 3012 {
		t.Errorf("closed with %d after %v, want 3012 after 8s", c.closed, took)
	}
}

func TestAClientThatSaysNothingIsStale(t *testing.T) {
	b := newBench(t, Config{Namespaces: everything()})
	c := b.open(b.server.kinds.ws[protocol.JSON])
	at := c.now
	c.advance()
	if took := time.Duration(c.now - at); c.closed != 3502 || took != 10*time.Second {
		t.Errorf("closed with %d after %v", c.closed, took)
	}
}

func TestARefusedClientIsCut(t *testing.T) {
	b := newBench(t, Config{Namespaces: everything()})
	c := b.open(b.server.kinds.ws[protocol.JSON])
	tok, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "1", "exp": 1}).SignedString([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	c.send(`{"id":1,"connect":{"token":"` + tok + `"}}`)
	if !c.has(`"error":{"code":109,"message":"token expired"}`)() {
		t.Errorf("got %q", c.frames)
	}
	c.frames = nil
	c.send(`{"id":1,"connect":{}}`)
	if len(c.frames) > 0 {
		t.Errorf("got %q", c.frames)
	}
	at := c.now
	c.advance()
	if took := time.Duration(c.now - at); c.closed != 1006 || took != 5*time.Second {
		t.Errorf("closed with %d after %v", c.closed, took)
	}
}

func TestExpiryByTheClock(t *testing.T) {
	b := newBench(t, Config{AnonymousConnect: true, Namespaces: everything()})
	c := b.open(b.server.kinds.ws[protocol.JSON])
	c.send(`{"id":1,"connect":{}}`)
	s := c.session.(*session)
	s.renew(b.wall.Add(5 * time.Second))
	c.frames = nil
	for range 8 {
		before := c.now
		c.now = c.timer
		b.wall = b.wall.Add(time.Duration(c.now - before))
		c.now, c.timer = c.timer, 0
		s.flags |= gotPong
		c.session.Timer()
		if c.closed != 0 {
			break
		}
	}
	if c.closed != 3005 || b.wall.Unix() != 1_700_000_030 {
		t.Errorf("closed with %d at %v, want 3005 after 30s", c.closed, b.wall.Unix()-1_700_000_000)
	}
}

// A gap while the subscription is live: the client is to come again and recover.
func TestGapsOfLiveSubscriptionsAreReported(t *testing.T) {
	b := newBench(t, Config{AnonymousConnect: true, UserPersonalChannel: true, Namespaces: everything()})
	gap := hub.Gap{Namespace: "default", Reason: hub.GapEpoch}
	c := b.open(b.server.kinds.ws[protocol.JSON])
	c.send(`{"id":1,"connect":{}}` + "\n" + `{"id":2,"subscribe":{"channel":"a"}}`)
	c.await(t, c.has(`"id":2,"subscribe"`))
	s := c.session.(*session)
	s.first.Gap(gap)
	if !c.has(`{"push":{"channel":"a","unsubscribe":{"code":2500,"reason":"insufficient state"}}}`)() || c.closed != 0 || s.find("a") != nil {
		t.Errorf("got %q, closed with %d", c.frames, c.closed)
	}
	c = b.open(b.server.kinds.ws[protocol.JSON])
	tok, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "1"}).SignedString([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	c.send(`{"id":1,"connect":{"token":"` + tok + `"}}`)
	c.await(t, c.has(`"#1"`))
	c.session.(*session).first.Gap(gap)
	if c.closed != 3010 {
		t.Errorf("closed with %d, want 3010", c.closed)
	}
}

func TestPrivateNamesHaveOneSpelling(t *testing.T) {
	f := func(wire, in string, ok bool) {
		t.Helper()
		got, fine := hubName(wire)
		if fine != ok || ok && (got != in || wireName(got) != wire) {
			t.Errorf("%s: %s, %v; back %s", wire, got, fine, wireName(got))
		}
	}
	f("news", "news", true)
	f("ns:news", "ns:news", true)
	f("$news", "$news", true)
	f("$ns:news", "ns:$news", true)
	f("$ns:a:b", "ns:$a:b", true)
	f("ns:$news", "", false)
	f("ns:#1,2", "ns:#1,2", true)
}

func TestGlobs(t *testing.T) {
	f := func(pattern, name string, want bool) {
		t.Helper()
		if got := glob(pattern, name); got != want {
			t.Errorf("%s on %s: %v", pattern, name, got)
		}
	}
	f("*", "", true)
	f("a*c", "abbc", true)
	f("a*c", "abbcd", false)
	f("a?c", "abc", true)
	f("a?c", "ac", false)
	f("*b*b*", "abab", true)
	f("a", "a*", false)
	f("", "a", false)
}

// Whatever a client says, in whatever pieces, it is answered or ended; nothing panics.
func FuzzSession(f *testing.F) {
	f.Add(byte(0), []byte(`{"id":1,"connect":{}}`+"\x00"+`{"id":2,"subscribe":{"channel":"a","recover":true,"epoch":"x"}}`+"\x00"+`{"id":3,"publish":{"channel":"a","data":1}}`))
	f.Add(byte(0), []byte(`{"id":1,"connect":{"token":"a.b.c","subs":{"a":{"recover":true}}}}`))
	f.Add(byte(0), []byte(`{"id":1,"connect":{}}`+"\n"+`{"id":2,"subscribe":{"channel":"b#","delta":"fossil","tf":{"key":"a","cmp":"ex"}}}`+"\x00{}\x00"+`{"id":4,"history":{"channel":"a","limit":-1,"since":{}}}`))
	f.Add(byte(0), []byte(`{"id":1,"connect":{}}`+"\n"+`{"id":2,"unsubscribe":{"channel":"$a:b"}}`+"\n"+`{"id":3,"rpc":{}}`+"\n"+`{"id":4,"sub_refresh":{"channel":"a","token":"x"}}`+"\n"+`{"id":5,"refresh":{"token":"x"}}`))
	f.Add(byte(4), []byte(`{"subs":{"a":{},"b":{"recover":true,"epoch":"q","offset":5}}}`))
	var proto []byte
	for _, c := range []protocol.Command{{ID: 1, Kind: protocol.Connect, Connect: &protocol.ConnectRequest{}}, {ID: 2, Kind: protocol.Subscribe, Sub: protocol.SubscribeRequest{Channel: "a"}}} {
		proto = protocol.AppendCommand(proto, protocol.Protobuf, &c)
	}
	f.Add(byte(1), proto)
	b := newBench(f, Config{AnonymousConnect: true, Namespaces: everything()})
	ks := b.server.kinds
	kinds := []*kind{ks.ws[0], ks.ws[1], ks.sse, ks.stream[1], ks.uniWS, ks.uniSSE}
	f.Fuzz(func(t *testing.T, which byte, text []byte) {
		c := b.open(kinds[int(which)%len(kinds)])
		k := c.session.(*session).kind()
		for part := range strings.SplitSeq(string(text), "\x00") {
			if k.uni {
				c.session.(*session).uniMessage([]byte(part))
			} else {
				c.session.(*session).input([]byte(part))
			}
			c.run()
			if c.closed != 0 {
				break
			}
		}
		if c.timer != 0 && c.closed == 0 {
			c.advance()
		}
		c.run()
		for x := range c.session.(*session).subscriptions() {
			c.shard.Unsubscribe(&x.sub)
		}
		c.session.Closed()
		c.run()
		if n := b.server.counters.subscriptions.Load(); n != 0 {
			t.Fatalf("%d subscriptions are left", n)
		}
		if clients, users := b.server.registry.count(); clients+users != 0 {
			t.Fatalf("%d clients are left", clients)
		}
	})
}
