package tlsterm

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A caller is a loop that dials.
type caller struct {
	*Client
	line *Line
	loop *eventloop.Loop
}

func newCaller(t testing.TB) *caller {
	t.Helper()
	g, err := eventloop.New(eventloop.Config{Loops: 1, Engine: os.Getenv(trial.Engine)}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cl := NewClient(1)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = g.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
		cl.Close()
	})
	return &caller{cl, cl.Line(), g.Loops()[0]}
}

// A call is a connection that a caller dialed: its handler, and what became of it.
type call struct {
	by    *caller
	cfg   *tls.Config
	c     *eventloop.Conn
	shake *Shake
	done  chan struct{} // the handshake is over, or the connection
	ended chan struct{}

	mu      sync.Mutex
	got     []byte
	err     error // of the handshake
	closed  error
	eof     bool
	resumed bool
}

func (k *call) Connected(c *eventloop.Conn) {
	k.shake = k.by.Shake(c, k.by.line, k.cfg, "peer", func(err error) {
		k.mu.Lock()
		k.err, k.resumed = err, k.shake.Resumed()
		k.mu.Unlock()
		s := k.shake
		k.shake = nil
		if err != nil {
			c.Close(err)
		} else {
			s.Install()
		}
		close(k.done)
	})
}

func (k *call) Data(_ *eventloop.Conn, b []byte) int {
	if k.shake != nil {
		k.shake.Data(b)
		return len(b)
	}
	k.mu.Lock()
	k.got = append(k.got, b...)
	k.mu.Unlock()
	return len(b)
}

func (k *call) EndOfStream(*eventloop.Conn) bool {
	if k.shake != nil {
		k.shake.End()
		return true
	}
	k.mu.Lock()
	k.eof = true
	k.mu.Unlock()
	return false
}
func (k *call) Drained(*eventloop.Conn)          {}
func (k *call) Timer(c *eventloop.Conn, _ int64) { c.Close(ErrTimeout) }
func (k *call) Closed(_ *eventloop.Conn, err error) {
	if k.shake != nil {
		k.shake.Cancel()
	}
	k.mu.Lock()
	k.closed = err
	k.mu.Unlock()
	close(k.ended)
}

// call dials addr and waits for the end of the handshake.
func (by *caller) call(t testing.TB, addr string, cfg *tls.Config) *call {
	t.Helper()
	k := &call{by: by, cfg: cfg, done: make(chan struct{}), ended: make(chan struct{})}
	by.loop.Post(func() {
		k.c = by.loop.Dial(eventloop.Endpoint{Addr: netip.MustParseAddrPort(addr)}, eventloop.DialOptions{}, k)
	})
	select {
	case <-k.done:
	case <-k.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the handshake does not end")
	}
	return k
}

func (k *call) write(b []byte) { k.by.loop.Post(func() { k.c.Write(b) }) }
func (k *call) hangUp()        { k.by.loop.Post(func() { k.c.Close(nil) }) }

func (k *call) has(n int) func() bool {
	return func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.got) >= n
	}
}

// answering is a server of crypto/tls that runs f on each connection.
func answering(t testing.TB, cfg *tls.Config, f func(*tls.Conn)) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				f(tls.Server(c, cfg))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return l.Addr().String()
}

func echoing(c *tls.Conn) {
	if _, err := io.Copy(c, c); err == nil {
		_ = c.Close()
	}
}

func TestADialedConnectionSpeaksEveryVersionAndSuite(t *testing.T) {
	by := newCaller(t)
	for _, kind := range kinds {
		for _, fresh := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s tickets %v", kind.name, !fresh), func(t *testing.T) {
				server := &tls.Config{Certificates: []tls.Certificate{ca().leaf(t, nil, "localhost")}, MinVersion: kind.version, MaxVersion: kind.version,
					SessionTicketsDisabled: fresh}
				if kind.rsa {
					server.Certificates = []tls.Certificate{ca().leafOf(t, rsaKey(), nil, "localhost")}
				}
				if kind.suite != 0 {
					server.CipherSuites = []uint16{kind.suite}
				}
				addr := answering(t, server, echoing)
				cache := tls.NewLRUClientSessionCache(8)
				for i := range 3 {
					k := by.call(t, addr, client(func(c *tls.Config) { c.ClientSessionCache = cache }))
					if k.err != nil {
						t.Fatalf("call %d: %v", i, k.err)
					}
					if want := i > 0 && !fresh; k.resumed != want {
						t.Errorf("call %d: resumed %v, want %v", i, k.resumed, want)
					}
					var sent []byte
					for _, n := range []int{1, 17, 16384, 16385, 200_000} {
						b := text(n)
						sent = append(sent, b...)
						k.write(b)
					}
					eventually(t, "all is back", k.has(len(sent)))
					if !bytes.Equal(k.got, sent) {
						t.Error("it came back changed")
					}
					k.hangUp()
					<-k.ended
				}
			})
		}
	}
}

func TestADialerRefusesUntrustedCertificates(t *testing.T) {
	by := newCaller(t)
	f := func(what string, change func(*x509.Certificate), ask func(*tls.Config), want any) {
		t.Helper()
		addr := answering(t, &tls.Config{Certificates: []tls.Certificate{ca().leaf(t, change, "localhost")}}, echoing)
		k := by.call(t, addr, client(ask))
		if k.err == nil || !errors.As(k.err, want) {
			t.Errorf("%s: %v, want %T", what, k.err, want)
		}
		<-k.ended
	}
	f("another name", nil, func(c *tls.Config) { c.ServerName = "other.example" }, new(x509.HostnameError))
	f("an unknown authority", nil, func(c *tls.Config) { c.RootCAs = newAuthority("another").pool() }, new(x509.UnknownAuthorityError))
	f("one that has expired", func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	}, nil,
		new(x509.CertificateInvalidError))
}

func TestAHandshakeThatNeverEndsIsGivenUp(t *testing.T) {
	t.Parallel()
	by := newCaller(t)
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	k := &call{by: by, cfg: client(nil), done: make(chan struct{}), ended: make(chan struct{})}
	by.loop.Post(func() {
		k.c = by.loop.Dial(eventloop.Endpoint{Addr: netip.MustParseAddrPort(l.Addr().String())}, eventloop.DialOptions{}, k)
		k.c.SetTimer(int64(300 * time.Millisecond))
	})
	<-k.ended
	if !errors.Is(k.closed, ErrTimeout) {
		t.Errorf("%v", k.closed)
	}
	eventually(t, "its goroutine is gone", func() bool { return by.line.admission.runs() == 0 })
	if len(by.live.set) != 0 {
		t.Error("it is still in the list")
	}
}

// What breaks off without close_notify is truncated; what has it is complete.
func TestADialerDistinguishesTruncatedStreams(t *testing.T) {
	by := newCaller(t)
	f := func(whole bool) {
		t.Helper()
		addr := answering(t, &tls.Config{Certificates: []tls.Certificate{ca().leaf(t, nil, "localhost")}}, func(c *tls.Conn) {
			_, _ = io.WriteString(c, "all of it")
			if whole {
				_ = c.CloseWrite()
			}
		})
		k := by.call(t, addr, client(nil))
		<-k.ended
		if string(k.got) != "all of it" || k.eof != whole || errors.Is(k.closed, eventloop.ErrTruncated) == whole {
			t.Errorf("whole %v: %q, eof %v, closed %v", whole, k.got, k.eof, k.closed)
		}
	}
	f(true)
	f(false)
}

func TestAClientCertificateThatIsMissedShowsAsAnAlert(t *testing.T) {
	by := newCaller(t)
	addr := answering(t, &tls.Config{Certificates: []tls.Certificate{ca().leaf(t, nil, "localhost")}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: ca().pool()}, echoing)
	k := by.call(t, addr, client(nil))
	if k.err != nil {
		t.Fatalf("the client of TLS 1.3 is done before the server looks: %v", k.err)
	}
	<-k.ended
	if a, ok := errors.AsType[AlertError](k.closed); !ok || a != 116 {
		t.Errorf("%v, want certificate_required", k.closed)
	}
	k = by.call(t, addr, client(func(c *tls.Config) { c.Certificates = []tls.Certificate{ca().leaf(t, nil, "me")} }))
	k.write([]byte("hello"))
	eventually(t, "the answer", k.has(5))
	k.hangUp()
	<-k.ended
}

// OpenSSL sends tickets of other sizes, key updates on demand, and both in records of
// its own making.
func TestADialerUnderstandsOpenSSL(t *testing.T) {
	by := newCaller(t)
	dir := t.TempDir()
	f := save(t, dir, "server", ca().leaf(t, nil, "localhost"))
	for _, version := range []string{"-tls1_3", "-tls1_2"} {
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		addr := l.Addr().String()
		l.Close()
		cmd := exec.CommandContext(t.Context(), "openssl", "s_server", "-accept", addr, "-cert", f.CertFile, "-key", f.KeyFile, version, "-num_tickets", "4")
		in := must(cmd.StdinPipe())
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "s_server listens", func() bool {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		cache := tls.NewLRUClientSessionCache(8)
		for i := range 2 {
			k := by.call(t, addr, client(func(c *tls.Config) { c.ClientSessionCache = cache }))
			if k.err != nil || k.resumed != (i > 0) {
				t.Fatalf("%s, call %d: %v, resumed %v", version, i, k.err, k.resumed)
			}
			_, _ = io.WriteString(in, "hello\n")
			eventually(t, "hello", k.has(6))
			if version == "-tls1_3" {
				before := by.loop.Stats().BytesOut
				_, _ = io.WriteString(in, "K\n") // a key update that requests ours
				eventually(t, "ours", func() bool { return by.loop.Stats().BytesOut > before })
				_, _ = io.WriteString(in, "again\n")
				eventually(t, "again", k.has(12))
				k.write([]byte("under the new key\n"))
				_, _ = io.WriteString(in, "more\n")
				eventually(t, "more", k.has(17))
			}
			k.hangUp()
			<-k.ended
			if k.closed != nil {
				t.Errorf("%s, call %d: %v", version, i, k.closed)
			}
		}
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	}
}
