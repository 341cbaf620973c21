package judge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A Server is one weir process with its configuration and data directory, which
// both outlive the process: Kill and Start again as often as needed.
type Server struct {
	client
	process
	// Authority is the file with the certificate to trust, with Options.TLS.
	Authority string

	t       testing.TB
	options Options
	data    string // directory
	config  string
	log     string
	key     string   // file with the private key of Authority
	manager *manager // nil: none
}

// A client makes requests of a Server's listeners.
type client struct {
	t testing.TB
	// Public and Admin are the listeners' addresses, the same after a restart.
	Public, Admin string
}

// A process is that of a Server: another one after each start.
type process struct {
	t testing.TB
	*life
}

// A life is what changes of a process. All that In returns for one Server have the same.
type life struct {
	binary string
	cmd    *exec.Cmd
	done   chan struct{} // closed when cmd has ended
	killed bool          // by Kill
}

// Options are what a test changes of the configuration.
type Options struct {
	Build Build
	// Memory takes the memory broker instead of the embedded NATS.
	Memory bool
	// Files is the process's limit of open descriptors; 0 is the test's own.
	Files int
	// TLS has the public listener speak TLS alone, with a certificate of its own.
	TLS bool
	// Listen is the address to request of the process, which is the public listener's unless
	// Config lets it listen on more; empty: one of its own.
	Listen string
	// Output gets what the process writes in place of its log file, which stays empty; nil:
	// the file does.
	Output *os.File
	// Wrap is a command that runs the process, for example under prlimit; nil: none.
	Wrap []string
	// Env is added to the process's environment.
	Env []string
	// AdminHealth has the admin listener asked whether the server is ready.
	AdminHealth bool
	// Keeper is what keeps the listening sockets while no process runs.
	Keeper Keeper
	// Config is laid over the base configuration, section by section.
	Config map[string]any
}

// New writes the configuration and starts the server. At the end of the test it
// is stopped, and its log evaluated: no data race, no panic, exit status 0.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s := Launch(t, o)
	s.Ready()
	return s
}

// Launch is New for a server that is ready only when others are: Ready waits for it.
func Launch(t testing.TB, o Options) *Server {
	t.Helper()
	Descriptors(t, 4096)
	dir := t.TempDir()
	s := &Server{
		t: t, options: o,
		client: client{t, FreeAddr(t), FreeAddr(t)}, process: process{t, &life{binary: Binary(t, o.Build)}},
		data: filepath.Join(dir, "data"), config: filepath.Join(dir, "weir.yaml"), log: filepath.Join(dir, "weir.log"),
	}
	if o.TLS {
		s.Authority, s.key = Certificate(t, dir)
	}
	if o.Listen != "" {
		s.Public = o.Listen
	}
	s.Configure(o.Config)
	if o.Keeper != KeepsNothing {
		s.manager = newManager(t, o.Keeper, s.Public, s.Admin)
	}
	t.Cleanup(s.finish)
	s.launch()
	return s
}

// In returns s for t, a part of the test that started s: what fails of it fails t. A test may end
// only itself (testing.T.FailNow), and a parallel part that ends another one takes the whole
// package with it. The server still ends with the test that started it.
func (s *Server) In(t testing.TB) *Server {
	in := *s
	in.t, in.client.t, in.process.t = t, t, t
	return &in
}

// Start starts the process and returns when it is ready.
func (s *Server) Start() {
	s.t.Helper()
	s.StartUntil("/readyz")
}

// StartUntil starts the process and returns when path is answered with 200.
func (s *Server) StartUntil(path string) {
	s.t.Helper()
	s.launch()
	s.answers(path)
}

// Ready waits until the server that Launch started is ready.
func (s *Server) Ready() {
	s.t.Helper()
	s.answers("/readyz")
}

// launch starts the process.
func (s *Server) launch() {
	s.t.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(s.binary, "serve", "--config", s.config)
	if n := s.options.Files; n > 0 {
		s.cmd = exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, n), s.binary, "serve", "--config", s.config)
	}
	if w := s.options.Wrap; w != nil {
		s.cmd = exec.Command(w[0], slices.Concat(w[1:], s.cmd.Args)...)
	}
	// The file is all of its configuration.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
	env = append(env, s.options.Env...)
	s.cmd.Env = env
	if s.manager != nil {
		s.cmd = s.manager.command(env, s.cmd.Args)
	}
	if s.options.Output != nil {
		log = s.options.Output
	}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// Whatever happens to the test, its server ends with it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.manager.start(s.cmd); err != nil {
		s.t.Fatal(err)
	}
	s.done, s.killed = make(chan struct{}), false
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // the status is in cmd.ProcessState
		close(done)
	}(s.cmd, s.done)
}

// answers waits until path is answered with 200.
func (s *Server) answers(path string) {
	s.t.Helper()
	health := "http://" + s.Public + path
	if s.Authority != "" || s.options.AdminHealth {
		health = "http://" + s.Admin + path // the same answer, without TLS
	}
	Eventually(s.t, 30*time.Second, "weir is ready", func() bool {
		select {
		case <-s.done:
			s.t.Fatalf("weir ended at start (%s):\n%s", s.cmd.ProcessState, s.Log())
		default:
		}
		status, _, err := get(health)
		return err == nil && status == http.StatusOK
	})
}

// Kill ends the process with SIGKILL and waits for its end.
func (s *Server) Kill() {
	s.t.Helper()
	select {
	case <-s.done:
		s.t.Fatalf("weir had ended by itself (%s):\n%s", s.cmd.ProcessState, tail(s.Log()))
	default:
	}
	s.killed = true
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Terminate ends the process with SIGTERM and waits for its end.
func (s *Server) Terminate() {
	s.t.Helper()
	s.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(60 * time.Second):
		s.t.Fatalf("weir did not end within 60s of SIGTERM:\n%s", tail(s.Log()))
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Fatalf("weir ended with status %d:\n%s", code, tail(s.Log()))
	}
}

// Pid returns the process's number.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Alive reports whether the process runs.
func (p *process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Log returns what the server has written so far, over all its lives.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

var broken = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: |goroutine \d+ \[)|level=ERROR.*panic`)

func (s *Server) finish() {
	if s.cmd != nil && s.cmd.Process != nil && s.done != nil {
		if s.Alive() {
			_ = s.cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-s.done:
				if code := s.cmd.ProcessState.ExitCode(); code != 0 {
					s.t.Errorf("weir ended with status %d:\n%s", code, tail(s.Log()))
				}
			case <-time.After(30 * time.Second):
				s.t.Errorf("weir did not end within 30s of SIGTERM:\n%s", tail(s.Log()))
				_ = s.cmd.Process.Kill()
				<-s.done
			}
		} else if !s.killed {
			s.t.Errorf("weir ended, which the test did not do (%s):\n%s", s.cmd.ProcessState, tail(s.Log()))
		}
	}
	if at := broken.FindStringIndex(s.Log()); at != nil {
		s.t.Errorf("the log has a race or a panic:\n%s", head(s.Log()[at[0]:]))
	}
}

func tail(text string) string { return text[max(0, len(text)-4000):] }

func head(text string) string { return text[:min(len(text), 6000)] }

// overlay lays b over a: sections are merged, everything else replaced.
func overlay(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	for k, v := range b {
		below, ok1 := out[k].(map[string]any)
		above, ok2 := v.(map[string]any)
		if ok1 && ok2 {
			v = overlay(below, above)
		}
		out[k] = v
	}
	return out
}

// FreeAddr returns an address of loopback that no client's outgoing connection and no other
// test takes while the server is down.
func FreeAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", trial.FreePort(t))
}

// HTTP is for requests that end; each uses a connection of its own.
var HTTP = &http.Client{
	Timeout:   10 * time.Second,
	Transport: &http.Transport{DisableKeepAlives: true},
}

func get(url string) (status int, body []byte, err error) {
	resp, err := HTTP.Get(url)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// Get fetches a path of the server's public listener.
func (c *client) Get(path string) (status int, body []byte) {
	c.t.Helper()
	status, body, err := get("http://" + c.Public + path)
	if err != nil {
		c.t.Fatal(err)
	}
	return status, body
}

// Metric sums the samples of a metric's name on the admin listener, over all its
// labels.
func (c *client) Metric(name string) float64 {
	c.t.Helper()
	var sum float64
	found := false
	for line := range bytes.Lines(c.metrics()) {
		if m := regexp.MustCompile(`^([a-z_0-9]+)(?:\{.*\})? (\S+)`).FindSubmatch(line); m != nil && string(m[1]) == name {
			var v float64
			if _, err := fmt.Sscan(string(m[2]), &v); err != nil {
				c.t.Fatalf("%s: %v", line, err)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		c.t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// Memory returns the process's private resident memory in bytes (RssAnon).
func (p *process) Memory() int64 {
	p.t.Helper()
	n, err := p.MemoryNow()
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// MemoryNow is Memory for a process that may have ended.
func (p *process) MemoryNow() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		return 0, errors.New("no RssAnon in /proc/PID/status")
	}
	var kb int64
	_, _ = fmt.Sscan(string(m[1]), &kb)
	return kb << 10, nil
}

// CPU returns the processor time the process has used.
func (p *process) CPU() time.Duration {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		p.t.Fatal(err)
	}
	after := text[bytes.LastIndexByte(text, ')')+1:]
	f := bytes.Fields(after)
	var user, system int64
	_, _ = fmt.Sscan(string(f[11]), &user)
	_, _ = fmt.Sscan(string(f[12]), &system)
	return time.Duration(user+system) * (time.Second / 100) // USER_HZ is 100 on Linux
}
