package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, explain and print the configuration",
		Long: `The configuration is read from a YAML file, then from WEIR_* environment
variables, then from flags; later sources override earlier ones. Unknown keys are errors.`,
		Example: `  weir config default > weir.yaml
  weir config check --config weir.yaml
  weir config diff weir.yaml
  weir config docs namespaces
  weir config access --config weir.yaml
  weir config import centrifugo config.json > weir.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: group,

		SuggestionsMinimumDistance: 2,
		DisableFlagsInUseLine:      true,
	}
	cmd.AddCommand(newConfigCheck(), newConfigDiff(), newConfigDefault(), newConfigEffective(), newConfigDocs(), newConfigAlerts(), newConfigImport(), newConfigAccess())
	return cmd
}

func newConfigCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Report every error in the configuration, or ok",
		Long: `Check reads all sources as serve would, reports every error in them, and warns
about settings that are valid but probably a mistake. The exit status is 0 if serve
would accept them, 1 otherwise. With --against it lists the keys whose change needs
a restart, compared with a running node or with another file.`,
		Example: `  weir config check --config weir.yaml
  weir config check --config weir.yaml --against http://127.0.0.1:8001`,
		Args: cobra.NoArgs,
	}
	against := addAgainst(cmd, "`file`, or admin address of a node, to compare with")
	return onSources(cmd, func(cmd *cobra.Command, _ []string, src config.Sources) error {
		cfg, err := config.Load(src, app.Check)
		if err != nil {
			return err
		}
		for _, w := range append(config.Deprecations(src), cfg.Warnings()...) {
			fmt.Fprintf(cmd.ErrOrStderr(), "weir: warning: %s\nhint: %s\n", w.Text, w.Hint)
		}
		fmt.Fprintln(cmd.OutOrStdout(), "ok")
		if *against == "" {
			return nil
		}
		p, err := preview(cmd, src, *against)
		if err != nil {
			return err
		}
		for _, c := range p.Changes {
			if c.Class == config.OnRestart {
				fmt.Fprintf(cmd.OutOrStdout(), "waits for a restart: %s (%s -> %s)\n", c.Key, clipValue(c.Old), clipValue(c.New))
			}
		}
		return nil
	})
}

func newConfigDefault() *cobra.Command {
	return &cobra.Command{
		Use:     "default",
		Short:   "Print a configuration file with every key and what it means",
		Example: `  weir config default > weir.yaml`,
		Args:    cobra.NoArgs,

		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Default().File())
			return err
		},
	}
}

func newConfigEffective() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "effective",
		Short: "Print the configuration merged from file, environment and flags",
		Long: `Effective prints the configuration that serve would use, with the source of
every value that is not the default. Secrets are not shown.`,
		Example: `  WEIR_LOG_LEVEL=debug weir config effective --config weir.yaml`,
		Args:    cobra.NoArgs,
	}
	return onSources(cmd, func(cmd *cobra.Command, _ []string, src config.Sources) error {
		c, origins, err := config.Read(src)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprint(cmd.OutOrStdout(), c.Effective(origins)); err != nil {
			return err
		}
		return c.Locate(origins, c.Validate())
	})
}

func newConfigDocs() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "docs [KEY|WORD]",
		Short: "Explain the keys you need, one section, or the keys that match a word",
		Long: `Docs explains the keys that most installations set; with --all every key; with an
argument that key and those below it, or all keys that match the word.`,
		Example: `  weir config docs
  weir config docs --all
  weir config docs namespaces
  weir config docs log.level
  weir config docs durability`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text := config.Essentials()
			if all || len(args) > 0 {
				var err error
				if text, err = config.Reference(strings.Join(args, "")); err != nil {
					return err
				}
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "explain every key")
	return cmd
}
