package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A terminal runs weir top in one, which script(1) makes, between two looks at its
// settings.
type terminal struct {
	t     *testing.T
	dir   string
	stdin io.WriteCloser
	done  chan error
	cmd   *exec.Cmd

	mu  sync.Mutex
	out bytes.Buffer
}

func (x *terminal) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.Write(b)
}

func (x *terminal) shown() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.String()
}

func newTerminal(t *testing.T, admin string, env ...string) *terminal {
	t.Helper()
	x := &terminal{t: t, dir: t.TempDir(), done: make(chan error, 1)}
	line := `stty rows 24 cols 80; stty -g > before; sh -c 'echo $$ > pid; exec "$WEIR" top --admin "$ADMIN" --interval 250ms'; echo $? > status; stty -g > after`
	cmd := exec.Command("script", "-q", "-e", "-c", line, "/dev/null")
	cmd.Dir = x.dir
	cmd.Env = append(os.Environ(), append(env, "WEIR="+judge.Binary(t, judge.Race), "ADMIN=http://"+admin, "TERM=xterm-256color", "SHELL=/bin/sh")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = x, x
	var err error
	if x.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x.cmd = cmd
	go func() { x.done <- cmd.Wait() }()
	t.Cleanup(func() { x.stdin.Close(); _ = cmd.Process.Kill() })
	return x
}

func (x *terminal) read(name string) string {
	x.t.Helper()
	b, err := os.ReadFile(filepath.Join(x.dir, name))
	if err != nil {
		x.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (x *terminal) eventually(what string) {
	x.t.Helper()
	judge.Eventually(x.t, 30*time.Second, "the terminal shows "+what, func() bool { return strings.Contains(x.shown(), what) })
}

// restored waits for the end and checks what top left behind.
func (x *terminal) restored() {
	x.t.Helper()
	select {
	case <-x.done:
	case <-time.After(30 * time.Second):
		x.t.Fatalf("it does not end: %q", x.shown())
	}
	if s := x.read("status"); s != "0" {
		x.t.Errorf("status %s: %q", s, x.shown())
	}
	if before, after := x.read("before"), x.read("after"); before != after {
		x.t.Errorf("the terminal was %s and is %s", before, after)
	}
	if out := x.shown(); !strings.HasSuffix(strings.TrimSpace(out), "\x1b[?25h\x1b[?1049l") {
		x.t.Errorf("the screen was not given back: …%q", out[max(0, len(out)-200):])
	}
}

func TestTopGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	s, _ := watched(t, nil)
	var c crowd
	t.Cleanup(c.wg.Wait)
	conn := c.join(t, s.Public, "news", true)

	t.Run("on q", func(t *testing.T) {
		x := newTerminal(t, s.Admin)
		x.eventually("SLOWEST CONSUMERS")
		x.eventually("\x1b[32m") // it is in colour
		for _, k := range []struct{ key, shows string }{{"c", "CONSUMERS BY LAG"}, {"s", "CONSUMERS BY BYTES"}, {"c", conn.LocalAddr().String()}, {"t", "EVIDENCE"}, {"u", "no clusters"}, {"h", "news"}, {"?", "pause and resume the display"}, {" ", "HELD"}} {
			if _, err := io.WriteString(x.stdin, k.key); err != nil {
				t.Fatal(err)
			}
			x.eventually(k.shows)
		}
		if _, err := io.WriteString(x.stdin, "q"); err != nil {
			t.Fatal(err)
		}
		x.restored()
	})
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run("on "+sig.String(), func(t *testing.T) {
			x := newTerminal(t, s.Admin, "NO_COLOR=1")
			x.eventually("LOOP   CONNS")
			if strings.Contains(x.shown(), "\x1b[32m") {
				t.Error("there are colours under NO_COLOR")
			}
			pid, err := strconv.Atoi(x.read("pid"))
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
			x.restored()
		})
	}
}

// The terminal goes away without a word, and with it who watched.
func TestTopEndsWithItsTerminal(t *testing.T) {
	t.Parallel()
	s, _ := watched(t, nil)
	x := newTerminal(t, s.Admin)
	x.eventually("LOOP   CONNS")
	pid, err := strconv.Atoi(x.read("pid"))
	if err != nil {
		t.Fatal(err)
	}
	if err := x.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	judge.Eventually(t, 30*time.Second, "top has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(stat, []byte(") Z ")) // its status need not have been collected
	})
}

// The server goes away and comes back under a terminal that watches it.
func TestTopReportsWhenItIsNotLive(t *testing.T) {
	t.Parallel()
	s, _ := watched(t, nil)
	x := newTerminal(t, s.Admin)
	x.eventually("LOOP   CONNS")
	s.Kill()
	x.eventually("NOT LIVE")
	s.Start()
	n := len(x.shown())
	judge.Eventually(t, 30*time.Second, "frames that are live again", func() bool {
		frames := strings.Split(x.shown()[n:], "\x1b[H")
		last := frames[max(0, len(frames)-2)]
		return strings.Contains(last, "LOOP   CONNS") && !strings.Contains(last, "NOT LIVE")
	})
	if _, err := io.WriteString(x.stdin, "q"); err != nil {
		t.Fatal(err)
	}
	x.restored()
}
