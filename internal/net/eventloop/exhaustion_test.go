package eventloop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

const (
	childEnv   = "WEIR_EVENTLOOP_TEST_CHILD"
	childFiles = 64
)

// child is an echo server that may have childFiles descriptors. It answers each
// line on its standard input with its counters, and ends with it.
func child() {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: childFiles, Max: childFiles}); err != nil {
		panic(err)
	}
	g, err := New(Config{Engine: engineEpoll, Loops: 1, MaxConns: 10000}, func(*Conn) Handler { return echoer{} }, nil)
	if err != nil {
		panic(err)
	}
	addr, err := g.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	fmt.Println(addr)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		s := g.Loops()[0].Stats()
		fmt.Println(s.Ticks, s.AcceptErrors, s.Open)
	}
	cancel()
	if err := <-done; err != nil {
		panic(err)
	}
}

// TestOutOfDescriptorsAcceptsPauseAndRecover lets more clients come than the
// server has descriptors for. Those it cannot take wait in the kernel.
func TestOutOfDescriptorsAcceptsPauseAndRecover(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	line := func() string {
		s, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(s)
	}
	addr := line()
	stats := func() (ticks, failures, open uint64) {
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(line(), &ticks, &failures, &open); err != nil {
			t.Fatal(err)
		}
		return ticks, failures, open
	}

	begin := time.Now()
	var clients []net.Conn
	for range 2 * childFiles {
		clients = append(clients, dial(t, addr))
	}
	var ticks, failures, open uint64
	trial.Eventually(t, "5 failed accepts", func() bool {
		ticks, failures, open = stats()
		return failures >= 5
	})
	if most := uint64(time.Since(begin)/(200*time.Millisecond)) + 1; failures > most {
		t.Errorf("%d failed accepts in %v: at most one in 200ms is wanted", failures, time.Since(begin))
	}
	if most := 2*childFiles + 10*failures + 10*uint64(time.Since(begin)/time.Second); ticks > most {
		t.Errorf("%d ticks for %d connections and %d failed accepts: it spins", ticks, open, failures)
	}
	if open == 0 || open >= childFiles {
		t.Errorf("%d open of %d possible", open, childFiles)
	}
	for len(clients) > 0 { // as some leave, those that wait are served
		n := min(len(clients), int(open))
		for _, c := range clients[:n] {
			wantEcho(t, c, "hello")
			c.Close()
		}
		clients = clients[n:]
	}
	trial.Eventually(t, "all to be gone", func() bool { _, _, open := stats(); return open == 0 })
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
