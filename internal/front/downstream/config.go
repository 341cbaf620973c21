package downstream

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Server: what an HTTP client may take in time and size. The zero
// value works.
type Config struct {
	// HeadTimeout bounds the time from accept, or from the first byte of a later
	// request, to the end of the head; 0 means 10s.
	HeadTimeout hub.Duration `json:"head_timeout"`
	// BodyTimeout bounds the time a body may take, plus one second per KiB;
	// 0 means 10s.
	BodyTimeout hub.Duration `json:"body_timeout"`
	// KeepAlive closes a connection without a request for that long; 0 means 15s.
	KeepAlive hub.Duration `json:"keep_alive"`
	// MaxLine bounds the request line in bytes; 0 means 8 KiB. Beyond: 414.
	MaxLine int `json:"max_line" unit:"bytes"`
	// MaxHead bounds the head in bytes; 0 means 32 KiB, at most 64 KiB. Beyond: 431.
	MaxHead int `json:"max_head" unit:"bytes"`
	// MaxFields bounds the header fields; 0 means 100. Beyond: 431.
	MaxFields int `json:"max_fields"`
	// BuiltinHosts are the hosts whose paths /sse, /ws, /api/publish, /api/broadcast,
	// /healthz, /readyz and so on (below builtin_prefix) are Weir's own, without ports.
	// Empty means every host: then these paths are never a route's. On other hosts than those listed
	// every path is.
	BuiltinHosts []string `json:"builtin_hosts"`
	// BuiltinPrefix precedes Weir's own paths: with "/weir" they are
	// /weir/sse, /weir/ws, /weir/api/publish, /weir/healthz and so on, and all other
	// paths are for routes. Clients have it in their URL: https://example.com/weir. The
	// paths of protocols stay where they are. Empty means no prefix.
	BuiltinPrefix string `json:"builtin_prefix"`
	// RoutesOnly leaves /healthz and /readyz as Weir's own paths, and no others: there
	// is nothing to subscribe to.
	RoutesOnly bool `json:"-"`
	// HalfClose lets a client that ended its sending side have the answer to a
	// request that was proxied. False, as a client that closes looks the same: its
	// upstream request is cancelled. Weir's own paths always answer.
	HalfClose bool `json:"half_close"`
	// HTTP2 serves HTTP/2 as well: agreed on in the TLS handshake, or by prior
	// knowledge without TLS.
	HTTP2 setting.Switch `json:"http2"`
	// HTTP3 serves HTTP/3 as well, on the UDP port of the same number as the listener's.
	// It needs TLS. Answers over the other versions announce it by Alt-Svc.
	HTTP3 bool `json:"http3"`
	// AltSvc is the value of Alt-Svc (RFC 7838) in answers while there is HTTP/3, for where
	// clients see another port than the listener's: h3=":443"; ma=3600. Empty means the
	// listener's port, for a day.
	AltSvc string `json:"alt_svc"`
	// MaxVerifying bounds the tokens that are being verified at a time; at the
	// bound clients are asked to come back. 0 means 1,024.
	MaxVerifying int `json:"max_verifying"`
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.HeadTimeout < 0 || c.BodyTimeout < 0 || c.KeepAlive < 0 {
		errs = append(errs, errors.New("head_timeout, body_timeout and keep_alive must not be negative"))
	}
	within := func(key string, v, hi int) {
		if v < 0 || v > hi {
			errs = append(errs, fmt.Errorf("%s: %d is not within 1..%d", key, v, hi))
		}
	}
	within("max_line", c.MaxLine, 32<<10)
	within("max_head", c.MaxHead, 64<<10)
	within("max_fields", c.MaxFields, 1000)
	within("max_verifying", c.MaxVerifying, 1<<20)
	for _, h := range c.BuiltinHosts {
		if strings.ContainsAny(h, ":/* ") || h == "" {
			errs = append(errs, fmt.Errorf("builtin_hosts: %q is not a host name; write it without port", h))
		}
	}
	if !http1.ValidValue(c.AltSvc) {
		errs = append(errs, fmt.Errorf("alt_svc: %.40q cannot be a field's value: want the likes of h3=\":443\"; ma=3600", c.AltSvc))
	}
	if err := socket.CheckPrefix(c.BuiltinPrefix); err != nil {
		errs = append(errs, fmt.Errorf("builtin_prefix: %w", err))
	}
	return errors.Join(errs...)
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.HeadTimeout = cmp.Or(c.HeadTimeout, hub.Duration(10*time.Second))
	c.BodyTimeout = cmp.Or(c.BodyTimeout, hub.Duration(10*time.Second))
	c.KeepAlive = cmp.Or(c.KeepAlive, hub.Duration(15*time.Second))
	c.MaxLine = cmp.Or(c.MaxLine, 8<<10)
	c.MaxHead = cmp.Or(c.MaxHead, 32<<10)
	c.MaxFields = cmp.Or(c.MaxFields, 100)
	c.MaxVerifying = cmp.Or(c.MaxVerifying, 1024)
	return c
}
