package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

func newRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke [subject <sub> | token <jti>]",
		Short: "Revoke a user's tokens, or one token, before they expire",
		Long: `Revoke makes all nodes of a cluster reject the tokens of a subject (claim sub), or one token (claim
jti), and closes what its clients have open: streams, sockets, and requests and tunnels to backends.

It lasts for --for; make that as long as your tokens are valid, since a token that is still valid
afterwards is accepted again. With --issued-before now the user may log in again: only tokens with an
earlier iat claim are rejected. API keys are not revoked: remove them from the configuration.

It uses the admin listener of one node. It is an error if the other nodes could not be notified.`,
		Example: `  weir revoke subject alice --for 12h --reason "account closed"
  weir revoke subject alice --issued-before now
  weir revoke token 0b9c1a52 --admin https://gw-1.example:8001 --token "$TOKEN"
  weir revoke --list
  weir revoke subject alice --undo`,
		Args: cobra.MaximumNArgs(2),
	}
	fs := cmd.Flags()
	lasts := durationFlag(24 * time.Hour)
	fs.Var(&lasts, "for", "how long it lasts, at most 366d")
	before := fs.String("issued-before", "", "only a subject's tokens issued before this `time`: now, or as in 2030-01-31T12:00:00Z")
	reason := fs.String("reason", "", "a `text` for other operators")
	undo := fs.Bool("undo", false, "end the revocation: a token that has not expired is accepted again")
	list := fs.Bool("list", false, "print what is revoked")
	asJSON := fs.Bool("json", false, "print JSON, as the admin API answers")
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if *list == (len(args) > 0) || !*list && (len(args) != 2 || args[0] != auth.RevokedSubject && args[0] != auth.RevokedToken) {
			return usage("write for example: weir revoke subject alice", "revoke: want subject or token, and a name; or --list")
		}
		return nil
	}
	return onAdmin(cmd, adminToken, func(cmd *cobra.Command, args []string, src *topSource) error {
		out := cmd.OutOrStdout()
		if *list {
			return listRevocations(cmd, src, out, *asJSON)
		}
		path := "/api/revocations/" + args[0] + "/" + url.PathEscape(args[1])
		if *undo {
			if err := src.send(cmd.Context(), http.MethodDelete, path, nil); err != nil {
				return adminError("revoke", err)
			}
			_, err := fmt.Fprintf(out, "%s %s: not revoked any more\n", args[0], legible(args[1]))
			return err
		}
		var r auth.Revocation
		q := url.Values{"for": {lasts.String()}, "issued_before": {*before}, "reason": {*reason}}
		if err := src.post(cmd.Context(), path+"?"+q.Encode(), &r); err != nil {
			return adminError("revoke", err)
		}
		if *asJSON {
			return json.NewEncoder(out).Encode(r)
		}
		_, err := fmt.Fprintf(out, "%s %s: revoked until %s\n", r.Kind, legible(r.Name), r.Until.Format(time.RFC3339))
		return err
	})
}

func listRevocations(cmd *cobra.Command, src *topSource, out io.Writer, asJSON bool) error {
	r, err := src.get(cmd.Context(), "/api/revocations")
	if err != nil {
		return adminError("revoke", err)
	}
	defer func() { _ = r.Body.Close() }()
	var list admin.Revocations
	if err := json.NewDecoder(io.LimitReader(r.Body, maxRevocationList)).Decode(&list); err != nil {
		return fmt.Errorf("revoke: %s: %w", src.base, err)
	}
	if asJSON {
		return printJSON(out, list)
	}
	if len(list.Revocations) == 0 {
		_, err := fmt.Fprintln(out, "nothing is revoked")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KIND\tNAME\tMADE\tUNTIL\tISSUED BEFORE\tREASON")
	for i := range list.Revocations {
		v := &list.Revocations[i]
		before := "–"
		if !v.IssuedBefore.IsZero() {
			before = v.IssuedBefore.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", v.Kind, legible(v.Name), v.Made.Format(time.RFC3339), v.Until.Format(time.RFC3339), before, legible(v.Reason))
	}
	return t.Flush()
}

// maxRevocationList bounds the answer that --list reads.
const maxRevocationList = 256 << 20
