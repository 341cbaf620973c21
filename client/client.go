// Package client subscribes to and publishes on a Weir server.
//
// How do I follow channels? [Client.Subscribe] gives a [Stream]; its Next hands
// out messages, gap notices and changes of the connection, one by one. The
// stream reconnects by itself and continues exactly where it was. To continue
// after a restart of the program as well, keep [Stream.Position] and give it back
// as SubscribeOptions.Since.
//
// How do I publish? [Client.Publish] and [Client.Broadcast]. Both try again by
// themselves; an idempotency key, made up if there is none, keeps a message
// whose answer was lost from being stored twice.
//
// What the server refuses comes as an [*Error] with its words and its hint.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-gateway/weir/sse"
)

// Defaults of a Config.
const (
	defaultConnectTimeout = 15 * time.Second
	defaultIdleTimeout    = 60 * time.Second
	defaultMinBackoff     = 500 * time.Millisecond
	defaultMaxBackoff     = 30 * time.Second
	defaultAttempts       = 6
)

// Config specifies where the server is and with which credentials to connect. Only URL has no default.
type Config struct {
	// URL of the server: http://127.0.0.1:8000, or https and with a path in front
	// of all paths. Credentials do not belong into it.
	URL string
	// Token is a JWT for subscribing and publishing; empty means none.
	Token string
	// TokenFunc, if not nil, is asked for a token before each connection and each
	// publish, in place of Token: that is how a stream outlives its token. Without it
	// a stream ends with its token.
	TokenFunc func(ctx context.Context) (string, error)
	// APIKey is sent with publications; empty means none.
	APIKey string
	// HTTPClient does the requests; nil means one of the Client's own. Its
	// Timeout must be 0, or it will cut streams. The ws transport only takes its
	// TLS and dialing from TLS and DialContext below.
	HTTPClient *http.Client
	// TLS is for https and wss; nil means the defaults. Not used by an HTTPClient
	// that is given.
	TLS *tls.Config
	// DialContext opens connections; nil means net.Dialer. Not used by an
	// HTTPClient that is given.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	// ConnectTimeout bounds the wait for the answer to one request; 0 means 15s.
	ConnectTimeout time.Duration
	// IdleTimeout is how long a stream may be silent, heartbeats counting, before
	// it is treated as dead; 0 means 60s. The server's heartbeat comes every 25s; under 30s the
	// client says so, and it comes after 0.8 times that, but not under the server's
	// push.heartbeat_min (5s).
	IdleTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait before another attempt, which
	// doubles from one to the next; 0 means 500ms and 30s. What the server requests
	// takes precedence.
	MinBackoff, MaxBackoff time.Duration
	// Attempts bounds the requests for one publication; 0 means 6. Streams try
	// for ever.
	Attempts int
	// MaxMessage bounds one event of a stream in bytes; 0 means 2 MiB.
	MaxMessage int
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, defaultIdleTimeout)
	c.MinBackoff = cmp.Or(c.MinBackoff, defaultMinBackoff)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, max(defaultMaxBackoff, c.MinBackoff))
	c.Attempts = cmp.Or(c.Attempts, defaultAttempts)
	c.MaxMessage = cmp.Or(c.MaxMessage, sse.DefaultMaxEvent)
	return c
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("client: "+format, a...)) }
	switch u, err := url.Parse(c.URL); {
	case err != nil:
		bad("url: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		bad("url: %q: want http://host:port or https://host", c.URL)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		bad("url: %q: want no query, fragment or credentials", u.Redacted())
	}
	d := c.WithDefaults()
	if d.ConnectTimeout < 0 || d.IdleTimeout < 0 || d.MinBackoff < 0 || d.MaxBackoff < d.MinBackoff {
		bad("timeouts and backoffs: want none under 0 and min_backoff not over max_backoff")
	}
	if d.Attempts < 0 || d.MaxMessage < 0 {
		bad("attempts and max_message: want none under 0")
	}
	return errors.Join(errs...)
}

// A Client talks to one server. Any number of goroutines may use it.
type Client struct {
	cfg      Config
	base     *url.URL
	http     *http.Client
	ownsHTTP bool // http is ours to close
}

// New returns a Client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg.WithDefaults(), http: cfg.HTTPClient}
	c.base, _ = url.Parse(strings.TrimRight(cfg.URL, "/")) // Validate has parsed it
	if c.http == nil {
		c.ownsHTTP = true
		c.http = &http.Client{Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         cfg.DialContext,
			TLSClientConfig:     cfg.TLS,
			ForceAttemptHTTP2:   true,
			TLSHandshakeTimeout: c.cfg.ConnectTimeout,
			IdleConnTimeout:     90 * time.Second,
			MaxIdleConnsPerHost: 16,
		}}
	}
	return c, nil
}

// Close lets go of idle connections. Streams are closed by themselves.
func (c *Client) Close() {
	if c.ownsHTTP {
		c.http.CloseIdleConnections()
	}
}

// setBackoff reports after what time this client acts at the latest, if it is shorter than usual: the
// server's heartbeats come sooner then, within its bounds (push.heartbeat_min).
func (c *Client) setBackoff(query url.Values) {
	if longest := min(c.cfg.IdleTimeout, c.cfg.MaxBackoff); longest < defaultMaxBackoff {
		query.Set("max_backoff", longest.String())
	}
}

// endpoint returns the URL of a path of the server.
func (c *Client) endpoint(path string, query url.Values) *url.URL {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	return u
}

// authorize puts the token, if there is one, into a request's header.
func (c *Client) authorize(ctx context.Context, h http.Header) error {
	token := c.cfg.Token
	if c.cfg.TokenFunc != nil {
		t, err := c.cfg.TokenFunc(ctx)
		if err != nil {
			return fmt.Errorf("token: %w", err)
		}
		token = t
	}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	return nil
}
