package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

func newUpgrade() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Upgrade a running server without closing a connection",
		Long: `Upgrade makes a running server start its program file again. The new process reads and
validates the configuration and takes over the listening sockets, all connections that can be
moved and, if it is embedded, the log; then the old process ends. Clients notice only a
pause. If the new process cannot serve, the old one continues, and upgrade prints the reason
and exits with 1.

Install the new program at the old one's path first: rename it into place. SIGUSR2 to
the server does the same; the outcome is logged.`,
		Example: `  mv weir-new /usr/local/bin/weir && weir upgrade
  weir upgrade --admin https://gw-1.example:8001 --token "$TOKEN"`,
		Args: cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print the result as JSON")
	return onAdmin(cmd, adminToken, func(cmd *cobra.Command, _ []string, src *topSource) error {
		u, err := runUpgrade(cmd.Context(), src, cmd.ErrOrStderr())
		if err != nil {
			return adminError("upgrade", err)
		}
		if *asJSON {
			if err := printJSON(cmd.OutOrStdout(), u); err != nil {
				return err
			}
		}
		if u.Step != "done" {
			err := fmt.Errorf("upgrade failed, the old process serves on: %s", legible(u.Error))
			if u.Hint != "" {
				err = config.WithHint(err, legible(u.Hint))
			}
			return err
		}
		if !*asJSON {
			fmt.Fprint(cmd.OutOrStdout(), upgradeText(u))
		}
		return nil
	})
}

// runUpgrade starts an upgrade, says on progress which step it is at, and returns its result.
func runUpgrade(ctx context.Context, src *topSource, progress io.Writer) (u admin.Upgrade, err error) {
	last := ""
	defer repeat(ctx, 50*time.Millisecond, func(ctx context.Context, _ time.Time) {
		var s admin.Upgrade
		if err := src.read(ctx, "/api/upgrade", &s); err == nil && s.Step != last && s.Step != "" && s.Error == "" && s.Step != "done" {
			last = s.Step
			fmt.Fprintln(progress, "weir: "+legible(s.Step))
		}
	})()
	client := &http.Client{Transport: &http.Transport{Proxy: nil, ResponseHeaderTimeout: 2 * time.Minute}}
	defer client.CloseIdleConnections()
	r, err := src.do(ctx, client, http.MethodPost, "/api/upgrade")
	if err != nil {
		return u, err
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return u, fmt.Errorf("%s: %w", src.base, err)
	}
	if r.StatusCode == http.StatusOK || r.StatusCode == http.StatusUnprocessableEntity {
		return u, json.Unmarshal(b, &u)
	}
	return u, src.refusal(r.StatusCode, r.Status, b)
}

// upgradeText is the result for people.
func upgradeText(u admin.Upgrade) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "process %d serves", u.PID)
	if u.From != u.To {
		fmt.Fprintf(b, ": %s instead of %s", legible(u.To), legible(u.From))
	}
	fmt.Fprintf(b, "\n%d connections moved in %.0f ms", u.Moved, u.PauseSeconds*1000)
	if u.Moved > 0 {
		fmt.Fprintf(b, ", %d bytes each", u.Bytes/u.Moved)
	}
	fmt.Fprintln(b)
	if u.Left > 0 {
		fmt.Fprintf(b, "%d streams follow, or are drained by the old process\n", u.Left)
	}
	return b.String()
}
