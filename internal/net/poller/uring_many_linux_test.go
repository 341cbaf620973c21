package poller

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// crowdEnv makes the test binary a crowd of clients: "address connections first",
// the addresses of the clients counting from 127.0.0.first.
const crowdEnv = "POLLER_TEST_CROWD"

func TestMain(m *testing.M) {
	if args := os.Getenv(crowdEnv); args != "" {
		if err := crowd(strings.Fields(args)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if args := os.Getenv(deniedEnv); args != "" {
		if err := denied(strings.Fields(args)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// crowd connects, sends each connection's number, reads it back, says so, and
// holds the connections until its input ends.
func crowd(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	first, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	conns := make([]net.Conn, n)
	for i := range conns {
		// A source address for every 5,000: the range of ports is finite.
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(first+i/5000))}
		c, err := (&net.Dialer{LocalAddr: from, Timeout: 20 * time.Second, KeepAlive: -1}).Dial("tcp", args[0])
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		conns[i] = c
	}
	b := make([]byte, 4)
	for i, c := range conns {
		if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
	}
	for i, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(c, b); err != nil || binary.BigEndian.Uint32(b) != uint32(i) {
			return fmt.Errorf("connection %d reads %x, %v", i, b, err)
		}
	}
	fmt.Println("standing")
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(conns) // or they would be closed
	return nil
}

// Each ring has a table of its own, bounded by the limit of descriptors; the
// process has as many connections as its rings together. All of them echo, and
// stand at the same time.
func TestMoreConnectionsThanDescriptors(t *testing.T) {
	limit := limitFiles(t, 20_000)
	perCrowd := min(limit*9/10, 18_000)
	total := min(2*perCrowd+perCrowd/4, 40_000)
	const rings = 3
	addr := "127.0.0.1:0"
	servers := make([]*server, rings)
	for i := range servers {
		p, err := NewUring(0)
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = newServerOn(t, p, addr)
		servers[i].received = echo
		addr = servers[i].addr.String() // shared by SO_REUSEPORT
	}
	for _, s := range servers {
		s.start()
	}
	before := openFiles(t)
	var standing sync.WaitGroup
	for i, left := 0, total; left > 0; i++ {
		n := min(left, perCrowd)
		left -= n
		standing.Go(func() { startCrowd(t, servers[0].addr, n, 10+20*i) })
	}
	standing.Wait()
	open := 0
	for _, s := range servers {
		s.do(func() { open += s.open })
	}
	files := openFiles(t) - before
	t.Logf("%d connections, %d descriptors, limit %d", open, files, limit)
	if open != total || open <= limit || files > 20 {
		t.Errorf("%d connections of %d with %d descriptors; the limit is %d", open, total, files, limit)
	}
}

// limitFiles bounds the descriptors of this process for the test.
func limitFiles(t *testing.T, most uint64) int {
	t.Helper()
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	limit := min(old.Cur, most)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
	return int(limit)
}

// startCrowd returns when the crowd is connected; it goes when the test ends.
func startCrowd(t *testing.T, addr netip.AddrPort, n, first int) {
	exe, err := os.Executable()
	if err != nil {
		t.Error(err)
		return
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d", crowdEnv, addr, n, first))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Error(err)
		return
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "standing\n" {
		t.Errorf("the crowd says %q", line)
	}
}
