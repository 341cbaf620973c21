package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe/monitor"
)

func newConfigAlerts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "alerts",
		Short: "Print Prometheus rules with the configured thresholds",
		Long: `Alerts prints alert and recording rules for Prometheus, on the thresholds that
the configuration sets for the governor, so that state, dashboard and alerts use
the same numbers. The rules for the defaults are in deploy/prometheus/weir.rules.yaml.`,
		Example: `  weir config alerts --config weir.yaml > weir.rules.yaml
  promtool check rules weir.rules.yaml`,
		Args: cobra.NoArgs,
	}
	return onSources(cmd, func(cmd *cobra.Command, _ []string, src config.Sources) error {
		cfg, err := config.Load(src)
		if err != nil {
			return err
		}
		return monitor.Rules(cmd.OutOrStdout(), cfg.Governor.Thresholds, "Printed by: weir config alerts")
	})
}
