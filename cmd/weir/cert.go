package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

func newCert() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Make test certificates",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(newCertGM())
	return cmd
}

func newCertGM() *cobra.Command {
	t := gm.TestChain{Lifetime: 90 * 24 * time.Hour}
	cmd := &cobra.Command{
		Use:   "gm",
		Short: "Make a test chain on curve SM2 for TLCP and RFC 8998",
		Long: `Gm makes a root, an intermediate and a server's pair of certificates on curve
SM2: one to sign and one to encrypt, as TLCP (GB/T 38636) requires. RFC 8998 uses
the signing one alone. The keys of the authorities are not kept.

It is for tests: certificates for production come from a licensed authority.`,
		Example: `  weir cert gm --dir certs --host push.example.com
  weir cert gm --dir certs --host localhost --host 127.0.0.1 --client alice`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&t.Dir, "dir", ".", "`directory` for the files; existing ones are not overwritten")
	fs.StringSliceVar(&t.Hosts, "host", []string{"localhost"}, "`names` and addresses of the server, repeatable")
	fs.StringVar(&t.Client, "client", "", "also make a client's certificate pair with this common `name`")
	fs.Var((*durationFlag)(&t.Lifetime), "lifetime", "how long the certificates are valid, such as 30d")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case len(t.Hosts) == 0 || t.Hosts[0] == "":
			return usage("write for example --host localhost", "cert gm: --host is empty")
		case t.Lifetime <= 0:
			return usage("write for example --lifetime 90d", "cert gm: --lifetime %v is not positive", t.Lifetime)
		}
		if err := os.MkdirAll(t.Dir, 0o755); err != nil { //nolint:gosec // certificates are public; keys have modes of their own
			return fmt.Errorf("cert gm: %w", err)
		}
		files, err := gm.WriteTestChain(t)
		if err != nil {
			return fmt.Errorf("cert gm: %w", err)
		}
		for _, f := range files {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), f); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}
