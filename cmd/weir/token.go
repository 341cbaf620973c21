package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
)

func newToken() *cobra.Command {
	var (
		claims  auth.MintClaims
		keyFile string
	)
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Issue a token with the right to subscribe or publish",
		Long: `Token prints a signed JWT with grants for channel patterns. It signs with the
configuration's auth.hmac_secret, or with the private key in a PEM file whose
public key the server has.

In a pattern, * matches one or more bytes other than . : and /, and ** for
one or more of any bytes.`,
		Example: `  weir token --config weir.yaml --sub alice --subscribe 'orders.*'
  weir token --subscribe '**' --publish 'orders.**' --ttl 15m
  weir token --private-key ed25519.pem --kid 2026 --subscribe news`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&claims.Subject, "sub", "", "`subject` of the token")
	fs.StringSliceVar(&claims.Subscribe, "subscribe", nil, "channel `patterns` it may subscribe to, repeatable")
	fs.StringSliceVar(&claims.Publish, "publish", nil, "channel `patterns` it may publish to, repeatable")
	claims.TTL = time.Hour
	fs.Var((*durationFlag)(&claims.TTL), "ttl", "how long it is valid, such as 15m or 30d")
	fs.BoolVar(&claims.NoExpiry, "no-expiry", false, "never expires; the server must have auth.require_expiry: false")
	fs.StringVar(&keyFile, "private-key", "", "PEM `file` of the key to sign with (default: auth.hmac_secret)")
	fs.StringVar(&claims.KeyID, "kid", "", "key `id` in the token's header")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if len(claims.Subscribe) == 0 && len(claims.Publish) == 0 {
			return usage("add --subscribe PATTERN or --publish PATTERN", "token: it would grant nothing")
		}
		if claims.NoExpiry && !cmd.Flags().Changed("ttl") {
			claims.TTL = 0
		} else if claims.TTL <= 0 {
			return usage("write for example --ttl 15m", "token: invalid --ttl %v: want more than 0", claims.TTL)
		}
		return nil
	}
	return onSources(cmd, func(cmd *cobra.Command, _ []string, src config.Sources) error {
		c, _, err := config.Read(src)
		if err != nil {
			return err
		}
		if keyFile != "" {
			if claims.PrivateKey, err = os.ReadFile(keyFile); err != nil {
				return fmt.Errorf("token: %w", err)
			}
		}
		token, err := auth.Mint(c.Auth, claims)
		if err != nil {
			return fmt.Errorf("token: %w", err)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
		return err
	})
}
