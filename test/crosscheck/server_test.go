package crosscheck

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// asServer is set in the environment of the process that serves.
const asServer = "WEIR_CROSSCHECK_SERVER"

// A place serves one request at a time. Its timer is a descriptor: a time.Timer is up
// to a millisecond late (golang.org/issue/53824), by how much depends on what else wakes
// the process, and so on the pattern of arrivals of the load generator in front.
type place struct{ timer *os.File }

func newPlace() (place, error) {
	const monotonic, nonblock = 1, syscall.O_NONBLOCK // timerfd_create(2)
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, monotonic, nonblock, 0)
	if errno != 0 {
		return place{}, os.NewSyscallError("timerfd_create", errno)
	}
	return place{os.NewFile(fd, "timer")}, nil
}

// serve returns after d.
func (p place) serve(d time.Duration) error {
	spec := [2]syscall.Timespec{1: syscall.NsecToTimespec(d.Nanoseconds())} // itimerspec: interval, value
	if _, _, errno := syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, p.timer.Fd(), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0); errno != 0 {
		return os.NewSyscallError("timerfd_settime", errno)
	}
	var expired [8]byte
	_, err := p.timer.Read(expired[:])
	return err
}

// serveForever is the process of the server: it prints its URL, and ends with its input.
func serveForever() error {
	free := make(chan place, places)
	for range places {
		p, err := newPlace()
		if err != nil {
			return err
		}
		free <- p
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p := <-free
		err := p.serve(serviceTime)
		free <- p
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	fmt.Println(s.URL)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// server starts a server with a known capacity, for HTTP/1.1 and HTTP/2, in a process of
// its own: the generator under test is in this one and must not share a scheduler with it.
func server(t *testing.T) (url string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asServer+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	if _, err := fmt.Fscanln(out, &url); err != nil {
		t.Fatalf("the server's URL: %v", err)
	}
	return url
}
