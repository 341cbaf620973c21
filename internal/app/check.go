package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/extension/callout"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// Check returns what New would refuse in cfg, without opening a listener or a data
// directory: files that are named, and names that sections use of each other.
func Check(cfg config.Config) error {
	log := slog.New(slog.DiscardHandler)
	w := &wing{log: log, link: func() string { return "" }}
	var errs []error
	var err error
	if w.auth, err = auth.New(cfg.Auth, log); err != nil {
		errs = append(errs, fmt.Errorf("auth: %w", err))
		// Routes that require a token are checked as if the keys were all right.
		if w.auth, err = auth.New(auth.Config{KeySet: auth.KeySet{HMACSecret: auth.Secret(rand.Text() + rand.Text())}}, log); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	defer func() { _ = w.auth.Close() }()
	if cfg.TLS.Enabled() {
		t, err := tlsterm.New(cfg.TLS, log)
		if err == nil {
			err = t.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tls: %w", err))
		}
	}
	if cfg.TLS.ACME.Enabled() {
		if err := cfg.TLS.ACME.Check(); err != nil {
			errs = append(errs, fmt.Errorf("tls: %w", err))
		}
	}
	if w.trust, err = limit.NewTrust(cfg.Trusted); err != nil {
		errs = append(errs, fmt.Errorf("trusted: %w", err))
	}
	x := extension.New(extension.Options{})
	if c, err := x.Prepare(cfg.Extensions, callout.Dial); err == nil {
		c.Drop()
	} else {
		errs = append(errs, err)
	}
	w.state = policy.NewState(1)
	_, err = upstream.New(cfg.Clusters, cfg.Splits, upstream.Options{Log: log})
	errs = append(errs, err)
	_, err = w.routes(cfg)
	return errors.Join(append(errs, err)...)
}
