package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/postgres"
)

func newSource() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "source",
		Short: "List, pause and resume the sources that a server reads",
		Long: `Sources are other systems whose messages a server publishes: the list sources of
its configuration. These commands use its admin listener.`,
		Example: `  weir source list
  weir source pause orders
  weir source resume orders --admin https://gw-1.example:8001 --token "$TOKEN"
  weir source sql | psql shop`,
		Args: cobra.ArbitraryArgs,
		RunE: group,

		SuggestionsMinimumDistance: 2,
		DisableFlagsInUseLine:      true,
	}
	cmd.AddCommand(newSourceList(), newSourcePause("pause", "Stop reading a source, on all nodes"), newSourcePause("resume", "Read a paused source again, on all nodes"), newSourceSQL())
	return cmd
}

// The help of --token: a command that changes something needs the admin token itself.
const (
	adminToken = "admin `token` (env WEIR_ADMIN_TOKEN)"
	readToken  = "admin `token`, or one that only reads (env WEIR_ADMIN_TOKEN)"
)

// onAdmin makes run what cmd does with the admin listener, which flags of their own find.
func onAdmin(cmd *cobra.Command, token string, run func(cmd *cobra.Command, args []string, src *topSource) error) *cobra.Command {
	fs := cmd.Flags()
	fs.String("admin", defaultAdmin, "the admin listener's `address` (env WEIR_ADMIN)")
	fs.String("token", "", token)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		base := flagOrEnv(fs, "admin", "WEIR_ADMIN")
		if !isHTTP(base) {
			name := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
			return usage("write it as "+defaultAdmin, "%s: invalid --admin %q: want an http address", name, base)
		}
		src := newTopSource(strings.TrimRight(base, "/"), flagOrEnv(fs, "token", "WEIR_ADMIN_TOKEN"))
		defer src.close()
		return run(cmd, args, src)
	}
	return cmd
}

// isHTTP reports whether text is the address of something that speaks HTTP.
func isHTTP(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func newSourceList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show what each source does",
		Long: `List shows the sources of one node: what each does (connecting, reading, standby,
paused, blocked), how many messages are queued in it, and how many were published.`,
		Example: `  weir source list
  weir source list --json`,
		Args: cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON, as GET /api/sources answers")
	return onAdmin(cmd, adminToken, func(cmd *cobra.Command, _ []string, src *topSource) error {
		var list admin.SourceList
		if err := src.read(cmd.Context(), "/api/sources", &list); err != nil {
			return adminError("source", err)
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		return sourceTable(cmd.OutOrStdout(), list.Sources)
	})
}

// sourceTable prints the sources for people.
func sourceTable(w io.Writer, list []ingest.State) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no sources are configured")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tKIND\tPHASE\tLAG\tBEHIND\tPUBLISHED\tDEAD\tGAPS\tERRORS")
	for _, s := range list {
		lag := "?"
		if s.Lag >= 0 {
			lag = strconv.FormatInt(s.Lag, 10)
		}
		behind := (time.Duration(s.LagSeconds*1000) * time.Millisecond).String()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", legible(s.Name), legible(s.Kind), legible(s.Phase), lag, behind, s.Published, s.DeadLettered, s.Gaps, s.Errors)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range list {
		if s.Error != "" {
			if _, err := fmt.Fprintf(w, "%s: %s\n", legible(s.Name), legible(s.Error)); err != nil {
				return err
			}
		}
	}
	return nil
}

func newSourcePause(action, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   action + " <name>",
		Short: short,
		Long: short + `. The node notifies the others of its cluster. A node that
restarts follows sources[].paused of its configuration.`,
		Example: "  weir source " + action + " orders",
		Args:    cobra.ExactArgs(1),
	}
	return onAdmin(cmd, adminToken, func(cmd *cobra.Command, args []string, src *topSource) error {
		var s ingest.State
		if err := src.post(cmd.Context(), "/api/sources/"+url.PathEscape(args[0])+"/"+action, &s); err != nil {
			return adminError("source", err)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %sd\n", legible(s.Name), action)
		return err
	})
}

func newSourceSQL() *cobra.Command {
	return &cobra.Command{
		Use:   "sql",
		Short: "Print the SQL of the PostgreSQL outbox",
		Long: `SQL prints the table weir_outbox and the function weir_publish, which a source of
kind postgres reads. It may be run again.`,
		Example: `  weir source sql | psql shop`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), postgres.Schema)
			return err
		},
	}
}

// post sends an empty request and reads the answer into v. For what is not found, the error
// is the server's.
func (s *topSource) post(ctx context.Context, path string, v any) error {
	return s.send(ctx, http.MethodPost, path, v)
}

// send is post with another method. An answer of 204 has nothing for v.
func (s *topSource) send(ctx context.Context, method, path string, v any) error {
	r, err := s.do(ctx, s.client, method, path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", s.base, err)
	}
	if r.StatusCode == http.StatusOK {
		return json.Unmarshal(b, v)
	}
	if r.StatusCode == http.StatusNoContent {
		return nil
	}
	var e admin.Error
	if r.StatusCode == http.StatusNotFound && json.Unmarshal(b, &e) == nil && e.Error.Message != "" {
		return fmt.Errorf("%s: %s", s.base, legible(e.Error.Message))
	}
	return s.refusal(r.StatusCode, r.Status, b)
}
