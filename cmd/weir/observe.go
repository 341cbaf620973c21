package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/observe/observer"
)

// exitFindings is the status of an observation that found something.
const exitFindings = 3

func newObserve() *cobra.Command {
	var f observeFlags
	cmd := &cobra.Command{
		Use:   "observe PID | --bundle FILE",
		Short: "Find what slows a process down, using eBPF",
		Long: `Observe watches one process for a few seconds and reports what is wrong with it: slow
flushes to the disk, threads that wait for the same lock, storms of page faults, readers
that have stopped, threads that wait for a processor, segments sent again.

It uses eBPF: the time of every system call, of waiting for a processor and for locks by
address, page faults, TCP retransmissions, state changes, and bytes and life of
connections. Each probe reports what it cost while it ran. Probes that are not permitted, or not
supported by this kernel, are listed, and the rest still work. It needs root, or the capabilities
CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_NET_ADMIN.

With --pprof the process, if it is Weir or another Go program with net/http/pprof, provides
an execution trace of the same window: goroutines and threads per processor, and how long
goroutines wait to run after their network was ready, with a map of the states of
goroutines, processors and threads.

With --bundle it shows the contents of an evidence bundle: its observation and its
execution trace.

Exit status: 0 nothing found, 1 failure, 2 wrong usage, 3 findings.`,
		Example: `  sudo weir observe $(pidof weir)
  sudo weir observe 4711 --duration 30s --html observed.html
  sudo weir observe $(pidof weir) --pprof http://127.0.0.1:8001 --token "$TOKEN"
  weir observe --bundle weir-20261127T120000.000Z-inflection.tar.gz --html observed.html`,
		Args: cobra.MaximumNArgs(1),

		DisableFlagsInUseLine: true,
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.duration, "duration", 5*time.Second, "how long to watch, at most 5m")
	flags.IntVar(&f.slices, "slices", 50, "columns of the heat maps, at most 500")
	flags.IntVar(&f.windows, "windows", 1, "how many windows to watch, one after the other; 0 until interrupted")
	flags.StringVar(&f.html, "html", "", "`file` for a page with the heat maps of the last window")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	flags.StringVar(&f.pprof, "pprof", "", "`URL` of a Go program's pprof, such as Weir's admin listener")
	flags.StringVar(&f.bundle, "bundle", "", "evidence `file` to show instead of a process")
	flags.String("token", "", "admin `token` for --pprof (env WEIR_ADMIN_TOKEN)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.token = flagOrEnv(flags, "token", "WEIR_ADMIN_TOKEN")
		switch {
		case f.bundle != "" && len(args) > 0:
			return usage("", "observe: a process and --bundle: want one of them")
		case f.bundle != "":
			return f.runBundle(cmd)
		case len(args) == 0:
			return usage("pidof weir prints it", "observe: no process is named")
		}
		return f.run(cmd, args[0])
	}
	return cmd
}

type observeFlags struct {
	duration        time.Duration
	slices, windows int
	html, pprof     string
	bundle          string
	token           string
	asJSON          bool
}

func (f *observeFlags) run(cmd *cobra.Command, arg string) error {
	pid, err := strconv.Atoi(arg)
	if err != nil {
		return usage("pidof weir prints it", "observe: invalid process %q: want its number", arg)
	}
	o := observer.Options{PID: pid, Duration: f.duration, Slices: f.slices}
	if err := o.Validate(); err != nil || f.duration == 0 || f.slices == 0 || f.windows < 0 {
		if err == nil {
			err = fmt.Errorf("--duration and --slices must be above 0, --windows at least 0")
		}
		return usage("", "observe: %w", err)
	}
	if f.pprof != "" {
		if !isHTTP(f.pprof) {
			return usage("", "observe: invalid --pprof %q: want an address such as http://127.0.0.1:8001", f.pprof)
		}
		o.Trace = traceOf(strings.TrimSuffix(f.pprof, "/"), f.token)
	}
	live := draw.NewLive(cmd.ErrOrStderr())
	o.Started = func() {
		if live.Enabled() {
			live.Show(fmt.Sprintf("watching process %d for %v …", pid, f.duration))
		}
	}
	found := false
	for n := 0; f.windows == 0 || n < f.windows; n++ {
		r, err := observer.Observe(cmd.Context(), o)
		live.Clear()
		if err != nil {
			return fmt.Errorf("observe: %w", err)
		}
		found = found || len(r.Findings) > 0
		if n > 0 && !f.asJSON {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		if err := f.show(cmd.OutOrStdout(), r); err != nil {
			return err
		}
		if cmd.Context().Err() != nil {
			break
		}
	}
	if found {
		return &exitError{status: exitFindings}
	}
	return nil
}

func (f *observeFlags) show(w io.Writer, r *observer.Report) error {
	if f.html != "" {
		file, err := os.Create(f.html)
		if err != nil {
			return err
		}
		if err := observePage(r).HTML(file); err != nil {
			file.Close()
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	if f.asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	writeObserved(w, r)
	return nil
}

// traceOf requests execution traces from a program's pprof, whole seconds at least.
func traceOf(base, token string) func(context.Context, time.Duration) (io.ReadCloser, error) {
	client := &http.Client{Transport: &http.Transport{Proxy: nil}}
	return func(ctx context.Context, d time.Duration) (io.ReadCloser, error) {
		seconds := max(1, int(d.Round(time.Second)/time.Second))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/trace?seconds=%d", base, seconds), nil)
		if err != nil {
			return nil, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, fmt.Errorf("the execution trace: %w", err)
		}
		if resp.StatusCode != http.StatusOK {
			resp.Body.Close()
			hint := ""
			if resp.StatusCode == http.StatusUnauthorized {
				hint = "; give the admin token with --token, or WEIR_ADMIN_TOKEN"
			}
			return nil, fmt.Errorf("the execution trace: %s answers %s%s", base, resp.Status, hint)
		}
		return resp.Body, nil
	}
}
