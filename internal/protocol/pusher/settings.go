package pusher

import (
	"fmt"
	"reflect"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// settings are a compiled Config. Immutable.
type settings struct {
	cfg   Config
	byKey map[string]*app
	byID  map[string]*app
	byNS  map[string]*app
	// byLobby has the apps with watchlists.
	byLobby map[string]*app
}

// conf are the settings now. What belongs together is read from one of them.
func (s *Server) conf() *settings { return s.settings.Load() }

// Config returns the configuration now, with defaults.
func (s *Server) Config() Config { return s.conf().cfg }

// A Finder returns the namespace of a channel, as hub.Hub.Namespace does.
type Finder func(channel string) (*hub.Namespace, error)

// Prepare compiles cfg, with namespaces as they will be, and returns what puts it in place of
// the configuration until now. What fixes endpoints, formats and queues stays what it was in
// New: Enabled, DefaultEvent, MaxEventData, MaxChannels, MaxBatch, VacatedDelay,
// CountInterval and WebhookQueue; and an app's Namespace.
func (s *Server) Prepare(cfg Config, namespaces Finder) (replace func(), err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	before := s.conf()
	was := &before.cfg
	cfg.Enabled, cfg.DefaultEvent, cfg.MaxEventData, cfg.MaxChannels, cfg.MaxBatch = was.Enabled, was.DefaultEvent, was.MaxEventData, was.MaxChannels, was.MaxBatch
	cfg.VacatedDelay, cfg.CountInterval, cfg.WebhookQueue = was.VacatedDelay, was.CountInterval, was.WebhookQueue
	next, err := s.compile(cfg, before, namespaces)
	if err != nil {
		return nil, err
	}
	return func() {
		s.settings.Store(next)
		s.hooks.turn(before, next)
	}, nil
}

// compile makes settings of a valid cfg with its defaults. Apps that were there before, if
// before is not nil, are still the same, or share what they have learned.
func (s *Server) compile(cfg Config, before *settings, find Finder) (*settings, error) {
	x := &settings{cfg: cfg, byKey: map[string]*app{}, byID: map[string]*app{}, byNS: map[string]*app{}, byLobby: map[string]*app{}}
	for i, c := range cfg.Apps {
		var was *app
		if before != nil {
			was = before.byID[c.ID]
		}
		if was != nil && was.Namespace != c.Namespace {
			return nil, fmt.Errorf("apps[%d]: namespace: that of an app cannot change in a running process: restart it", i)
		}
		if _, err := find(c.Namespace + ":x"); err != nil {
			return nil, fmt.Errorf("apps[%d]: namespace %q: %w; add it to namespaces", i, c.Namespace, err)
		}
		a := was
		if was == nil || !reflect.DeepEqual(was.App, c) {
			a = newApp(s, c, cfg.WebhookQueue, was)
		}
		x.byKey[a.Key], x.byID[a.ID], x.byNS[a.Namespace] = a, a, a
		if a.Watchlists {
			x.byLobby[a.lobby] = a
		}
	}
	return x, nil
}

// newApp makes an app; was is the one that it replaces, nil for none.
func newApp(s *Server, c App, queue int, was *app) *app {
	a := &app{App: c, inside: c.Namespace + ":x", secret: string(c.Secret), crowd: "\x00pusher connections " + c.ID, lobby: "\x00pusher users " + c.ID, hooked: map[string]bool{}}
	if c.Namespace != "default" {
		a.prefix = c.Namespace + ":"
	}
	var old []*hook
	if was != nil {
		a.users, old = was.users, was.hooks
	} else {
		a.users = &users{}
		a.users.init()
	}
	for _, w := range c.Webhooks {
		h := sameHook(old, w)
		if h == nil {
			h = &hook{Webhook: w, s: s, queue: make(chan hookEvent, queue)}
			h.app.Store(a)
		}
		a.hooks = append(a.hooks, h)
		for _, e := range hookEvents {
			if len(w.Events) == 0 && e != hookCount || w.matches(e, w.ChannelPrefix+w.ChannelSuffix) {
				a.hooked[e] = true
			}
		}
	}
	return a
}

// sameHook returns the hook of a webhook that is as it was, with what waits in it.
func sameHook(hooks []*hook, w Webhook) *hook {
	for _, h := range hooks {
		if reflect.DeepEqual(h.Webhook, w) {
			return h
		}
	}
	return nil
}

// hooks are the webhooks of all apps.
func (x *settings) hooks() map[*hook]*app {
	all := map[*hook]*app{}
	for _, a := range x.byID {
		for _, h := range a.hooks {
			all[h] = a
		}
	}
	return all
}

// removed replaces a namespace that a reload has removed, until its clients
// have ended.
var removed = (hub.Namespace{}).WithDefaults()

// namespace returns the app's namespace as it is now.
func (a *app) namespace(h *hub.Hub) *hub.Namespace {
	if ns, err := h.Namespace(a.inside); err == nil {
		return ns
	}
	return &removed
}

func (c *session) namespace() *hub.Namespace { return c.app.namespace(c.s.deps.Hub) }

var _ access.Reviewed = (*session)(nil)

// Review implements access.Reviewed. A connection ends with its app or the key that it came
// with. Anyone who has shown a signature comes back at once for another, if the secret has changed.
func (c *session) Review(r *access.Review) (stays bool) {
	if c.gone || c.app == nil {
		return true
	}
	code, reason := c.loses(r)
	if code == 0 {
		if !r.Dry {
			c.app = c.s.conf().byID[c.app.ID]
		}
		return true
	}
	if !r.Dry {
		c.close(code, reason)
	}
	return false
}

// loses returns why the client may not stay; code 0 means that it may.
func (c *session) loses(r *access.Review) (code int, reason string) {
	if r.Revoked != nil {
		if c.isRevoked(r) {
			return protocol.CloseUnauthorized, "The user was revoked"
		}
		return 0, ""
	}
	now := c.s.conf().byID[c.app.ID]
	switch {
	case now == nil || now.Key != c.app.Key || !r.Known(now.prefix+"x"):
		return protocol.CloseUnknownApp, "The app or its key was removed"
	case !now.Enabled.On():
		return protocol.CloseDisabled, "The app is disabled"
	case now.secret != c.app.secret && (c.user != nil || signed(c.subs)):
		return protocol.CloseReconnect, "The secret of the app has changed"
	}
	for _, sub := range c.subs {
		proof := access.Caller{Proof: sub.kind.Is(protocol.Private) || sub.signedIn()}
		if r.Lost(access.Pusher, access.Read, sub.hubName(), proof, proof) {
			return protocol.CloseUnauthorized, "The app may not use the channel any more"
		}
	}
	return 0, ""
}

// isRevoked reports whether the user who has signed in, or who is a member of a presence channel, is
// revoked.
func (c *session) isRevoked(r *access.Review) bool {
	if c.user != nil && r.Revoked(c.user.ID, auth.TokenID{}) {
		return true
	}
	for _, sub := range c.subs {
		if sub.rare != nil && r.Revoked(sub.rare.member.ID, auth.TokenID{}) {
			return true
		}
	}
	return false
}

// signed reports whether the app has signed for one of the channels.
func signed(subs map[string]*subscription) bool {
	for _, sub := range subs {
		if sub.kind.Is(protocol.Private) {
			return true
		}
	}
	return false
}
