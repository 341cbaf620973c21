package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
)

type topFlags struct {
	view, sort string
	interval   time.Duration
	once, json bool
}

// defaultAdmin is where a server's admin listener is without configuration.
const defaultAdmin = "http://127.0.0.1:8001"

func newTop() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a running server in the terminal",
		Long: `Top shows the dashboard in a terminal: the server's state and its causes,
traffic, latency, loops, the slowest consumers, channels and backends. It reads
the admin listener and changes nothing.

Keys: o overview, l loops, c consumers, h channels, u backends, t timeline;
s sorts the consumers by another column, space pauses, q quits.

If standard output is not a terminal, it prints a frame every --interval.`,
		Example: `  weir top
  weir top --admin https://gw-1.example:8001 --token "$TOKEN"
  weir top --once                                     # one frame of text
  weir top --once --json | jq .governor.state.now     # all of it, for scripts`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	fs.DurationVar(&f.interval, "interval", time.Second, "`time` between frames, at least 250ms")
	fs.StringVar(&f.view, "view", "overview", "`VIEW`: "+strings.Join(topViews, ", "))
	fs.StringVar(&f.sort, "sort", "lag", "`COLUMN` to sort consumers by: "+strings.Join(topSorts, ", "))
	fs.BoolVar(&f.once, "once", false, "print one frame and end")
	fs.BoolVar(&f.json, "json", false, "print snapshots as JSON, each on a line")
	return onAdmin(cmd, readToken, func(cmd *cobra.Command, _ []string, src *topSource) error {
		if err := f.check(); err != nil {
			return err
		}
		return f.run(cmd.Context(), src, cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
}

// check reports what is wrong with the flags before anything is asked.
func (f *topFlags) check() error {
	if f.interval < 250*time.Millisecond {
		return usage("at least 250ms", "top: --interval %v is too short", f.interval)
	}
	if slices.Index(topViews, f.view) < 0 {
		return usage("one of "+strings.Join(topViews, ", "), "top: --view %q is not known", f.view)
	}
	if slices.Index(topSorts, f.sort) < 0 {
		return usage("one of "+strings.Join(topSorts, ", "), "top: --sort %q is not known", f.sort)
	}
	return nil
}

func (f *topFlags) run(ctx context.Context, src *topSource, out, log io.Writer) error {
	if f.once {
		return f.frameOnce(ctx, src, out)
	}
	src.start(ctx)
	if screen := openScreen(out); screen != nil && !f.json {
		return f.interactive(ctx, src, screen)
	}
	return f.frames(ctx, src, out, log)
}

// frameOnce prints one frame with the current rates.
func (f *topFlags) frameOnce(ctx context.Context, src *topSource, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	s, err := src.second(ctx)
	if err != nil {
		return adminError("top", err)
	}
	return f.print(ctx, src, s, out)
}

// print writes a frame as lines that stay.
func (f *topFlags) print(ctx context.Context, src *topSource, s *topSnapshot, out io.Writer) error {
	if f.json {
		return writeLine(out, s.raw)
	}
	v := topView{view: slices.Index(topViews, f.view), sort: slices.Index(topSorts, f.sort), snapshot: s, width: 100}
	if v.consumers() {
		v.rows, v.rowsErr = src.connections(ctx, f.sort, 20)
	}
	var b strings.Builder
	for _, l := range v.lines() {
		b.WriteString(strings.TrimRight(l.render(1<<12, false), " ") + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// writeLine writes JSON without the breaks it came with.
func writeLine(out io.Writer, raw []byte) error {
	var b []byte
	var v json.RawMessage
	if err := json.Unmarshal(raw, &v); err != nil {
		return fmt.Errorf("top: %w", err)
	}
	b, err := json.Marshal(v) // compacts
	if err != nil {
		return fmt.Errorf("top: %w", err)
	}
	_, err = out.Write(append(b, '\n'))
	return err
}

// frames prints one after the other until it is stopped.
func (f *topFlags) frames(ctx context.Context, src *topSource, out, log io.Writer) error {
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	var shown *topSnapshot
	lastError := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s, err := src.newest()
		if err != nil {
			if errors.Is(err, errTopRefused) {
				return adminError("top", err)
			}
			if lastError != err.Error() {
				lastError = err.Error()
				fmt.Fprintf(log, "weir: %v; trying again\n", err)
			}
			continue
		}
		lastError = ""
		if s == nil || s == shown {
			continue
		}
		shown = s
		if err := f.print(ctx, src, s, out); err != nil {
			return err
		}
		if !f.json {
			fmt.Fprintln(out)
		}
	}
}

// adminError reports what to do about err.
func adminError(command string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, errTopRefused):
		hint = "give the admin token with --token, or WEIR_ADMIN_TOKEN"
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		hint = "is it the admin listener? Its address is admin.listen, 127.0.0.1:8001 if nothing is set"
	}
	return config.WithHint(fmt.Errorf("%s: %w", command, err), hint)
}
