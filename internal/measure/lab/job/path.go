package job

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Addresses of the ends of the path.
const (
	serverEnd = "10.77.0.1"
	clientEnd = "10.77.0.2"
)

// path is kernel with a network between: client and server each have a network namespace and
// a TUN device in it, and the client's process carries the packets from one to the other, with
// what the settings say: rtt in seconds, rate in bits a second and loss, a share, of what the server sends.
// Settings that start with "net." are of the server's namespace, with "client.net." of
// the client's. mode is short (a crowd, then short connections) or bulk (flows that download as
// much as they get). It has to run in a namespace of its own.
func path(ctx context.Context, p Params) (Values, error) {
	if p.Set["namespace"] == "" {
		return nil, fmt.Errorf("path: it needs a network namespace of its own")
	}
	if err := applySettings(ctx, p, "net."); err != nil {
		return nil, err
	}
	tun, err := end(ctx, serverEnd)
	if err != nil {
		return nil, err
	}
	defer tun.Close()
	s, err := startServer(ctx, p, serverEnd)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	before, used := overflows(), s.cpu()
	v, err := clientOf(ctx, p, s.line.Addr, tun)
	if err != nil {
		return nil, err
	}
	v["overflows"] = overflows() - before
	v["server_cpus"] = float64(s.line.CPUs)
	if n := v["connections"]; n > 0 {
		v["cpu_seconds"] = (s.cpu() - used).Seconds() / n
	}
	return v, ctx.Err()
}

// applySettings makes the settings that start with prefix, which ends with "net.", in this
// process's namespace, and brings its loopback up.
func applySettings(ctx context.Context, p Params, prefix string) error {
	if err := ip(ctx, "link", "set", "lo", "up"); err != nil {
		return err
	}
	for name, value := range p.Set {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		name = "net." + strings.TrimPrefix(name, prefix)
		if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

func ip(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s (of iproute2): %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// end makes this namespace's end of the path.
func end(ctx context.Context, addr string) (*os.File, error) {
	tun, err := sys.OpenTUN("lab0")
	if err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"addr", "add", addr + "/30", "dev", "lab0"}, {"link", "set", "lab0", "up", "txqueuelen", "10000"}} {
		if err := ip(ctx, args...); err != nil {
			tun.Close()
			return nil, err
		}
	}
	return tun, nil
}

// clientOf runs the other end in a process and a namespace of its own, which gets the server's
// device as its descriptor 3, and returns what it measured.
func clientOf(ctx context.Context, p Params, addr string, tun *os.File) (Values, error) {
	args := []string{"job", "path-client", "--duration", p.Duration.String(), "--set", "at=" + addr}
	for name, value := range p.Set {
		args = append(args, "--set", name+"="+value)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0] // some programs go by their name
	cmd.ExtraFiles = []*os.File{tun}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("the client's end: %w: %s", err, strings.TrimSpace(said.String()))
	}
	var v Values
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, fmt.Errorf("the client's end: %w", err)
	}
	return v, nil
}

// pathClient is the client's end of path.
func pathClient(ctx context.Context, p Params) (Values, error) {
	if err := applySettings(ctx, p, "client.net."); err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(3, true); err != nil {
		return nil, fmt.Errorf("descriptor 3 is not a device: %w", err)
	}
	far := os.NewFile(3, "far end")
	near, err := end(ctx, clientEnd)
	if err != nil {
		return nil, err
	}
	rate, rtt := p.number("rate", 0)/8, p.number("rtt", 0)
	delay := time.Duration(rtt / 2 * float64(time.Second))
	// One bandwidth-delay product waits at most, as good routers have it, and ten packets at least.
	down := &link{rate: rate, delay: delay, queue: max(rate*rtt, 15_000), loss: p.number("loss", 0)}
	up := &link{delay: delay}
	within, cancel := context.WithCancel(ctx)
	var carrying sync.WaitGroup
	seed := uint64(p.number("seed", 1))
	carrying.Go(func() { _ = down.carry(within, far, near, seed) }) // a device that is gone ends it
	carrying.Go(func() { _ = up.carry(within, near, far, seed) })
	defer carrying.Wait()
	defer func() { cancel(); near.Close(); far.Close() }()
	var v Values
	if p.Set["mode"] == "bulk" {
		v, err = download(within, p.Set["at"], int(p.number("flows", 4)), p.Duration)
	} else {
		v = shortOnes(within, p, p.Set["at"])
	}
	if n := float64(down.packets.Load()); n > 0 {
		v["lost_packets"], v["dropped_packets"] = float64(down.lost.Load())/n, float64(down.dropped.Load())/n
	}
	return v, err
}

// download has so many flows get as many bytes as they can for a while, and returns how many
// bytes a second that was, without the first fifth, in which they find their rates.
func download(ctx context.Context, addr string, flows int, d time.Duration) (Values, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var got atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, flows)
	for i := range flows {
		wg.Go(func() { errs[i] = downloadOne(ctx, addr, &got) })
	}
	time.Sleep(d / 5)
	before, began := got.Load(), time.Now()
	wg.Wait()
	v := Values{"goodput": float64(got.Load()-before) / time.Since(began).Seconds()}
	for _, err := range errs {
		if err != nil && ctx.Err() == nil {
			return v, err
		}
	}
	return v, nil
}

// downloadOne adds what one connection gets to got until ctx ends.
func downloadOne(ctx context.Context, addr string, got *atomic.Int64) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if _, err := io.WriteString(c, "GET /bulk HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		got.Add(int64(n))
		if err != nil {
			return err
		}
	}
}
