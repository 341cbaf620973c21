package chaos

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/test/judge"
)

// killedGateway: nothing acknowledged is lost, nothing comes twice, and clients resume.
func killedGateway(c *trial) {
	node := judge.New(c, judge.Options{Build: judge.Plain})
	w := c.under(node, load{subscribers: c.size(2000), rate: 100, options: exact})
	var ready []time.Duration
	for range c.times(100) {
		c.pause(c.between(0, 700*time.Millisecond))
		w.fault(true, func() {
			node.Kill()
			began := time.Now()
			node.Start()
			ready = append(ready, time.Since(began))
		})
	}
	c.proof = "the process ended by SIGKILL each time"
	c.note("ready again p50, p99 %s s", spread(ready))
	w.finish()
}

// rollingRestart: two nodes on one NATS are restarted one after the other. Their listening sockets are
// kept, so that no connection is refused.
func rollingRestart(c *trial) {
	n := c.nats(c.TempDir(), false)
	var nodes []*judge.Server
	for i := range 2 {
		nodes = append(nodes, judge.New(c, judge.Options{
			Build: judge.Plain, Keeper: judge.DescriptorStore,
			Config: external(n.Addr, map[string]any{"cluster": map[string]any{"name": fmt.Sprint("node-", i)}}),
		}))
	}
	next := atomic.Int64{}
	w := c.onBoth(nodes, &next, load{subscribers: c.size(200), rate: 100, options: exact})
	ctx, cancel := context.WithCancel(context.Background())
	var probing sync.WaitGroup
	var opened, failed atomic.Int64
	for _, s := range nodes {
		probing.Go(func() {
			for ctx.Err() == nil {
				conn, err := net.DialTimeout("tcp", s.Public, 10*time.Second)
				if err != nil {
					failed.Add(1)
					c.Logf("connect to %s: %v", s.Public, err)
				} else {
					opened.Add(1)
					_ = conn.Close()
				}
				c.pause(2 * time.Millisecond)
			}
		})
	}
	for i := range c.times(50) {
		began := time.Now()
		node := nodes[i%2]
		node.Terminate()
		node.Start()
		w.faults++
		w.more(20)
		w.outages = append(w.outages, w.outage(began))
		judge.Eventually(c, patience, "the node is ready", func() bool { status, _ := node.Get("/readyz"); return status == http.StatusOK })
	}
	cancel()
	probing.Wait()
	if failed.Load() > 0 {
		c.Errorf("%d of %d connections were refused", failed.Load(), opened.Load()+failed.Load())
	}
	c.proof = "the process ended in order and another one started each time"
	c.note("%d of %d new connections refused", failed.Load(), opened.Load()+failed.Load())
	w.finish()
}

// onBoth puts two nodes under load: subscribers go to one and the other alternately.
func (c *trial) onBoth(nodes []*judge.Server, next *atomic.Int64, l load) *world {
	c.Helper()
	w := &world{trial: c, node: nodes[0]}
	w.dial = func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", nodes[int(next.Add(1))%len(nodes)].Public)
	}
	return w.begin(l)
}

// reloads: a configuration is taken as a whole or not at all, and no client is disconnected.
func reloads(c *trial) {
	node := judge.New(c, judge.Options{Build: judge.Plain})
	w := c.under(node, load{subscribers: c.size(200), rate: 100, options: exact})
	sessions := w.fleet.Sessions()
	refused := 0
	for i := range c.times(1000) {
		if i%5 == 4 { // invalid
			node.Configure(map[string]any{"namespaces": []any{map[string]any{"name": "default", "history_size": -1}}})
		} else {
			node.Configure(judge.Namespace(map[string]any{"history_size": 1_000_000 + i}))
		}
		status, body := node.Reload()
		w.faults++
		switch {
		case i%5 == 4 && status == http.StatusUnprocessableEntity:
			refused++
		case i%5 == 4 || status != http.StatusOK:
			c.Fatalf("reload %d: %d %s", i, status, body)
		}
	}
	w.more(20)
	for i, m := range w.fleet.Members {
		if m.Ups.Load() != sessions[i] {
			c.Errorf("%s was disconnected", m.Name)
		}
	}
	c.proof = fmt.Sprintf("%d configurations in force, %d refused", w.faults-refused, refused)
	w.finish()
}

// clockJumps: the wall clock of the real program jumps, and that of the server inside; and
// once it runs with another monotonic clock.
func clockJumps(c *trial) {
	file := filepath.Join(c.TempDir(), "offset")
	set := func(d time.Duration) {
		c.Helper()
		if err := os.WriteFile(file+".new", fmt.Appendf(nil, "%d", int64(d.Seconds())), 0o600); err == nil {
			err = os.Rename(file+".new", file)
			if err != nil {
				c.Fatal(err)
			}
		}
	}
	set(0)
	c.Setenv("JUDGED_BINARY", c.clocked())
	node := judge.New(c, judge.Options{Build: judge.Plain, Env: []string{"CHAOS_CLOCK=" + file}})
	w := c.under(node, load{subscribers: c.size(200), rate: 100, options: history.Options{ExactlyOnce: true, NoGaps: true}})
	sessions := w.fleet.Sessions()
	seen := map[time.Duration]bool{}
	for i := range c.times(40) {
		jump := []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour}[i%4]
		w.fault(false, func() {
			set(jump)
			judge.Eventually(c, patience, "the process has another clock", func() bool {
				resp, err := judge.HTTP.Get("http://" + node.Admin + "/api/snapshot")
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				var b bytes.Buffer
				_, _ = b.ReadFrom(resp.Body)
				at, ok := jsonTime(b.Bytes())
				return ok && (time.Until(at)-jump).Abs() < time.Minute
			})
			seen[jump] = true
			c.pause(200 * time.Millisecond)
		})
		set(0)
	}
	for hour := range c.times(30) { // ten times the speed: a minute every six seconds
		set(time.Duration(hour) * 900 * time.Millisecond)
		c.pause(100 * time.Millisecond)
	}
	set(0)
	w.more(20)
	for i, m := range w.fleet.Members {
		if m.Ups.Load() != sessions[i] {
			c.Errorf("%s was disconnected", m.Name)
		}
	}
	w.finish()
	c.proof = fmt.Sprintf("/api/snapshot had the other time after each of %d kinds of jump", len(seen))
	c.monotonic()
}

// monotonic runs a node in a time namespace with another monotonic clock.
func (c *trial) monotonic() {
	if os.Geteuid() != 0 {
		c.note("no time namespace without root")
		return
	}
	node := judge.New(c, judge.Options{Build: judge.Plain, Wrap: []string{"unshare", "-T", "--monotonic", "8640000", "--boottime", "8640000", "--fork", "--kill-child"}})
	w := c.under(node, load{subscribers: c.size(40), rate: 100, options: exact})
	w.more(100)
	w.finish()
	node.Kill() // and with it the child: unshare --fork blocks SIGTERM
	c.note("once with a monotonic clock 100 days ahead")
}

// mixedVersions: nodes of the version before and of this one share a log, and replace each
// other one by one.
func mixedVersions(c *trial) {
	old := c.oldBinary()
	n := c.nats(c.TempDir(), false)
	var nodes []*judge.Server
	for i := range 2 {
		s := judge.New(c, judge.Options{Build: judge.Plain, Keeper: judge.DescriptorStore,
			Config: external(n.Addr, map[string]any{"cluster": map[string]any{"name": fmt.Sprint("node-", i)}})})
		nodes = append(nodes, s)
	}
	current := judge.Binary(c, judge.Plain)
	for _, s := range nodes {
		s.Terminate()
		s.OwnProgram()
		s.Replace(old, "")
		s.Start()
	}
	next := atomic.Int64{}
	w := c.onBoth(nodes, &next, load{subscribers: c.size(100), rate: 100, options: exact})
	versions := map[string]bool{}
	together := 0 // times that different programs ran at once
	look := func() {
		c.Helper()
		var sums []string
		for _, node := range nodes {
			sum, err := exec.Command("sha256sum", fmt.Sprintf("/proc/%d/exe", node.Pid())).Output()
			if err != nil {
				c.Fatal(err)
			}
			sums = append(sums, string(sum[:8]))
			versions[string(sum[:8])] = true
		}
		if sums[0] != sums[1] {
			together++
		}
	}
	look()
	for i := range c.times(12) {
		node, binary := nodes[i%2], current
		if i/2%2 == 1 {
			binary = old // and back
		}
		began := time.Now()
		node.Terminate()
		node.Replace(binary, "")
		node.Start()
		w.faults++
		w.more(20)
		w.outages = append(w.outages, w.outage(began))
		look()
	}
	if len(versions) != 2 || together == 0 {
		c.Errorf("the programs that ran: %v, different ones at once %d times", versions, together)
	}
	c.proof = fmt.Sprintf("%d programs ran, by their sums; two at once after %d of %d replacements", len(versions), together, c.faults)
	w.finish()
}

// oldBinary builds the program of the commit that WEIR_CHAOS_OLD names, or of the one a
// hundred before this.
func (c *trial) oldBinary() string {
	c.Helper()
	commit := os.Getenv("WEIR_CHAOS_OLD")
	if commit == "" {
		commit = "HEAD~100"
	}
	dir := filepath.Join(c.TempDir(), "old")
	git := func(arg ...string) {
		c.Helper()
		cmd := exec.Command("git", arg...)
		cmd.Dir = judge.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			c.Fatalf("git %v: %v: %s", arg, err, out)
		}
	}
	git("worktree", "add", "--detach", dir, commit)
	c.Cleanup(func() { git("worktree", "remove", "--force", dir) })
	file := filepath.Join(c.TempDir(), "weir-old")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", file, "./cmd/weir")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Fatalf("build %s: %v: %s", commit, err, out)
	}
	c.note("the older program is of commit %s", commit)
	return file
}
