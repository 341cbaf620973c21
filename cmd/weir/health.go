package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
)

func newHealth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check that the server with this configuration is up",
		Long: `Health requests /healthz of the admin listener that the configuration names, and
exits with 0 if the response is 200. With --ready it requests /readyz: 503 while the
server waits for its broker or drains. Use it for a container's HEALTHCHECK and in
scripts; it needs no token.`,
		Example: `  weir health --config /etc/weir/weir.yaml
  weir health --ready --admin-listen 127.0.0.1:8001`,
		Args: cobra.NoArgs,
	}
	ready := cmd.Flags().Bool("ready", false, "check that it is ready for clients")
	timeout := durationFlag(2 * time.Second)
	cmd.Flags().Var(&timeout, "timeout", "how long to wait for the answer")
	return onSources(cmd, func(cmd *cobra.Command, _ []string, src config.Sources) error {
		if timeout <= 0 {
			return usage("write for example --timeout 2s", "health: invalid --timeout %v: want more than 0", &timeout)
		}
		c, _, err := config.Read(src)
		if err != nil {
			return err
		}
		if !c.Admin.Enabled() {
			return config.WithHint(fmt.Errorf("health: admin.listen is off, and health is checked there"), "set admin.listen to 127.0.0.1:8001, or request /healthz of the public listener")
		}
		path := "/healthz"
		if *ready {
			path = "/readyz"
		}
		if err := checkHealth(cmd.Context(), c.Admin.WithDefaults().Listen, path, time.Duration(timeout)); err != nil {
			return fmt.Errorf("health: %w", err)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "ok")
		return err
	})
}

// checkHealth requests path of the admin listener at listen; nil means that it answered 200.
func checkHealth(ctx context.Context, listen, path string, timeout time.Duration) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("admin.listen: %w", err)
	}
	// A listener on every address is reached by loopback, also without /etc/hosts.
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(host, port) + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// A proxy of the environment is not for the node's own address.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return errors.Join(fmt.Errorf("%s: %s: %s", url, resp.Status, strings.Join(strings.Fields(string(body)), " ")), err)
}
