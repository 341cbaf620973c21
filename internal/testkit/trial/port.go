package trial

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// FreePort returns a port of loopback for a server that is still to start and may be started
// again: one below those that the kernel gives to connections. No other test on this machine,
// of any process, is given it before t ends: a locked file reserves it.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 12_000 + rand.IntN(18_000)
		if !reserve(t, port) {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free in 1,000 tries")
	return 0
}

// reserve locks the file of a port until t ends; false means that another test has it.
func reserve(t testing.TB, port int) bool {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "weir-test-ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, strconv.Itoa(port))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	locked := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	// The test that had it may have removed the file after it was opened here.
	there, err := os.Stat(name)
	mine, ferr := f.Stat()
	if !locked || err != nil || ferr != nil || !os.SameFile(there, mine) {
		_ = f.Close()
		return false
	}
	t.Cleanup(func() {
		_ = os.Remove(name)
		_ = f.Close()
	})
	return true
}
