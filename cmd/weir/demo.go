package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/measure/demo"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// demoAddr is where the demo listens unless --listen is set, or another port of
// loopback when that one is taken.
const demoAddr = "127.0.0.1:8000"

type demoFlags struct {
	addr      string
	limit     time.Duration
	rate      float64
	open      bool
	requested bool // for that address
}

func newDemo() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start a demo: real data, pushed live to a page and to curl",
		Long: `Demo runs a server with an embedded broker in a temporary directory, publishes
shipments on real routes and a market replay to it through the publish API, and
shows them on a page. It prints commands to try. Everything is removed when it ends.

With --for it ends by itself; the status is 0 only if every message published
came back to a subscriber, once and in order.`,
		Example: `  weir demo
  weir demo --for 10s --open=false
  weir demo --addr 127.0.0.1:9000 --rate 2000`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&f.addr, "addr", demoAddr, "`address` to listen on; a free port if the default is taken")
	fs.DurationVar(&f.limit, "for", 0, "end after this `time` (default: never)")
	fs.Float64Var(&f.rate, "rate", 200, "messages per second to publish")
	fs.BoolVar(&f.open, "open", true, "open the page in a browser, if there is a desktop")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.limit < 0 || f.rate <= 0 {
			return usage("", "demo: --for must not be negative and --rate must be over 0")
		}
		f.requested = cmd.Flags().Changed("addr")
		return runDemo(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// demoConfig is the server's configuration: nothing of the user's own.
func demoConfig(dir, addr, apiKey string) config.Config {
	c := config.Default()
	c.Listen = addr
	c.Admin.Listen = "off"
	c.Namespaces = nil
	for _, ns := range demo.Namespaces() {
		c.Namespaces = append(c.Namespaces, ns.WithDefaults())
	}
	c.Broker.NATS.Dir = dir
	c.Auth.APIKeys = []auth.APIKey{{Name: "demo", Key: auth.Secret(apiKey)}}
	c.Shutdown.Drain = hub.Duration(200 * time.Millisecond)
	return c
}

// runDemo runs server and publisher until the time is over or ctx ends.
func runDemo(ctx context.Context, f demoFlags, out, log io.Writer) error {
	dir, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintf(log, "weir: note: %s stays behind: %v\n", dir, err)
		}
	}()
	apiKey := rand.Text()
	logger, _ := newLog(log, config.Log{Level: "warn"})
	srv, err := startDemo(demoConfig(dir, f.addr, apiKey), logger)
	if errors.Is(err, syscall.EADDRINUSE) && !f.requested {
		fmt.Fprintf(log, "weir: note: %s is taken, using a free port\n", f.addr)
		srv, err = startDemo(demoConfig(dir, "127.0.0.1:0", apiKey), logger)
	}
	if err != nil {
		err = fmt.Errorf("demo: %w", err)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = config.WithHint(err, "another process listens there; choose another address with --addr")
		}
		return err
	}
	announce(out, srv.base, f.limit)
	if f.open {
		openBrowser(srv.base + "/")
	}

	// The publisher ends by the clock, by a signal or with the server.
	publishing, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.limit > 0 {
		publishing, cancel = context.WithTimeout(publishing, f.limit)
		defer cancel()
	}
	defer context.AfterFunc(srv.ended, cancel)()
	live := newLiveLine(out)
	sum, runErr := demo.Run(publishing, demo.Options{
		BaseURL: srv.base, APIKey: apiKey, Rate: f.rate, Log: logger, Progress: live.show,
	})
	live.clear()
	stopErr := srv.stop()
	fmt.Fprintln(out, summaryLine(sum))
	return errors.Join(stopErr, runErr, verdict(sum))
}

// A demoServer is the app on a goroutine of its own. It outlives the signal that
// ends the publisher, so that the last messages can arrive.
type demoServer struct {
	base  string          // http://host:port
	ended context.Context // done when the app is, for whatever reason
	stop  func() error    // ends the app, waits for it and returns its error
}

func startDemo(cfg config.Config, log *slog.Logger) (*demoServer, error) {
	page, err := demo.Files()
	if err != nil {
		return nil, err
	}
	files := map[string]downstream.Static{}
	for path, file := range page {
		files[path] = downstream.Static{ContentType: file.ContentType, Body: file.Body}
	}
	a, err := app.New(cfg, app.Options{Version: currentVersion(), Files: files, Log: log})
	if err != nil {
		return nil, err
	}
	running, quit := context.WithCancel(context.Background())
	ended, end := context.WithCancel(context.Background())
	ready := make(chan struct{})
	var runErr error // written before end
	go func() {
		defer end()
		runErr = a.Run(running, running, func() { close(ready) })
	}()
	stop := func() error {
		quit()
		<-ended.Done()
		return runErr
	}
	select {
	case <-ready:
		return &demoServer{base: "http://" + reachable(a.Addr()), ended: ended, stop: stop}, nil
	case <-ended.Done():
		return nil, cmp.Or(stop(), errors.New("the server ended at its start"))
	}
}

// reachable is an address that a client on this machine can use.
func reachable(addr netip.AddrPort) string {
	switch ip := addr.Addr(); {
	case ip == netip.IPv6Unspecified():
		return net.JoinHostPort("localhost", strconv.Itoa(int(addr.Port())))
	case ip.IsUnspecified():
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(addr.Port())))
	default:
		return addr.String()
	}
}

// announce prints where the page is and what to try; the lines work as they are.
func announce(out io.Writer, base string, limit time.Duration) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n  The page: %s/\n", base)
	for _, c := range demo.Commands(base) {
		line := c.Line
		if rest, ok := strings.CutPrefix(line, "weir "); ok {
			line = self() + " " + rest
		}
		fmt.Fprintf(&b, "\n  %s:\n    %s\n", c.Title, line)
	}
	if limit > 0 {
		fmt.Fprintf(&b, "\nEnds in %v.\n\n", limit)
	} else {
		b.WriteString("\nCtrl+C ends it.\n\n")
	}
	_, _ = io.WriteString(out, b.String())
}

// A liveLine rewrites one line of a terminal; elsewhere it shows nothing.
type liveLine struct {
	out  io.Writer
	last demo.Summary
}

func newLiveLine(out io.Writer) *liveLine {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &liveLine{out: out}
	}
	return &liveLine{}
}

// show is called by one goroutine at a time.
func (l *liveLine) show(s demo.Summary) {
	if l.out == nil {
		return
	}
	rate := 0.0
	if dt := (s.Duration - l.last.Duration).Seconds(); dt > 0 {
		rate = float64(s.Delivered-l.last.Delivered) / dt
	}
	l.last = s
	fmt.Fprintf(l.out, "\r\x1b[K%s  %d delivered  %.0f/s  lost %d  p50 %v  p99 %v",
		s.Duration.Round(time.Second), s.Delivered, rate, s.Lost, short(s.P50), short(s.P99))
}

func (l *liveLine) clear() {
	if l.out != nil {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}

func short(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func summaryLine(s demo.Summary) string {
	return fmt.Sprintf("published %d, delivered %d, lost %d, repeated %d in %v; publish to arrival p50 %v, p99 %v",
		s.Published, s.Delivered, s.Lost, s.Repeated, s.Duration.Round(100*time.Millisecond), short(s.P50), short(s.P99))
}

// verdict is an error unless messages went all the way, all of them.
func verdict(s demo.Summary) error {
	switch {
	case s.AllDelivered() && s.Delivered >= s.Published:
		return nil
	case s.Delivered == 0:
		return errors.New("demo: no message arrived")
	case s.Delivered < s.Published && s.Lost == 0:
		return fmt.Errorf("demo: %d messages had not arrived at the end", s.Published-s.Delivered)
	default:
		return fmt.Errorf("demo: %d messages lost, %d repeated", s.Lost, s.Repeated)
	}
}
