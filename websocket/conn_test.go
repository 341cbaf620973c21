package websocket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a client and a server on the two ends of a pipe.
func pair(t *testing.T, cfg Config) (client, server *Conn) {
	t.Helper()
	a, b := net.Pipe()
	client = NewConn(a, ConnOptions{Config: cfg, Client: true})
	server = NewConn(b, ConnOptions{Config: cfg})
	t.Cleanup(client.CloseNow)
	t.Cleanup(server.CloseNow)
	return client, server
}

// tcpPair is a pair over TCP.
func tcpPair(t *testing.T, cfg Config) (client, server *Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client = NewConn(a, ConnOptions{Config: cfg, Client: true})
	server = NewConn(b, ConnOptions{Config: cfg})
	t.Cleanup(client.CloseNow)
	t.Cleanup(server.CloseNow)
	return client, server
}

// background runs fn and hands its result out; the test waits for it at its end.
func background(t *testing.T, fn func() error) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- fn() })
	t.Cleanup(wg.Wait)
	return done
}

// drain reads until the connection ends and returns why.
func drain(c *Conn) error {
	for {
		if _, _, err := c.Read(context.Background()); err != nil {
			return err
		}
	}
}

func wantClose(t *testing.T, err error, code uint16, reason string) {
	t.Helper()
	var ce *CloseError
	if !errors.As(err, &ce) || ce.Code != code || ce.Reason != reason {
		t.Errorf("ended with %v, want the peer's close %d %q", err, code, reason)
	}
}

func TestMessagesOfAllSizesPass(t *testing.T) {
	for _, deflate := range []bool{false, true} {
		client, server := pair(t, Config{MaxMessage: 1 << 20, Deflate: deflate})
		for _, n := range []int{0, 1, 125, 126, 4095, 4096, 65535, 65536, 300_000} {
			want := bytes.Repeat([]byte("0123456789"), n/10+1)[:n]
			for _, dir := range []struct{ from, to *Conn }{{client, server}, {server, client}} {
				wrote := background(t, func() error { return dir.from.Write(OpBinary, want) })
				op, got, err := dir.to.Read(t.Context())
				if err != nil || op != OpBinary || !bytes.Equal(got, want) {
					t.Fatalf("deflate %v, %d bytes: %v of %d bytes, %v", deflate, n, op, len(got), err)
				}
				if err := <-wrote; err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// counter counts what is written through it.
type counter struct {
	net.Conn
	n int
}

func (c *counter) Write(b []byte) (int, error) {
	c.n += len(b)
	return c.Conn.Write(b)
}

func TestSmallWindowSendsLongMessagesUncompressed(t *testing.T) {
	f := func(bits, n int, compressed bool) {
		t.Helper()
		a, b := net.Pipe()
		wire := &counter{Conn: b}
		client := NewConn(a, ConnOptions{Config: Config{Deflate: true}, Client: true})
		server := NewConn(wire, ConnOptions{Config: Config{Deflate: true}, Agreed: Deflate{WindowBits: bits}})
		defer client.CloseNow()
		defer server.CloseNow()
		wrote := background(t, func() error { return server.Write(OpBinary, make([]byte, n)) })
		if _, got, err := client.Read(t.Context()); err != nil || len(got) != n {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
		if err := <-wrote; err != nil || (wire.n < n) != compressed {
			t.Errorf("window bits %d: %d bytes went out as %d, %v", bits, n, wire.n, err)
		}
	}
	f(0, 2000, true)
	f(9, 512, true)
	f(9, 513, false)
	f(0, 100, false) // shorter than DeflateMin
}

func TestPingIsAnswered(t *testing.T) {
	pongs := make(chan string, 1)
	client, server := pair(t, Config{OnPong: func(p []byte) { pongs <- string(p) }})
	background(t, func() error { return drain(client) })
	background(t, func() error { return drain(server) })
	if err := server.Ping([]byte("are you there")); err != nil {
		t.Fatal(err)
	}
	if got := <-pongs; got != "are you there" {
		t.Errorf("pong %q", got)
	}
	if err := server.Ping(make([]byte, 126)); err == nil {
		t.Error("a ping of 126 bytes went out")
	}
	client.CloseNow()
}

func TestCloseIsAnsweredFromEitherSide(t *testing.T) {
	for _, open := range []func(*testing.T, Config) (*Conn, *Conn){pair, tcpPair} {
		client, server := open(t, Config{})
		for _, dir := range []struct{ from, to *Conn }{{client, server}, {server, client}} {
			if dir.from == server {
				client, server = open(t, Config{})
				dir.from, dir.to = server, client
			}
			ended := background(t, func() error { return drain(dir.to) })
			if err := dir.from.Close(4001, "moved"); err != nil {
				t.Errorf("Close: %v", err)
			}
			wantClose(t, <-ended, 4001, "moved")
			if err := dir.to.Close(CloseNormal, ""); err != nil {
				t.Errorf("Close after the peer's close: %v", err)
			}
			if err := dir.from.Close(CloseNormal, ""); err != nil {
				t.Errorf("second Close: %v", err)
			}
			if err := dir.from.Write(OpText, nil); !errors.Is(err, ErrClosed) {
				t.Errorf("Write after Close: %v", err)
			}
			if _, _, err := dir.from.Read(t.Context()); err == nil {
				t.Error("Read after Close gave a message")
			}
		}
	}
}

func TestCloseEndsAReadElsewhere(t *testing.T) {
	client, server := pair(t, Config{})
	background(t, func() error { return drain(client) })
	ended := background(t, func() error { return drain(server) })
	if err := server.Close(CloseNormal, ""); err != nil {
		t.Error(err)
	}
	wantClose(t, <-ended, CloseNormal, "")
}

// Both sides close at once: each sees the other's frame as the answer.
func TestBothSidesCloseAtOnce(t *testing.T) {
	client, server := tcpPair(t, Config{})
	a := background(t, func() error { return client.Close(4001, "") })
	b := background(t, func() error { return server.Close(4002, "") })
	if err := errors.Join(<-a, <-b); err != nil {
		t.Error(err)
	}
}

// raw is a server's Conn with a bare client end.
func raw(t *testing.T, cfg Config) (peer net.Conn, server *Conn) {
	t.Helper()
	a, b := net.Pipe()
	server = NewConn(b, ConnOptions{Config: cfg})
	t.Cleanup(server.CloseNow)
	t.Cleanup(func() { _ = a.Close() })
	return a, server
}

func TestProtocolViolationsAreReportedAndEndTheConnection(t *testing.T) {
	f := func(in []byte, code uint16) {
		t.Helper()
		peer, server := raw(t, Config{MaxMessage: 100})
		ended := background(t, func() error { return drain(server) })
		if _, err := peer.Write(in); err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, 200)
		n, err := peer.Read(frame)
		if err != nil {
			t.Fatal(err)
		}
		_ = peer.Close()
		got, err := parse(t, serverParser(ParserOptions{Client: true}), frame[:n])
		if err != nil || len(got) != 1 || got[0].code != code || got[0].payload == "" {
			t.Errorf("%x was answered %v, %v, want close code %d", in, got, err, code)
		}
		var pe *ProtocolError
		if err := <-ended; !errors.As(err, &pe) || pe.Code != code {
			t.Errorf("Read ended with %v, want code %d", err, code)
		}
		if _, _, err := server.Read(t.Context()); !errors.As(err, &pe) {
			t.Errorf("a second Read gave %v", err)
		}
		if err := server.Write(OpText, nil); err == nil {
			t.Error("Write after a refusal went out")
		}
	}
	f([]byte("\x81\x01a"), 1002)
	f([]byte("\x83\x80kkkk"), 1002)
	f(maskedFrame(true, OpText, "\xff"), 1007)
	f([]byte("\x82\xff\x40\x00\x00\x00\x00\x00\x00\x00"), 1009)
	f([]byte("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 1002)
}

func TestRefusedArgumentsLeaveTheConnection(t *testing.T) {
	client, server := pair(t, Config{})
	for _, op := range []Opcode{OpContinuation, OpClose, OpPing, 3} {
		if err := server.Write(op, nil); err == nil {
			t.Errorf("Write took opcode %v", op)
		}
	}
	if err := server.Write(OpText, []byte("\xff")); err == nil {
		t.Error("Write took bad text")
	}
	wrote := background(t, func() error { return server.Write(OpText, []byte("fine")) })
	if _, got, err := client.Read(t.Context()); err != nil || string(got) != "fine" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

func TestConnectionLostWithoutClose(t *testing.T) {
	peer, server := raw(t, Config{})
	_ = peer.Close()
	if err := drain(server); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("ended with %v, want io.ErrUnexpectedEOF", err)
	}
	if err := server.Close(CloseNormal, ""); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Close of a lost connection: %v", err)
	}
}

// A context that ends in the middle of a frame costs nothing but the wait.
func TestReadContinuesAfterItsContextEnds(t *testing.T) {
	for _, open := range []func(*testing.T) (net.Conn, *Conn){
		func(t *testing.T) (net.Conn, *Conn) { return raw(t, Config{}) },
		func(t *testing.T) (net.Conn, *Conn) {
			client, server := tcpPair(t, Config{})
			return client.NetConn(), server
		},
	} {
		peer, server := open(t)
		frame := maskedFrame(true, OpText, "in three parts")
		for _, part := range [][]byte{frame[:3], frame[3:9]} {
			ctx, cancel := context.WithCancel(t.Context())
			ended := background(t, func() error {
				_, _, err := server.Read(ctx)
				return err
			})
			if _, err := peer.Write(part); err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatalf("Read ended with %v", err)
			}
		}
		wrote := background(t, func() error {
			_, err := peer.Write(frame[9:])
			return err
		})
		if _, got, err := server.Read(t.Context()); err != nil || string(got) != "in three parts" {
			t.Errorf("read %q, %v", got, err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	}
}

func TestReadOfAnEndedContext(t *testing.T) {
	_, server := raw(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := server.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Read gave %v", err)
	}
}

func TestCloseWaitsOnlySoLong(t *testing.T) {
	f := func(name string, peer func(t *testing.T, nc net.Conn)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nc, server := raw(t, Config{CloseTimeout: 3 * time.Second})
				background(t, func() error { peer(t, nc); return nil })
				start := time.Now()
				err := server.Close(CloseNormal, "")
				if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != 3*time.Second {
					t.Errorf("Close took %v and gave %v", took, err)
				}
			})
		})
	}
	f("peer does not read", func(*testing.T, net.Conn) {})
	f("peer does not answer", func(_ *testing.T, nc net.Conn) { _, _ = io.Copy(io.Discard, nc) })
	f("peer talks on", func(t *testing.T, nc net.Conn) {
		background(t, func() error { _, err := io.Copy(io.Discard, nc); return err })
		for {
			if _, err := nc.Write(maskedFrame(true, OpText, "and another thing")); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

func TestSilentConnectionEndsAfterIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, server := raw(t, Config{IdleTimeout: time.Minute})
		ended := background(t, func() error { return drain(server) })
		start := time.Now()
		background(t, func() error { _, err := io.Copy(io.Discard, peer); return err })
		for range 3 { // pings keep it alive
			time.Sleep(50 * time.Second)
			if _, err := peer.Write(maskedFrame(true, OpPing, "")); err != nil {
				t.Fatal(err)
			}
		}
		err := <-ended
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != 210*time.Second {
			t.Errorf("ended with %v after %v", err, took)
		}
	})
}

func TestPeerThatDoesNotReadIsLeftAfterWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, server := raw(t, Config{WriteTimeout: 7 * time.Second})
		start := time.Now()
		first := background(t, func() error { return server.Write(OpText, []byte("a")) })
		second := background(t, func() error { return server.Write(OpText, []byte("b")) })
		err1, err2 := <-first, <-second
		if !errors.Is(err1, os.ErrDeadlineExceeded) || !errors.Is(err2, os.ErrDeadlineExceeded) || time.Since(start) != 7*time.Second {
			t.Errorf("after %v: %v, %v", time.Since(start), err1, err2)
		}
		if err := drain(server); err == nil {
			t.Error("Read continues")
		}
	})
}

func TestManyWritersOneReader(t *testing.T) {
	const writers, each = 8, 200
	client, server := tcpPair(t, Config{Deflate: true, DeflateMin: 1})
	background(t, func() error { return drain(client) }) // answers pings
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := client.Write(OpText, fmt.Appendf(nil, "%d %d %s", w, i, strings.Repeat("x", i))); err != nil {
					t.Error(err)
					return
				}
				if err := server.Ping([]byte("p")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	next := make([]int, writers)
	for range writers * each {
		_, b, err := server.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var w, i int
		var x string
		if _, err := fmt.Sscan(string(b)+" -", &w, &i, &x); err != nil || next[w] != i {
			t.Fatalf("message %.20q out of order: %v", b, err)
		}
		next[w]++
	}
	wg.Wait()
	if err := server.Close(CloseNormal, ""); err != nil {
		t.Error(err)
	}
}

// The last payload stays as it is while another goroutine closes. Buffers come
// from pools, so one try proves little.
func TestCloseLeavesTheLastPayload(t *testing.T) {
	for range 20 {
		closeUnderReader(t)
	}
}

func closeUnderReader(t *testing.T) {
	t.Helper()
	client, server := tcpPair(t, Config{})
	want := strings.Repeat("keep ", 3000) // larger than the read buffer
	if err := client.Write(OpText, []byte(want)); err != nil {
		t.Fatal(err)
	}
	_, got, err := server.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := client.Write(OpText, bytes.Repeat([]byte("over "), 2000)); err != nil {
			t.Fatal(err)
		}
	}
	background(t, func() error { return drain(client) })
	closed := background(t, func() error { return server.Close(CloseNormal, "") })
	for closing := true; closing; {
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
			closing = false
		default:
		}
		if string(got) != want {
			t.Fatal("payload changed under the reader")
		}
	}
}

// slowDeadline is a connection on which a context ends just before a read deadline
// is set: the interruption must win although it came first.
type slowDeadline struct {
	net.Conn
	cancel      func()
	interrupted chan struct{}
	once        sync.Once
}

func (c *slowDeadline) SetReadDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		defer close(c.interrupted)
		return c.Conn.SetReadDeadline(at)
	}
	c.once.Do(func() {
		c.cancel()
		<-c.interrupted
		c.interrupted = make(chan struct{})
	})
	return c.Conn.SetReadDeadline(at)
}

func TestContextThatEndsBesideADeadlineInterrupts(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _ = a.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	server := NewConn(&slowDeadline{Conn: b, cancel: cancel, interrupted: make(chan struct{})},
		ConnOptions{Config: Config{IdleTimeout: time.Hour}})
	defer server.CloseNow()
	if _, _, err := server.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Read gave %v", err)
	}
}

func TestReadGivesNothingAfterCloseWasCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, server := raw(t, Config{})
		got := background(t, func() error {
			_, _, err := server.Read(context.Background())
			return err
		})
		background(t, func() error { return server.Close(CloseNormal, "") })
		synctest.Wait() // the close frame waits to be read
		if _, err := io.ReadFull(peer, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		if _, err := peer.Write(join(maskedFrame(true, OpText, "too late"), maskedFrame(true, OpClose, "\x03\xe8"))); err != nil {
			t.Fatal(err)
		}
		wantClose(t, <-got, CloseNormal, "")
	})
}

func TestRefusalIsNotHeldUpByASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, server := raw(t, Config{})
		ended := background(t, func() error { return drain(server) })
		background(t, func() error { _, err := io.Copy(io.Discard, peer); return err })
		start := time.Now()
		if _, err := peer.Write([]byte("\x83\x80")); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; time.Since(start) != time.Second {
			t.Errorf("ended after %v with %v", time.Since(start), err)
		}
	})
}

// The close frame arrives although the peer had much more to say: closing with
// unread bytes would reset the connection and take the frame with it.
func TestRefusalReachesAPeerThatTalksOn(t *testing.T) {
	client, server := tcpPair(t, Config{})
	peer := client.NetConn()
	if _, err := peer.Write(append([]byte("\x83\x80kkkk"), make([]byte, 100_000)...)); err != nil {
		t.Fatal(err)
	}
	ended := background(t, func() error { return drain(server) })
	_, err := io.Copy(io.Discard, io.LimitReader(peer, 2)) // wait for the frame to start
	if err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(peer)
	if err != nil || len(rest) < 2 || rest[0] != 0x03 || rest[1] != 0xEA {
		t.Errorf("after the header of the close frame: %x, %v", rest, err)
	}
	_ = peer.Close()
	var pe *ProtocolError
	if err := <-ended; !errors.As(err, &pe) {
		t.Errorf("Read ended with %v", err)
	}
}
