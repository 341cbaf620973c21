package mercure

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Server: the section "mercure". The zero value serves nothing.
type Config struct {
	// Enabled serves the protocol. Off by default.
	Enabled bool `json:"enabled" reload:"restart"`
	// Path is where the hub is; empty means "/.well-known/mercure", which is where the
	// protocol wants it.
	Path string `json:"path" reload:"restart"`
	// Namespace holds the hub's topics as channels; empty means "mercure". It must be
	// among the namespaces.
	Namespace string `json:"namespace" reload:"restart"`
	// PublicURL is the hub's URL as clients know it, as "https://example.com/.well-known/mercure".
	// Relative URL patterns, and relative topics for them, stand beside it. Empty: Resource,
	// where that is a URL; without either they match each other only, and links are relative.
	PublicURL string `json:"public_url" reload:"restart"`
	// Draft is what is served: "both", "07" (hubs of versions 0.x: what deployed clients
	// speak) or "08" (version 1.0). Empty means both, by what each request says.
	Draft string `json:"draft" reload:"restart"`
	// PublisherKeys names the key set of publishers' tokens, SubscriberKeys that of
	// subscribers'. Empty: the keys of auth.
	PublisherKeys  string `json:"publisher_keys" secret:"false"`
	SubscriberKeys string `json:"subscriber_keys" secret:"false"`
	// Resource is the hub's resource identifier, which tokens of draft 08 must have in
	// their aud; empty means PublicURL. Without either they are refused.
	Resource string `json:"resource"`
	// Issuers are those whose tokens of draft 08 are accepted, each with a key set
	// of its own. Empty: any, by the keys above.
	Issuers []Issuer `json:"issuers"`
	// Anonymous lets clients without a token subscribe to public updates.
	Anonymous bool `json:"anonymous"`
	// Subscriptions publishes an update when a subscription starts and when it ends, one
	// for each selector, and serves the list of them. Off by default.
	Subscriptions bool `json:"subscriptions" reload:"restart"`
	// PublishOrigins are the origins whose pages may publish with a cookie, as
	// "https://example.com", or "*" for any. Empty: none. A token in a header needs none.
	PublishOrigins []string `json:"publish_origins"`
	// Cookie may carry a token of draft 07; empty means "mercureAuthorization".
	Cookie string `json:"cookie" secret:"false"`
	// Cookie08 may carry one of draft 08; empty means "__Secure-mercure_access_token".
	Cookie08 string `json:"cookie_08" secret:"false"`
	// QueryToken accepts tokens of draft 07 in the query parameter "authorization".
	QueryToken setting.Switch `json:"query_token"`
	// Heartbeat is how often a comment is sent in silence; 0 means 40s.
	Heartbeat hub.Duration `json:"heartbeat" reload:"connection"`
	// ConnectionLife is after how long a subscriber is to connect anew: at random
	// between 80 and 100 % of it. 0 means 10m, negative never.
	ConnectionLife hub.Duration `json:"connection_life" reload:"connection"`
	// MaxTopics bounds the topics of a subscription of draft 07; 0 means 1,000, the most.
	MaxTopics int `json:"max_topics"`
	// MaxMatchers bounds the matchers of a subscription of draft 08; 0 means 100, the most.
	MaxMatchers int `json:"max_matchers"`
	// MaxPatternBytes bounds what URI templates and URL patterns of subscribers and
	// tokens take together, each once; requests that need more get a 503. 0
	// means 256 MiB.
	MaxPatternBytes int64 `json:"max_pattern_bytes" reload:"restart" unit:"bytes"`
	// MaxBody bounds the form of a publication in bytes; 0 means 4 MiB. The payload is
	// bounded by the namespace as well.
	MaxBody int `json:"max_body" reload:"restart" unit:"bytes"`
}

// An Issuer is an authorization server.
type Issuer struct {
	// Issuer is its identifier: the token's iss. Required.
	Issuer string `json:"issuer"`
	// Keys names the issuer's key set. Required.
	Keys string `json:"keys" secret:"false"`
}

// Defaults of Config.
const (
	defaultPath      = "/.well-known/mercure"
	defaultNamespace = "mercure"
	defaultCookie07  = "mercureAuthorization"
	defaultCookie08  = "__Secure-mercure_access_token"
	defaultHeartbeat = hub.Duration(40 * time.Second)
	defaultLife      = hub.Duration(10 * time.Minute)
	defaultMaxBody   = 4 << 20

	defaultMaxPatternBytes = 256 << 20
	// unknownHub replaces PublicURL in URL patterns: no topic is there.
	unknownHub = "https://hub.invalid"
)

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.Path = cmp.Or(c.Path, defaultPath)
	c.Namespace = cmp.Or(c.Namespace, defaultNamespace)
	c.Draft = cmp.Or(c.Draft, "both")
	c.Resource = cmp.Or(c.Resource, c.PublicURL)
	c.Cookie = cmp.Or(c.Cookie, defaultCookie07)
	c.Cookie08 = cmp.Or(c.Cookie08, defaultCookie08)
	c.Heartbeat = cmp.Or(c.Heartbeat, defaultHeartbeat)
	c.ConnectionLife = cmp.Or(c.ConnectionLife, defaultLife)
	c.MaxTopics = cmp.Or(c.MaxTopics, protocol.MaxTopics07)
	c.MaxMatchers = cmp.Or(c.MaxMatchers, protocol.MaxMatchers)
	c.MaxPatternBytes = cmp.Or(c.MaxPatternBytes, defaultMaxPatternBytes)
	c.MaxBody = cmp.Or(c.MaxBody, defaultMaxBody)
	return c
}

// Validate returns all that is wrong with c, joined; it reads the files that c names.
func (c Config) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	d := c.WithDefaults()
	if !strings.HasPrefix(d.Path, "/") || d.Path == "/" || path.Clean(d.Path) != d.Path || strings.ContainsAny(d.Path, "*?#% ") {
		add(`path: %q is not a path as "/.well-known/mercure"`, c.Path)
	}
	if !slices.Contains([]string{"both", "07", "08"}, d.Draft) {
		add("draft: %q is none of both, 07 and 08", c.Draft)
	}
	if c.PublicURL != "" {
		if u, err := url.Parse(c.PublicURL); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || u.RawQuery != "" || u.Fragment != "" {
			add("public_url: %q is not a URL of http or https without query", c.PublicURL)
		}
	}
	for _, o := range c.PublishOrigins {
		if u, err := url.Parse(o); o != "*" && (err != nil || u.Host == "" || u.Scheme+"://"+u.Host != o) {
			add(`publish_origins: %q is not an origin as "https://example.com"`, o)
		}
	}
	for name, v := range map[string]string{"cookie": d.Cookie, "cookie_08": d.Cookie08} {
		if strings.ContainsAny(v, "=;,\" \t\r\n\\") {
			add("%s: %q is not a name of a cookie", name, v)
		}
	}
	if d.Heartbeat < hub.Duration(time.Second) {
		add("heartbeat: %s is less than 1s", c.Heartbeat)
	}
	if d.MaxPatternBytes < 1<<20 {
		add("max_pattern_bytes: %d is less than 1 MiB", c.MaxPatternBytes)
	}
	if c.ConnectionLife > 0 && c.ConnectionLife < hub.Duration(time.Second) {
		add("connection_life: %s is less than 1s; -1s means no end", c.ConnectionLife)
	}
	for name, n := range map[string]struct{ v, most int }{
		"max_topics": {d.MaxTopics, protocol.MaxTopics07}, "max_matchers": {d.MaxMatchers, protocol.MaxMatchers}, "max_body": {d.MaxBody, 64 << 20},
	} {
		if n.v < 1 || n.v > n.most {
			add("%s: %d is not within 1..%d", name, n.v, n.most)
		}
	}
	return errors.Join(append(errs, c.validateIssuers()...)...)
}

func (c Config) validateIssuers() (errs []error) {
	seen := map[string]bool{}
	for i, iss := range c.Issuers {
		name := fmt.Sprintf("issuers[%d]", i)
		if iss.Issuer == "" || seen[iss.Issuer] {
			errs = append(errs, fmt.Errorf("%s: issuer %q is empty or there twice", name, iss.Issuer))
		}
		seen[iss.Issuer] = true
		if iss.Keys == "" {
			errs = append(errs, fmt.Errorf("%s.keys: name one of key_sets", name))
		}
	}
	return errs
}

// served are the dialects.
func (c Config) served() protocol.Dialects {
	return protocol.Dialects{Draft07: c.Draft != "08", Draft08: c.Draft != "07"}
}

// base is the URL that patterns are read beside.
func (c Config) base() string {
	if c.PublicURL != "" {
		return c.PublicURL
	}
	if u, err := url.Parse(c.Resource); err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http") {
		return c.Resource
	}
	return unknownHub + c.Path
}
