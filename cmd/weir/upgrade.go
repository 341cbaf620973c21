package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

func newUpgrade() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Replace a running server's program without closing a connection",
		Long: `Upgrade has a running server start its program's file anew. The new process reads and
validates the configuration, takes the listening sockets, all connections that can move
and, where it lives in the process, the log; then the old one ends. Clients notice a
pause. If the new process cannot serve, the old one serves on, and upgrade says why and
exits 1.

Install the new program at the old one's path first: rename it into place. SIGUSR2 to
the server does the same; its log says what came of it.`,
		Example: `  mv weir-new /usr/local/bin/weir && weir upgrade
  weir upgrade --admin https://gw-1.example:8001 --token "$TOKEN"`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	fs.String("admin", defaultAdmin, "the admin listener's `address` (env WEIR_ADMIN)")
	fs.String("token", "", "admin `token` (env WEIR_ADMIN_TOKEN)")
	asJSON := fs.Bool("json", false, "print the result as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		base := flagOrEnv(fs, "admin", "WEIR_ADMIN")
		if u, err := url.Parse(base); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return usage("write it as "+defaultAdmin, "upgrade: --admin %q is no http address", base)
		}
		src := newTopSource(strings.TrimRight(base, "/"), flagOrEnv(fs, "token", "WEIR_ADMIN_TOKEN"))
		defer src.close()
		u, err := runUpgrade(cmd.Context(), src, cmd.ErrOrStderr())
		if err != nil {
			return adminError("upgrade", err)
		}
		if *asJSON {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			if err := e.Encode(u); err != nil {
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
	}
	return cmd
}

// runUpgrade begins an upgrade, says on progress which step it is at, and returns its result.
func runUpgrade(ctx context.Context, src *topSource, progress io.Writer) (u admin.Upgrade, err error) {
	steps, stop := context.WithCancel(ctx)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		last := ""
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-steps.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			if s, err := src.upgradeState(steps); err == nil && s.Step != last && s.Step != "" && s.Error == "" && s.Step != "done" {
				last = s.Step
				fmt.Fprintln(progress, "weir: "+legible(s.Step))
			}
		}
	}()
	defer func() {
		stop()
		<-reported
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, src.base+"/api/upgrade", http.NoBody)
	if err != nil {
		return u, err
	}
	if src.token != "" {
		req.Header.Set("Authorization", "Bearer "+src.token)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: nil, ResponseHeaderTimeout: 2 * time.Minute}}
	defer client.CloseIdleConnections()
	r, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return u, fmt.Errorf("%s: %w", src.base, err)
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

func (s *topSource) upgradeState(ctx context.Context) (u admin.Upgrade, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := s.get(ctx, "/api/upgrade")
	if err != nil {
		return u, err
	}
	defer func() { _ = r.Body.Close() }()
	return u, json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&u)
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
