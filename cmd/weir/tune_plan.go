package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/observe/tune"
)

func newTunePlan() *cobra.Command {
	var f tuneFlags
	var out string
	cmd := &cobra.Command{
		Use:   "plan [KNOB...]",
		Short: "Print or write the files that make the changes at every boot",
		Long: `Plan prints the files that would make the changes of tune check at every boot: of
sysctl.d and tmpfiles.d, drop-ins and units for systemd, and a ruleset for nft. With
--out it writes them below a directory, from where they are copied as they are. It
changes nothing else.

What restarts a link or a service is only in the plan, never in apply: queues, rings,
coalescing and offloads of a network card, and the limits of a service.`,
		Example: `  weir tune plan
  weir tune plan --out plan && sudo cp -r plan/etc/. /etc/ && sudo sysctl --system`,

		DisableFlagsInUseLine: true,
	}
	f.register(cmd)
	cmd.Flags().StringVar(&out, "out", "", "`directory` to write the files to (default: print them)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := f.report(args)
		if err != nil {
			return err
		}
		files, w := r.Files(), cmd.OutOrStdout()
		if out != "" {
			names, err := tune.WriteFiles(out, files)
			if f.asJSON {
				return printJSON(w, names)
			}
			for _, n := range names {
				fmt.Fprintln(w, n)
			}
			return err
		}
		if f.asJSON {
			return printJSON(w, files)
		}
		if len(files) == 0 {
			fmt.Fprintln(w, "nothing to change")
		}
		for i, file := range files {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "==> %s <==\n%s", file.Path, file.Text)
		}
		return nil
	}
	return cmd
}
