// Package examples_test runs every example as its reader would.
package examples_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// start builds and runs an example on a free port, and returns its address once it
// has printed its first line.
func start(t *testing.T, name string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %s", name, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	cmd := exec.Command(bin, "-addr", addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
	})
	if !bufio.NewScanner(out).Scan() {
		t.Fatalf("%s said nothing", name)
	}
	trial.Eventually(t, name+" accepts", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return addr
}

// follow reads a stream until a line starts with want.
func follow(t *testing.T, url, want string, fields ...string) func() string {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, res.Status)
	}
	lines := bufio.NewScanner(res.Body)
	next := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("%s: no %q: %v", url, prefix, lines.Err())
		return ""
	}
	next("retry: ")
	return func() string { return next(want) }
}

func TestNetHTTP(t *testing.T) {
	addr := start(t, "nethttp")
	if got := follow(t, "http://"+addr+"/events/sse?channel=orders&lastEventId=0", "data: ")(); !strings.Contains(got, `"state"`) {
		t.Errorf("got %q", got)
	}
}

func TestGin(t *testing.T) {
	addr := start(t, "gin")
	next := follow(t, "http://"+addr+"/events/sse?channel=news", "data: ", "Authorization", "Bearer secret")
	res, err := http.Post("http://"+addr+"/notify", "text/plain", strings.NewReader("hello everybody"))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if got := next(); got != `data: "hello everybody"` || !strings.Contains(string(b), `"streams":1`) {
		t.Errorf("%q after %s", got, b)
	}
}

func TestEcho(t *testing.T) {
	addr := start(t, "echo")
	next := follow(t, "http://"+addr+"/events/sse?channel=user.ann", "data: ", "X-User", "ann")
	res, err := http.Get(fmt.Sprintf("http://%s/greet/ann", addr))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if got := next(); got != `data: {"hello":"ann"}` {
		t.Errorf("got %q", got)
	}
}
