package centrifuge

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Server: the section "centrifuge". The zero value serves nothing.
type Config struct {
	// Enabled serves the endpoints of the protocol. Off by default.
	Enabled bool `json:"enabled" reload:"restart"`
	// Insecure lets clients in without a token and allows them whatever the
	// namespace has. A token that is sent must still be good. For development only.
	Insecure bool `json:"insecure"`
	// AnonymousConnect lets clients without a token in as the user "". Off by
	// default: they are turned away with 3501.
	AnonymousConnect bool `json:"anonymous_connect"`
	// Keys names the key set of connection and subscription tokens. Empty: the keys of
	// auth.
	Keys string `json:"keys" secret:"false"`
	// SubscriptionKeys names another key set for subscription tokens. Empty: that of
	// connection tokens.
	SubscriptionKeys string `json:"subscription_keys" secret:"false"`
	// APIPrefix is the path that the methods of the server API are below; empty means
	// "/centrifugo/api". With "/api" they replace Weir's own publish and broadcast there:
	// bodies and answers are those of Centrifugo.
	APIPrefix string `json:"api_prefix" reload:"restart"`
	// APIKey is the key of the server API, for all of its methods. Weir's own API
	// keys serve as well, for publish, broadcast, history and presence of the
	// channels that they cover. Empty: only those.
	APIKey auth.Secret `json:"api_key"`
	// APIKeyFile holds the key instead; a newline at its end is not part of it.
	APIKeyFile string `json:"api_key_file"`
	// APIErrorMode is "transport" if errors of the server API are HTTP errors too;
	// empty means that they are answered 200, as Centrifugo does.
	APIErrorMode string `json:"api_error_mode"`
	// APIMaxAnswer bounds in bytes what a call of the server API is answered, a batch as
	// a whole. A history ends there: request what is behind with since. What cannot end
	// early is answered with 106. 0 means 16 MiB.
	APIMaxAnswer int `json:"api_max_answer" unit:"bytes"`
	// PingInterval is how often a client is pinged, at most 50m; 0 means 25s.
	PingInterval hub.Duration `json:"ping_interval"`
	// PongTimeout is how long a pong may take, less than PingInterval; 0 means 8s.
	PongTimeout hub.Duration `json:"pong_timeout"`
	// StaleTimeout is how long a client may take to connect; 0 means 10s.
	StaleTimeout hub.Duration `json:"stale_timeout"`
	// ExpiredCloseDelay is how long a client may take to refresh a token that has
	// expired; 0 means 25s.
	ExpiredCloseDelay hub.Duration `json:"expired_close_delay"`
	// ChannelLimit bounds the subscriptions of a client; 0 means 128.
	ChannelLimit int `json:"channel_limit"`
	// MaxCommand bounds in bytes what a client may send at a time; 0 means 64 KiB.
	MaxCommand int `json:"max_command" reload:"restart" unit:"bytes"`
	// MaxQueue bounds in bytes what waits for a client that reads too slowly; past it
	// the client is disconnected with 3008. It also bounds the payloads of one answer: a
	// history ends there, and what takes more is not recovered. 0 means 1 MiB.
	MaxQueue int `json:"max_queue" unit:"bytes"`
	// UserConnectionLimit bounds the connections of a user to a node; 0 means no
	// bound. Clients without a user do not count.
	UserConnectionLimit int `json:"user_connection_limit"`
	// RecoveryLimit bounds the publications that a subscription may recover; past it
	// it gets recovered: false. 0 means 300.
	RecoveryLimit int `json:"recovery_limit"`
	// HistoryLimit bounds the publications that a client may request; 0 means 300.
	HistoryLimit int `json:"history_limit"`
	// UserPersonalChannel subscribes each user to a channel of its own, "#<user>",
	// in the namespace PersonalNamespace. Off by default.
	UserPersonalChannel bool `json:"user_personal_channel"`
	// PersonalNamespace is the namespace of personal channels; empty means "default".
	PersonalNamespace string `json:"personal_namespace"`
	// Namespaces are options by the name of a namespace of the hub. Channels of
	// others may be subscribed to with a token that names them.
	Namespaces map[string]Namespace `json:"namespaces"`
	// Proxies ask a backend.
	Proxies Proxies `json:"proxies"`
	// RPCSubject is the first part of the NATS subject that an RPC is sent to as a
	// request; the method follows after a dot. Empty: RPCs go to proxies.rpc, if at all.
	RPCSubject string `json:"rpc_subject"`
	// EventsChannel gets a message for each client that connects or disconnects and
	// each subscription that starts or ends. Empty disables it.
	EventsChannel string `json:"events_channel"`
}

// A Namespace is what clients may do on the channels of a namespace of the hub.
// Whether there is history to recover from is up to that namespace's durability.
type Namespace struct {
	// Presence lets it be known who is subscribed. Off by default.
	Presence bool `json:"presence"`
	// JoinLeave sends join and leave events to subscribers that request them and may see
	// the presence.
	JoinLeave bool `json:"join_leave"`
	// ForcePushJoinLeave sends them to all subscribers.
	ForcePushJoinLeave bool `json:"force_push_join_leave"`
	// ForceRecovery makes all subscriptions recoverable, whether they ask or not.
	ForceRecovery bool `json:"force_recovery"`
	// ForceRecoveryMode is "stream" (what was missed) or "cache" (only the newest);
	// empty means stream.
	ForceRecoveryMode string `json:"force_recovery_mode"`
	// AutoCacheRecover sends the newest message with each subscription that recovers in
	// cache mode, to clients that come without a position too. Off by default.
	AutoCacheRecover bool `json:"auto_cache_recover"`
	// ForcePositioning makes all subscriptions positioned: they are notified of gaps.
	ForcePositioning bool `json:"force_positioning"`
	// AllowRecovery lets subscriptions ask to be recoverable. Clients that may read the
	// history, see AllowHistoryForClient, may ask without it.
	AllowRecovery bool `json:"allow_recovery"`
	// AllowPositioning lets subscriptions ask to be positioned; with the history's right
	// they may ask without it.
	AllowPositioning bool `json:"allow_positioning"`
	// AllowSubscribeForClient lets clients with a user subscribe without a token for
	// the channel; AllowSubscribeForAnonymous those without a user too.
	AllowSubscribeForClient    bool `json:"allow_subscribe_for_client"`
	AllowSubscribeForAnonymous bool `json:"allow_subscribe_for_anonymous"`
	// AllowPublishForClient lets clients publish, AllowPublishForSubscriber those
	// that are subscribed, AllowPublishForAnonymous also those without a user.
	AllowPublishForClient     bool `json:"allow_publish_for_client"`
	AllowPublishForSubscriber bool `json:"allow_publish_for_subscriber"`
	AllowPublishForAnonymous  bool `json:"allow_publish_for_anonymous"`
	// AllowPresenceForClient and its kin let clients ask who is there, in the same way.
	AllowPresenceForClient     bool `json:"allow_presence_for_client"`
	AllowPresenceForSubscriber bool `json:"allow_presence_for_subscriber"`
	AllowPresenceForAnonymous  bool `json:"allow_presence_for_anonymous"`
	// AllowHistoryForClient and its kin let clients read history, in the same way.
	AllowHistoryForClient     bool `json:"allow_history_for_client"`
	AllowHistoryForSubscriber bool `json:"allow_history_for_subscriber"`
	AllowHistoryForAnonymous  bool `json:"allow_history_for_anonymous"`
	// AllowUserLimited lets the users named in a channel "name#u1,u2" subscribe to
	// it, and no other user.
	AllowUserLimited bool `json:"allow_user_limited_channels"`
	// AllowDelta lets subscriptions request differences to the publication before.
	AllowDelta bool `json:"allow_delta"`
	// AllowTagsFilter lets subscriptions filter by the tags of publications.
	AllowTagsFilter bool `json:"allow_tags_filter"`
	// ChannelRegex is what channel names must match, without the namespace; empty
	// means any.
	ChannelRegex string `json:"channel_regex"`
	// DataFormat is what clients may publish: "json", "json_object" or "binary";
	// empty means anything.
	DataFormat string `json:"publication_data_format"`
	// SubscribeProxy has proxies.subscribe decide whether a client may subscribe;
	// PublishProxy and SubRefreshProxy the proxies of their names.
	SubscribeProxy  bool `json:"subscribe_proxy"`
	PublishProxy    bool `json:"publish_proxy"`
	SubRefreshProxy bool `json:"sub_refresh_proxy"`
}

// Proxies are the backends that are asked, in Centrifugo's form.
type Proxies struct {
	// Connect is asked who a client is that has no token; Refresh whether a
	// connection whose time is up may stay.
	Connect Proxy `json:"connect"`
	Refresh Proxy `json:"refresh"`
	// Subscribe, Publish and SubRefresh are for namespaces that say so.
	Subscribe  Proxy `json:"subscribe"`
	Publish    Proxy `json:"publish"`
	SubRefresh Proxy `json:"sub_refresh"`
	// RPC answers clients' calls.
	RPC Proxy `json:"rpc"`
}

// A Proxy is a backend that is queried by HTTP POST.
type Proxy struct {
	// Endpoint is its URL; empty disables it.
	Endpoint string `json:"endpoint" secret:"path"`
	// Timeout bounds a call; 0 means 1s.
	Timeout hub.Duration `json:"timeout"`
	// HTTPHeaders are the fields of the client's request that are passed on; a
	// client that cannot set them may name them in its connect command.
	HTTPHeaders []string `json:"http_headers"`
	// StaticHeaders are added to each call.
	StaticHeaders map[string]string `json:"static_headers"`
	// IncludeMeta passes on the meta of the connection's token.
	IncludeMeta bool `json:"include_connection_meta"`
}

// maxPingInterval is what session.due can say, which wraps around.
const maxPingInterval = hub.Duration(50 * time.Minute)

const defaultAPIPrefix = "/centrifugo/api"

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.APIPrefix = cmp.Or(c.APIPrefix, defaultAPIPrefix)
	c.APIPrefix = strings.TrimRight(c.APIPrefix, "/")
	c.PingInterval = cmp.Or(c.PingInterval, hub.Duration(25*time.Second))
	c.PongTimeout = cmp.Or(c.PongTimeout, hub.Duration(8*time.Second))
	c.StaleTimeout = cmp.Or(c.StaleTimeout, hub.Duration(10*time.Second))
	c.ExpiredCloseDelay = cmp.Or(c.ExpiredCloseDelay, hub.Duration(25*time.Second))
	c.ChannelLimit = cmp.Or(c.ChannelLimit, 128)
	c.MaxCommand = cmp.Or(c.MaxCommand, 64<<10)
	c.MaxQueue = cmp.Or(c.MaxQueue, 1<<20)
	c.APIMaxAnswer = cmp.Or(c.APIMaxAnswer, 16<<20)
	c.RecoveryLimit = cmp.Or(c.RecoveryLimit, 300)
	c.HistoryLimit = cmp.Or(c.HistoryLimit, 300)
	c.PersonalNamespace = cmp.Or(c.PersonalNamespace, hub.DefaultNamespace)
	for _, p := range c.Proxies.all() {
		p.Timeout = cmp.Or(p.Timeout, hub.Duration(time.Second))
	}
	return c
}

func (p *Proxies) all() map[string]*Proxy {
	return map[string]*Proxy{
		"connect": &p.Connect, "refresh": &p.Refresh, "subscribe": &p.Subscribe,
		"publish": &p.Publish, "sub_refresh": &p.SubRefresh, "rpc": &p.RPC,
	}
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.PingInterval < 0 || c.PongTimeout < 0 || c.StaleTimeout < 0 || c.ExpiredCloseDelay < 0 {
		bad("ping_interval, pong_timeout, stale_timeout and expired_close_delay must not be negative")
	}
	d := c.WithDefaults()
	if d.PongTimeout >= d.PingInterval {
		bad("pong_timeout: %v must be shorter than ping_interval (%v)", d.PongTimeout, d.PingInterval)
	}
	if d.PingInterval > maxPingInterval {
		bad("ping_interval: %v is more than %v", d.PingInterval, maxPingInterval)
	}
	if !strings.HasPrefix(d.APIPrefix, "/") {
		bad("api_prefix: %q does not start with a slash", c.APIPrefix)
	}
	if c.APIKey != "" && c.APIKeyFile != "" {
		bad("api_key and api_key_file are both set; keep one")
	}
	if c.APIErrorMode != "" && c.APIErrorMode != "transport" {
		bad("api_error_mode: %q is not transport; leave it out for answers of 200", c.APIErrorMode)
	}
	within := func(key string, v, lo, hi int) {
		if v < lo || v > hi {
			bad("%s: %d is not within %d..%d", key, v, lo, hi)
		}
	}
	within("channel_limit", d.ChannelLimit, 1, 10_000)
	within("max_command", d.MaxCommand, 256, 16<<20)
	within("api_max_answer", d.APIMaxAnswer, 64<<10, 1<<30)
	within("max_queue", d.MaxQueue, 1<<10, 1<<30)
	within("user_connection_limit", d.UserConnectionLimit, 0, 1_000_000)
	within("recovery_limit", d.RecoveryLimit, 1, 10_000)
	within("history_limit", d.HistoryLimit, 1, 10_000)
	if c.EventsChannel != "" {
		if err := hub.CheckChannel(c.EventsChannel); err != nil {
			bad("events_channel: %w", err)
		}
	}
	for name, n := range c.Namespaces {
		errs = append(errs, n.validate(name))
	}
	for name, p := range d.Proxies.all() {
		errs = append(errs, p.validate(name))
	}
	errs = append(errs, d.proxiesExist())
	return errors.Join(errs...)
}

// proxiesExist reports namespaces that ask a proxy that is not there.
func (c *Config) proxiesExist() error {
	var errs []error
	for name, n := range c.Namespaces {
		for _, x := range []struct {
			wanted bool
			key    string
			have   string
		}{
			{n.SubscribeProxy, "subscribe", c.Proxies.Subscribe.Endpoint},
			{n.PublishProxy, "publish", c.Proxies.Publish.Endpoint},
			{n.SubRefreshProxy, "sub_refresh", c.Proxies.SubRefresh.Endpoint},
		} {
			if x.wanted && x.have == "" {
				errs = append(errs, fmt.Errorf("namespaces.%s.%s_proxy: set proxies.%s.endpoint, or leave it out", name, x.key, x.key))
			}
		}
	}
	return errors.Join(errs...)
}

func (n *Namespace) validate(name string) error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("namespaces.%s.%s", name, fmt.Sprintf(format, a...)))
	}
	switch n.ForceRecoveryMode {
	case "", "stream", "cache":
	default:
		bad("force_recovery_mode: %q is none of stream, cache", n.ForceRecoveryMode)
	}
	switch n.DataFormat {
	case "", "json", "json_object", "binary":
	default:
		bad("publication_data_format: %q is none of json, json_object, binary", n.DataFormat)
	}
	if _, err := regexp.Compile(n.ChannelRegex); err != nil {
		bad("channel_regex: %v", err)
	}
	return errors.Join(errs...)
}

func (p *Proxy) validate(name string) error {
	if p.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(p.Endpoint)
	switch {
	case err != nil:
		return fmt.Errorf("proxies.%s.endpoint: %w", name, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("proxies.%s.endpoint: %q is not an http or https URL", name, redact.Endpoint(p.Endpoint))
	case p.Timeout < 0:
		return fmt.Errorf("proxies.%s.timeout: %v is negative", name, p.Timeout)
	}
	for _, h := range p.HTTPHeaders {
		if !httpguts.ValidHeaderFieldName(h) {
			return fmt.Errorf("proxies.%s.http_headers: %q is not a header field", name, h)
		}
	}
	for h, v := range p.StaticHeaders {
		if !httpguts.ValidHeaderFieldName(h) || !httpguts.ValidHeaderFieldValue(v) {
			return fmt.Errorf("proxies.%s.static_headers: %q is not a header field, or has a value that none can have", name, h)
		}
	}
	return nil
}
