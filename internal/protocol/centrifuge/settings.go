package centrifuge

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// settings are a compiled Config. Immutable, but for namespaces.
type settings struct {
	cfg       Config
	tokens    *auth.Authenticator // of connections
	subTokens *auth.Authenticator // of subscriptions
	apiKey    [sha256.Size]byte
	hasKey    bool
	proxies   proxies
	forwarded []string // header fields that some proxy is sent

	namespaces sync.Map // name → *namespace; any goroutine
}

// conf are the settings now. What belongs together is read from one of them.
func (s *Server) conf() *settings { return s.settings.Load() }

// Config returns the configuration now, with defaults.
func (s *Server) Config() Config { return s.conf().cfg }

// A Finder returns the namespace of a channel, as hub.Hub.Namespace does.
type Finder func(channel string) (*hub.Namespace, error)

// Prepare compiles cfg, with key sets and namespaces as they will be, and returns what puts
// it in place of the configuration until now. Enabled, APIPrefix and MaxCommand stay what
// they were in New.
func (s *Server) Prepare(cfg Config, sets auth.KeySets, namespaces Finder) (replace func(), err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	next, err := s.compile(cfg.WithDefaults(), sets, namespaces)
	if err != nil {
		return nil, err
	}
	was := s.conf().cfg
	next.cfg.Enabled, next.cfg.APIPrefix, next.cfg.MaxCommand = was.Enabled, was.APIPrefix, was.MaxCommand
	return func() {
		before := s.settings.Swap(next)
		before.proxies.close()
	}, nil
}

// compile makes settings of a valid cfg with its defaults.
func (s *Server) compile(cfg Config, sets auth.KeySets, namespaces Finder) (*settings, error) {
	x := &settings{cfg: cfg}
	x.proxies = newProxies(&x.cfg.Proxies)
	if err := x.loadKeys(sets, s.deps.Auth); err != nil {
		return nil, err
	}
	if err := x.loadNamespaces(namespaces, s.deps.Presence != nil); err != nil {
		return nil, err
	}
	for _, b := range x.proxies.all() {
		x.forwarded = append(x.forwarded, b.headers...)
	}
	slices.Sort(x.forwarded)
	x.forwarded = slices.Compact(x.forwarded)
	return x, nil
}

// loadNamespaces makes the namespaces that are configured, and says which cannot be.
func (x *settings) loadNamespaces(find Finder, presence bool) error {
	var errs []error
	for name, o := range x.cfg.Namespaces {
		ns, err := find(name + ":x")
		if err != nil {
			errs = append(errs, fmt.Errorf("namespaces.%s: the hub has no such namespace; add it to hub.namespaces", name))
			continue
		}
		if (o.Presence || o.JoinLeave) && !presence {
			errs = append(errs, fmt.Errorf("namespaces.%s: presence and join_leave are not available here", name))
		}
		n, err := newNamespace(*ns, o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		x.namespaces.Store(name, n)
	}
	if ch := x.cfg.EventsChannel; ch != "" {
		if _, err := find(ch); err != nil {
			errs = append(errs, fmt.Errorf("events_channel: %w", err))
		}
	}
	return errors.Join(errs...)
}

// loadKeys reads the keys of tokens and of the server API.
func (x *settings) loadKeys(sets auth.KeySets, own *auth.Authenticator) error {
	var err error
	if x.tokens, err = sets.Get(x.cfg.Keys, own); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if x.subTokens, err = sets.Get(x.cfg.SubscriptionKeys, x.tokens); err != nil {
		return fmt.Errorf("subscription_keys: %w", err)
	}
	key := string(x.cfg.APIKey)
	if x.cfg.APIKeyFile != "" {
		b, err := os.ReadFile(x.cfg.APIKeyFile)
		if err != nil {
			return fmt.Errorf("api_key_file: %w", err)
		}
		key = strings.TrimRight(string(b), "\r\n")
	}
	if x.hasKey = key != ""; x.hasKey {
		x.apiKey = sha256.Sum256([]byte(key))
	}
	return nil
}
