// Package process runs the servers that are measured, Weir above all, each in a process of its own, and
// reads what it uses.
package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A Program is what a process runs: a file and its argv[0], by which some programs go.
type Program [2]string

// Command returns the command that runs the program with args, its standard error to stderr. env is added to
// the environment, without what would make this machine's own settings part of a measurement: WEIR_* and
// the settings of Go's runtime.
func (p Program) Command(ctx context.Context, stderr io.Writer, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p[0], args...)
	cmd.Args[0] = p[1]
	cmd.Env = append(clean(os.Environ()), env...)
	cmd.Stderr = stderr
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func clean(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "WEIR_") || slices.Contains([]string{"GOGC", "GOMEMLIMIT", "GOMAXPROCS", "GODEBUG"}, name)
	})
}

// A Build identifies what is measured: `weir version --json` prints it.
type Build struct {
	Version  string
	Commit   string // empty: unknown
	Modified bool   // built from a tree with changes that are not in Commit
}

// String names the build in a report: what was measured must be found again.
func (b Build) String() string {
	switch {
	case b.Commit == "":
		return b.Version + " of an unknown commit"
	case b.Modified:
		return b.Version + " of commit " + b.Commit + " with changes"
	}
	return b.Version + " of commit " + b.Commit
}

// A Server is a process under test.
type Server struct {
	// Addr is where it serves, host:port. Admin is the URL of Weir's admin listener, or of what another
	// server reports of itself.
	Addr, Admin string
	// TLS means that it serves TLS.
	TLS bool

	cmd *exec.Cmd
	end func() error // ends the process and waits for it
	dir string       // removed at the end; "" for none
}

// Start starts cmd, which end ends and waits for.
func Start(cmd *exec.Cmd, end func() error) (*Server, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Server{cmd: cmd, end: end}, nil
}

var startLine = regexp.MustCompile(`^weir serves on https?://([^,]+), admin on (http://[^,]+)`)

// StartWeir runs Weir with config, which has to listen on ports of the system's choice and to have an admin
// listener. env is added to the environment, args to the command line.
func StartWeir(ctx context.Context, weir Program, stderr io.Writer, env []string, config string, args ...string) (_ *Server, err error) {
	dir, err := os.MkdirTemp("", "weir-measured-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, end: func() error { return nil }}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s.cmd = weir.Command(ctx, stderr, env, append([]string{"serve", "--config", file}, args...)...)
	s.cmd.Dir = dir
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start weir: %w", err)
	}
	s.end = func() error {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it has ended already otherwise
		kill := time.AfterFunc(10*time.Second, func() { _ = s.cmd.Process.Kill() })
		defer kill.Stop()
		return s.cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	m := startLine.FindStringSubmatch(strings.TrimSpace(line))
	if err == nil && m == nil {
		err = errors.New("not the line of a Weir that serves")
	}
	if err != nil {
		return nil, fmt.Errorf("start weir: it printed %q: %w", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
	s.Addr, s.Admin = m[1], m[2]
	return s, nil
}

// Stop ends the process and removes what it left.
func (s *Server) Stop() {
	_ = s.end() // it was killed with its context, or ends as it should
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// Kill ends the process as kill -9 does and waits for its end. Stop is still to be called.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()
}

// URL is where the server is reached.
func (s *Server) URL() string {
	if s.TLS {
		return "https://" + s.Addr
	}
	return "http://" + s.Addr
}

// PID is the process's id.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// CPU is the processor time that the server has used.
func (s *Server) CPU() (time.Duration, error) { return sys.CPUTimeOf(s.cmd.Process.Pid) }

// RSS is the memory that the server has in use, in bytes.
func (s *Server) RSS() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024, err
		}
	}
	return 0, errors.New("no VmRSS in /proc: is this Linux?")
}
