package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/access"
)

func newConfigAccess() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "access",
		Short: "Show who may read, publish and see presence, by every protocol",
		Long: `Access queries the access model, which also decides at run time, about an example of
every class of channels in every namespace, and prints the least that a caller needs.
"(public)" means that private messages are not included; protocols that allow no
caller are omitted.

  anyone         a client without credentials
  any user       a client with a token that grants nothing
  its users      the users that the channel's name has
  grant of **    a token with a grant that is a wildcard
  grant by name  a token with a grant that names the channel
  subscribers    a client that is subscribed to the channel
  proof          a client with a subscription token, an application's signature, a
                 Mercure claim or a backend's permission for this channel
  API key        one of auth.api_keys, for the patterns that it has
  server key     centrifuge.api_key, or a request signed by the application`,
		Example: `  weir config access --config weir.yaml
  weir config access --config weir.yaml --json`,
		Args: cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print a JSON array with the verdict for each kind of caller")
	return onSources(cmd, func(cmd *cobra.Command, _ []string, src config.Sources) error {
		cfg, err := config.Load(src)
		if err != nil {
			return err
		}
		rows := cfg.AccessModel().Table(cfg.Namespaces)
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), rows)
		}
		return access.Write(cmd.OutOrStdout(), rows)
	})
}
