package observe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

// run runs a command of the system's.
func run(t *testing.T, arg ...string) {
	t.Helper()
	if out, err := exec.Command(arg[0], arg[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(arg, " "), err, out)
	}
}

// Clients that stop reading show as readers that have stopped, with themselves at the
// top of the slowest.
func TestStoppedReadersShow(t *testing.T) {
	config := judge.Namespace(map[string]any{"policy": "drop-oldest", "durability": "none"})
	config["governor"] = governed(nil)
	config["eventloop"] = map[string]any{"write_stall": "10m", "user_timeout": "10m"}
	w := newWatch(t, judge.Options{Build: judge.Plain, Memory: true, Config: config}, false)
	w.audience(20, "a")
	ctx, cancel := context.WithCancel(context.Background())
	var tap judge.Tap
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); tap.Open(); wg.Wait() })
	for range 10 {
		s := &judge.Subscriber{Addr: w.Public, Channels: []string{"a"}, Dial: tap.Dial, On: func(judge.Event) {}}
		wg.Go(func() { _ = s.Run(ctx) })
	}
	judge.Eventually(t, patience, "they are subscribed", func() bool { return w.Series("weir_connections", `transport="sse"`) >= 30 })
	w.publishers(1, "a", 8<<10, 0)
	tap.Shut()
	s, c := w.named("stopped-readers", "WeirStoppedReaders")
	if c.Value < 0.05 || len(s.Slowest) == 0 || s.Slowest[0].Kernel+s.Slowest[0].Bytes == 0 {
		t.Errorf("value %v, slowest %+v", c.Value, s.Slowest)
	}
	judge.Eventually(t, patience, "the panels of lag show them", func() bool {
		return w.snapshot().Lag.Lagging >= 10 && w.value("weir_loop_stalled_ratio") >= 0.05 && w.value("weir_subscribers_lagging_bytes") > 0
	})
	tap.Open()
	w.gone("stopped-readers", "WeirStoppedReaders")
}

// Connections to the admin listener that never say anything have a goroutine each, which
// no role explains: what a leak looks like from within.
func TestGoroutinesThatStayShow(t *testing.T) {
	const held = 1500
	judge.Descriptors(t, 2*held+1000)
	w := newWatch(t, judge.Options{Build: judge.Plain, Memory: true, Config: map[string]any{"governor": governed(nil)}}, false)
	judge.Eventually(t, patience, "some windows are classified", func() bool { return w.snapshot().Governor.State.Windows >= 4 })
	var conns []net.Conn
	free := func() {
		for _, c := range conns {
			_ = c.Close()
		}
		conns = nil
	}
	t.Cleanup(free)
	for range held {
		c, err := net.Dial("tcp", w.Admin)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	s, _ := w.named("goroutine-leak", "WeirGoroutineLeak")
	if s.Governor.Goroutines.Other < 1000 || w.value("weir_goroutines_other") < 1000 {
		t.Errorf("%d goroutines of no role", s.Governor.Goroutines.Other)
	}
	free()
	w.gone("goroutine-leak", "WeirGoroutineLeak")
}

// A file system that is frozen under the embedded broker takes no write: publishers
// wait, and the page says for what. It needs root, as installing what tests need does.
func TestBlockedDiskShows(t *testing.T) {
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(96 << 20)
		_ = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", "-F", image)
	run(t, "mount", "-o", "loop", image, mount)
	t.Cleanup(func() { run(t, "umount", "-d", mount) })
	config := map[string]any{"governor": governed(nil), "broker": map[string]any{"nats": map[string]any{"dir": filepath.Join(mount, "nats"), "min_free": 1 << 20}}}
	w := newWatch(t, judge.Options{Build: judge.Plain, Config: config}, false)
	w.publishers(4, "a", 100, 0)
	judge.Eventually(t, patience, "messages are stored", func() bool { return w.Series("weir_messages_published_total", `outcome="ok"`) > 10 })

	// Should this process be killed, another process still has to thaw it.
	guard := exec.Command("sh", "-c", "sleep 100; fsfreeze -u "+mount)
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	thaw := sync.OnceFunc(func() {
		if out, err := exec.Command("fsfreeze", "-u", mount).CombinedOutput(); err != nil {
			t.Errorf("thaw: %v: %s", err, out)
		}
		_ = syscall.Kill(-guard.Process.Pid, syscall.SIGKILL)
		_ = guard.Wait() // killed
	})
	t.Cleanup(thaw)
	run(t, "fsfreeze", "-f", mount)
	w.publishers(4, "a", 100, 0) // those from before may all be ones without subscribers
	s, c := w.named("disk", "WeirDiskBlocked")
	if c.Value < 1 || s.Governor.Broker.Waiting == 0 || s.Governor.Broker.Oldest < 1 {
		t.Errorf("cause %+v, broker %+v", c, s.Governor.Broker)
	}
	if w.value("weir_broker_waiting") < 1 {
		t.Error("no request waits, by the metric")
	}
	thaw()
	before := w.Series("weir_messages_published_total", `outcome="ok"`)
	judge.Eventually(t, patience, "messages are stored again", func() bool { return w.Series("weir_messages_published_total", `outcome="ok"`) > before+10 })
	w.gone("disk", "WeirDiskBlocked")
}

// Others that take the processors are named as the host's doing: inconclusive, and no
// inflection.
func TestStarvedProcessorsShow(t *testing.T) {
	config := fleeting()
	config["eventloop"] = map[string]any{"loops": 2}
	config["governor"] = governed(map[string]any{"host_wait": 0.25})
	w := newWatch(t, judge.Options{Build: judge.Plain, Memory: true, Config: config}, false)
	w.audience(50, "a")
	w.publishers(16, "a", 100, 0)
	run(t, "taskset", "-a", "-p", "-c", "0", strconv.Itoa(w.Pid()))
	// Bounded by itself, whatever becomes of the test.
	var spinners []*exec.Cmd
	stop := sync.OnceFunc(func() {
		for _, c := range spinners {
			_ = c.Process.Kill()
			_ = c.Wait() // killed
		}
	})
	t.Cleanup(stop)
	for i := range runtime.NumCPU() + 3 {
		c := exec.Command("timeout", "40", "taskset", "-c", fmt.Sprint(max(i-3, 0)), "sh", "-c", "exec sh -c 'while :; do :; done'")
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		spinners = append(spinners, c)
	}
	stopAll := func() {
		for _, c := range spinners {
			_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		}
		stop()
	}
	t.Cleanup(stopAll)
	s, c := w.named("cpu-starved", "WeirInconclusive")
	stopAll()
	if !s.Governor.State.Inconclusive || s.Governor.State.Now == "inflection" || !strings.Contains(c.Text, "starved") {
		t.Errorf("state %s, inconclusive %v: %s", s.Governor.State.Now, s.Governor.State.Inconclusive, c.Text)
	}
	if s.Governor.Host.Wait <= 0 || s.Governor.Host.Busy < 0.5 {
		t.Errorf("the panel says %+v", s.Governor.Host)
	}
}

// A node that has died is missed by anyone who scrapes it.
func TestDeadNodeIsMissed(t *testing.T) {
	w := newWatch(t, judge.Options{Build: judge.Plain, Memory: true}, false)
	w.Kill()
	judge.Eventually(t, patience, "WeirDown holds", func() bool { return w.alerting("WeirDown") })
	w.Start()
	judge.Eventually(t, patience, "WeirDown is over", func() bool { return !w.alerting("WeirDown") })
	if status, _ := w.Get("/healthz"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}
