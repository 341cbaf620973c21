package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/measure/accept"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func newAccept() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Run the acceptance indicators of a gateway and report each with its evidence",
		Long: `Accept measures indicators of a gateway: sustained load, bursts, many connections,
priorities, leaks, the cost of observability, partitions, national cryptography,
the audit log. Each has a definition, a target, a method, evidence and a verdict:
pass, fail, inconclusive (the machine was too noisy, or the trials do not decide)
or invalid (not measured, with the reason).

It starts its own Weir, the same program, on loopback; with --target it measures
another service, as far as that is possible over HTTP.

` + exitStatuses,
		Example: `  weir accept list
  weir accept quick
  weir accept run burst audit --out acceptance
  weir accept verify acceptance`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(newAcceptList(), newAcceptPlan("quick", "about ten minutes"), newAcceptPlan("full", "more than four hours, two of them for the mixed connections"),
		newAcceptRun(), newAcceptVerify(), newAcceptPlant())
	return cmd
}

func newAcceptList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the indicators and their targets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return accept.IndicatorTable().Text(cmd.OutOrStdout(), "")
		},
	}
}

// acceptFlags are those of a run.
type acceptFlags struct {
	opt  accept.Options
	rate string
}

func (f *acceptFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.opt.Dir, "out", "o", "", "`directory` for report and evidence; must be empty (default: acceptance-TIME)")
	fs.StringVar(&f.rate, "rate", "", "target `rate` (default: 0.8 of the knee, which is searched)")
	fs.IntVar(&f.opt.Conns, "conns", 0, "keep `N` mixed connections open, and as many shipment clients (default: the plan's)")
	fs.DurationVar(&f.opt.For, "for", 0, "`time` that they, and the sustained load, are kept up (default: the plan's)")
	fs.IntVar(&f.opt.Attempts, "attempts", 0, "at most `N` attempts for a measurement that the machine disturbed (default: the plan's)")
	fs.StringVar(&f.opt.Target, "target", "", "`URL` of another service; indicators that need Weir are skipped")
	fs.StringVar(&f.opt.Chaos, "chaos", "", "`file` with the table of the chaos suite, for recovery")
}

func newAcceptPlan(name, long string) *cobra.Command {
	var f acceptFlags
	cmd := &cobra.Command{
		Use:   name,
		Short: "Run all indicators: " + long,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.opt.Plan = name
			return f.run(cmd, nil)
		},
	}
	f.add(cmd)
	return cmd
}

func newAcceptRun() *cobra.Command {
	var f acceptFlags
	full := false
	cmd := &cobra.Command{
		Use:     "run INDICATOR...",
		Short:   "Run single indicators",
		Example: "  weir accept run burst\n  weir accept run sustained --full --rate 80k\n  weir accept run connections --conns 40000 --for 2m",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if full {
				f.opt.Plan = "full"
			}
			return f.run(cmd, names)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&full, "full", false, "as long as in a full run")
	return cmd
}

func (f *acceptFlags) run(cmd *cobra.Command, names []string) error {
	list, err := accept.Find(names...)
	if err != nil {
		return usage("weir accept list names them", "accept: %w", err)
	}
	if f.rate != "" {
		if f.opt.Rate, err = parseRate(f.rate); err != nil {
			return err
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	started := time.Now()
	if f.opt.Dir == "" {
		f.opt.Dir = "acceptance-" + started.Format("20060102-150405")
	}
	b := buildOf(version, buildInfo())
	f.opt.Program, f.opt.Stderr = process.Program{exe, os.Args[0]}, cmd.ErrOrStderr()
	f.opt.Version = process.Build{Version: b.Version, Commit: b.Commit, Modified: b.Modified}.String()
	f.opt.Progress = func(indicator, text string) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%6.0f s  %s: %s\n", time.Since(started).Seconds(), indicator, text)
	}
	f.opt.Processes = func(ctx context.Context, s loadgen.Spec, n int, connected func(context.Context) error) (*loadgen.Result, error) {
		r, died, err := runWorkers(ctx, s, n, connected, func(loadgen.Snapshot) {})
		return r, errors.Join(died, err)
	}
	r, err := accept.Run(cmd.Context(), list, f.opt)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	return acceptResult(cmd.OutOrStdout(), r, f.opt.Dir)
}

// acceptResult prints a report and returns its exit status.
func acceptResult(out io.Writer, r *accept.Report, dir string) error {
	if err := r.Summary().Text(out, ""); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s: %s/report.html, report.md, report.json\nhead of the chain: %s\n", r.Verdict, dir, r.Head)
	return exitWith(r.Verdict.ExitCode())
}

func newAcceptVerify() *cobra.Command {
	var head string
	cmd := &cobra.Command{
		Use:   "verify DIRECTORY",
		Short: "Check a report's evidence and recompute its verdicts",
		Long: `Verify follows the hash chain over all files of a run's directory and recomputes every
verdict from the evidence. It fails if a file was changed, added or removed, or if the
evidence leads to a different verdict from the one in the report.

A process that can write the directory can write a whole new chain: note its head, which the
run prints last, elsewhere, and pass it with --head.

Exit status: 0 if nothing was altered, 1 otherwise, whatever the verdicts are.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&head, "head", "", "`head` of the chain, as the run printed it (default: any)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := accept.Verify(args[0], head)
		if err != nil {
			return config.WithHint(fmt.Errorf("accept verify: %w", err), "the evidence does not support the report")
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d indicators as reported, verdict %s, head of the chain: %s\n", len(r.Findings), r.Verdict, r.Head)
		return err
	}
	return cmd
}

// newAcceptPlant is a process that leaks, which the leak hunt has to find.
func newAcceptPlant() *cobra.Command {
	return &cobra.Command{
		Use: "plant KIND", Short: "Leak on request", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return accept.Plant(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
