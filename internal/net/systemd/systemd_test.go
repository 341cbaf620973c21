package systemd

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// listen is a manager's end of the notifications.
func listen(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

// receive returns the next notification and the descriptors that came with it.
func receive(t *testing.T, c *net.UnixConn) (text string, fds []int) {
	t.Helper()
	b, oob := make([]byte, 1024), make([]byte, 1024)
	n, r, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:r])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		list, err := syscall.ParseUnixRights(&m)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, list...)
	}
	return string(b[:n]), fds
}

func TestTheManagerIsNotified(t *testing.T) {
	c := listen(t)
	t.Setenv("FDSTORE", "7")
	t.Setenv("WATCHDOG_USEC", "3000000")
	s, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	if n, known := s.Room(); n != 7 || !known || s.Watchdog() != 3*time.Second {
		t.Errorf("room for %d (known: %v), watchdog %v", n, known, s.Watchdog())
	}
	f := func(send func() error, want string) {
		t.Helper()
		if err := send(); err != nil {
			t.Error(err)
		}
		if got, fds := receive(t, c); !strings.HasPrefix(got, want) || len(fds) != 0 {
			t.Errorf("notified of %q with %d descriptors, want %q", got, len(fds), want)
		}
	}
	f(func() error { return s.Ready("serving") }, "READY=1\nSTATUS=serving")
	f(s.Reloading, "RELOADING=1\nMONOTONIC_USEC=")
	f(func() error { return s.Stopping("draining") }, "STOPPING=1\nSTATUS=draining")
	f(s.Alive, "WATCHDOG=1")
	f(func() error { return s.Forget("a") }, "FDSTOREREMOVE=1\nFDNAME=a")
}

func TestAKeptDescriptorIsTheFile(t *testing.T) {
	c := listen(t)
	s, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	if _, known := s.Room(); known {
		t.Error("the room is known without FDSTORE")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := s.Keep("pipe", w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	got, fds := receive(t, c)
	if got != "FDSTORE=1\nFDNAME=pipe\nFDPOLL=0" || len(fds) != 1 {
		t.Fatalf("%q with %d descriptors", got, len(fds))
	}
	kept := os.NewFile(uintptr(fds[0]), "kept")
	if _, err := kept.WriteString("hello"); err != nil {
		t.Error(err)
	}
	kept.Close()
	if b, err := io.ReadAll(r); string(b) != "hello" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
}

func TestWithoutAManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	here, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Service{nil, here} {
		if n, known := s.Room(); n != 0 || !known || s.Notified() || s.Watchdog() != 0 || len(s.Files()) != 0 {
			t.Errorf("room for %d (known: %v), notified %v, watchdog %v, %d files", n, known, s.Notified(), s.Watchdog(), len(s.Files()))
		}
		for _, err := range []error{s.Ready(""), s.Reloading(), s.Stopping(""), s.Alive(), s.Forget("a"), s.Keep("a", os.Stdin)} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	t.Setenv("FDSTORE", "many")
	if _, err := FromEnvironment(); err == nil || !strings.Contains(err.Error(), `FDSTORE="many"`) {
		t.Errorf("%v", err)
	}
}
