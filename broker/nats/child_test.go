package nats

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// The test binary is also the processes that get killed: it runs itself with
// WEIR_TEST_ROLE set. A child says "ready" when it serves, ends when its standard
// input is closed, and otherwise answers line by line.

const (
	stopSignal     = syscall.SIGSTOP
	continueSignal = syscall.SIGCONT
)

// A natsChild are the options of a NATS server as a process of its own.
type natsChild struct {
	Port, ClusterPort int
	Dir, Name         string
	Routes            []string
	Sync              bool
	MaxStore          int64
	MaxControlLine    int32  // 0 is the server's own
	MaxFile           uint64 // files fail to grow past it; 0 for no bound
	// Host and ClusterHost are the addresses to listen on, empty for 127.0.0.1, in the
	// network namespace Space, empty for the test's.
	Host, ClusterHost, Space string
	// Quick has it elect leaders as the servers inside Weir do.
	Quick bool
	// Campaigns has it campaign when a leader's routes close, as the servers inside Weir do, and otherwise wait
	// for a minute with an election.
	Campaigns bool
	// Advertise is where clients are sent to, if not to Port.
	Advertise string
}

func child(role string) int {
	var err error
	switch role {
	case "nats":
		err = serveNATS()
	case "weir":
		err = servePublishes()
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveNATS() error {
	var c natsChild
	if err := json.Unmarshal([]byte(os.Getenv("WEIR_TEST_CONFIG")), &c); err != nil {
		return err
	}
	if c.MaxFile > 0 {
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: c.MaxFile, Max: c.MaxFile}); err != nil {
			return err
		}
	}
	if c.Quick || c.Campaigns {
		quickElections()
	}
	if c.Campaigns {
		raftElectionMin, raftElectionMax = time.Minute, 2*time.Minute
	}
	o := &server.Options{
		Host: cmp.Or(c.Host, "127.0.0.1"), Port: c.Port, ServerName: c.Name, NoSigs: true, NoLog: true, MaxPayload: 2 << 20,
		JetStream: true, StoreDir: c.Dir, SyncAlways: c.Sync, JetStreamMaxStore: max(c.MaxStore, 1<<20),
		MaxControlLine: c.MaxControlLine,
	}
	if c.MaxStore == 0 {
		o.JetStreamMaxStore = 1 << 40
	}
	if c.ClusterPort != 0 {
		o.Cluster = server.ClusterOpts{Name: "test", Host: cmp.Or(c.ClusterHost, "127.0.0.1"), Port: c.ClusterPort}
		if c.Advertise != "" { // routes as well as clients go through relays, and know no other way
			o.ClientAdvertise, o.Cluster.Advertise = c.Advertise, "127.0.0.1:1"
		}
		for _, r := range c.Routes {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: r})
		}
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		return fmt.Errorf("NATS on port %d is not ready", c.Port)
	}
	if c.Campaigns {
		go lookAlways(s, c.Name == "n0")
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString(0) // until the parent closes it or dies
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// lookAlways watches the routes of s. The first leader of JetStream has to be made: first does.
func lookAlways(s *server.Server, first bool) {
	w := routeWatch{log: slog.Default()}
	for n := 0; ; n++ {
		w.look(s)
		if meta := raftNode(s, "_meta_"); first && n%20 == 0 && len(w.names) == 2 && meta != nil && meta.Leaderless() {
			_ = meta.Campaign() // again if it is too early
		}
		time.Sleep(routesEvery)
	}
}

// servePublishes hosts an embedded broker and publishes one message after
// another without waiting, saying which ones were answered and where they are.
func servePublishes() error {
	b, err := New(Config{Dir: os.Getenv("WEIR_TEST_CONFIG")}, nil)
	if err != nil {
		return err
	}
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000}
	if err := b.Start(context.Background(), []hub.Namespace{ns}, func(*hub.Message) {}); err != nil {
		return err
	}
	fmt.Println("ready")
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	room := make(chan struct{}, 256)
	for i := 0; ; i++ {
		room <- struct{}{}
		p := hub.Publication{Channel: fmt.Sprint("a:", i%3), Data: fmt.Append(nil, i), IdempotencyKey: fmt.Sprint(i),
			Attributes: &hub.Attributes{ID: fmt.Sprint("id", i)}}
		b.Publish(&ns, p, func(at hub.Position, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				fmt.Fprintln(out, i, at)
				out.Flush()
			}
			<-room
		})
	}
}

// A process is a running child.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *bufio.Reader
	in   interface{ Close() error }
	once sync.Once
}

// spawn starts a child and waits until it is ready.
func spawn(t *testing.T, role, config string) *process {
	t.Helper()
	return spawnIn(t, exec.Command(os.Args[0]), role, config)
}

// plainDir is where the children that are NATS servers are built; TestMain makes and removes it.
var plainDir string

// plainSelf is this test program without the race detector, with which a NATS server has several times
// the work: what is tested is the broker, in the test's own process and in children that are "weir".
var plainSelf = sync.OnceValues(func() (string, error) {
	if !raced {
		return os.Args[0], nil
	}
	program := filepath.Join(plainDir, "nats.test")
	build := exec.Command("go", "test", "-c", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // so what make build has compiled serves
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the servers: %w\n%s", err, out)
	}
	return program, nil
})

func spawnIn(t *testing.T, cmd *exec.Cmd, role, config string) *process {
	t.Helper()
	cmd.Env = append(os.Environ(), "WEIR_TEST_ROLE="+role, "WEIR_TEST_CONFIG="+config)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(p.kill)
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("child %s said %q, %v", role, line, err)
	}
	return p
}

// suspend stops the child as kill -STOP does, and returns when none of its threads runs any more: on a busy machine
// they do for a while.
func (p *process) suspend(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(stopSignal)
	hubtest.Until(t, patience, "the process to stop", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads of %d: %v, %v", p.cmd.Process.Pid, threads, err)
		}
		for _, file := range threads {
			b, _ := os.ReadFile(file) // the thread may have ended
			if _, state, ok := strings.Cut(string(b), ") "); ok && !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
}

// killed ends the child as kill -9 does, and calls line with what it has written before.
func (p *process) killed(line func(string)) {
	p.cmd.Process.Signal(syscall.SIGKILL)
	for {
		s, err := p.out.ReadString('\n')
		if err != nil {
			break
		}
		line(s)
	}
	p.kill()
}

// kill ends the child as kill -9 does.
func (p *process) kill() {
	p.once.Do(func() {
		p.cmd.Process.Signal(syscall.SIGKILL)
		p.cmd.Wait()
	})
}

// stop ends the child in order.
func (p *process) stop() {
	p.once.Do(func() {
		p.in.Close()
		p.cmd.Wait()
	})
}

func (c natsChild) spawn(t *testing.T) *process {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	program, err := plainSelf()
	if err != nil {
		t.Fatal(err)
	}
	if c.Space != "" {
		return spawnIn(t, exec.Command("ip", "netns", "exec", c.Space, program), "nats", string(config))
	}
	return spawnIn(t, exec.Command(program), "nats", string(config))
}

func (c natsChild) url() string {
	return fmt.Sprintf("nats://%s:%d", cmp.Or(c.Host, "127.0.0.1"), c.Port)
}

// external returns the options of one NATS server outside.
func external(t *testing.T) natsChild {
	return natsChild{Port: trial.FreePort(t), Dir: filepath.Join(t.TempDir(), "nats"), Name: "n"}
}

// cluster returns the options of three that know each other.
func cluster(t *testing.T) []natsChild {
	var cs []natsChild
	var routes []string
	for i := range 3 {
		c := external(t)
		c.Name, c.ClusterPort = fmt.Sprint("n", i), trial.FreePort(t)
		cs = append(cs, c)
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", c.ClusterPort))
	}
	for i := range cs {
		cs[i].Routes = routes
	}
	return cs
}

func urls(cs []natsChild) string {
	var us []string
	for _, c := range cs {
		us = append(us, c.url())
	}
	return strings.Join(us, ",")
}
