package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/observe/audit"
)

func newAudit() *cobra.Command {
	var head string
	cmd := &cobra.Command{
		Use:   "audit FILE",
		Short: "Check an admin audit log",
		Long: `Audit follows the hash chain of a file that admin.audit_log wrote. It prints how
many records there are and the head of the chain, and fails if a record was
changed, removed, added or moved.

A process that can write the file can write a whole new chain: note the head elsewhere,
and pass it with --head to check that the chain still contains it.`,
		Example: `  weir audit /var/lib/weir/audit.log
  weir audit audit.log --head 9f2c…`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&head, "head", "", "`sum` of a record that has to be in the chain (default: none)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := os.Open(args[0])
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		defer f.Close()
		found := head == ""
		n, last, err := audit.Verify(f, func(r audit.Record) { found = found || r.Sum == head })
		if err == nil && !found {
			err = fmt.Errorf("no record has the sum %s: this is a different chain", head)
		}
		if err != nil {
			return fmt.Errorf("audit: %s: %w", args[0], err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d records, head %s\n", n, last)
		return err
	}
	return cmd
}
