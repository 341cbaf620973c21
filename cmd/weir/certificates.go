package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/observe/admin"
)

func newCertificates() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certificates",
		Short: "Show a running server's certificates, their expiry and renewal",
		Long: `Certificates shows the certificates of a running server's public listener: those from files
and those obtained by ACME (tls.acme), when they expire, when they are renewed, and why an
order failed. It exits 1 if a certificate is missing, has expired or its last order failed.`,
		Example: `  weir certificates
  weir certificates --admin https://gw-1.example:8001 --token "$TOKEN" --json`,
		Args: cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print them as JSON")
	return onAdmin(cmd, adminToken, func(cmd *cobra.Command, _ []string, src *topSource) error {
		var list []admin.Certificate
		err := src.read(cmd.Context(), "/api/certificates", &list)
		if err != nil {
			return adminError("certificates", err)
		}
		if *asJSON {
			err = printJSON(cmd.OutOrStdout(), list)
		} else {
			err = certificatesText(cmd.OutOrStdout(), list, time.Now())
		}
		if err != nil {
			return err
		}
		return certificateTroubles(list, time.Now())
	})
}

// certificateTroubles is an error that names the certificates that need attention.
func certificateTroubles(list []admin.Certificate, now time.Time) error {
	var names []string
	for i := range list {
		if c := &list[i]; !c.Served || now.After(c.NotAfter) || c.Failures > 0 {
			names = append(names, legible(c.Name))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("certificates: missing, expired or not renewed: %s", strings.Join(names, ", "))
}

// certificatesText writes the table for people.
func certificatesText(w io.Writer, list []admin.Certificate, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "the public listener has no certificates: it does not use TLS")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSOURCE\tEXPIRES\tRENEWAL\tISSUER\tSTATE")
	for i := range list {
		c := &list[i]
		state := "ok"
		switch {
		case c.Failures > 0:
			state = fmt.Sprintf("%d failed orders, next %s: %s", c.Failures, until(c.RetryAt, now), legible(c.Error))
		case !c.Served:
			state = "not obtained yet"
		case now.After(c.NotAfter):
			state = "expired"
		case !c.StapledUntil.IsZero():
			state = "ok, stapled"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", legible(c.Name), c.Source, until(c.NotAfter, now), until(c.RenewAt, now), legible(c.Issuer), state)
	}
	return t.Flush()
}

// until reports how far a time is away.
func until(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	d := at.Sub(now)
	switch {
	case d < 0:
		return at.UTC().Format(time.DateOnly)
	case d < time.Hour:
		return "in " + d.Round(time.Second).String()
	case d < 48*time.Hour:
		return fmt.Sprintf("in %.0fh", d.Hours())
	}
	return fmt.Sprintf("in %.0fd", d.Hours()/24)
}
