package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe/tune"
)

func newTuneApply() *cobra.Command {
	var f tuneFlags
	var journal string
	cmd := &cobra.Command{
		Use:   "apply [KNOB...]",
		Short: "Change the kernel's settings now; undo restores them",
		Long: `Apply makes the changes of tune check until the next boot, or those of the named
knobs only. The previous values are written to the journal, and synced, before the first
change: weir tune undo restores them exactly, also if apply was killed half-way. Settings
for every boot are in weir tune plan, which also has the changes that apply skips because they
restart a link or a service.`,
		Example: `  sudo weir tune apply
  sudo weir tune apply 'net.ipv4.*' --profile bench
  sudo weir tune undo`,

		DisableFlagsInUseLine: true,
	}
	f.register(cmd)
	registerJournal(cmd, &journal)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := f.report(args)
		if err != nil {
			return err
		}
		changed, err := tune.Apply(f.system(), tune.OpenJournal(journal), r.Steps())
		if perr := printChanges(cmd.OutOrStdout(), changed, &f, err, "nothing to change"); perr != nil {
			return perr
		}
		if !f.asJSON && err == nil {
			for _, left := range r.Findings {
				if left.State == tune.Change && len(left.Steps) == 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "left alone: %s, now %s; weir tune plan %s has the files\n", left.Knob, left.Now, left.Knob)
				}
			}
		}
		return tuneError(err)
	}
	return cmd
}

func registerJournal(cmd *cobra.Command, journal *string) {
	cmd.Flags().StringVar(journal, "journal", tune.DefaultJournal, "`file` with the previous values")
}

// printChanges prints what apply or undo did; none is for nothing, unless err is the reason.
func printChanges(w io.Writer, changed []tune.Changed, f *tuneFlags, err error, none string) error {
	if f.asJSON {
		if changed == nil {
			changed = []tune.Changed{}
		}
		return printJSON(w, changed)
	}
	for _, c := range changed {
		from, to := quoteEmpty(c.From), quoteEmpty(c.To)
		if c.Err != "" {
			fmt.Fprintf(w, "failed   %s: %s, wanted %s: %s\n", c.Target, from, to, c.Err)
			continue
		}
		fmt.Fprintf(w, "changed  %s: %s → %s\n", c.Target, from, to)
	}
	if len(changed) == 0 && err == nil {
		fmt.Fprintln(w, none)
	}
	return nil
}

func quoteEmpty(s string) string {
	if s == "" {
		return `""`
	}
	return s
}

// tuneError adds what to do about an error of apply or undo.
func tuneError(err error) error {
	switch {
	case errors.Is(err, tune.ErrIncomplete):
		return &exitError{status: 1, err: config.WithHint(fmt.Errorf("tune: %w", err), "each line above that starts with \"failed\" has its reason; the journal keeps the values that are not restored")}
	case errors.Is(err, fs.ErrPermission):
		return config.WithHint(fmt.Errorf("tune: %w", err), "run it as root; in a container the settings belong to the host")
	case err != nil:
		return fmt.Errorf("tune: %w", err)
	}
	return nil
}
