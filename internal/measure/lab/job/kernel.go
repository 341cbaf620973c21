package job

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/measure/lab/rung"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// kernel runs in a network namespace of its own: it sets what the settings that
// begin with "net." say, starts the rung named server there and makes short
// connections to it (shortOnes). Setting conntrack has them tracked ("tracked"), or
// all but the server's ("notrack"); without it nothing is.
func kernel(ctx context.Context, p Params) (Values, error) {
	if p.Set["namespace"] != "" {
		if err := applySettings(ctx, p, "net."); err != nil {
			return nil, err
		}
	}
	s, err := startServer(ctx, p, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if how := p.Set["conntrack"]; how != "" {
		if err := track(s.line.Addr, how == "notrack"); err != nil {
			return nil, err
		}
	}
	before := overflows() // before the crowd, which is what overflows a queue
	used := s.cpu()
	v := shortOnes(ctx, p, s.line.Addr)
	v["cpu_seconds"] = (s.cpu() - used).Seconds() / max(v["connections"], 1)
	v["server_cpus"] = float64(s.line.CPUs)
	v["tw_recycle"] = 0
	if _, err := os.Stat("/proc/sys/net/ipv4/tcp_tw_recycle"); err == nil {
		v["tw_recycle"] = 1
	}
	v["overflows"] = overflows() - before
	v["tracked"] = tracked()
	return v, ctx.Err()
}

// shortOnes makes connections of one request each to at: first many at once (setting crowd, 2,000),
// then from 64 at a time.
func shortOnes(ctx context.Context, p Params, at string) Values {
	v := Values{}
	size := int(p.number("crowd", 2000))
	if size > 0 {
		v["crowd_slow"], v["crowd_failed"] = crowd(ctx, at, size)
	}
	n, errs, times := shortConnections(ctx, at, 64, p.Duration)
	v["connections"] = n + float64(size)*(1-v["crowd_failed"])
	v["connections_per_second"] = n / p.Duration.Seconds()
	v["errors"] = errs / max(n+errs, 1)
	v["p50"], v["p99"] = quantile(times, 0.5), quantile(times, 0.99)
	return v
}

// A child is a rung's server that this job started.
type child struct {
	cmd  *exec.Cmd
	in   io.Closer
	line rung.Line
}

// startServer starts the rung that the setting server names, on any port of a local address, with the
// settings that start with "serve.".
func startServer(ctx context.Context, p Params, local string) (*child, error) {
	args := []string{"serve", p.Set["server"], "--listen", local + ":0"}
	for name, value := range p.Set {
		if name, ok := strings.CutPrefix(name, "serve."); ok {
			args = append(args, "--set", name+"="+value)
		}
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0] // some programs go by their name
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in}
	if err := json.NewDecoder(out).Decode(&c.line); err != nil {
		c.stop()
		return nil, fmt.Errorf("start %s: %w", p.Set["server"], err)
	}
	return c, nil
}

// stop ends the server, which lives as long as its standard input.
func (c *child) stop() { c.in.Close(); _ = c.cmd.Wait() }

// cpu is the processor time the server has used.
func (c *child) cpu() time.Duration { d, _ := sys.CPUTimeOf(c.cmd.Process.Pid); return d }

const requestText = "POST /api/publish HTTP/1.1\r\nHost: lab\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n" +
	`{"channel":"lab","data":"1234"}`

// oneRequest connects, sends, reads the answer and closes: the client first, so
// that TIME_WAIT is on its side.
func oneRequest(ctx context.Context, addr string) error {
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, requestText); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 512)
	status, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.Contains(status, " 200 ") {
		return fmt.Errorf("the server answered %q", status)
	}
	for { // to the end of what it has: the body is the line after the empty one
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		if line == "\r\n" {
			_, err = r.ReadString('\n')
			return err
		}
	}
}

// crowd connects n times at once and returns the shares that took over 900 ms (a
// first packet was dropped and sent again) and that failed.
func crowd(ctx context.Context, addr string, n int) (slow, failed float64) {
	var late, broken atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			began := time.Now()
			if oneRequest(ctx, addr) != nil {
				broken.Add(1)
			} else if time.Since(began) > 900*time.Millisecond {
				late.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(late.Load()) / float64(n), float64(broken.Load()) / float64(n)
}

// shortConnections makes one request per connection from so many workers.
func shortConnections(ctx context.Context, addr string, workers int, d time.Duration) (n, errs float64, times []float64) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range workers {
		wg.Go(func() {
			var mine []float64
			failed := 0.0
			for time.Now().Before(end) && ctx.Err() == nil {
				began := time.Now()
				if oneRequest(ctx, addr) != nil {
					failed++
					time.Sleep(time.Millisecond) // a client without ports would turn as fast as it can
					continue
				}
				mine = append(mine, time.Since(began).Seconds())
			}
			mu.Lock()
			defer mu.Unlock()
			errs += failed
			times = append(times, mine...)
		})
	}
	wg.Wait()
	return float64(len(times)), errs, times
}

// overflows is how often this namespace's listeners had no room.
func overflows() float64 {
	b, err := os.ReadFile("/proc/net/netstat")
	if err != nil {
		return 0
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		if i := slices.Index(names, "ListenOverflows"); i > 0 && i < len(f) {
			n, _ := strconv.ParseFloat(f[i], 64)
			return n
		}
	}
	return 0
}
