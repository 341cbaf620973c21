package lab

import (
	"bufio"
	"context"
	"encoding/json"
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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/measure/lab/rung"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// apiKey lets the load publish to Weir. The server lives for seconds on loopback.
const apiKey = "lab-key-of-this-run"

// A Server is a process under test.
type Server struct {
	// Addr is where it serves, host:port; Weir says that it is Weir itself, TLS that it serves that.
	Addr string
	Weir bool
	TLS  bool

	cmd   *exec.Cmd
	stop  func() error
	stats string // the side port, or Weir's admin listener
	dir   string // removed at the end; "" for none
	mark  rung.Stats
}

// command makes the process that runs args of this program. argv[0] stays what
// it is, because some programs go by that.
func (b *Bench) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.self[0], args...)
	cmd.Args[0] = b.self[1]
	cmd.Env = append(clean(os.Environ()), env...)
	cmd.Stderr = b.stderr
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// clean leaves out what would make this machine's own settings part of the
// experiment.
func clean(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "WEIR_") || slices.Contains([]string{"GOGC", "GOMEMLIMIT", "GOMAXPROCS", "GODEBUG"}, name)
	})
}

// Start runs the arm's server in a process of its own until stop is called.
func (b *Bench) Start(ctx context.Context, a Arm) (*Server, error) {
	env := append([]string{"GOMAXPROCS=" + strconv.Itoa(b.serverCPUs)}, a.Env...)
	if a.Server == "weir" {
		return b.startWeir(ctx, a, env)
	}
	args := []string{"lab", "serve", a.Server, "--listen", "127.0.0.1:0"}
	for _, k := range slices.Sorted(maps.Keys(a.Set)) {
		args = append(args, "--set", k+"="+a.Set[k])
	}
	cmd := b.command(ctx, env, args...)
	if file := b.opt.Programs[a.Program]; a.Program != "" {
		cmd.Path, cmd.Err = exec.LookPath(file)
		cmd.Args[0] = file
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", a.Server, err)
	}
	// A rung lives as long as its standard input, so none outlives this process.
	s := &Server{cmd: cmd, stop: func() error { in.Close(); return cmd.Wait() }}
	var line rung.Line
	if err := json.NewDecoder(out).Decode(&line); err != nil {
		s.Stop()
		return nil, fmt.Errorf("start %s: it said nothing: %w", a.Server, err)
	}
	s.Addr, s.stats = line.Addr, "http://"+line.Stats
	return s, nil
}

var startLine = regexp.MustCompile(`^weir serves on https?://([^,]+), admin on (http://[^,]+)`)

// weirConfig is what Weir is measured with: its defaults but for what a benchmark
// must have (one key, anonymous subscribers, the echo) and memory alone.
const weirConfig = `listen: 127.0.0.1:0
admin:
  listen: 127.0.0.1:0
broker:
  kind: memory
namespaces:
  - name: default
    anonymous: true
auth:
  api_keys:
    - name: lab
      key: ` + apiKey + `
push:
  echo: true
shutdown:
  drain: 50ms
log:
  level: error
`

// startWeir runs the real gateway.
func (b *Bench) startWeir(ctx context.Context, a Arm, env []string) (*Server, error) {
	var args []string
	for _, k := range slices.Sorted(maps.Keys(a.Set)) {
		args = append(args, "--set", k+"="+a.Set[k])
	}
	if !a.TLS {
		return b.startGateway(ctx, env, weirConfig, args...)
	}
	dir, err := os.MkdirTemp("", "weir-lab-tls-")
	if err != nil {
		return nil, err
	}
	if err := WriteCertificate(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	files := fmt.Sprintf("tls:\n  certificates: [{cert_file: %q, key_file: %q}]\n", filepath.Join(dir, "modern.pem"), filepath.Join(dir, "modern.key"))
	s, err := b.startGateway(ctx, env, weirConfig+files, args...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop := s.stop
	s.TLS, s.stop = true, func() error { return errors.Join(stop(), os.RemoveAll(dir)) }
	return s, nil
}

// StartGateway runs Weir, the program self (its file and its argv[0]), in a process of its own with
// config, which has to listen on ports of the system's choice and to have an admin listener. args
// are added to the command line.
func StartGateway(ctx context.Context, self [2]string, stderr io.Writer, config string, args ...string) (*Server, error) {
	return (&Bench{self: self, stderr: stderr}).startGateway(ctx, nil, config, args...)
}

func (b *Bench) startGateway(ctx context.Context, env []string, config string, set ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "weir-lab-")
	if err != nil {
		return nil, err
	}
	s := &Server{Weir: true, dir: dir, stop: func() error { return nil }}
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		s.Stop()
		return nil, err
	}
	s.cmd = b.command(ctx, env, append([]string{"serve", "--config", file}, set...)...)
	s.cmd.Dir = dir
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.Stop()
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		s.Stop()
		return nil, fmt.Errorf("start weir: %w", err)
	}
	s.stop = func() error {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it is gone already otherwise
		kill := time.AfterFunc(10*time.Second, func() { _ = s.cmd.Process.Kill() })
		defer kill.Stop()
		return s.cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	m := startLine.FindStringSubmatch(strings.TrimSpace(line))
	if err != nil || m == nil {
		s.Stop()
		return nil, fmt.Errorf("start weir: it said %q: %w", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
	s.Addr, s.stats = m[1], m[2]
	return s, nil
}

// Stop ends the process and removes what it left.
func (s *Server) Stop() {
	_ = s.stop() // it was killed with its context, or ends as it should
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
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

// Admin is the URL of Weir's admin listener.
func (s *Server) Admin() string { return s.stats }

// Kill ends the process as kill -9 does and waits for its end. Stop is still to be called.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()
}

// CPU is the processor time the server has used.
func (s *Server) CPU() (time.Duration, error) { return sys.CPUTimeOf(s.cmd.Process.Pid) }

// RSS is the memory the server has in use, in bytes.
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

// Mark makes Stats count from here.
func (s *Server) Mark(ctx context.Context) error {
	if s.Weir {
		now, err := s.weirStats(ctx)
		s.mark = now
		return err
	}
	return call(ctx, http.MethodPost, s.stats+"/mark", nil)
}

// Stats are what the server's runtime says, since Mark where it counts. Weir
// reports less: the rest is 0.
func (s *Server) Stats(ctx context.Context) (rung.Stats, error) {
	if s.Weir {
		now, err := s.weirStats(ctx)
		now.AllocBytes -= s.mark.AllocBytes
		now.AllocObjects -= s.mark.AllocObjects
		now.GCCycles -= s.mark.GCCycles
		if now.GCPauseMean -= s.mark.GCPauseMean; now.GCCycles > 0 {
			now.GCPauseMean /= now.GCCycles
		}
		return now, err
	}
	var out rung.Stats
	err := call(ctx, http.MethodGet, s.stats+"/stats", func(r io.Reader) error { return json.NewDecoder(r).Decode(&out) })
	return out, err
}

// weirStats reads Weir's /metrics; GCPauseMean is the sum of pauses there.
func (s *Server) weirStats(ctx context.Context) (out rung.Stats, err error) {
	into := map[string]*float64{
		"go_goroutines": &out.Goroutines, "go_memstats_alloc_bytes_total": &out.AllocBytes, "go_memstats_mallocs_total": &out.AllocObjects,
		"go_gc_duration_seconds_count": &out.GCCycles, "go_gc_duration_seconds_sum": &out.GCPauseMean,
	}
	err = call(ctx, http.MethodGet, s.stats+"/metrics", func(r io.Reader) error {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), " ")
			if p := into[name]; p != nil {
				if *p, err = strconv.ParseFloat(value, 64); err != nil {
					return err
				}
			}
		}
		return lines.Err()
	})
	return out, err
}

// call makes one request and hands the body to read.
func call(ctx context.Context, method, url string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	if read == nil {
		return nil
	}
	return read(resp.Body)
}

// Job runs the arm's job in a process of its own, in a network namespace of its
// own if asked, and returns its values.
func (b *Bench) Job(ctx context.Context, a Arm, namespace bool) (Values, error) {
	args := []string{"lab", "job", a.Job, "--duration", b.opt.Duration.String()}
	for _, k := range slices.Sorted(maps.Keys(a.Set)) {
		args = append(args, "--set", k+"="+a.Set[k])
	}
	// Simulations roll other dice in every round, and the same in every arm.
	args = append(args, "--set", "seed="+strconv.Itoa(b.round+1))
	env := a.Env
	if namespace {
		args = append(args, "--set", "namespace=own")
	}
	cmd := b.command(ctx, env, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if namespace {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", a.Job, err, strings.TrimSpace(said.String()))
	}
	var v Values
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Job, err)
	}
	return v, nil
}
