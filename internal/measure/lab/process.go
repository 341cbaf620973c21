package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/measure/lab/rung"
	"github.com/weir-gateway/weir/internal/measure/process"
)

// apiKey lets the load publish to Weir. The server lives for seconds on loopback.
const apiKey = "lab-key-of-this-run"

// A Server is a process under test.
type Server struct {
	*process.Server
	weir bool // it is Weir itself
	mark rung.Stats
}

// Start runs the arm's server in a process of its own until stop is called.
func (b *Bench) Start(ctx context.Context, a Arm) (*Server, error) {
	env := append([]string{"GOMAXPROCS=" + strconv.Itoa(b.serverCPUs)}, a.Env...)
	if a.Server == "weir" {
		return b.startWeir(ctx, a, env)
	}
	args := []string{"serve", a.Server, "--listen", "127.0.0.1:0"}
	for _, k := range slices.Sorted(maps.Keys(a.Set)) {
		args = append(args, "--set", k+"="+a.Set[k])
	}
	cmd := b.self.Command(ctx, b.stderr, env, args...)
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
	// A rung lives as long as its standard input, so none outlives this process.
	s, err := process.Start(cmd, func() error { in.Close(); return cmd.Wait() })
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", a.Server, err)
	}
	var line rung.Line
	if err := json.NewDecoder(out).Decode(&line); err != nil {
		s.Stop()
		return nil, fmt.Errorf("start %s: it said nothing: %w", a.Server, err)
	}
	s.Addr, s.Admin = line.Addr, "http://"+line.Stats
	return &Server{Server: s}, nil
}

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
func (b *Bench) startWeir(ctx context.Context, a Arm, env []string) (_ *Server, err error) {
	var args []string
	for _, k := range slices.Sorted(maps.Keys(a.Set)) {
		args = append(args, "--set", k+"="+a.Set[k])
	}
	config := weirConfig
	if a.TLS {
		dir, err := os.MkdirTemp("", "weir-lab-tls-")
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }() // Weir has read them when it serves
		if err := process.WriteCertificate(dir); err != nil {
			return nil, err
		}
		config += fmt.Sprintf("tls:\n  certificates: [{cert_file: %q, key_file: %q}]\n", filepath.Join(dir, "modern.pem"), filepath.Join(dir, "modern.key"))
	}
	s, err := process.StartWeir(ctx, b.opt.Weir, b.stderr, env, config, args...)
	if err != nil {
		return nil, err
	}
	s.TLS = a.TLS
	return &Server{Server: s, weir: true}, nil
}

// Mark makes Stats count from here.
func (s *Server) Mark(ctx context.Context) error {
	if s.weir {
		now, err := s.weirStats(ctx)
		s.mark = now
		return err
	}
	return call(ctx, http.MethodPost, s.Admin+"/mark", nil)
}

// Stats are what the server's runtime says, since Mark where it counts. Weir
// reports less: the rest is 0.
func (s *Server) Stats(ctx context.Context) (rung.Stats, error) {
	if s.weir {
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
	err := call(ctx, http.MethodGet, s.Admin+"/stats", func(r io.Reader) error { return json.NewDecoder(r).Decode(&out) })
	return out, err
}

// weirStats reads Weir's /metrics; GCPauseMean is the sum of pauses there.
func (s *Server) weirStats(ctx context.Context) (out rung.Stats, err error) {
	into := map[string]*float64{
		"go_goroutines": &out.Goroutines, "go_memstats_alloc_bytes_total": &out.AllocBytes, "go_memstats_mallocs_total": &out.AllocObjects,
		"go_gc_duration_seconds_count": &out.GCCycles, "go_gc_duration_seconds_sum": &out.GCPauseMean,
	}
	err = call(ctx, http.MethodGet, s.Admin+"/metrics", func(r io.Reader) error {
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
	args := []string{"job", a.Job, "--duration", b.opt.Duration.String()}
	for _, k := range slices.Sorted(maps.Keys(a.Set)) {
		args = append(args, "--set", k+"="+a.Set[k])
	}
	// Simulations roll other dice in every round, and the same in every arm.
	args = append(args, "--set", "seed="+strconv.Itoa(b.round+1))
	env := a.Env
	if namespace {
		args = append(args, "--set", "namespace=own")
	}
	cmd := b.self.Command(ctx, b.stderr, env, args...)
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
