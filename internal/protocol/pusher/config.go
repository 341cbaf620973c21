package pusher

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Server: the section "pusher". The zero value serves nothing.
type Config struct {
	// Enabled serves /app and /apps. Off by default.
	Enabled bool `json:"enabled" reload:"restart"`
	// Apps are the applications, each with keys and a namespace of its own. At least one.
	Apps []App `json:"apps"`
	// HealthPaths are paths that answer load balancers as soketi does (/ and /ready: OK) and
	// Reverb (/up), and with 503 while the process drains. Empty means none: /healthz and
	// /readyz are there anyway.
	HealthPaths []string `json:"health_paths" reload:"restart"`
	// DefaultEvent is the event name of messages that were published through other APIs
	// without one; empty means "message".
	DefaultEvent string `json:"default_event" reload:"restart"`
	// ActivityTimeout is after how much silence a client pings, sent to it at connect; 0 means 2m.
	ActivityTimeout hub.Duration `json:"activity_timeout"`
	// PongTimeout is how long a client may take to answer a ping before it is closed
	// with 4201; 0 means 30s.
	PongTimeout hub.Duration `json:"pong_timeout"`
	// MaxEventData bounds the data of an event in bytes; 0 means 10 KiB.
	MaxEventData int `json:"max_event_data" reload:"restart" unit:"bytes"`
	// MaxChannels bounds the channels of one trigger; 0 means 100.
	MaxChannels int `json:"max_channels" reload:"restart"`
	// MaxBatch bounds the events of one batch; 0 means 10.
	MaxBatch int `json:"max_batch" reload:"restart"`
	// MaxSubscriptions bounds the channels of a connection; 0 means 1,000.
	MaxSubscriptions int `json:"max_subscriptions"`
	// ClientEventRate bounds the client events per second of a connection; 0 means 10.
	ClientEventRate int `json:"client_event_rate"`
	// MessageRate bounds the messages of any kind per second of a connection, which may
	// also send two for each of max_subscriptions at once; more than that closes it with
	// 4100. 0 means 100.
	MessageRate int `json:"message_rate"`
	// MaxMembers bounds the users on a presence channel; 0 means 100.
	MaxMembers int `json:"max_members"`
	// MaxMemberData bounds channel_data and user_data in bytes; 0 means 2 KiB.
	MaxMemberData int `json:"max_member_data" unit:"bytes"`
	// MaxWatchlist bounds the users whom one user watches; 0 means 100.
	MaxWatchlist int `json:"max_watchlist"`
	// VacatedDelay is how long a channel must be without subscribers before
	// channel_vacated is sent, and a user gone for the webhook member_removed and for
	// those who watch the user, so that a page that is reloaded is no news; 0 means 3s.
	VacatedDelay hub.Duration `json:"vacated_delay" reload:"restart"`
	// CountInterval is how often a channel's subscription_count is sent at most; 0 means 1s.
	CountInterval hub.Duration `json:"count_interval" reload:"restart"`
	// WebhookWindow is how long events are gathered for one webhook request; 0 means 100ms.
	WebhookWindow hub.Duration `json:"webhook_window"`
	// WebhookTimeout bounds one webhook request; 0 means 10s.
	WebhookTimeout hub.Duration `json:"webhook_timeout"`
	// WebhookRetry is for how long a webhook request that fails is tried again, each time
	// after twice as long; 0 means 5m.
	WebhookRetry hub.Duration `json:"webhook_retry"`
	// WebhookQueue bounds the events that wait for one webhook, besides 16 MiB of data of
	// client events; what is more is dropped and counted. 0 means 10,000.
	WebhookQueue int `json:"webhook_queue" reload:"restart"`
}

// An App is one application.
type App struct {
	// ID is part of the paths of the REST API. Required.
	ID string `json:"id"`
	// Key is what clients connect with; everybody may know it. Required.
	Key string `json:"key"`
	// Secret signs subscriptions, REST calls and webhooks. Required.
	Secret auth.Secret `json:"secret"`
	// Namespace holds the app's channels, and no other app's; empty means "default".
	// What others may do there, by whichever protocol, weir config access shows: private-
	// and presence- channels need the app's signature, or a grant.
	Namespace string `json:"namespace" reload:"restart"`
	// Enabled serves the app. False answers clients 4003 and REST calls 403.
	Enabled setting.Switch `json:"enabled"`
	// ClientEvents lets clients send client- events on private and presence channels.
	// Off by default.
	ClientEvents bool `json:"client_events"`
	// SubscriptionCount sends subscribers their number, on other channels than
	// presence channels. Off by default.
	SubscriptionCount bool `json:"subscription_count"`
	// Watchlists notifies users who have signed in when users come and go that their
	// user_data names in a watchlist. Off by default.
	Watchlists bool `json:"watchlists"`
	// MaxConnections bounds the connections to all nodes together, within what they
	// learn of each other within milliseconds; 0 means no bound.
	MaxConnections int `json:"max_connections"`
	// AllowedOrigins are the hosts whose pages may connect, "*.example.com" for those
	// below one; empty means all.
	AllowedOrigins []string `json:"allowed_origins"`
	// AuthorizeWithin closes connections (4009) that neither signed in nor subscribed to
	// a private or presence channel for so long; 0 means never.
	AuthorizeWithin hub.Duration `json:"authorize_within"`
	// Webhooks receive events.
	Webhooks []Webhook `json:"webhooks"`
}

// A Webhook is an address that receives events.
type Webhook struct {
	// URL is where events are posted. Required.
	URL string `json:"url" secret:"path"`
	// Events are those wanted: channel_occupied, channel_vacated, member_added,
	// member_removed, client_event, cache_miss, subscription_count. Empty means all but
	// the last.
	Events []string `json:"events"`
	// ChannelPrefix and ChannelSuffix choose channels by name; empty means all.
	ChannelPrefix string `json:"channel_prefix"`
	ChannelSuffix string `json:"channel_suffix"`
	// Headers are sent along.
	Headers map[string]string `json:"headers"`
}

// Webhook events.
const (
	hookOccupied      = "channel_occupied"
	hookVacated       = "channel_vacated"
	hookMemberAdded   = "member_added"
	hookMemberRemoved = "member_removed"
	hookClientEvent   = "client_event"
	hookCacheMiss     = "cache_miss"
	hookCount         = "subscription_count"
)

var hookEvents = []string{hookOccupied, hookVacated, hookMemberAdded, hookMemberRemoved, hookClientEvent, hookCacheMiss, hookCount}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.ActivityTimeout = cmp.Or(c.ActivityTimeout, hub.Duration(protocol.DefaultActivity*time.Second))
	c.PongTimeout = cmp.Or(c.PongTimeout, hub.Duration(30*time.Second))
	c.VacatedDelay = cmp.Or(c.VacatedDelay, hub.Duration(3*time.Second))
	c.CountInterval = cmp.Or(c.CountInterval, hub.Duration(time.Second))
	c.WebhookWindow = cmp.Or(c.WebhookWindow, hub.Duration(100*time.Millisecond))
	c.WebhookTimeout = cmp.Or(c.WebhookTimeout, hub.Duration(10*time.Second))
	c.WebhookRetry = cmp.Or(c.WebhookRetry, hub.Duration(5*time.Minute))
	c.MaxEventData = cmp.Or(c.MaxEventData, protocol.MaxEventData)
	c.MaxChannels = cmp.Or(c.MaxChannels, protocol.MaxChannelsATime)
	c.MaxBatch = cmp.Or(c.MaxBatch, protocol.MaxBatch)
	c.MaxSubscriptions = cmp.Or(c.MaxSubscriptions, 1000)
	c.ClientEventRate = cmp.Or(c.ClientEventRate, 10)
	c.MessageRate = cmp.Or(c.MessageRate, 100)
	c.MaxMembers = cmp.Or(c.MaxMembers, 100)
	c.MaxMemberData = cmp.Or(c.MaxMemberData, 2<<10)
	c.MaxWatchlist = cmp.Or(c.MaxWatchlist, 100)
	c.WebhookQueue = cmp.Or(c.WebhookQueue, 10_000)
	c.DefaultEvent = cmp.Or(c.DefaultEvent, "message")
	apps := make([]App, len(c.Apps))
	for i, a := range c.Apps {
		a.Namespace = cmp.Or(a.Namespace, "default")
		apps[i] = a
	}
	c.Apps = apps
	return c
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.Enabled && len(c.Apps) == 0 {
		bad("apps: there is none; add one with id, key and secret")
	}
	errs = append(errs, c.beyond()...)
	for i, p := range c.HealthPaths {
		if !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "*?#% ") {
			bad("health_paths[%d]: %q is not a path such as / or /ready", i, p)
		}
	}
	d := c.WithDefaults()
	if d.ActivityTimeout < hub.Duration(time.Second) {
		bad("activity_timeout: %s is less than 1s, the unit that the protocol has", d.ActivityTimeout)
	}
	if d.MaxEventData > 1<<20 {
		bad("max_event_data: %d is more than 1 MiB, the most that a message may have", d.MaxEventData)
	}
	if d.MaxMemberData > 32<<10 {
		bad("max_member_data: %d is more than 32 KiB", d.MaxMemberData)
	}
	if err := protocol.CheckEvent(d.DefaultEvent); err != nil {
		bad("default_event: %w", err)
	}
	ids, keys, spaces := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i, a := range d.Apps {
		for _, u := range []struct {
			seen map[string]bool
			what string
			v    string
		}{{ids, "id", a.ID}, {keys, "key", a.Key}, {spaces, "namespace", a.Namespace}} {
			if u.seen[u.v] && u.v != "" {
				bad("apps[%d].%s: %q is another app's", i, u.what, u.v)
			}
			u.seen[u.v] = true
		}
		for _, err := range a.validate() {
			bad("apps[%d].%w", i, err)
		}
	}
	return errors.Join(errs...)
}

// Beyond these a number is a slip, and what is reckoned with it would overflow.
const (
	mostOfAny    = 10_000_000
	longestOfAny = 24 * time.Hour
)

// beyond returns an error for each number that is below zero or too large.
func (c Config) beyond() (errs []error) {
	for _, n := range []struct {
		name string
		v    int
	}{
		{"max_event_data", c.MaxEventData}, {"max_channels", c.MaxChannels}, {"max_batch", c.MaxBatch}, {"max_subscriptions", c.MaxSubscriptions},
		{"client_event_rate", c.ClientEventRate}, {"message_rate", c.MessageRate}, {"max_members", c.MaxMembers}, {"max_member_data", c.MaxMemberData},
		{"max_watchlist", c.MaxWatchlist}, {"webhook_queue", c.WebhookQueue},
	} {
		switch {
		case n.v < 0:
			errs = append(errs, fmt.Errorf("%s: it is negative", n.name))
		case n.v > mostOfAny:
			errs = append(errs, fmt.Errorf("%s: %d is more than %d", n.name, n.v, mostOfAny))
		}
	}
	for _, n := range []struct {
		name string
		v    hub.Duration
	}{
		{"activity_timeout", c.ActivityTimeout}, {"pong_timeout", c.PongTimeout}, {"vacated_delay", c.VacatedDelay}, {"count_interval", c.CountInterval},
		{"webhook_window", c.WebhookWindow}, {"webhook_timeout", c.WebhookTimeout}, {"webhook_retry", c.WebhookRetry},
	} {
		switch {
		case n.v < 0:
			errs = append(errs, fmt.Errorf("%s: it is negative", n.name))
		case time.Duration(n.v) > longestOfAny:
			errs = append(errs, fmt.Errorf("%s: %s is more than %s", n.name, n.v, longestOfAny))
		}
	}
	return errs
}

func (a App) validate() (errs []error) {
	bad := func(format string, x ...any) { errs = append(errs, fmt.Errorf(format, x...)) }
	for _, u := range []struct{ what, v string }{{"id", a.ID}, {"key", a.Key}} {
		if u.v == "" || len(u.v) > 64 || strings.ContainsFunc(u.v, func(r rune) bool {
			return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			bad("%s: %q is not 1 to 64 letters, digits, '-', '_' and '.'", u.what, u.v)
		}
	}
	if a.Secret == "" {
		bad("secret: it is missing; make one with: head -c 24 /dev/urandom | base64 -w0")
	}
	if err := hub.CheckChannel(a.Namespace + ":x"); err != nil {
		bad("namespace: %q is not a name of one", a.Namespace)
	}
	if a.MaxConnections < 0 {
		bad("max_connections: it is negative")
	}
	if a.AuthorizeWithin < 0 {
		bad("authorize_within: it is negative")
	}
	for i, o := range a.AllowedOrigins {
		if h := strings.TrimPrefix(o, "*."); o != "*" && (h == "" || strings.ContainsAny(h, "/*: ")) {
			bad("allowed_origins[%d]: %q is not a host; write example.com or *.example.com", i, o)
		}
	}
	for i, w := range a.Webhooks {
		u, err := url.Parse(w.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			bad("webhooks[%d].url: %q is not an http or https address", i, redact.Endpoint(w.URL))
		}
		for _, e := range w.Events {
			if !slices.Contains(hookEvents, e) {
				bad("webhooks[%d].events: %q is none of %s", i, e, strings.Join(hookEvents, ", "))
			}
		}
		for name, v := range w.Headers {
			if name == "" || strings.ContainsAny(name, " :\r\n") || strings.ContainsAny(v, "\r\n") {
				bad("webhooks[%d].headers: %q is not a header field", i, name)
			}
		}
	}
	return errs
}

// burst is how many messages a connection may send at once.
func (c *Config) burst() int { return c.MessageRate + 2*c.MaxSubscriptions }

// matches reports whether w is to receive event about channel.
func (w *Webhook) matches(event, channel string) bool {
	if len(w.Events) == 0 && event == hookCount || len(w.Events) > 0 && !slices.Contains(w.Events, event) {
		return false
	}
	return strings.HasPrefix(channel, w.ChannelPrefix) && strings.HasSuffix(channel, w.ChannelSuffix)
}

// silence is how long a client may be silent before it is pinged: somewhat longer than
// until its own ping, which usually comes first.
func (c *Config) silence() int64 { return int64(c.ActivityTimeout) * 9 / 8 }
