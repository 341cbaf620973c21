package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/measure/lab"
)

func newVerify() *cobra.Command {
	o := lab.Options{}
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify [NAME...|all]",
		Short: "Repeat the measurements, shorter, and compare them with the pages",
		Args:  cobra.ArbitraryArgs,
		Long: `Verify repeats the named experiments, or all that have a page, with fewer and
shorter rounds, and compares each ratio with the one on the page: it is confirmed if it is
the same within a factor of 1.5, and has changed if it differs by more, beyond what
noise explains, or is the opposite.

Exit status: 0 all pages confirmed, 1 failure, 2 wrong usage, 3 something has changed, 4
none of these, but something was inconclusive.`,
		Example: `  weir-lab verify a b
  weir-lab verify all --dir docs/lab --json | jq '.[] | select(.outcome != "holds") | .ladder'`,
	}
	fs := cmd.Flags()
	fs.StringVar(&dir, "dir", "docs/lab", "`directory` of the pages' numbers (NAME.json)")
	fs.IntVar(&o.Rounds, "rounds", 4, "measure everything this many `times`")
	fs.DurationVar(&o.Duration, "duration", 300*time.Millisecond, "`time` of each measurement")
	var p programs
	p.add(cmd)
	fs.BoolVar(&asJSON, "json", false, "print every comparison as JSON")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if o.Rounds < 2 || o.Duration <= 0 {
			return usage("", "verify: --rounds must be 2 at least, --duration positive")
		}
		if len(names) == 0 {
			names = []string{"all"}
		}
		ladders, err := laddersNamed("verify", names)
		if err != nil {
			return err
		}
		if err := p.into(cmd.Context(), &o); err != nil {
			return fmt.Errorf("verify: %w", err)
		}
		o.Progress = cmd.ErrOrStderr()
		return verifyLab(cmd.Context(), ladders, dir, o, asJSON, cmd.OutOrStdout())
	}
	return cmd
}

// verifyLab verifies the ladders and prints what came of each.
func verifyLab(ctx context.Context, ladders []lab.Ladder, dir string, o lab.Options, asJSON bool, out io.Writer) error {
	all := []*lab.Verification{} // [] in JSON where there are none
	n := map[lab.Outcome]int{}
	err := lab.Verify(ctx, ladders, dir, o, func(v *lab.Verification) error {
		all = append(all, v)
		n[v.Outcome]++
		if asJSON {
			return nil
		}
		return writeVerification(out, v)
	})
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("verify: stopped early")
	case err != nil:
		return fmt.Errorf("verify: %w", err)
	case asJSON:
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(all); err != nil {
			return err
		}
	}
	switch {
	case n[lab.Changed] > 0:
		return exitStatus(3)
	case n[lab.Inconclusive] > 0:
		return exitStatus(4)
	}
	return nil
}

// writeVerification prints a page's outcome, and what of it does not hold.
func writeVerification(out io.Writer, v *lab.Verification) error {
	if _, err := fmt.Fprintf(out, "%-12s %s: %s\n", v.Ladder, v.Outcome, v.Why); err != nil {
		return err
	}
	if v.Outcome != lab.Holds && v.Page != "" {
		fmt.Fprintf(out, "  page: %s\n  here: %s\n", v.Page, v.Here)
	}
	for _, c := range v.Checks {
		if c.Outcome == lab.Holds {
			continue
		}
		what := c.Doubt
		if what == "" {
			what = fmt.Sprintf("%s: %s against %s, %s", c.Experiment, c.Arm, c.Base, c.Metric)
		}
		fmt.Fprintf(out, "  %s: %s: %s\n", c.Outcome, what, c.Why)
	}
	return nil
}
