// Package alert evaluates alert rules inside the process and posts what fires and what is
// resolved to webhooks. The rules are those of the governor and of the degraded modes, with
// the names, levels and thresholds that they have in the rules for Prometheus.
//
// What a process cannot see of itself, such as that it is gone, stays Prometheus's.
package alert

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config is where alerts are posted. The zero value posts nothing.
type Config struct {
	// Webhooks get each alert once when it fires and once when it is resolved; up to 16.
	Webhooks []Webhook `json:"webhooks"`
	// ResolveAfter is how long an alert's condition has to be false before the alert is
	// resolved; if it is true again before, nothing is posted. 0 means 1m.
	ResolveAfter hub.Duration `json:"resolve_after"`
}

// A Webhook is an address that alerts are posted to, as JSON.
type Webhook struct {
	// Name is its label in metrics and logs. Empty means its host.
	Name string `json:"name"`
	// URL is its address, http or https.
	URL string `json:"url" secret:"path"`
	// Levels are those of the alerts that it gets: page, ticket, information. Empty means
	// page and ticket.
	Levels []governor.Level `json:"levels"`
	// Format of the body: "weir", or "alertmanager" for receivers of Alertmanager's
	// webhooks (version 4). Empty means weir.
	Format string `json:"format"`
	// Secret signs each body: Weir-Signature is then t=<Unix time>,v1=<HMAC-SHA256 of
	// "<Unix time>.<body>", in hexadecimal>. At least 16 bytes. Empty: no signature.
	Secret auth.Secret `json:"secret"`
	// SecretFile holds the secret instead; a newline at its end is not part of it. Empty:
	// none.
	SecretFile string `json:"secret_file"`
	// Authorization is the value of that field, such as "Bearer …". Empty: none.
	Authorization auth.Secret `json:"authorization"`
	// Timeout bounds a request. 0 means 10s.
	Timeout hub.Duration `json:"timeout"`
	// GiveUp is how long an alert is posted again while the webhook does not take it, with
	// pauses from 1s to 1m. 0 means 15m.
	GiveUp hub.Duration `json:"give_up"`
}

// The formats of bodies.
const (
	formatWeir         = "weir"
	formatAlertmanager = "alertmanager"
)

const (
	maxWebhooks = 16
	minSecret   = 16
)

// WithDefaults returns c with zeros replaced by what they mean.
func (c Config) WithDefaults() Config {
	c.ResolveAfter = cmp.Or(c.ResolveAfter, hub.Duration(time.Minute))
	return c
}

// WithDefaults returns w with zeros replaced by what they mean.
func (w Webhook) WithDefaults() Webhook {
	if u, err := url.Parse(w.URL); w.Name == "" && err == nil {
		w.Name = u.Host
	}
	if len(w.Levels) == 0 {
		w.Levels = []governor.Level{governor.Page, governor.Ticket}
	}
	w.Format = cmp.Or(w.Format, formatWeir)
	w.Timeout = cmp.Or(w.Timeout, hub.Duration(10*time.Second))
	w.GiveUp = cmp.Or(w.GiveUp, hub.Duration(15*time.Minute))
	return w
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Webhooks) > maxWebhooks {
		bad("webhooks: there are %d, at most %d", len(c.Webhooks), maxWebhooks)
	}
	if c.ResolveAfter < 0 {
		bad("resolve_after: %v is negative", c.ResolveAfter)
	}
	names := map[string]int{}
	for i, w := range c.Webhooks {
		w = w.WithDefaults()
		for _, err := range w.problems() {
			errs = append(errs, fmt.Errorf("webhooks[%d]: %w", i, err))
		}
		if j, dup := names[w.Name]; dup {
			bad("webhooks[%d]: name: %q is that of webhooks[%d]: give each its own", i, w.Name, j)
		}
		names[w.Name] = i
	}
	return errors.Join(errs...)
}

func (w *Webhook) problems() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if u, err := url.Parse(w.URL); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		bad("url: %q is not an http or https address", redact.Endpoint(w.URL))
	}
	for _, l := range w.Levels {
		if l != governor.Page && l != governor.Ticket && l != governor.Information {
			bad("levels: %.40q is none of %s, %s, %s", string(l), governor.Page, governor.Ticket, governor.Information)
		}
	}
	if !slices.Contains([]string{formatWeir, formatAlertmanager}, w.Format) {
		bad("format: %.40q is none of %s, %s", w.Format, formatWeir, formatAlertmanager)
	}
	if w.Secret != "" && w.SecretFile != "" {
		bad("secret, secret_file: one of them, not both")
	}
	if n := len(w.Secret); n > 0 && n < minSecret {
		bad("secret: %d bytes, at least %d: make one with: head -c 24 /dev/urandom | base64 -w0", n, minSecret)
	}
	if strings.ContainsAny(string(w.Authorization), "\r\n") {
		bad("authorization: it has more than one line")
	}
	if w.Timeout < 0 || w.GiveUp < 0 {
		bad("timeout, give_up: they are not negative")
	}
	return errs
}

// secret returns what signs the bodies, from its file if that is set.
func (w *Webhook) secret() ([]byte, error) {
	if w.SecretFile == "" {
		return []byte(w.Secret), nil
	}
	b, err := os.ReadFile(w.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("secret_file: %w", err)
	}
	s := strings.TrimRight(string(b), "\r\n")
	if len(s) < minSecret {
		return nil, fmt.Errorf("secret_file: %s: %d bytes, at least %d", w.SecretFile, len(s), minSecret)
	}
	return []byte(s), nil
}
