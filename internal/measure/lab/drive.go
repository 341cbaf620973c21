package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/measure/lab/rung"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// slowClients starts requests that never end, a byte of a field at a time, and
// counts what is left of them in the server after three seconds.
func slowClients(conns int) Measure {
	return func(ctx context.Context, b *Bench, a Arm) (Values, error) {
		s, err := b.Start(ctx, a)
		if err != nil {
			return nil, err
		}
		defer s.Stop()
		var list []net.Conn
		defer func() {
			for _, c := range list {
				c.Close()
			}
		}()
		var d net.Dialer
		for range b.scaled(conns) {
			c, err := d.DialContext(ctx, "tcp", s.Addr)
			if err != nil {
				return nil, err
			}
			list = append(list, c)
			if _, err := io.WriteString(c, "POST /api/publish HTTP/1.1\r\nHost: lab\r\nX-Slow: "); err != nil {
				return nil, err
			}
		}
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for range 10 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-tick.C:
			}
			for _, c := range list {
				_, _ = io.WriteString(c, "x") // it may have been closed: that is the point
			}
		}
		st, err := s.Stats(ctx)
		if err != nil {
			return nil, err
		}
		rss, err := s.RSS()
		return Values{"goroutines": st.Goroutines, "rss": rss, "open": float64(stillOpen(list))}, err
	}
}

// stillOpen counts the connections that the other side has not closed.
func stillOpen(list []net.Conn) (n int) {
	for _, c := range list {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond)) // a closed one says so below
		_, err := io.Copy(io.Discard, c)
		if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
			n++
		}
	}
	return n
}

// stalled publishes to subscribers while one subscriber of another channel has
// stopped reading and gets 16 MB.
func stalled(ctx context.Context, b *Bench, a Arm) (Values, error) {
	s, err := b.Start(ctx, a)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	c, err := rung.OpenStream(ctx, new(net.Dialer), s.Addr, "GET /ws?channel=stall HTTP/1.1\r\nHost: lab\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	body := `{"channel":"stall","data":"` + strings.Repeat("s", 60_000) + `"}`
	flood := func(ctx context.Context) {
		for range 270 {
			if post(ctx, http.DefaultClient, s.URL(), body) != nil {
				return // the server is busy with what is measured, or the measurement is over
			}
		}
	}
	return b.load(ctx, s, fanOut("ws", 100, 100)(b), flood)
}

// post publishes once, to the server at url.
func post(ctx context.Context, c *http.Client, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/publish", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-API-Key", apiKey)
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return err
}

// batch is how many messages batching puts into a request.
const batch = 16

// batches publishes one message per request, or 16 of them ("batch"): all values
// are per message.
func batches(ctx context.Context, b *Bench, a Arm) (Values, error) {
	s, err := b.Start(ctx, a)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	spec := httpLoad(32, 1)(b)
	if a.Name != "batch" {
		return b.load(ctx, s, spec, nil)
	}
	var names []string
	for i := range batch {
		names = append(names, strconv.Quote("lab"+strconv.Itoa(i)))
	}
	spec.Target = "/api/broadcast"
	spec.Body = `{"channels":[` + strings.Join(names, ",") + `],"data":{"text":"` + strings.Repeat("x", 96) + `"}}`
	v, err := b.load(ctx, s, spec, nil)
	for _, k := range []string{"cpu", "allocs", "alloc_bytes"} {
		if x, ok := v[k]; ok {
			v[k] = x / batch
		}
	}
	for _, k := range []string{"rate", "per_core"} {
		if x, ok := v[k]; ok {
			v[k] = x * batch
		}
	}
	return v, err
}

// hunted loads a handler that may leak, and watches the number of goroutines as
// an operator could: how long until its rise is beyond chance.
func hunted(ctx context.Context, b *Bench, a Arm) (Values, error) {
	s, err := b.Start(ctx, a)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	found := 0.0
	watch := func(ctx context.Context) { found = detect(ctx, s) }
	spec := loadgen.Spec{Kind: loadgen.HTTP, Target: "/work", Conns: 16, Rate: 4000}
	v, err := b.load(ctx, s, spec, watch)
	if err == nil && found > 0 {
		v["detected"] = found
	}
	return v, err
}

// detect samples the goroutines ten times a second until their trend, Theil and
// Sen's slope, is above zero with 99 % confidence for more than a tenth of their
// number a second. It returns the seconds that took, 0 if ctx ended before.
func detect(ctx context.Context, s *Server) float64 {
	began := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var at, counts []float64
	for {
		select {
		case <-ctx.Done():
			return 0
		case <-tick.C:
		}
		st, err := s.Stats(ctx)
		if err != nil {
			return 0
		}
		at, counts = append(at, time.Since(began).Seconds()), append(counts, st.Goroutines)
		if line := stat.TheilSen(at, counts, 0.99); len(at) >= 6 && line.Lo > 0.1*stat.Median(counts) {
			return at[len(at)-1]
		}
	}
}

// versions makes requests from 196 goroutines through a Go client: with a pool of
// connections ("pool"), or all on one of HTTP/2 ("one").
func versions(ctx context.Context, b *Bench, a Arm) (Values, error) {
	s, err := b.Start(ctx, a)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	const workers = 196
	t := &http.Transport{MaxIdleConnsPerHost: workers, Protocols: new(http.Protocols)}
	if a.Name == "one" {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.HTTP2 = &http.HTTP2Config{StrictMaxConcurrentRequests: true}
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return b.requests(ctx, s, workers, t)
}

// requests has so many goroutines make requests through t in a closed loop.
func (b *Bench) requests(ctx context.Context, s *Server, workers int, t *http.Transport) (Values, error) {
	c := &http.Client{Transport: t}
	used, err := s.CPU()
	if err != nil {
		return nil, err
	}
	times, err := closedLoop(ctx, workers, b.opt.Duration, func() error { return post(ctx, c, s.URL(), publishBody) })
	if err != nil {
		return nil, err
	}
	after, err := s.CPU()
	n := float64(len(times))
	v := Values{
		"cpu": (after - used).Seconds() / n, "rate": n / b.opt.Duration.Seconds(), "p95": stat.Quantile(times, 0.95),
		"connections": socketsIn("01", s.Addr),
	}
	t.CloseIdleConnections()
	time.Sleep(20 * time.Millisecond) // the closes of loopback are on their way
	v["time_wait"] = socketsIn("06", s.Addr)
	return v, err
}

// closedLoop calls f from so many goroutines for a while and returns how long each
// call took.
func closedLoop(ctx context.Context, workers int, d time.Duration, f func() error) ([]float64, error) {
	end := time.Now().Add(d)
	var mu sync.Mutex
	var all []float64
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			var mine []float64
			for time.Now().Before(end) && ctx.Err() == nil && errs[i] == nil {
				began := time.Now()
				errs[i] = f()
				mine = append(mine, time.Since(began).Seconds())
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	return all, errors.Join(append(errs, ctx.Err())...)
}

// socketsIn counts this machine's clients of addr in a state of /proc/net/tcp.
func socketsIn(state, addr string) (n float64) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	suffix := fmt.Sprintf(":%04X", number)
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 3 && strings.HasSuffix(f[2], suffix) && f[3] == state {
			n++
		}
	}
	return n
}

// inNamespace runs a job with a network of its own.
func inNamespace(ctx context.Context, b *Bench, a Arm) (Values, error) { return b.Job(ctx, a, true) }

// needsNamespace reports why this process may not have one.
func needsNamespace() string {
	if _, err := exec.LookPath("ip"); err != nil {
		return "it needs the program ip (iproute2)"
	}
	cmd := exec.Command("ip", "link", "set", "lo", "up")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Run(); err != nil {
		return "it needs a network namespace of its own, so root (CAP_SYS_ADMIN): " + err.Error()
	}
	return ""
}

// needsPath reports why this process may not have a network of TUN devices.
func needsPath() string {
	if why := needsNamespace(); why != "" {
		return why
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return "it needs TUN devices: " + err.Error()
	}
	_ = f.Close() // nothing was made of it
	return ""
}
