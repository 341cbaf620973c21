package mercure

import (
	"fmt"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// settings are a compiled Config. Immutable, but for grants.
type settings struct {
	cfg     Config
	keys    [roles]*auth.Authenticator
	issuers map[string]*auth.Authenticator

	grants grantCache // any goroutine
}

// conf are the settings now. What belongs together is read from one of them.
func (s *Server) conf() *settings { return s.settings.Load() }

// Config returns the configuration now, with defaults.
func (s *Server) Config() Config { return s.conf().cfg }

// A Finder returns the namespace of a channel, as hub.Hub.Namespace does.
type Finder func(channel string) (*hub.Namespace, error)

// Prepare compiles cfg, with key sets and namespaces as they will be, and returns what puts
// it in place of the configuration until now. What fixes the endpoints, the namespace and
// the patterns stays what it was in New: Enabled, Path, Namespace, PublicURL, Draft,
// Subscriptions, MaxPatternBytes and MaxBody.
func (s *Server) Prepare(cfg Config, sets auth.KeySets, namespaces Finder) (replace func(), err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	next, err := compile(cfg.WithDefaults(), sets, s.deps.Auth, namespaces)
	if err != nil {
		return nil, err
	}
	c, was := &next.cfg, &s.conf().cfg
	c.Enabled, c.Path, c.Namespace, c.PublicURL, c.Draft = was.Enabled, was.Path, was.Namespace, was.PublicURL, was.Draft
	c.Subscriptions, c.MaxPatternBytes, c.MaxBody = was.Subscriptions, was.MaxPatternBytes, was.MaxBody
	return func() { s.settings.Store(next) }, nil
}

// compile makes settings of a valid cfg with its defaults.
func compile(cfg Config, sets auth.KeySets, own *auth.Authenticator, find Finder) (*settings, error) {
	x := &settings{cfg: cfg, issuers: make(map[string]*auth.Authenticator)}
	switch ns, err := find(cfg.Namespace + ":x"); {
	case err != nil:
		return nil, fmt.Errorf("namespace %q: %w; add it to namespaces", cfg.Namespace, err)
	case ns.Partitions > 1:
		return nil, fmt.Errorf("namespace %q: %w: it has %d, and a hub's topics have one order; set partitions: 1 for it, or use another namespace",
			cfg.Namespace, hub.ErrPartitioned, ns.Partitions)
	}
	var err error
	for r, name := range [roles]string{cfg.PublisherKeys, cfg.SubscriberKeys} {
		if x.keys[r], err = sets.Get(name, own); err != nil {
			return nil, fmt.Errorf("%s: %w", [roles]string{"publisher_keys", "subscriber_keys"}[r], err)
		}
	}
	for _, iss := range cfg.Issuers {
		if x.issuers[iss.Issuer], err = sets.Get(iss.Keys, nil); err != nil {
			return nil, fmt.Errorf("issuer %s: %w", iss.Issuer, err)
		}
	}
	return x, nil
}

// durability is that of the namespace.
func (s *Server) durability() hub.Durability {
	ns, err := s.deps.Hub.Namespace(s.conf().cfg.Namespace + ":x")
	if err != nil {
		return hub.None // it was removed: nothing is stored there
	}
	return ns.Durability
}

// review returns what socket.Subscription.Review decides for a stream with grant g: it ends
// with the namespace, with the key set that its token was verified by, and for want of a
// token when that is needed.
func (g *grant) review(s *Server) func(*access.Review) bool {
	return func(r *access.Review) bool {
		x := s.conf()
		channel, _ := channelOf(x.cfg.Namespace, "x")
		c := access.Caller{Identity: g.identity}
		switch by := auth.By(g.identity.Proof()); {
		case r.Lost(access.Mercure, access.Read, channel, c, c):
			return false
		case by == nil, by == x.keys[subscriber]:
			return true
		default:
			for _, a := range x.issuers {
				if a == by {
					return true
				}
			}
			return false
		}
	}
}
