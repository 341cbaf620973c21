package extension

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config is an extension: a server of weir.extension.v1.Extension that is called at events.
type Config struct {
	// Name identifies the extension in logs and metrics.
	Name string `json:"name"`
	// Target is the server's address: "host:port", "dns:///host:port" to spread calls over
	// all addresses of a name, or "unix:/path".
	Target string `json:"target"`
	// TLS is used towards the server.
	TLS TLSConfig `json:"tls"`
	// Events are those that the server is called at: request, response, connect, subscribe,
	// publish, disconnect.
	Events []string `json:"events"`
	// Routes are the names of the routes whose request and response events it is called at.
	// Empty means all.
	Routes []string `json:"routes"`
	// Namespaces are those whose subscribe and publish events it is called at. Empty means
	// all.
	Namespaces []string `json:"namespaces"`
	// Headers are the fields that the server gets of requests and responses. Empty means all
	// that are end-to-end. With ttl_ms of the server's verdicts a short list makes events
	// equal.
	Headers []string `json:"headers"`
	// Timeout bounds a call; 0 means 500ms.
	Timeout hub.Duration `json:"timeout"`
	// FailOpen allows, without changes, when the server does not answer in time, answers
	// with an error or something invalid, or max_pending is reached. False: refused with
	// 504, 502 or 503.
	FailOpen bool `json:"fail_open"`
	// MaxMessage bounds an event and a verdict in bytes; 0 means 1 MiB.
	MaxMessage int `json:"max_message" unit:"bytes"`
	// MaxPending bounds the calls under way; 0 means 1,024. Events beyond it are handled as
	// fail_open says, without a call.
	MaxPending int `json:"max_pending"`
	// CacheSize bounds the verdicts kept for their ttl_ms; 0 means 16,384. At the bound the
	// oldest half is dropped.
	CacheSize int `json:"cache_size"`
	// Queue bounds the disconnect events that wait for their call; 0 means 4,096. Events
	// beyond it are dropped and counted.
	Queue int `json:"queue"`
}

// TLSConfig is how the server of an extension is reached over TLS.
type TLSConfig struct {
	// Enabled speaks TLS.
	Enabled bool `json:"enabled"`
	// CAFile is a PEM file with the authorities that may have issued the server's
	// certificate. Empty means the system's.
	CAFile string `json:"ca_file"`
	// ServerName is the name that the certificate must be for. Empty means target's host.
	ServerName string `json:"server_name"`
	// CertFile and KeyFile are PEM files with a certificate for the server. Empty: none is
	// sent.
	CertFile string `json:"cert_file"`
	KeyFile  string `json:"key_file"`
}

// WithDefaults returns c with zeros replaced by what they mean.
func (c Config) WithDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, hub.Duration(500*time.Millisecond))
	for _, p := range []struct {
		n *int
		v int
	}{{&c.MaxMessage, 1 << 20}, {&c.MaxPending, 1024}, {&c.CacheSize, 1 << 14}, {&c.Queue, 4096}} {
		if *p.n == 0 {
			*p.n = p.v
		}
	}
	return c
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Name == "" || len(c.Name) > 64 {
		bad("name: invalid value %.70q: want 1 to 64 bytes", c.Name)
	}
	if err := checkTarget(c.Target); err != nil {
		bad("target: %w", err)
	}
	if len(c.Events) == 0 {
		bad("events: the list is empty: want some of %s", strings.Join(names[1:], ", "))
	}
	for i, e := range c.Events {
		if !slices.Contains(names[1:], e) {
			bad("events[%d]: invalid value %.40q: want one of %s", i, e, strings.Join(names[1:], ", "))
		}
	}
	for i, h := range c.Headers {
		if !http1.ValidName(h) {
			bad("headers[%d]: invalid field name %.60q", i, h)
		}
	}
	if c.Timeout < hub.Duration(time.Millisecond) || c.Timeout > hub.Duration(time.Minute) {
		bad("timeout: %v is not within 1ms..1m", c.Timeout)
	}
	between := func(key string, n, low, high int) {
		if n < low || n > high {
			bad("%s: %d is not within %d..%d", key, n, low, high)
		}
	}
	between("max_message", c.MaxMessage, 1<<10, 64<<20)
	between("max_pending", c.MaxPending, 1, 1<<16)
	between("cache_size", c.CacheSize, 2, 1<<22)
	between("queue", c.Queue, 1, 1<<20)
	if t := c.TLS; !t.Enabled && (t.CAFile != "" || t.ServerName != "" || t.CertFile != "" || t.KeyFile != "") {
		bad("tls: enabled is false: set it to true, or remove the other keys")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		bad("tls: cert_file and key_file go together")
	}
	return errors.Join(errs...)
}

// checkTarget accepts what grpc.NewClient does of the forms that the key's doc names.
func checkTarget(target string) error {
	const want = `want "host:port", "dns:///host:port" or "unix:/path"`
	if path, ok := strings.CutPrefix(target, "unix:"); ok {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("invalid value %.100q: "+want, target)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(target, "dns:///"))
	if n, perr := strconv.Atoi(port); err != nil || host == "" || strings.Contains(host, "/") || perr != nil || n < 1 || n > 65535 {
		return fmt.Errorf("invalid value %.100q: "+want, target)
	}
	return nil
}

// CheckAll returns what is wrong with the list as a whole: two of one name, and names of
// routes and namespaces that do not exist. The paths start at the list.
func CheckAll(list []Config, route, namespace func(string) bool) error {
	var errs []error
	seen := map[string]int{}
	for i, c := range list {
		if j, ok := seen[c.Name]; ok {
			errs = append(errs, fmt.Errorf("extensions[%d].name: %q is taken by extensions[%d]", i, c.Name, j))
		}
		seen[c.Name] = i
		for j, name := range c.Routes {
			if !route(name) {
				errs = append(errs, fmt.Errorf("extensions[%d].routes[%d]: there is no route %.100q: want the name of one under routes, or its path if it has none", i, j, name))
			}
		}
		for j, name := range c.Namespaces {
			if !namespace(name) {
				errs = append(errs, fmt.Errorf("extensions[%d].namespaces[%d]: there is no namespace %.100q: add it to namespaces", i, j, name))
			}
		}
	}
	return errors.Join(errs...)
}
