package config

import (
	"cmp"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/alert"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/telemetry"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// Config is the whole configuration of `weir serve`.
type Config struct {
	// Listen is the address of the public listener, "host:port". Empty means
	// 127.0.0.1:8000; port 0 picks a free one. Without keys in the auth section
	// only loopback addresses are accepted, unless broker.kind is none.
	Listen string `json:"listen" reload:"restart"`
	// ProxyProtocol expects a PROXY header (version 1 or 2) before anything else on
	// each connection of the public listener, and only from trusted.proxies; others
	// are closed.
	ProxyProtocol bool `json:"proxy_protocol" reload:"restart"`
	// TLS makes the public listener speak TLS: https and wss instead of http and
	// ws. Without certificates and acme.names it does not.
	TLS tlsterm.Config `json:"tls" reload:"restart"`
	// Admin is the listener for the dashboard, metrics, profiles and inspection.
	Admin admin.Config `json:"admin" reload:"restart"`
	// Governor watches the process: the state of the load, evidence, memory.
	Governor governor.Config `json:"governor" reload:"restart"`
	// Alerts are posted to webhooks by the process itself, besides the rules for Prometheus.
	Alerts alert.Config `json:"alerts" reload:"restart"`
	// Metrics are how numbers are given away, besides /metrics of the admin listener.
	Metrics telemetry.MetricsConfig `json:"metrics" reload:"restart"`
	// Telemetry sends traces and metrics by OpenTelemetry.
	Telemetry telemetry.Config `json:"telemetry" reload:"restart"`
	// Namespaces are the channels' options, one entry per namespace. Empty means
	// one namespace called "default", which holds every channel without a prefix, or
	// none if broker.kind is none.
	Namespaces []hub.Namespace `json:"namespaces" reload:"live"`
	// KeySets are further keys that verify tokens, by name, for protocols whose tokens are
	// signed by others than those of auth: mercure and centrifuge name them.
	KeySets map[string]auth.KeySet `json:"key_sets" reload:"live"`
	// Auth specifies who may subscribe and publish.
	Auth auth.Config `json:"auth" reload:"live"`
	// Broker stores messages and brings them to every node.
	Broker Broker `json:"broker" reload:"restart"`
	// Push is what subscribers get besides messages, and what they may request.
	Push push.Config `json:"push" reload:"restart"`
	// Downstream is what an HTTP client may take in time and size.
	Downstream downstream.Config `json:"downstream" reload:"restart"`
	// Mercure speaks the Mercure protocol.
	Mercure mercure.Config `json:"mercure" reload:"live"`
	// Centrifuge speaks the Centrifuge client protocol, for the SDKs of Centrifugo.
	Centrifuge centrifuge.Config `json:"centrifuge" reload:"live"`
	// Pusher speaks the Pusher Channels protocol, for pusher-js and Laravel Echo.
	Pusher pusher.Config `json:"pusher" reload:"live"`
	// Presence is who is on a channel, over all nodes, for the protocols that ask.
	Presence presence.Config `json:"presence" reload:"restart"`
	// Sources are other systems whose messages are published: NATS, Redis streams, PostgreSQL,
	// Kafka, market data by UDP.
	Sources []Source `json:"sources" reload:"live"`
	// Cluster is how the nodes that share a broker know each other.
	Cluster cluster.Config `json:"cluster" reload:"restart"`
	// Routes lead what is not Weir's own to backends, or answer it themselves.
	Routes []policy.RouteConfig `json:"routes" reload:"live"`
	// Clusters are the backends that routes lead to, by name.
	Clusters []upstream.Config `json:"clusters" reload:"live"`
	// Splits divide requests among clusters: releases, canaries, mirrors. A route
	// names one in place of a cluster.
	Splits []upstream.SplitConfig `json:"splits" reload:"live"`
	// Extensions are servers of your own that decide on requests of routes, and on clients and
	// messages of channels, by gRPC (docs/howto/extensions.md). They are called in this order;
	// the first that refuses ends it.
	Extensions []extension.Config `json:"extensions" reload:"live"`
	// Proxy is what passing requests on may take.
	Proxy proxy.Config `json:"proxy" reload:"restart"`
	// Admission is how long requests of a class (namespaces, routes) may wait when there
	// is more to do than can be done.
	Admission limit.AdmissionConfig `json:"admission" reload:"restart"`
	// Limits bound what one client may take of Weir's own endpoints, and of connections.
	// Routes have limits of their own.
	Limits limit.FrontConfig `json:"limits" reload:"live"`
	// Trusted are the proxies in front of Weir whose word about a client's address
	// is taken.
	Trusted limit.Trusted `json:"trusted" reload:"restart"`
	// AccessLog is one line per request of a route.
	AccessLog AccessLog `json:"access_log" reload:"restart"`
	// Reload is what happens when this file changes.
	Reload Reload `json:"reload" reload:"restart"`
	// EventLoop is what moves the bytes, and the bounds of every connection.
	EventLoop eventloop.Config `json:"eventloop" reload:"restart"`
	// Log is what the program writes about itself, on standard error.
	Log Log `json:"log" reload:"restart"`
	// Shutdown is what happens at SIGTERM and SIGINT.
	Shutdown Shutdown `json:"shutdown" reload:"restart"`
}

// Broker chooses the implementation of the log.
type Broker struct {
	// Kind is "nats" (JetStream, embedded or external), "memory" (nothing survives
	// the process, one node only) or "none": there are no channels, Weir only serves
	// routes, and /sse, /ws and /api/ are a route's paths. Empty means nats, or none
	// if there are routes and nothing about channels: no namespaces, key_sets, auth,
	// broker, push, mercure, centrifuge, pusher, presence or cluster, and no route that
	// records or holds.
	Kind string `json:"kind"`
	// NATS is the nats broker. Without url and dir the server in this process
	// stores in weir-data, below the working directory.
	NATS nats.Config `json:"nats"`
}

// The kinds of broker.
const (
	BrokerNATS   = "nats"
	BrokerMemory = "memory"
)

// AccessLog specifies where the access log goes.
type AccessLog struct {
	// File gets a JSON object per line: "stdout", "stderr", or a path that is
	// appended to; a reload opens it again, so that it may be rotated. Empty means that
	// there is none.
	File string `json:"file" reload:"live"`
}

// Reload specifies when the configuration is read again. Always at SIGHUP, and at POST
// /api/reload on the admin listener. If anything is wrong, nothing changes, and the error
// is logged. Keys that a reload does not apply are logged as waiting for a restart.
type Reload struct {
	// Watch is how often the file is looked at. 0 means 1s, negative never.
	Watch hub.Duration `json:"watch"`
}

// Log configures the program's log.
type Log struct {
	// Level is the lowest level written: debug, info, warn or error. Empty means info.
	Level string `json:"level" reload:"live"`
	// Format is "text" or "json", one line per record. Empty means text.
	Format string `json:"format"`
}

// Slog returns the level as slog has it.
func (l Log) Slog() slog.Level {
	var level slog.Level
	if level.UnmarshalText([]byte(l.Level)) != nil {
		return slog.LevelInfo
	}
	return level
}

// Shutdown configures the end.
type Shutdown struct {
	// Drain bounds the time after SIGTERM: for requests under way, and for closing the
	// streams at the rate at which other nodes can take them on. It ends as soon as
	// nothing is left. 0 means 10s. A second signal ends at once.
	Drain hub.Duration `json:"drain"`
}

// Default returns the configuration that reading nothing gives, every zero
// replaced by what it means.
func Default() Config {
	var c Config
	complete(reflect.ValueOf(&c).Elem())
	return c
}

// WithDefaults returns c with the zeros of this package's own keys replaced; the
// packages' sections are completed by their own WithDefaults.
func (c Config) WithDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8000")
	if c.routesOnly() {
		c.Broker.Kind = BrokerNone
	}
	if !c.Pushes() {
		return c
	}
	if len(c.Namespaces) == 0 {
		c.Namespaces = []hub.Namespace{{Name: hub.DefaultNamespace}}
	}
	if name := c.Mercure.WithDefaults().Namespace; c.Mercure.Enabled && !hasNamespace(c.Namespaces, name) {
		c.Namespaces = append(slices.Clip(c.Namespaces), hub.Namespace{Name: name})
	}
	return c
}

// hasNamespace reports whether list has a namespace of that name.
func hasNamespace(list []hub.Namespace, name string) bool {
	return slices.ContainsFunc(list, func(n hub.Namespace) bool { return n.Name == name })
}

// WithDefaults returns b with zeros replaced.
func (b Broker) WithDefaults() Broker {
	b.Kind = cmp.Or(b.Kind, BrokerNATS)
	if b.Kind == BrokerNATS && b.NATS.URL == "" {
		b.NATS.Dir = cmp.Or(b.NATS.Dir, "weir-data")
	}
	return b
}

// WithDefaults returns l with zeros replaced.
func (l Log) WithDefaults() Log {
	l.Level = cmp.Or(l.Level, "info")
	l.Format = cmp.Or(l.Format, "text")
	return l
}

// WithDefaults returns r with zeros replaced.
func (r Reload) WithDefaults() Reload {
	r.Watch = cmp.Or(r.Watch, hub.Duration(time.Second))
	return r
}

// WithDefaults returns s with zeros replaced.
func (s Shutdown) WithDefaults() Shutdown {
	s.Drain = cmp.Or(s.Drain, hub.Duration(10*time.Second))
	return s
}

// complete replaces zeros by what they mean, from the outside in, wherever a
// section has a method WithDefaults that returns its own type.
func complete(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			complete(v.Elem())
		}
	case shapeOf(v.Type()) == section:
		if m := v.MethodByName("WithDefaults"); m.IsValid() &&
			m.Type().NumIn() == 0 && m.Type().NumOut() == 1 && m.Type().Out(0) == v.Type() {
			v.Set(m.Call(nil)[0])
		}
		for _, f := range fieldsOf(v.Type()) {
			complete(v.FieldByIndex(f.index))
		}
	case shapeOf(v.Type()) == list:
		for i := range v.Len() {
			complete(v.Index(i))
		}
	case shapeOf(v.Type()) == mapping:
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			complete(e)
			v.SetMapIndex(k, e)
		}
	}
}
