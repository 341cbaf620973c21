package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A hint is an error with what to do about it.
type hint struct {
	error
	text string
}

func hinted(err error, text string) error { return hint{err, text} }

func (h hint) Unwrap() error { return h.error }

// maxFiles returns the hard limit of open files, to which servers and client raise theirs.
func maxFiles() uint64 {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 1024
	}
	return r.Max
}

// machineFits reports what this machine lacks for the scenarios.
func machineFits(chosen []*scenario) error {
	if runtime.NumCPU() < 2 {
		return hinted(errors.New("one CPU: server and load need one each"), "give the machine or container two")
	}
	if _, err := exec.LookPath("taskset"); err != nil {
		return hinted(errors.New("taskset is missing, which pins to a CPU"), "apt-get install util-linux")
	}
	return filesFit(chosen, maxFiles())
}

const spareFiles = 300 // of a server and of the client besides the subscribers

func filesFit(chosen []*scenario, limit uint64) error {
	for _, s := range chosen {
		if need := uint64(s.n + spareFiles); need > limit {
			return hinted(fmt.Errorf("%s needs %d open files per process, the hard limit is %d", s.Name, need, limit),
				"raise it (ulimit -Hn as root, LimitNOFILE=, docker run --ulimit nofile=), or N="+strconv.FormatUint(limit-spareFiles, 10))
		}
	}
	return nil
}

// freePort returns port if it is free, or any free one for 0. It binds without
// SO_REUSEPORT, so it also sees a server that would share the port with ours.
func freePort(ctx context.Context, port int) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, hinted(fmt.Errorf("port %d is not free: %w", port, err), "end the server that uses it, or choose another with -port (0, the default, takes free ones)")
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// A server is a running process of an adapter.
type server struct {
	place
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	log  string
}

// start runs a fresh server on CPU 0 and returns when it is ready.
func (b *bench) start(ctx context.Context, a *adapter, sc *scenario, env ...string) (*server, error) {
	var p place
	var err error
	if p.dir, err = os.MkdirTemp(b.scratch, a.Name+"-"); err != nil {
		return nil, err
	}
	if p.port, err = freePort(ctx, b.port); err != nil {
		return nil, err
	}
	if p.admin, err = freePort(ctx, 0); err != nil {
		return nil, err
	}
	if err := a.write(p, sc); err != nil {
		return nil, err
	}
	s := &server{place: p, log: filepath.Join(p.dir, "log"), done: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append([]string{"-c", "0", a.path}, a.fillAll(a.Args, p, sc)...)
	s.cmd = exec.CommandContext(ctx, "taskset", args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "WEIR_") || strings.HasPrefix(v, "GOMAXPROCS=") || strings.HasPrefix(v, "GOGC=")
	}), env...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // its end is all that counts
		close(s.done)
	}()
	if err := s.ready(ctx, a); err != nil {
		s.stop()
		return nil, err
	}
	b.note(a.Name+" "+sc.Name, s.cmd.Args)
	return s, nil
}

const startWithin = 15 * time.Second

func (s *server) ready(ctx context.Context, a *adapter) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return hinted(fmt.Errorf("%s ended before it was ready: %s", a.Name, s.tail()), "run it by hand: "+strings.Join(s.cmd.Args[3:], " "))
		case <-ctx.Done():
			return hinted(fmt.Errorf("%s was not ready on %s within %s: %s", a.Name, addr, startWithin, s.tail()), "does it listen where its adapter says?")
		case <-tick.C:
		}
		if a.Ready != "" {
			if _, err := get(ctx, "http://"+addr+a.Ready); err == nil {
				return nil
			}
			continue
		}
		var d net.Dialer
		if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
			c.Close()
			return nil
		}
	}
}

// stop ends the server and removes its directory.
func (s *server) stop() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.done
	_ = os.RemoveAll(s.dir)
}

// tail returns the last words of the server's log.
func (s *server) tail() string {
	text, _ := os.ReadFile(s.log)
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return "it said nothing"
	}
	if len(text) > 400 {
		text = text[len(text)-400:]
	}
	return string(text)
}

// A measure is one report of the load client.
type measure map[string]float64

func parseMeasure(text []byte) (measure, error) {
	var m measure
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("the load client's report: %w", err)
	}
	if m["subscribers"] == 0 {
		return nil, errors.New("the load client's report has no subscribers")
	}
	return m, nil
}

// unsound reports what makes the numbers of a run worthless.
func (m measure) unsound() error {
	for _, f := range []struct{ key, words string }{
		{"missing", "messages were lost"}, {"duplicated", "messages came twice"}, {"wrong", "subscribers got other messages than were sent"},
		{"ended", "subscribers were disconnected"}, {"failed", "handshakes failed"}, {"refused", "publishes were refused"},
	} {
		if n := m[f.key]; n > 0 {
			return fmt.Errorf("%.0f %s", n, f.words)
		}
	}
	return nil
}

// othersPercent is how much of the server's CPU others may use in a run that counts.
const othersPercent = 12

func (m measure) noisy() bool {
	return m["cpu0_percent"]-m["server_percent"] > othersPercent
}

// apply runs the load client on CPU 1 against s.
func (b *bench) apply(ctx context.Context, s *server, label string, options []string) (measure, error) {
	args := append([]string{"-c", "1", b.load, "--port", strconv.Itoa(s.port), "--pid", strconv.Itoa(s.cmd.Process.Pid)}, options...)
	cmd := exec.CommandContext(ctx, "taskset", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	b.note(label+", load", cmd.Args)
	if err := cmd.Run(); err != nil {
		text, advice, _ := strings.Cut(strings.TrimSpace(bad.String()), "\nhint: ")
		if advice == "" {
			advice = "the server said: " + s.tail()
		}
		return nil, hinted(fmt.Errorf("%s: %w: %s", label, err, text), advice)
	}
	m, err := parseMeasure(out.Bytes())
	if err != nil {
		return nil, err
	}
	if err := m.unsound(); err != nil {
		return m, hinted(fmt.Errorf("%s: %w", label, err), strings.TrimSpace(bad.String()+" the server said: "+s.tail()))
	}
	if m["deliveries"] > 1000 && m["server_percent"] == 0 {
		return m, hinted(fmt.Errorf("%s: deliveries, but the server used no CPU", label), "another process serves the port")
	}
	return m, nil
}

// get requests no compression: a compressor would be memory of the server's.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body.Bytes(), nil
}
