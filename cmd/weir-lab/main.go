// Command weir-lab tests common claims about tuning Go services by experiment. It has small servers of its own,
// some deliberately bad, and measures a weir beside them; docs/lab has its results.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run is the whole program; it returns the exit status.
func run(args []string, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal stops gracefully, the second one kills.
	defer context.AfterFunc(ctx, stop)()
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return report(stderr, cmd, err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weir-lab",
		Short: "Run tuning experiments and report what each step gains",
		Long: `Weir-lab tests common claims about tuning Go services by experiment. Every step of an
experiment is a small server, from the naive one up to Weir, and all are measured
side by side on this machine.`,
		Example: `  weir-lab list
  weir-lab run a
  weir-lab run all --out docs/lab
  weir-lab verify all --dir docs/lab`,
		SilenceErrors:         true,
		SilenceUsage:          true,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usage("weir-lab --help lists the commands", "unknown command %q", args[0])
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("usage: "+cmd.UseLine(), "%w", err)
	})
	root.AddCommand(newList(), newRun(), newVerify(), newServe(), newJob())
	for _, c := range root.Commands() {
		check := c.Args
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage("usage: "+cmd.UseLine(), "%s: %w", cmd.Name(), err)
			}
			return nil
		}
	}
	return root
}

// A hinted error has a line on what to do about it.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// A usageError is a command that was written wrongly: exit status 2.
type usageError struct{ hinted }

func usage(hint, format string, a ...any) error {
	return &usageError{hinted{fmt.Errorf(format, a...), hint}}
}

// An exitStatus ends the program without a word more.
type exitStatus int

func (s exitStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// report prints err and what to do about it, and returns the exit status.
func report(w io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	if s, ok := errors.AsType[exitStatus](err); ok {
		return int(s)
	}
	status, hint := 1, ""
	if e, ok := errors.AsType[*hinted](err); ok {
		hint = e.hint
	}
	if e, ok := errors.AsType[*usageError](err); ok {
		status, hint = 2, e.hint
		if hint == "" {
			hint = cmd.CommandPath() + " --help"
		}
	}
	fmt.Fprintf(w, "weir-lab: %v\n", err)
	if hint != "" {
		fmt.Fprintln(w, "hint: "+hint)
	}
	return status
}
