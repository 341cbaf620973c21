package admin

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe/admin/login"
)

// Config of the admin listener: the dashboard, /metrics, /debug and the admin API.
// The zero value serves on loopback and requires no key.
type Config struct {
	// Listen is its address, "host:port". Empty means 127.0.0.1:8001, "off" means no
	// admin listener. Any but a loopback address needs a token.
	Listen string `json:"listen"`
	// Token is what who administers must show: as "Authorization: Bearer", as the
	// password of any user (HTTP Basic), or on the login page. At least 16 bytes. Empty
	// means no authentication, on loopback only.
	Token auth.Secret `json:"token"`
	// TokenFile holds the token instead; a newline at its end is not part of it. Empty:
	// none.
	TokenFile string `json:"token_file"`
	// ReadToken lets in who only reads: /metrics, /debug/vars and GET /api, but no
	// profile, no evidence, no payload and no change. Empty: none.
	ReadToken auth.Secret `json:"read_token"`
	// OIDC lets operators log in to the dashboard through an OpenID provider, beside
	// tokens.
	OIDC login.Config `json:"oidc"`
	// LiveRate is how many snapshots a second /api/live sends while a client reads it, 1
	// to 4; 0 means 2.
	LiveRate int `json:"live_rate"`
	// CapacityReport is a file that `weir knee --json` wrote on this machine: the
	// dashboard shows how far the load is from its knee. Empty: none.
	CapacityReport string `json:"capacity_report"`
	// AuditLog is a file that records every change made on this listener, before it is made, in
	// a hash chain that `weir audit` checks. What cannot be recorded is answered 503 and not
	// done. Empty: none.
	AuditLog string `json:"audit_log"`
}

// minToken is the least length of a token: 128 bits, if each byte is one of many.
const minToken = 16

// Enabled reports whether there is an admin listener.
func (c Config) Enabled() bool { return c.Listen != "off" }

// WithDefaults returns c with zeros replaced by what they mean.
func (c Config) WithDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8001")
	c.LiveRate = cmp.Or(c.LiveRate, 2)
	return c
}

// Validate returns all that is wrong with c but for the address, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Token != "" && c.TokenFile != "" {
		errs = append(errs, errors.New("token, token_file: one of them, not both"))
	}
	for key, s := range map[string]auth.Secret{"token": c.Token, "read_token": c.ReadToken} {
		if s != "" && len(s) < minToken {
			errs = append(errs, fmt.Errorf("%s: %d bytes, at least %d: make one with: head -c 24 /dev/urandom | base64 -w0", key, len(s), minToken))
		}
	}
	if c.ReadToken != "" && c.ReadToken == c.Token {
		errs = append(errs, errors.New("read_token: it is the token: anyone who has it could do everything"))
	}
	if c.ReadToken != "" && !c.Guarded() {
		errs = append(errs, errors.New("read_token: without token, token_file or oidc it has no effect"))
	}
	if err := c.OIDC.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("oidc: %w", err))
	}
	if c.LiveRate < 0 || c.LiveRate > 4 {
		errs = append(errs, fmt.Errorf("live_rate: %d is not within 1..4", c.LiveRate))
	}
	return errors.Join(errs...)
}

// Guarded reports whether callers have to show a token or to log in.
func (c Config) Guarded() bool { return c.Token != "" || c.TokenFile != "" || c.OIDC.Enabled() }

// token returns the token, from its file if it is there.
func (c Config) token() (string, error) {
	if c.TokenFile == "" {
		return string(c.Token), nil
	}
	b, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("token_file: %w", err)
	}
	t := strings.TrimRight(string(b), "\r\n")
	if len(t) < minToken {
		return "", fmt.Errorf("token_file: %s: %d bytes, at least %d", c.TokenFile, len(t), minToken)
	}
	return t, nil
}

// Loopback reports whether a listener on addr, "host:port", can be reached from this
// machine alone.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
