package judge

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Keeper is what keeps the listening sockets while no process runs.
type Keeper int

// Keepers.
const (
	KeepsNothing Keeper = iota
	// SocketUnit opens one socket per listener and passes it, as a .socket unit does.
	SocketUnit
	// DescriptorStore keeps what the process passes on, as FileDescriptorStoreMax does.
	DescriptorStore
)

// storeRoom is the FileDescriptorStoreMax of the tests.
const storeRoom = 64

// A manager is what systemd does for one service: it passes sockets by LISTEN_FDS and
// receives notifications, some with descriptors to keep.
type manager struct {
	t      testing.TB
	socket string // of notifications; empty with SocketUnit

	mu     sync.Mutex
	files  []*os.File // what the next process is passed
	states []string   // notifications without a descriptor, a line each
}

func newManager(t testing.TB, keeper Keeper, addrs ...string) *manager {
	m := &manager{t: t}
	t.Cleanup(m.close)
	if keeper == SocketUnit {
		for _, addr := range addrs {
			var lc net.ListenConfig
			lc.SetMultipathTCP(false)
			l, err := lc.Listen(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			f, err := l.(*net.TCPListener).File()
			_ = l.Close()
			if err != nil {
				t.Fatal(err)
			}
			m.files = append(m.files, os.NewFile(dup(t, f), "weir.socket"))
			_ = f.Close()
		}
		return m
	}
	m.socket = filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { m.receive(c) })
	t.Cleanup(func() { _ = c.Close(); reading.Wait() })
	return m
}

// dup returns another descriptor for f, which keeps its blocking mode.
func dup(t testing.TB, f *os.File) uintptr {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	return uintptr(fd)
}

func (m *manager) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.files {
		_ = f.Close()
	}
	m.files = nil
}

// receive reads notifications until c is closed.
func (m *manager) receive(c *net.UnixConn) {
	text, rights := make([]byte, 4096), make([]byte, 1024)
	for {
		n, r, _, _, err := c.ReadMsgUnix(text, rights)
		if err != nil {
			return
		}
		if err := m.notified(string(text[:n]), rights[:r]); err != nil {
			m.t.Errorf("notification %q: %v", text[:n], err)
		}
	}
}

func (m *manager) notified(text string, rights []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	name := ""
	for _, l := range lines {
		if v, ok := strings.CutPrefix(l, "FDNAME="); ok {
			name = v
		}
	}
	switch {
	case slices.Contains(lines, "FDSTOREREMOVE=1"):
		m.files = slices.DeleteFunc(m.files, func(f *os.File) bool { return f.Name() == name && f.Close() == nil })
	case slices.Contains(lines, "FDSTORE=1"):
		messages, err := syscall.ParseSocketControlMessage(rights)
		if err != nil {
			return err
		}
		for _, message := range messages {
			fds, err := syscall.ParseUnixRights(&message)
			if err != nil {
				return err
			}
			for _, fd := range fds {
				syscall.CloseOnExec(fd)
				// The newest first, as systemd has them.
				m.files = slices.Insert(m.files, 0, os.NewFile(uintptr(fd), name))
			}
		}
	default:
		m.states = append(m.states, lines...)
	}
	return nil
}

// command starts args with the descriptors there are and env. LISTEN_PID is the process's
// own: the shell becomes it.
func (m *manager) command(env, args []string) *exec.Cmd {
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`}, args...)...)
	var names []string
	for _, f := range m.files {
		names = append(names, f.Name())
	}
	cmd.ExtraFiles = slices.Clone(m.files)
	cmd.Env = append(env, "LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	if m.socket != "" {
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+m.socket, "FDSTORE="+strconv.Itoa(storeRoom), "WATCHDOG_USEC=200000")
	}
	return cmd
}

// start starts cmd, while no descriptor that it is passed is closed.
func (m *manager) start(cmd *exec.Cmd) error {
	if m == nil {
		return cmd.Start()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmd.Start()
}

// Notified returns what the process notified its manager of so far, over all its lives.
func (s *Server) Notified() []string {
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	return slices.Clone(s.manager.states)
}

// Kept returns the names of the descriptors that the next process is passed.
func (s *Server) Kept() (names []string) {
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	for _, f := range s.manager.files {
		names = append(names, f.Name())
	}
	return names
}

// RefusesToStart starts the process, waits for it to end with an error and returns what it
// wrote.
func (s *Server) RefusesToStart() string {
	s.t.Helper()
	cmd := exec.Command(s.binary, "serve", "--config", s.config)
	if s.manager != nil {
		cmd = s.manager.command(os.Environ(), cmd.Args)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := s.manager.start(cmd); err != nil {
		s.t.Fatal(err)
	}
	limit := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer limit.Stop()
	if err := cmd.Wait(); err == nil {
		s.t.Errorf("weir started:\n%s", out.Bytes())
	}
	return out.String()
}
