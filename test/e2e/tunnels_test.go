package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/test/judge"
	"github.com/weir-gateway/weir/websocket"
)

// A duplex is one end of a WebSocket on which both ends send numbered messages all the while.
type duplex struct {
	name           string
	c              *websocket.Conn
	size           int           // the longest message
	pace           time.Duration // between two that are read, until hurry is set
	hurry          *atomic.Bool
	sent, received atomic.Int64
	ends           chan struct{} // closed when this end is to send its last message
	once           sync.Once
}

func newDuplex(name string, c *websocket.Conn, bulk bool, hurry *atomic.Bool) *duplex {
	d := &duplex{name: name, c: c, size: 1500, hurry: hurry, ends: make(chan struct{})}
	if bulk {
		d.size, d.pace = 32<<10, 10*time.Millisecond
	}
	return d
}

// message is the one of that number: its length and every byte depend on it.
func (d *duplex) message(n int64) []byte {
	b := bytes.Repeat([]byte{byte(n)}, 8+int(n*7919)%d.size)
	binary.BigEndian.PutUint64(b, uint64(n))
	return b
}

func (d *duplex) end() { d.once.Do(func() { close(d.ends) }) }

// send sends messages until end is called, and then says how many they were. A bulk end sends as much as is taken.
func (d *duplex) send() error {
	for {
		select {
		case <-d.ends:
			return d.c.Write(websocket.OpText, fmt.Appendf(nil, "end %d", d.sent.Load()))
		default:
		}
		n := d.sent.Load() + 1
		if err := d.c.Write(websocket.OpBinary, d.message(n)); err != nil {
			return err
		}
		d.sent.Store(n)
		if d.pace == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// receive reads until the other end has sent its last message: none is missing, repeated, changed or out of order.
func (d *duplex) receive() error {
	for {
		op, b, err := d.c.Read(context.Background())
		if err != nil {
			return err
		}
		n := d.received.Load() + 1
		if op == websocket.OpText {
			if want := fmt.Sprintf("end %d", n-1); string(b) != want {
				return fmt.Errorf("got %q, want %q", b, want)
			}
			return nil
		}
		if !bytes.Equal(b, d.message(n)) {
			return fmt.Errorf("message %d has %d bytes and number %x, want %d bytes", n, len(b), b[:min(8, len(b))], len(d.message(n)))
		}
		d.received.Store(n)
		if !d.hurry.Load() {
			time.Sleep(d.pace)
		}
	}
}

// shrink leaves a connection small buffers in the kernel, so that what waits does so in the server.
func shrink(c net.Conn) {
	if b, ok := c.(interface {
		SetReadBuffer(n int) error
		SetWriteBuffer(n int) error
	}); ok {
		_, _ = b.SetReadBuffer(32<<10), b.SetWriteBuffer(32<<10)
	}
}

// A tunnelBackend is what tunnels lead to, over TCP, a Unix socket and TLS.
type tunnelBackend struct {
	clusters, routes []any
	hurry            atomic.Bool

	mu   sync.Mutex
	gone map[string]error // how each WebSocket ended here, by its path
}

func (b *tunnelBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, websocket.AcceptOptions{CheckOrigin: func(*http.Request) bool { return true }})
	if err != nil {
		return
	}
	d := newDuplex(r.URL.Path, c, strings.HasSuffix(r.URL.Path, "bulk"), &b.hurry)
	var sending sync.WaitGroup
	sending.Go(func() { _ = d.send() })
	err = d.receive()
	d.end()
	sending.Wait()
	b.mu.Lock()
	b.gone[d.name] = err
	b.mu.Unlock()
	_, _, _ = c.Read(context.Background()) // the client's close
	c.CloseNow()
}

// ended returns how the WebSocket of a path ended at the backend.
func (b *tunnelBackend) ended(path string) (err error, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err, over = b.gone[path]
	return err, over
}

func newTunnelBackend(t *testing.T) *tunnelBackend {
	t.Helper()
	b := &tunnelBackend{gone: map[string]error{}}
	dir := t.TempDir()
	cert, key := judge.Certificate(t, dir)
	add := func(name, network, address string, secure bool) {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: b, ReadHeaderTimeout: time.Minute, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if tc, ok := c.(*tls.Conn); ok {
				c = tc.NetConn()
			}
			shrink(c)
			return ctx
		}}
		served := make(chan struct{})
		go func() {
			defer close(served)
			if secure {
				_ = s.ServeTLS(l, cert, key)
			} else {
				_ = s.Serve(l)
			}
		}()
		t.Cleanup(func() { _ = s.Close(); <-served })
		peer := l.Addr().String()
		switch {
		case network == "unix":
			peer = "unix:" + address
		case !secure: // by name
			peer = strings.Replace(peer, "127.0.0.1", "localhost", 1)
		}
		cluster := map[string]any{"name": name, "peers": []any{map[string]any{"address": peer}}}
		if secure {
			cluster["tls"] = map[string]any{"enabled": true, "ca_files": []any{cert}}
		}
		b.clusters = append(b.clusters, cluster)
		b.routes = append(b.routes, map[string]any{"name": name, "path": "/" + name + "/*", "cluster": name})
	}
	add("plain", "tcp", "127.0.0.1:0", false)
	add("unix", "unix", filepath.Join(dir, "b"), false)
	add("secure", "tcp", "127.0.0.1:0", true)
	b.routes = append(b.routes, map[string]any{"name": "named", "path": "/named/*", "cluster": "plain", "auth": map[string]any{"required": true}})
	return b
}

// A tunnelUser opens WebSockets by the routes of a tunnelBackend.
type tunnelUser struct {
	t      *testing.T
	secure *websocket.DialOptions // nil: in the clear
	header http.Header
	hurry  *atomic.Bool // the backend's
	wait   sync.WaitGroup

	mu   sync.Mutex
	over map[string]error
}

// open opens one at addr.
func (u *tunnelUser) open(scheme, addr, path string) *duplex {
	u.t.Helper()
	o := websocket.DialOptions{Header: u.header, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			shrink(c)
		}
		return c, err
	}}
	if scheme == "wss" {
		o.TLS = u.secure.TLS
	}
	var c *websocket.Conn
	var err error
	trial.Eventually(u.t, "the backend's name to be known", func() bool { // a server that has just started answers 503 until then
		c, _, err = websocket.Dial(u.t.Context(), scheme+"://"+addr+path, o)
		return err == nil || !strings.Contains(err.Error(), " 503 ")
	})
	if err != nil {
		u.t.Fatalf("%s: %v", path, err)
	}
	d := newDuplex(path, c, strings.HasSuffix(path, "bulk"), u.hurry)
	u.wait.Go(func() { _ = d.send() })
	u.wait.Go(func() {
		err := d.receive()
		d.end()
		u.mu.Lock()
		u.over[d.name] = err
		u.mu.Unlock()
	})
	u.t.Cleanup(c.CloseNow)
	return d
}

func (u *tunnelUser) ended(d *duplex) (err error, over bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	err, over = u.over[d.name]
	return err, over
}

func (u *tunnelUser) wantClose(d *duplex, code uint16) {
	u.t.Helper()
	judge.Eventually(u.t, 30*time.Second, d.name+" is closed", func() bool { _, over := u.ended(d); return over })
	var e *websocket.CloseError
	if err, _ := u.ended(d); !errors.As(err, &e) || e.Code != code {
		u.t.Errorf("%s: ended with %v, want code %d", d.name, err, code)
	}
}

// progress waits until every one of list has sent and received more.
func (u *tunnelUser) progress(list []*duplex, more int64) {
	u.t.Helper()
	was := make([][2]int64, len(list))
	for i, d := range list {
		was[i] = [2]int64{d.sent.Load(), d.received.Load()}
	}
	judge.Eventually(u.t, 30*time.Second, "every tunnel carries more in both directions", func() bool {
		for i, d := range list {
			if err, over := u.ended(d); over {
				u.t.Fatalf("%s has ended: %v", d.name, err)
			}
			if d.sent.Load() < was[i][0]+more || d.received.Load() < was[i][1]+more {
				return false
			}
		}
		return true
	})
}

// Tunnels continue in the new process, with what is under way in both directions, whatever the connections on both
// sides are; there they end by a revocation and by a drain as anywhere.
func TestTunnelsMoveInAnUpgrade(t *testing.T) {
	t.Parallel()
	f := func(name string, o judge.Options, engine string) {
		t.Run(name+" "+engine, func(t *testing.T) {
			t.Parallel()
			o.Build = judge.Race
			b := newTunnelBackend(t)
			config := map[string]any{
				"eventloop": map[string]any{"engine": engine, "loops": 2},
				"clusters":  b.clusters, "routes": b.routes, "shutdown": map[string]any{"drain": "5s"},
			}
			maps.Copy(config, o.Config)
			o.Config = config
			tunnelUpgrades(t, o, b)
		})
	}
	f("memory", judge.Options{Memory: true}, "io_uring")
	f("memory TLS", judge.Options{Memory: true, TLS: true}, "epoll")
}

func tunnelUpgrades(t *testing.T, o judge.Options, b *tunnelBackend) {
	s := judge.New(t, o)
	defer func() {
		if t.Failed() {
			t.Log(s.Log())
		}
	}()
	u := &tunnelUser{t: t, hurry: &b.hurry, over: map[string]error{}, header: http.Header{}}
	scheme, streams := "ws", &nodetest.Bridge{To: s.Public}
	if o.TLS {
		scheme, u.secure = "wss", &websocket.DialOptions{TLS: judge.Trust(t, s.Authority)}
		streams.TLS = judge.Trust(t, s.Authority)
	}
	streams.Start(t, t.Cleanup)
	var all, bulk []*duplex
	for _, cluster := range []string{"plain", "unix", "secure"} {
		all = append(all, u.open(scheme, s.Public, "/"+cluster+"/direct"), u.open("ws", streams.Addr, "/"+cluster+"/stream"))
		bulk = append(bulk, u.open(scheme, s.Public, "/"+cluster+"/direct.bulk"))
	}
	bulk = append(bulk, u.open("ws", streams.Addr, "/plain/stream.bulk"))
	u.header.Set("Authorization", "Bearer "+judge.Token(judge.Claims{"sub": "ann", "exp": time.Now().Add(time.Hour).Unix()}))
	ann := u.open(scheme, s.Public, "/named/ann")
	for i := range 2 {
		u.progress(append(append(all, bulk...), ann), 20)
		r := s.Upgrade()
		if t.Logf("upgrade %d: %+v", i, r); r.Step != "done" || r.Refused > 0 {
			t.Fatalf("upgrade %d: %+v", i, r)
		}
	}
	u.progress(append(append(all, bulk...), ann), 20)
	wantTunnels(t, s, map[string]float64{"plain": 5, "unix": 3, "secure": 3})
	b.hurry.Store(true)
	for _, d := range bulk {
		d.end()
		judge.Eventually(t, 30*time.Second, d.name+" ends", func() bool { _, over := u.ended(d); return over })
		if err, _ := u.ended(d); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if err := d.c.Close(1000, ""); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
	}
	res, err := http.Post(fmt.Sprintf("http://%s/api/revocations/subject/ann", s.Admin), "", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	u.wantClose(ann, 1008)
	u.progress(all, 20)
	wantTunnels(t, s, map[string]float64{"plain": 2, "unix": 2, "secure": 2})
	s.Terminate()
	for _, d := range all {
		u.wantClose(d, 1012)
	}
	u.wait.Wait()
	for _, d := range all {
		var e *websocket.CloseError
		if err, _ := b.ended(d.name); !errors.As(err, &e) || e.Code != 1001 && e.Code != 1012 {
			t.Errorf("%s at the backend: %v", d.name, err)
		}
	}
	if n := streams.Dialed(); n != 1 {
		t.Errorf("%d connections of HTTP/2, want 1", n)
	}
	s.Start()
}

// wantTunnels checks that the server counts as many tunnels to each cluster, and no other connection in use.
func wantTunnels(t *testing.T, s *judge.Server, want map[string]float64) {
	t.Helper()
	all := 0.0
	for cluster, n := range want {
		all += n
		judge.Eventually(t, 10*time.Second, fmt.Sprintf("%v requests of %s are under way", n, cluster), func() bool {
			return s.Series("weir_upstream_in_flight_requests", `cluster="`+cluster+`"`) == n
		})
	}
	for state, n := range map[string]float64{"tunnel": all, "busy": 0} {
		if got := s.Series("weir_upstream_connections", `state="`+state+`"`); got != n {
			t.Errorf("%v connections to backends are %s, want %v", got, state, n)
		}
	}
}

// A tunnel that the new process refuses is served by the old one, and closed in order in its drain.
func TestATunnelThatCannotMoveIsDrained(t *testing.T) {
	t.Parallel()
	b := newTunnelBackend(t)
	config := map[string]any{"clusters": b.clusters, "routes": b.routes, "shutdown": map[string]any{"drain": "5s"}}
	s := judge.New(t, judge.Options{Build: judge.Race, Memory: true, Config: config})
	u := &tunnelUser{t: t, hurry: &b.hurry, over: map[string]error{}, header: http.Header{}}
	other := u.open("ws", s.Public, "/plain/other")
	u.header.Set("Authorization", "Bearer "+judge.Token(judge.Claims{"sub": "ann", "exp": time.Now().Add(time.Hour).Unix()}))
	ann := u.open("ws", s.Public, "/named/ann")
	u.progress([]*duplex{other, ann}, 20)
	changed := maps.Clone(config)
	changed["auth"] = map[string]any{"hmac_secret": "another-secret-0123456789abcdef0123456789"}
	changed["clusters"] = b.clusters[1:] // a tunnel stays open without its cluster, as in a reload
	changed["routes"] = b.routes[1:3]
	s.Configure(changed)
	if r := s.Upgrade(); r.Step != "done" || r.Refused != 1 {
		t.Errorf("%+v, want one connection refused", r)
	}
	u.wantClose(ann, 1012)
	u.progress([]*duplex{other}, 20)
	if r := s.Upgrade(); r.Step != "done" || r.Refused != 0 {
		t.Errorf("%+v", r)
	}
	u.progress([]*duplex{other}, 20)
	other.end()
	u.wait.Wait()
	if err, _ := u.ended(other); err != nil {
		t.Error(err)
	}
}

// A new process that dies when it has all connections leaves each tunnel to the old one, with what was under way in
// both directions.
func TestAFailedUpgradeKeepsTunnels(t *testing.T) {
	t.Parallel()
	b := newTunnelBackend(t)
	config := map[string]any{"clusters": b.clusters, "routes": b.routes, "eventloop": map[string]any{"engine": "io_uring", "loops": 2}}
	s := judge.New(t, judge.Options{Build: judge.Race, Memory: true, Config: config})
	s.Terminate()
	original := s.OwnProgram()
	s.Start()
	u := &tunnelUser{t: t, hurry: &b.hurry, over: map[string]error{}, header: http.Header{}}
	streams := &nodetest.Bridge{To: s.Public}
	streams.Start(t, t.Cleanup)
	all := []*duplex{
		u.open("ws", s.Public, "/plain/direct"), u.open("ws", s.Public, "/plain/direct.bulk"), u.open("ws", s.Public, "/unix/direct.bulk"),
		u.open("ws", s.Public, "/secure/direct.bulk"), u.open("ws", streams.Addr, "/plain/stream"),
	}
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	u.progress(all, 20)
	s.Replace(this, "all connections")
	if r := s.Upgrade(); r.Step != "failed" {
		t.Errorf("new process that dies: %+v", r)
	}
	u.progress(all, 20)
	s.Replace(original, "")
	if r := s.Upgrade(); r.Step != "done" || r.Refused != 0 {
		t.Errorf("after that: %+v", r)
	}
	u.progress(all, 20)
	b.hurry.Store(true)
	for _, d := range all {
		d.end()
	}
	u.wait.Wait()
	for _, d := range all {
		if err, _ := u.ended(d); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
	}
}

// A tunnel of which one direction has ended moves, too: the other one continues, and the end reaches the side that it is for.
func TestATunnelWithAnEndedDirectionMovesInAnUpgrade(t *testing.T) {
	t.Parallel()
	onEngines(t, halfTunnels)
}

func halfTunnels(t *testing.T, engine string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	backends := make(chan net.Conn, 2)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			if _, err := http.ReadRequest(r); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: abc\r\n\r\n")
			backends <- c
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	s := judge.New(t, judge.Options{Build: judge.Race, Memory: true, Config: map[string]any{
		"eventloop": map[string]any{"engine": engine, "loops": 2}, "shutdown": map[string]any{"drain": "5s"},
		"clusters": []any{map[string]any{"name": "lines", "peers": []any{map[string]any{"address": l.Addr().String()}}}},
		"routes":   []any{map[string]any{"path": "/*", "cluster": "lines"}},
	}})
	defer func() {
		if t.Failed() {
			t.Log(s.Log())
		}
	}()
	open := func() (client, backend net.Conn) {
		t.Helper()
		client, err := net.Dial("tcp", s.Public)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(client, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: abc\r\n\r\n")
		backend = <-backends
		t.Cleanup(func() { _, _ = client.Close(), backend.Close() })
		end := time.Now().Add(time.Minute)
		_, _ = client.SetDeadline(end), backend.SetDeadline(end)
		var head []byte
		for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b...) {
			if _, err := client.Read(b); err != nil {
				t.Fatal(err)
			}
		}
		return client, backend
	}
	wants := func(c net.Conn, text string) {
		t.Helper()
		if b, err := io.ReadAll(c); err != nil || !bytes.HasSuffix(b, []byte(text)) {
			t.Errorf("got %q, %v; want %q and the end", b, err, text)
		}
	}
	ends := func(c net.Conn, text string) {
		t.Helper()
		_, err := c.Write(websocket.AppendMaskedFrame(nil, websocket.OpText, []byte(text), [4]byte{}))
		if err := errors.Join(err, c.(*net.TCPConn).CloseWrite()); err != nil {
			t.Error(err)
		}
	}
	one, oneBackend := open()
	two, twoBackend := open()
	ends(one, "from the client")
	wants(oneBackend, "from the client")
	ends(twoBackend, "from the backend")
	wants(two, "from the backend")
	for range 2 {
		if r := s.Upgrade(); r.Step != "done" || r.Moved < 2 || r.Refused != 0 || r.Left != 0 {
			t.Errorf("%+v, want two tunnels moved and none left", r)
		}
	}
	wantTunnels(t, s, map[string]float64{"lines": 2})
	ends(oneBackend, "late, from the backend")
	wants(one, "late, from the backend")
	ends(two, "late, from the client")
	wants(twoBackend, "late, from the client")
	wantTunnels(t, s, map[string]float64{"lines": 0})
}
