package sys

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestTheKernelFindsASocketByItsAddresses(t *testing.T) {
	d, err := NewSocketDiag()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f := func(listen string) {
		t.Helper()
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", net.JoinHostPort(map[string]string{"[::1]:0": "::1"}[listen], port(l.Addr())))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		if _, err := server.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		local, peer := addr(server.LocalAddr()), addr(server.RemoteAddr())
		var got TCPInfo
		for end := time.Now().Add(10 * time.Second); got.Segments == 0 || got.Unacked > 0; {
			if got, err = d.TCPInfo(local, peer); err != nil || time.Now().After(end) {
				t.Fatalf("%s: %+v, %v", listen, got, err)
			}
		}
		if got.RTT <= 0 || got.Unsent != 0 {
			t.Errorf("%s: %+v", listen, got)
		}
		if _, err := d.TCPInfo(local, netip.AddrPortFrom(peer.Addr(), 1)); !errors.Is(err, ErrNoSocket) {
			t.Errorf("%s: a socket that is not: %v", listen, err)
		}
	}
	f("127.0.0.1:0")
	f("[::1]:0")
	f("[::]:0") // an IPv4 client of an IPv6 socket
}

func port(a net.Addr) string { _, p, _ := net.SplitHostPort(a.String()); return p }

func addr(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func FuzzDiagAnswer(f *testing.F) {
	f.Add(make([]byte, diagMessage))
	f.Add(append(make([]byte, diagMessage), 8, 0, 2, 0, 1, 2, 3, 4))
	f.Add(append(make([]byte, diagMessage), 5, 0, 1, 0, 1))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = diagAnswer(b, 0)
		_, _, _, _ = netlinkMessage(b)
	})
}
