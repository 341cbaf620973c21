package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/net/systemd"
	"github.com/weir-gateway/weir/internal/observe/asynclog"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a server",
		Long: `Serve listens for subscribers and publishers until SIGTERM or SIGINT. Then it
finishes the requests in flight, within shutdown.drain, and closes the streams:
at the rate at which other nodes can accept their clients, or, on a single node,
last and all at once, with a reconnect delay of about the time of a restart. A second
signal ends it immediately.

SIGUSR2 upgrades the program without closing connections: see weir upgrade.

With tls.certificates it speaks https and wss. Changed certificate files are
noticed within tls.reload_interval.

A changed configuration file is applied while it runs; SIGHUP, or POST /api/reload
on the admin listener, reads it and the certificates immediately. Connections that keep
their rights stay open. If anything in the file is wrong, nothing changes and the
error is logged; keys that need a restart are listed, and weir config diff shows
them beforehand.

Without a configuration it listens on 127.0.0.1:8000 and stores in ./weir-data.
It refuses to listen beyond loopback until there are keys to authenticate clients
with. With only routes in the configuration, and nothing about channels, it starts
no broker, stores nothing and needs no keys.`,
		Example: `  weir serve --config /etc/weir/weir.yaml
  weir serve --listen 127.0.0.1:9000 --data-dir /var/lib/weir --set log.level=debug
  WEIR_AUTH_API_KEYS='[{"name":"me","key":"at-least-16-bytes"}]' weir serve`,
		Args: cobra.NoArgs,
	}
	s := addSources(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		parent, err := takeover.FromEnvironment(currentVersion())
		if err != nil {
			return err
		}
		err = serveSources(cmd, s, parent)
		if err != nil && parent != nil {
			parent.Refuse(err) // before it serves: later the parent does not read
		}
		return err
	}
	return cmd
}

// serveSources serves what flags, environment and file say, in place of parent if there is one.
func serveSources(cmd *cobra.Command, s *sourceFlags, parent *takeover.Parent) error {
	src, err := s.sources(cmd.Flags())
	if err != nil {
		return err
	}
	cfg, err := config.Load(src)
	if err != nil {
		return err
	}
	opt := app.Options{Load: func() (config.Config, error) { return config.Load(src) }, File: src.File, Args: os.Args[1:], Takeover: parent}
	// Its path, not its file: that is what an upgrade replaces.
	if opt.Program, err = exec.LookPath(os.Args[0]); err == nil {
		opt.Program, err = filepath.Abs(opt.Program)
	}
	if err != nil {
		opt.Program = ""
	}
	// Neither may block the node when it is a pipe that is not read.
	out := asynclog.New(cmd.OutOrStdout(), 0, nil)
	log := asynclog.New(cmd.ErrOrStderr(), 0, func(lines uint64) []byte { return droppedNotice(cfg.Log, lines) })
	defer func() {
		var flushed sync.WaitGroup
		flushed.Go(out.Close)
		flushed.Go(log.Close)
		flushed.Wait()
	}()
	return serve(cmd.Context(), cfg, opt, out, log, config.Deprecations(src)...)
}

func serve(ctx context.Context, cfg config.Config, opt app.Options, out io.Writer, log *asynclog.Writer, notes ...config.Warning) error {
	logger, level := newLog(log, cfg.Log)
	service, err := systemd.FromEnvironment()
	if err != nil {
		return err
	}
	opt.Version, opt.Log, opt.Level, opt.LogDropped, opt.Service = currentVersion(), logger, level, log.Dropped, service
	a, err := app.New(cfg, opt)
	if err != nil {
		return err
	}
	if cfg.Pushes() && !cfg.HasKeys() {
		fmt.Fprint(log, "weir: note: without keys no client can publish, and only anonymous namespaces can be read\n"+
			"hint: set auth.api_keys or auth.hmac_secret; weir config docs auth\n")
	}
	for _, w := range append(notes, cfg.Warnings()...) {
		logger.Warn(w.Text, "hint", w.Hint)
	}
	hard, stop := secondSignal(ctx)
	defer stop()
	defer onSignal(syscall.SIGUSR2, func() { _, _ = a.Upgrade(ctx) })() // it logs what came of it
	defer onSignal(syscall.SIGHUP, func() {
		a.Reloading(func() {
			if _, err := a.Reload(ctx); err != nil {
				logger.Error("the configuration is not reloaded, everything stays as it was", "err", err)
			}
		})
	})()
	return a.Run(ctx, hard, func() { fmt.Fprintln(out, startLine(a, cfg)) })
}

// startLine reports where the server is and where it stores.
func startLine(a *app.App, cfg config.Config) string {
	line := "weir serves on " + a.URL()
	if admin := a.AdminAddr(); admin != nil {
		line += ", admin on http://" + admin.String()
	}
	switch {
	case !cfg.Pushes():
		return line + ", routes only"
	case cfg.Broker.Kind == config.BrokerMemory:
		return line + ", stores in memory"
	case cfg.Broker.NATS.URL != "":
		return line + ", stores in NATS"
	default:
		return line + ", stores in " + cfg.Broker.NATS.Dir
	}
}

// secondSignal returns a context that ends at the second SIGINT or SIGTERM; the
// first one ends ctx. A third kills, as the handler is gone.
func secondSignal(ctx context.Context) (hard context.Context, stop func()) {
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer cancel()
		defer signal.Stop(signals)
		for range 2 {
			select {
			case <-signals:
			case <-hard.Done():
				return
			}
		}
	}()
	return hard, cancel
}

// onSignal calls f at every one of s until stop is called.
func onSignal(s os.Signal, f func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, s)
	var done sync.WaitGroup
	done.Go(func() {
		for range signals {
			f()
		}
	})
	return func() {
		signal.Stop(signals)
		close(signals)
		done.Wait()
	}
}

// currentVersion is what `weir version` says first.
func currentVersion() string {
	return versionOf(version, buildInfo())
}

// droppedNotice is the record that says how many lines of the log are missing before it, at
// any log.level.
func droppedNotice(c config.Log, lines uint64) []byte {
	var b bytes.Buffer
	log, _ := newLog(&b, config.Log{Format: c.Format})
	log.Warn("log lines dropped", "lines", lines)
	return b.Bytes()
}

// newLog makes the program's log and what sets its level. The configuration is valid.
func newLog(w io.Writer, c config.Log) (*slog.Logger, *slog.LevelVar) {
	level := &slog.LevelVar{}
	level.Set(c.Slog())
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if c.Format == "json" {
		h = slog.NewJSONHandler(w, opts)
	}
	return slog.New(redact.Handler(h)), level
}
