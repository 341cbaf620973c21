package sys

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestTCPInfoDescribesARealConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	raw, err := w.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info TCPInfo
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) { info, errno = ReadTCPInfo(int(fd)) }); err != nil || errno != 0 {
		t.Fatal(err, errno)
	}
	if info.Segments != 1 || info.RTT <= 0 || info.Unsent != 0 {
		t.Errorf("after one segment: %+v", info)
	}
}

func TestTCPInfoOfNoSocketIsAnErrno(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, errno := ReadTCPInfo(int(f.Fd())); errno != syscall.ENOTSOCK {
		t.Errorf("errno %v, want ENOTSOCK", errno)
	}
}

func TestASocketPairIsConnected(t *testing.T) {
	fds, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fds[0])
	defer Close(fds[1])
	if n, errno := Send(fds[0], []byte("x")); n != 1 || errno != 0 {
		t.Fatal(n, errno)
	}
	b := make([]byte, 4)
	if n, errno := Recv(fds[1], b); n != 1 || errno != 0 || b[0] != 'x' {
		t.Errorf("read %d bytes %q, %v", n, b[:max(n, 0)], errno)
	}
	if _, errno := Recv(fds[1], b); errno != syscall.EAGAIN {
		t.Errorf("an empty socket answers %v, want EAGAIN", errno)
	}
}

func TestFileSizeIsTheFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, make([]byte, 77), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if n := FileSize(int(f.Fd())); n != 77 {
		t.Errorf("%d bytes, want 77", n)
	}
	f.Close()
	if n := FileSize(-1); n != 0 {
		t.Errorf("no descriptor has %d bytes", n)
	}
}
