package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
)

// exitCannotCompare is the exit status of config diff when there is no answer; 1 means
// that there are differences, as with diff.
const exitCannotCompare = 2

func newConfigDiff() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [FILE]",
		Short: "Show what a reload would change",
		Long: `Diff compares a configuration with another one, or with the one in effect on a
running node, and prints a line for each key with its old value, its new value and when
the change takes effect:

  live        with the reload, also for open connections
  connection  with the reload, for new connections and requests
  restart     at the next start

"+" and "-" are entries that are added and removed. Secrets are not shown. A running
node also reports how many connections the reload would close because they lose their
rights. It receives the whole configuration, with its secrets, over the admin
listener, and applies nothing; files that the configuration names are read there.

Without --against the node at the configuration's own admin.listen is used.

Exit status: 0 no differences, 1 differences, 2 they cannot be compared.`,
		Example: `  weir config diff weir.yaml                            # with the node at its admin.listen
  weir config diff weir.yaml --against weir.yaml.old
  weir config diff weir.yaml --against http://10.0.0.7:8001 --token "$TOKEN" --json`,
		Args: cobra.MaximumNArgs(1),
	}
	asJSON := cmd.Flags().Bool("json", false, "print a JSON object")
	s := addSources(cmd)
	against := addAgainst(cmd, "`file`, or admin address of a node, to compare with")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		src, err := s.sources(cmd.Flags())
		if err == nil && len(args) == 1 {
			src.File = args[0]
		}
		var p config.Preview
		if err == nil {
			p, err = preview(cmd, src, *against)
		}
		if err != nil {
			return &exitError{exitCannotCompare, err}
		}
		if err := writePreview(cmd.OutOrStdout(), p, *asJSON); err != nil || len(p.Changes) == 0 {
			return err
		}
		return exitWith(1)
	}
	return cmd
}

// addAgainst adds the flags that name what a configuration is compared with.
func addAgainst(cmd *cobra.Command, usage string) *string {
	against := cmd.Flags().String("against", "", usage)
	cmd.Flags().String("token", "", "admin `token` of the node (env WEIR_ADMIN_TOKEN)")
	return against
}

// preview compares the configuration of src with a file or a node.
func preview(cmd *cobra.Command, src config.Sources, against string) (config.Preview, error) {
	wanted, err := config.Load(src, app.Check)
	if err != nil {
		return config.Preview{}, err
	}
	if against == "" {
		if !wanted.Admin.Enabled() {
			return config.Preview{}, usage("name a file or a node with --against", "config diff: admin.listen is off, so there is no node to compare with")
		}
		against = "http://" + wanted.Admin.Listen
	}
	if _, err := os.Stat(against); err == nil {
		old, err := config.Load(config.Sources{File: against, Env: src.Env, Flags: src.Flags})
		if err != nil {
			return config.Preview{}, err
		}
		return config.NewPreview(old, wanted), nil
	}
	base, err := adminBase(against)
	if err != nil {
		return config.Preview{}, err
	}
	return previewOf(cmd.Context(), base, flagOrEnv(cmd.Flags(), "token", "WEIR_ADMIN_TOKEN"), wanted)
}

// adminBase returns the URL of an admin listener by its address or URL.
func adminBase(text string) (string, error) {
	if !strings.Contains(text, "://") {
		if !strings.Contains(text, ":") || strings.Contains(text, "/") {
			return "", config.WithHint(fmt.Errorf("--against %s: no such file", text), "name a file, or a node as http://127.0.0.1:8001")
		}
		text = "http://" + text
	}
	if !isHTTP(text) {
		return "", config.WithHint(fmt.Errorf("--against %.80q: invalid URL", text), "name a file, or a node as http://127.0.0.1:8001")
	}
	return strings.TrimSuffix(text, "/"), nil
}

const maxPreview = 64 << 20

// previewOf queries the node at base for what a reload of wanted would change.
func previewOf(ctx context.Context, base, token string, wanted config.Config) (p config.Preview, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/config/diff", bytes.NewReader([]byte(wanted.File())))
	if err != nil {
		return p, err
	}
	req.Header.Set("Content-Type", "application/yaml")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: nil}}
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return p, config.WithHint(fmt.Errorf("query %s: %w", base, err), "name a running node's admin address, or a file, with --against")
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxPreview))
	if err != nil {
		return p, fmt.Errorf("query %s: %w", base, err)
	}
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return p, config.WithHint(fmt.Errorf("%s: the admin listener requires a token", base), "pass the admin token with --token, or WEIR_ADMIN_TOKEN")
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return p, fmt.Errorf("%s: the node is of an older version, which cannot compare", base)
	default:
		var e struct{ Message string }
		if json.Unmarshal(body, &e) != nil || e.Message == "" {
			e.Message = res.Status
		}
		return p, fmt.Errorf("%s: %s", base, e.Message)
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return p, fmt.Errorf("%s: %w", base, err)
	}
	return p, nil
}

// marks are what the kinds of changes start with.
var marks = map[string]string{"added": "+", "removed": "-", "changed": "~"}

func writePreview(w io.Writer, p config.Preview, asJSON bool) error {
	if asJSON {
		return printJSON(w, p)
	}
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range p.Changes {
		value := ""
		if c.Old != "" || c.New != "" {
			value = clipValue(c.Old) + " -> " + clipValue(c.New)
		}
		fmt.Fprintf(tab, "%s %s\t%s\t%s\n", marks[c.Kind], c.Key, value, c.Class)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	if n := len(p.Waiting); n > 0 {
		fmt.Fprintf(&b, "\n%s for a restart: %s\n", counted(n, "key waits", "keys wait"), strings.Join(p.Waiting, ", "))
	}
	if c := p.Closing; c != nil && len(p.Changes) > 0 {
		fmt.Fprintf(&b, "\nThe reload would close %s whose rights it takes away.\n", counted(c.Connections, "connection", "connections"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// clipValue is a value as a line has room for it.
func clipValue(s string) string {
	const most = 60
	if s == "" {
		return `""`
	}
	if len(s) > most {
		return strings.ToValidUTF8(s[:most-3], "") + "..."
	}
	return s
}
