package upstream

import (
	"cmp"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of one cluster: peers that serve the same thing.
type Config struct {
	// Name is how routes and splits name the cluster. It must not be empty.
	Name string `json:"name"`
	// Peers are the backends. At least one, unless there is an srv.
	Peers []PeerConfig `json:"peers"`
	// SRV is the name of SRV records to take the backends from in place of peers, like
	// "_http._tcp.example.internal". Those of the lowest priority that can be asked
	// are, by their weights (RFC 2782). Empty: peers are written down.
	SRV string `json:"srv"`
	// Balance is "round_robin" (smooth, weighted), "least_connections", "ewma"
	// (the faster of two, by peak EWMA of the time to the first byte times
	// requests in flight) or "consistent_hash". Empty means round_robin.
	Balance string `json:"balance"`
	// HashKey is what consistent_hash hashes: "header:X", "cookie:name", "path"
	// or "address". Empty means address.
	HashKey string `json:"hash_key"`
	// HashLoad bounds the load of a peer under consistent_hash to this multiple of
	// the average; what is above continues to the next peer of the ring. 0 means no
	// bound, otherwise at least 1.
	HashLoad float64 `json:"hash_load"`
	// EWMADecay is how fast "ewma" forgets; a peer without requests for that long is
	// tried again as if it were new. 0 means 10s.
	EWMADecay hub.Duration `json:"ewma_decay"`
	// Health is the active checking of peers; zero checks nothing.
	Health HealthConfig `json:"health"`
	// Outlier takes a peer out by the requests it failed.
	Outlier OutlierConfig `json:"outlier"`
	// Breaker stops asking a peer that fails most requests.
	Breaker BreakerConfig `json:"breaker"`
	// SlowStart is how long a peer that came back has less than its share, rising
	// from a tenth. 0 means no slow start.
	SlowStart hub.Duration `json:"slow_start"`
	// Retry tries another peer when one failed before its first byte.
	Retry RetryConfig `json:"retry"`
	// Hedge also sends to a second peer when the first is slow; zero never does.
	Hedge HedgeConfig `json:"hedge"`
	// Timeouts of one exchange.
	Timeouts TimeoutConfig `json:"timeouts"`
	// Pool bounds connections and requests.
	Pool PoolConfig `json:"pool"`
	// DNS is how host names of peers become addresses.
	DNS DNSConfig `json:"dns"`
	// TLS is how peers are spoken to over TLS.
	TLS TLSConfig `json:"tls"`
	// Protocol is what is spoken to peers: "http1" (HTTP/1.1), "http2", or "auto", which is
	// HTTP/2 where a peer agrees on it in the TLS handshake (ALPN) and HTTP/1.1 otherwise.
	// http2 needs that agreement over TLS; without TLS it is spoken by prior knowledge, as
	// gRPC servers expect. Requests to switch protocols (WebSocket) go over HTTP/1.1 all the
	// same. Empty means http1.
	Protocol string `json:"protocol"`
	// ProxyProtocol is the version of the PROXY protocol header sent to peers,
	// before TLS if there is any, 1 or 2. 0 sends none.
	ProxyProtocol int `json:"proxy_protocol"`
}

// PeerConfig is one backend, or one host name of several.
type PeerConfig struct {
	// Address is "host:port", "ip:port", "[ip6]:port" or "unix:/path"; with https://
	// before a host the peer is spoken to over TLS, and its port is 443 if it is left
	// out. Each address that a host name resolves to is a peer of its own, of this
	// weight.
	Address string `json:"address"`
	// Weight is the peer's share relative to the others, 1 to 1000. 0 means 1.
	Weight int `json:"weight"`
	// Drain keeps the peer from new requests; those it has continue.
	Drain bool `json:"drain"`
}

// HealthConfig is active checking.
type HealthConfig struct {
	// Check is "none", "http" (a GET of path, over HTTP/1.1), "grpc" (a call of
	// grpc.health.v1.Health/Check, over HTTP/2) or "tcp" (a connection, nothing
	// sent). Empty means http if there is a path, otherwise none. Either works
	// over Unix sockets too, and ends a TLS handshake first where the peer is spoken to
	// over TLS.
	Check string `json:"check"`
	// Path of the http check; empty means /.
	Path string `json:"path"`
	// Service is the service of the grpc check; empty means the whole server.
	Service string `json:"service"`
	// Host is sent as the Host of the http and grpc checks; empty means the peer's address
	// as configured.
	Host string `json:"host"`
	// Interval between two checks of a peer, ±10 % so that they spread. 0 means 5s.
	// While no peer of the cluster passes its checks they come faster: after 100ms, 200ms,
	// 400ms and then every 500ms, but not more than 200 a second to the whole cluster.
	Interval hub.Duration `json:"interval"`
	// Timeout of one check. 0 means 2s.
	Timeout hub.Duration `json:"timeout"`
	// Healthy is how many checks in a row a peer that was down must pass. 0 means 2. One
	// is enough for a peer that has never passed one, and while no peer of the cluster
	// passes its checks.
	Healthy int `json:"healthy"`
	// Unhealthy is how many checks in a row a peer must fail to be down. 0 means 3.
	// A peer that has never passed one is down at its first failure.
	Unhealthy int `json:"unhealthy"`
	// Status is which replies pass: codes and ranges like "200-299,401". Empty
	// means 200-399.
	Status string `json:"status"`
	// PanicBelow is the share of usable peers below which health and ejection are
	// ignored and all peers are asked (Envoy's panic threshold), since the checks are then
	// likelier wrong than the peers, and the few that are left would be overloaded. 0 means
	// that this happens only when no peer is usable: a request is then tried rather than
	// refused. Otherwise up to 1, as 0.5, Envoy's default; -1 never ignores them, and
	// requests without a usable peer are answered 503.
	PanicBelow float64 `json:"panic_below"`
	// ProxyProtocol is the cluster's; by it checks say that they have no client.
	ProxyProtocol int `json:"-"`
	// TLS is the cluster's, for peers that are spoken to over it.
	TLS *TLS `json:"-"`
}

// OutlierConfig is ejection by what requests show.
type OutlierConfig struct {
	// Enabled ejects peers by what follows.
	Enabled setting.Switch `json:"enabled"`
	// Consecutive5xx ejects after that many failures of any kind in a row: replies
	// of 500 and above, resets, timeouts, connect errors. 0 means 5.
	Consecutive5xx int `json:"consecutive_5xx"`
	// ConsecutiveConnect ejects after that many connect errors in a row. 0 means 3.
	ConsecutiveConnect int `json:"consecutive_connect"`
	// ErrorRate ejects at this share of failures in the window. 0 means 0.5.
	ErrorRate float64 `json:"error_rate"`
	// MinRequests in the window before the rate is looked at. 0 means 50.
	MinRequests int `json:"min_requests"`
	// Window of the error rate. 0 means 10s.
	Window hub.Duration `json:"window"`
	// BaseEjection is how long the first ejection lasts; each further one lasts
	// that much longer. 0 means 5s.
	BaseEjection hub.Duration `json:"base_ejection"`
	// MaxEjection bounds an ejection. 0 means 20s.
	MaxEjection hub.Duration `json:"max_ejection"`
	// MaxEjected is the share of a cluster's peers that may be ejected at a time;
	// one may always be when there are two or more. 0 means 0.5.
	MaxEjected float64 `json:"max_ejected"`
}

// BreakerConfig is the circuit breaker that each peer has.
type BreakerConfig struct {
	// Enabled gives each peer a breaker.
	Enabled setting.Switch `json:"enabled"`
	// FailureRatio opens the breaker at this share of failures. 0 means 0.5.
	FailureRatio float64 `json:"failure_ratio"`
	// MinRequests in the window before the ratio is looked at. 0 means 20.
	MinRequests int `json:"min_requests"`
	// Window of the ratio. 0 means 10s.
	Window hub.Duration `json:"window"`
	// OpenTime is how long an open breaker lets nothing through. 0 means 5s. It is
	// over when the peer passes its checks again after it was down by them.
	OpenTime hub.Duration `json:"open_time"`
	// Probes is how many requests at a time try a half-open peer, and how many
	// must succeed to close the breaker. 0 means 3.
	Probes int `json:"probes"`
}

// RetryConfig is when another attempt is made.
type RetryConfig struct {
	// Attempts bounds all attempts of a request, the first included. 0 means 3;
	// 1 never retries.
	Attempts int `json:"attempts"`
	// On lists what is retried: "connect-failure", "reset" (before the first byte),
	// "timeout" (before the first byte), and status codes as text. Empty means
	// connect-failure, reset, 502, 503 and 504.
	On []string `json:"on"`
	// Budget is how many retries there may be per request, over time. 0 means 0.2.
	Budget float64 `json:"budget"`
	// MinPerSecond is how many retries there may be however few requests. 0 means 10.
	MinPerSecond int `json:"min_per_second"`
	// NonIdempotent retries POST and PATCH too where the request may have been
	// processed. False: these are retried only when the connection was refused.
	NonIdempotent bool `json:"non_idempotent"`
}

// HedgeConfig is a second attempt beside a slow first one.
type HedgeConfig struct {
	// After is how long the first attempt is waited for. 0: see percentile.
	After hub.Duration `json:"after"`
	// Percentile of the cluster's recent times to the first byte to wait for
	// instead, like 95. 0: no hedging unless after is set.
	Percentile float64 `json:"percentile"`
	// MaxShare is how many requests may be hedged, of all. 0 means 0.05.
	MaxShare float64 `json:"max_share"`
}

// TimeoutConfig is how long things may take.
type TimeoutConfig struct {
	// Connect bounds dialling, a TLS handshake included. 0 means 2s.
	Connect hub.Duration `json:"connect"`
	// Write bounds the time a peer may take nothing of the request. 0 means 30s.
	Write hub.Duration `json:"write"`
	// FirstByte bounds the time from the request's end to the reply's head.
	// 0 means 30s.
	FirstByte hub.Duration `json:"first_byte"`
	// Idle bounds the silence within a reply. 0 means 5m.
	Idle hub.Duration `json:"idle"`
	// Total bounds the exchange. 0 means no bound, as streams need.
	Total hub.Duration `json:"total"`
}

// PoolConfig bounds what a cluster may hold.
type PoolConfig struct {
	// MaxPerPeer bounds the connections to one peer, of all loops. 0 means 1024.
	MaxPerPeer int `json:"max_per_peer"`
	// MaxInFlight bounds the requests in flight at one peer, of all loops.
	// 0 means no bound but that of connections.
	MaxInFlight int `json:"max_in_flight"`
	// MaxIdle bounds the idle connections a loop keeps per peer. 0 means 32; -1
	// keeps none.
	MaxIdle int `json:"max_idle"`
	// IdleTimeout closes a connection idle for that long. 0 means 55s, less than
	// the 60 s after which most servers close theirs.
	IdleTimeout hub.Duration `json:"idle_timeout"`
	// MaxRequests closes a connection after that many. 0 means no bound.
	MaxRequests int `json:"max_requests"`
	// MaxPending bounds the requests that wait for a connection, of all loops;
	// one more is refused. 0 means 1024; -1 lets none wait.
	MaxPending int `json:"max_pending"`
	// PendingTimeout bounds that wait. 0 means 1s.
	PendingTimeout hub.Duration `json:"pending_timeout"`
	// LeakAfter reports a connection in use that did nothing for that long.
	// 0 means 10m.
	LeakAfter hub.Duration `json:"leak_after"`
}

// DNSConfig is the resolution of host names and of SRV records.
type DNSConfig struct {
	// Interval between two resolutions. 0 means 30s.
	Interval hub.Duration `json:"interval"`
	// Timeout of one. 0 means 5s. When it fails the addresses known stay.
	Timeout hub.Duration `json:"timeout"`
	// Server is the DNS server to ask, like 10.0.0.2:53. Empty means the system's.
	Server string `json:"server"`
	// Family is "auto" (IPv4 if the name has such addresses, otherwise IPv6),
	// "ipv4", "ipv6" or "all". Empty means auto.
	Family string `json:"family"`
}

// The values of Config.Balance.
const (
	RoundRobin       = "round_robin"
	LeastConnections = "least_connections"
	EWMA             = "ewma"
	ConsistentHash   = "consistent_hash"
)

// The values of Config.Protocol.
const (
	HTTP1        = "http1"
	HTTP2        = "http2"
	AutoProtocol = "auto"
)

// WithDefaults returns c with zeros replaced by what they mean.
func (c Config) WithDefaults() Config {
	c.Balance = cmp.Or(c.Balance, RoundRobin)
	c.Protocol = cmp.Or(c.Protocol, HTTP1)
	c.HashKey = cmp.Or(c.HashKey, "address")
	c.EWMADecay = cmp.Or(c.EWMADecay, hub.Duration(10*time.Second))
	c.Health = c.Health.withDefaults()
	c.Outlier = c.Outlier.withDefaults()
	c.Breaker = c.Breaker.withDefaults()
	c.Retry = c.Retry.withDefaults()
	c.Hedge.MaxShare = cmp.Or(c.Hedge.MaxShare, 0.05)
	c.Timeouts.Connect = cmp.Or(c.Timeouts.Connect, hub.Duration(2*time.Second))
	c.Timeouts.Write = cmp.Or(c.Timeouts.Write, hub.Duration(30*time.Second))
	c.Timeouts.FirstByte = cmp.Or(c.Timeouts.FirstByte, hub.Duration(30*time.Second))
	c.Timeouts.Idle = cmp.Or(c.Timeouts.Idle, hub.Duration(5*time.Minute))
	c.Pool.MaxPerPeer = cmp.Or(c.Pool.MaxPerPeer, 1024)
	c.Pool.MaxIdle = cmp.Or(c.Pool.MaxIdle, 32)
	c.Pool.IdleTimeout = cmp.Or(c.Pool.IdleTimeout, hub.Duration(55*time.Second))
	c.Pool.MaxPending = cmp.Or(c.Pool.MaxPending, 1024)
	c.Pool.PendingTimeout = cmp.Or(c.Pool.PendingTimeout, hub.Duration(time.Second))
	c.Pool.LeakAfter = cmp.Or(c.Pool.LeakAfter, hub.Duration(10*time.Minute))
	c.DNS.Interval = cmp.Or(c.DNS.Interval, hub.Duration(30*time.Second))
	c.DNS.Timeout = cmp.Or(c.DNS.Timeout, hub.Duration(5*time.Second))
	c.DNS.Family = cmp.Or(c.DNS.Family, "auto")
	peers := make([]PeerConfig, len(c.Peers))
	for i, p := range c.Peers {
		p.Weight = cmp.Or(p.Weight, 1)
		peers[i] = p
	}
	c.Peers = peers
	return c
}

func (h HealthConfig) withDefaults() HealthConfig {
	if h.Check == "" {
		h.Check = CheckNone
		if h.Path != "" {
			h.Check = CheckHTTP
		}
	}
	h.Path = cmp.Or(h.Path, "/")
	h.Interval = cmp.Or(h.Interval, hub.Duration(5*time.Second))
	h.Timeout = cmp.Or(h.Timeout, hub.Duration(2*time.Second))
	h.Healthy = cmp.Or(h.Healthy, 2)
	h.Unhealthy = cmp.Or(h.Unhealthy, 3)
	h.Status = cmp.Or(h.Status, "200-399")
	return h
}

func (o OutlierConfig) withDefaults() OutlierConfig {
	o.Consecutive5xx = cmp.Or(o.Consecutive5xx, 5)
	o.ConsecutiveConnect = cmp.Or(o.ConsecutiveConnect, 3)
	o.ErrorRate = cmp.Or(o.ErrorRate, 0.5)
	o.MinRequests = cmp.Or(o.MinRequests, 50)
	o.Window = cmp.Or(o.Window, hub.Duration(10*time.Second))
	o.BaseEjection = cmp.Or(o.BaseEjection, hub.Duration(5*time.Second))
	o.MaxEjection = cmp.Or(o.MaxEjection, hub.Duration(20*time.Second))
	o.MaxEjected = cmp.Or(o.MaxEjected, 0.5)
	return o
}

func (b BreakerConfig) withDefaults() BreakerConfig {
	b.FailureRatio = cmp.Or(b.FailureRatio, 0.5)
	b.MinRequests = cmp.Or(b.MinRequests, 20)
	b.Window = cmp.Or(b.Window, hub.Duration(10*time.Second))
	b.OpenTime = cmp.Or(b.OpenTime, hub.Duration(5*time.Second))
	b.Probes = cmp.Or(b.Probes, 3)
	return b
}

func (r RetryConfig) withDefaults() RetryConfig {
	r.Attempts = cmp.Or(r.Attempts, 3)
	if len(r.On) == 0 {
		r.On = []string{"connect-failure", "reset", "502", "503", "504"}
	}
	r.Budget = cmp.Or(r.Budget, 0.2)
	r.MinPerSecond = cmp.Or(r.MinPerSecond, 10)
	return r
}
