package accept

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func partition() Indicator {
	return Indicator{
		Name: "partition", Number: "9", Title: "Partition and clock skew",
		Definition: "A backend, and then the broker, are behind a link that lets nothing through for a while without closing anything. Tokens are issued by a clock that is 500 s off. Clients resume on a node that has lost its log.",
		Target:     "requests and publications succeed again ≤ 30 s (goal ≤ 10 s) after the link is back; tokens of a clock 500 s off are refused, others not; no resume that hides what is missing",
		Method:     "A relay in this process is the link. Requests at 20 per second are sent all the time; back is the first of ten successes in a row. A wrong clock of the gateway itself is a row of the chaos suite, which builds Weir with another clock.",
		criteria: []criterion{
			{name: "breaker back", what: "backend back after the link", kind: atMost, limit: 30, unit: seconds, timed: true},
			{name: "broker back", what: "broker back after the link", kind: atMost, limit: 30, unit: seconds, timed: true},
			{name: "breaker back, failed", what: "requests that failed meanwhile: the link was cut", kind: some},
			{name: "broker back, failed", what: "publications that failed meanwhile: the link was cut", kind: some},
			{name: "fast", what: "requests refused within 100 ms: the breaker opened", kind: some},
			{name: "skewed", what: "tokens of a clock 500 s off that were accepted", kind: none},
			{name: "right", what: "tokens of the right clock that were refused", kind: none},
			{name: "false resumes", what: "resumes on a new log without a declared gap", kind: none},
		},
		measure: measurePartition,
	}
}

// A gate is a link that can be cut: bytes wait then, connections stay.
type gate struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	shut  chan struct{} // closed when it opens; nil: it is open
	conns map[net.Conn]bool
	ended bool
}

func newGate(to string) (*gate, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gate{l: l, to: to, conns: map[net.Conn]bool{}}
	g.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.serve(c) })
		}
	})
	return g, nil
}

// cut makes it hold back everything, open lets it through again.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

func (g *gate) close() {
	_ = g.l.Close()
	g.open()
	g.mu.Lock()
	g.ended = true
	for c := range g.conns {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// pass waits while the link is cut.
func (g *gate) pass() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

// own notes a connection, or closes it when the gate has ended.
func (g *gate) own(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		_ = c.Close()
		return
	}
	g.conns[c] = true
}

func (g *gate) serve(down net.Conn) {
	g.own(down)
	g.pass()
	up, err := net.Dial("tcp", g.to)
	if err != nil {
		_ = down.Close()
		return
	}
	g.own(up)
	g.wg.Go(func() { g.copy(up, down) })
	g.copy(down, up)
	g.mu.Lock()
	delete(g.conns, down)
	delete(g.conns, up)
	g.mu.Unlock()
}

func (g *gate) copy(dst, src net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := src.Read(buf)
		g.pass()
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			_ = src.Close()
			_ = dst.Close()
			return
		}
	}
}

// A partitionRun is one measurement of partition.
type partitionRun struct{ *world }

func measurePartition(ctx context.Context, of *world) error {
	w := partitionRun{of}
	stop := w.watch(ctx, nil, 0, time.Duration(w.plan.trials)*4*cutFor)
	defer stop()
	for i := range w.plan.trials {
		w.progress("trial %d of %d", i+1, w.plan.trials)
		if err := w.cutBackend(ctx); err != nil {
			return fmt.Errorf("backend: %w", err)
		}
		if err := w.cutBroker(ctx); err != nil {
			return fmt.Errorf("broker: %w", err)
		}
		if err := w.resumeElsewhere(ctx); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
	}
	return w.skew(ctx)
}

// cutFor is how long a link is cut: longer than a breaker's window needs to fill.
const cutFor = 3 * time.Second

// backend is a server that answers.
func backend() (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") }), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l) // ends with ErrServerClosed
	}()
	return l.Addr().String(), func() { _ = s.Close(); <-served }, nil
}

func (w partitionRun) cutBackend(ctx context.Context) error {
	address, stop, err := backend()
	if err != nil {
		return err
	}
	defer stop()
	link, err := newGate(address)
	if err != nil {
		return err
	}
	defer link.close()
	s, err := w.gateway(ctx, plainConfig+fmt.Sprintf(`clusters: [{name: far, peers: [{address: %q}], timeouts: {connect: 500ms, first_byte: 500ms}}]
routes: [{name: far, path: /far/*, cluster: far}]
`, link.l.Addr()))
	if err != nil {
		return err
	}
	defer s.Stop()
	return w.cutAndBack(ctx, "breaker back", link, func(ctx context.Context) error {
		_, err := get(ctx, "http://"+s.Addr+"/far/x")
		return err
	})
}

// natsConfig has the log in a NATS server at an address.
func natsConfig(address string) string {
	return strings.Replace(plainConfig, "{kind: memory}", fmt.Sprintf("{kind: nats, nats: {url: %q, ack_timeout: 1s}}", "nats://"+address), 1)
}

func (w partitionRun) cutBroker(ctx context.Context) error {
	n, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, NoSigs: true, NoLog: true,
		StoreDir: filepath.Join(w.dir, "nats-"+strconv.FormatInt(time.Now().UnixNano(), 36)),
	})
	if err != nil {
		return err
	}
	n.Start()
	defer n.WaitForShutdown()
	defer n.Shutdown()
	if !n.ReadyForConnections(10 * time.Second) {
		return errors.New("the NATS server is not ready after 10s")
	}
	link, err := newGate(n.Addr().String())
	if err != nil {
		return err
	}
	defer link.close()
	config := strings.Replace(natsConfig(link.l.Addr().String()), ", durability: none", ", durability: stored", 1)
	s, err := w.gateway(ctx, config)
	if err != nil {
		return err
	}
	defer s.Stop()
	return w.cutAndBack(ctx, "broker back", link, func(ctx context.Context) error {
		_, err := publish(ctx, "http://"+s.Addr, "a", "x")
		return err
	})
}

// cutAndBack cuts a link under requests, opens it and measures how long they still fail.
func (w partitionRun) cutAndBack(ctx context.Context, name string, link *gate, request func(context.Context) error) error {
	if err := steadyFor(ctx, request); err != nil {
		return fmt.Errorf("before the link was cut: %w", err)
	}
	link.cut()
	began := time.Now()
	var failed, fast, all atomic.Uint64
	var under sync.WaitGroup
	for time.Since(began) < cutFor {
		under.Go(func() {
			one, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			at := time.Now()
			all.Add(1)
			if request(one) != nil {
				failed.Add(1)
				if time.Since(at) < 100*time.Millisecond {
					fast.Add(1)
				}
			}
		})
		if !sleep(ctx, 50*time.Millisecond) {
			break
		}
	}
	link.open()
	opened := time.Now()
	under.Wait()
	w.ev.count(name+", failed", failed.Load(), all.Load())
	if name == "breaker back" {
		w.ev.count("fast", fast.Load(), all.Load())
	}
	if err := steadyFor(ctx, request); err != nil {
		w.ev.note("%s: %v", name, err)
		w.ev.value(name, giveUp.Seconds())
		return ctx.Err()
	}
	back := max(time.Since(opened)-successes*50*time.Millisecond, time.Millisecond)
	w.ev.value(name, back.Seconds())
	w.progress("%s after %v", name, back.Round(time.Millisecond))
	return nil
}

const (
	successes = 10
	giveUp    = time.Minute
)

// steadyFor waits until requests succeed ten times in a row, 50 ms apart.
func steadyFor(ctx context.Context, request func(context.Context) error) error {
	row := 0
	var last error
	for end := time.Now().Add(giveUp); time.Now().Before(end); {
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := request(one)
		cancel()
		if row++; err != nil {
			row, last = 0, err
		}
		if row == successes {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("no %d successes in a row within %v: %w", successes, giveUp, last)
}

// publish publishes a text and returns the answer.
func publish(ctx context.Context, url, channel, text string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/publish", strings.NewReader(`{"channel":"`+channel+`","data":"`+text+`"}`))
	if err != nil {
		return "", err
	}
	req.Header.Set("X-API-Key", apiKey)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("publish: %s: %s", res.Status, b)
	}
	return string(b), err
}

// events subscribes and returns the SSE lines until one contains want.
func events(ctx context.Context, url, lastID, token, want string) (lines []string, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/sse?channel=a", nil)
	if err != nil {
		return nil, 0, err
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	if want == "" || res.StatusCode != http.StatusOK {
		return nil, res.StatusCode, nil
	}
	for scan := bufio.NewScanner(res.Body); scan.Scan(); {
		lines = append(lines, scan.Text())
		if strings.Contains(scan.Text(), want) {
			return lines, res.StatusCode, nil
		}
	}
	return lines, res.StatusCode, fmt.Errorf("no %q came: %w", want, ctx.Err())
}

// resumeElsewhere has a client resume on a node that never had its log: it has to receive a gap.
func (w partitionRun) resumeElsewhere(ctx context.Context) error {
	first, err := w.gateway(ctx, strings.Replace(plainConfig, ", durability: none", "", 1))
	if err != nil {
		return err
	}
	id, err := w.lastID(ctx, first)
	first.Kill()
	first.Stop()
	if err != nil {
		return err
	}
	second, err := w.gateway(ctx, strings.Replace(plainConfig, ", durability: none", "", 1))
	if err != nil {
		return err
	}
	defer second.Stop()
	for range 5 {
		if _, err := publish(ctx, "http://"+second.Addr, "a", "new"); err != nil {
			return err
		}
	}
	lines, _, err := events(ctx, "http://"+second.Addr, id, "", "gap")
	if err != nil {
		w.ev.count("false resumes", 1, 1, strings.Join(lines, " "))
	} else {
		w.ev.count("false resumes", 0, 1)
	}
	return ctx.Err()
}

// lastID is the id of a message that a client has received.
func (w partitionRun) lastID(ctx context.Context, s *process.Server) (string, error) {
	if _, err := publish(ctx, "http://"+s.Addr, "a", "old"); err != nil {
		return "", err
	}
	lines, _, err := events(ctx, "http://"+s.Addr, "0", "", "old")
	if err != nil {
		return "", err
	}
	for _, l := range lines {
		if id, ok := strings.CutPrefix(l, "id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", fmt.Errorf("the event has no id: %q", lines)
}

// secret signs the tokens of skew.
const secret = "acceptance-secret-of-this-run-0123456789"

// skew presents tokens that were issued by clocks that are off, and by the right one.
func (w partitionRun) skew(ctx context.Context) error {
	config := strings.Replace(plainConfig, "auth: {", "auth: {hmac_secret: "+secret+", ", 1)
	s, err := w.gateway(ctx, strings.Replace(config, "anonymous: true", "anonymous: false", 1), w.opt.set...)
	if err != nil {
		return err
	}
	defer s.Stop()
	for _, c := range []struct {
		name string
		off  time.Duration
		ok   bool
	}{{"right", 0, true}, {"ahead", w.skewed(), false}, {"behind", -w.skewed(), false}} {
		const life = 60 * time.Second
		token, err := auth.Mint(auth.Config{KeySet: auth.KeySet{HMACSecret: secret}}, auth.MintClaims{Subject: "ann", Subscribe: []string{"**"}, Now: time.Now().Add(c.off), TTL: life})
		if err != nil {
			return err
		}
		_, status, err := events(ctx, "http://"+s.Addr, "", token, "")
		if err != nil {
			return err
		}
		name, wrong := "skewed", status != http.StatusUnauthorized
		if c.ok {
			name, wrong = "right", status != http.StatusOK
		}
		n := uint64(0)
		if wrong {
			n = 1
		}
		w.ev.count(name, n, 1)
		w.ev.note("token of a clock %v off: %d", c.off, status)
	}
	return nil
}

// skewed is how far the wrong clocks are off.
func (w partitionRun) skewed() time.Duration {
	if w.opt.skew > 0 {
		return w.opt.skew
	}
	return 500 * time.Second
}
