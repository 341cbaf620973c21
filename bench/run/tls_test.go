package main

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"
)

func TestTLSClientsComeBackWithTheirSessions(t *testing.T) {
	f := func(tickets bool, want int) {
		t.Helper()
		b := &bench{scratch: t.TempDir()}
		cert, key, pool, err := b.certificate()
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := netHTTPServer()
		srv.TLSConfig.SessionTicketsDisabled = !tickets
		done := make(chan error, 1)
		go func() { done <- srv.ServeTLS(ln, cert, key) }()
		c := newTLSClients(20, ln.Addr().String(), pool)
		for range 2 {
			if err := c.connect(t.Context(), 0, 20); err != nil {
				t.Fatal(err)
			}
			c.reset()
		}
		if n := c.resumed(); n != want {
			t.Errorf("tickets %v: %d of 20 were resumed, want %d", tickets, n, want)
		}
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
	f(true, 20)
	f(false, 0)
}

func TestUsageIsReadFromTheProcess(t *testing.T) {
	s := &server{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
	u, err := s.usage()
	if err != nil || u.rss < 1000 {
		t.Errorf("%+v, %v", u, err)
	}
}
