package websocket

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
)

func TestManyClosersAndCloseNow(t *testing.T) {
	client, server := tcpPair(t, Config{})
	background(t, func() error { return drain(client) })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = server.Close(CloseNormal, "") })
		wg.Go(func() { _ = server.Write(OpText, []byte("late")) })
	}
	wg.Wait()
	server.CloseNow()
	server.CloseNow()
	if err := server.Write(OpText, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Write: %v", err)
	}
}

// A peer that closes and goes resets the connection of one that still sends: that its write
// fails must not hide why.
func TestCloseIsReadAfterAFailedWrite(t *testing.T) {
	client, server := tcpPair(t, Config{})
	if _, err := server.nc.Write(AppendClose(nil, 4100, "too much")); err != nil {
		t.Fatal(err)
	}
	_ = server.nc.Close()
	for range 10_000 { // the first may only bring the reset about
		if err := client.Write(OpText, []byte("more")); err != nil {
			wantClose(t, drain(client), 4100, "too much")
			return
		}
	}
	t.Error("no write failed")
}

func TestFailedWriteEndsAReaderThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		client := NewConn(brokenWriter{a}, ConnOptions{Client: true})
		reads := background(t, func() error { return drain(client) })
		if err := client.Write(OpText, []byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
		if err := <-reads; err == nil {
			t.Error("the reader did not end")
		}
		_ = b.Close()
	})
}

// brokenWriter is a connection that only reads.
type brokenWriter struct{ net.Conn }

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
