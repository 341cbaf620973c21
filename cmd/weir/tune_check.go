package main

import "github.com/spf13/cobra"

func newTuneCheck() *cobra.Command {
	var f tuneFlags
	var all, verbose bool
	cmd := &cobra.Command{
		Use:   "check [KNOB...]",
		Short: "Compare the machine with a profile; changes nothing",
		Long: `Check reads and changes nothing. Named knobs, such as somaxconn, net.ipv4.tcp_rmem or
'nic.*', are shown in full detail.

Exit status: 0 nothing to do, 1 failure, 2 wrong usage, 3 something should be changed or
looked at, 4 none of these, but something could not be read. Features that the kernel or the
network card lacks are not findings.`,
		Example: `  weir tune check
  weir tune check --profile low-latency --verbose
  weir tune check somaxconn 'nic.*'
  weir tune check --json | jq '.findings[] | select(.state == "change") | .knob'
  weir tune check --pid "$(pidof weir)" --port 443`,

		DisableFlagsInUseLine: true,
	}
	f.register(cmd)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also show settings that need no change")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show evidence, threshold, documentation, risk and how to revert")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := f.report(args)
		if err != nil {
			return err
		}
		if f.asJSON {
			err = printJSON(cmd.OutOrStdout(), r)
		} else {
			writeFindings(cmd.OutOrStdout(), r, all || len(args) > 0, verbose || len(args) > 0)
		}
		if status := r.Status(); err == nil && status != 0 {
			return &exitError{status: status}
		}
		return err
	}
	return cmd
}
