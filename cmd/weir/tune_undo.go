package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/observe/tune"
)

func newTuneUndo() *cobra.Command {
	var f tuneFlags
	var journal string
	var force bool
	cmd := &cobra.Command{
		Use:   "undo",
		Short: "Restore the settings from before weir tune apply",
		Long: `Undo restores every value that weir tune apply has changed, from the journal, and
removes the journal. This also works after apply, or undo itself, was killed half-way.
A value that something else has changed since apply is left as it is and stays
in the journal; the exit status is then 1.`,
		Example: `  sudo weir tune undo`,
		Args:    cobra.NoArgs,

		DisableFlagsInUseLine: true,
	}
	registerJournal(cmd, &journal)
	cmd.Flags().StringVar(&f.root, "root", "/", "`directory` that has proc and sys, as given to apply")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&force, "force", false, "also restore values that something else has changed since")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		changed, err := tune.Undo(f.system(), tune.OpenJournal(journal), force)
		if perr := printChanges(cmd.OutOrStdout(), changed, &f, err, "nothing to undo"); perr != nil {
			return perr
		}
		return tuneError(err)
	}
	return cmd
}
