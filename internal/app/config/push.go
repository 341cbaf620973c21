package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/front/policy"
)

// BrokerNone is the kind of a server without a broker: it only serves routes.
const BrokerNone = "none"

// Pushes reports whether the server has channels: subscribers, publishers and a broker.
// It expects c completed.
func (c Config) Pushes() bool { return c.Broker.Kind != BrokerNone }

// routesOnly reports whether c, which is not completed, has routes and nothing that is
// about channels: who may use them, what stores them, what speaks of them.
func (c *Config) routesOnly() bool {
	if len(c.Routes) == 0 || len(c.Namespaces) > 0 || len(c.KeySets) > 0 || len(c.Sources) > 0 || slices.ContainsFunc(c.Routes, usesChannels) {
		return false
	}
	for _, section := range []any{c.Auth, c.Broker, c.Push, c.Mercure, c.Centrifuge, c.Pusher, c.Presence, c.Cluster} {
		if !reflect.ValueOf(section).IsZero() {
			return false
		}
	}
	return true
}

// usesChannels reports whether requests of r become subscriptions, or their replies
// messages.
func usesChannels(r policy.RouteConfig) bool {
	return r.Record.Enabled() || len(r.Hold.Channels) > 0 || r.Mercure
}

// checkPushes reports what needs a broker, where there is none.
func (c Config) checkPushes() error {
	var all []error
	needs := func(used bool, path, what string) {
		if used {
			all = append(all, WithHint(fmt.Errorf("%s: %s needs a broker, and broker.kind is none", path, what), "set broker.kind to nats or memory"))
		}
	}
	needs(len(c.Namespaces) > 0, "namespaces", "the list")
	needs(c.Push.Echo, "push", "echo")
	needs(len(c.Sources) > 0, "sources", "the list")
	needs(c.Mercure.Enabled, "mercure", "Mercure")
	needs(c.Centrifuge.Enabled, "centrifuge", "Centrifuge")
	needs(c.Pusher.Enabled, "pusher", "Pusher")
	for i, r := range c.Routes {
		path, name := fmt.Sprintf("routes[%d]", i), strconv.Quote(r.WithDefaults().Name)
		needs(r.Record.Enabled(), path, "record of "+name)
		needs(len(r.Hold.Channels) > 0, path, "hold of "+name)
		needs(r.Mercure, path, "mercure of "+name)
	}
	return errors.Join(all...)
}

// builtinPaths are those of the public listener that are Weir's own.
func (c Config) builtinPaths() []string {
	paths := []string{"/healthz", "/readyz"}
	if c.Pushes() {
		paths = []string{"/sse", "/ws", "/echo", "/api/publish", "/api/broadcast", "/api/recording", "/healthz", "/readyz"}
	}
	for i := range paths {
		paths[i] = c.Downstream.BuiltinPrefix + paths[i]
	}
	return paths
}

// checkPaths reports paths of protocols that are Weir's own as well. At the API of
// Centrifuge's usual prefix its methods take the place of Weir's.
func (c Config) checkPaths() error {
	taken := map[string]string{} // by key: what is served there; all below it if it ends with "/"
	if c.Mercure.Enabled {
		taken["mercure.path"] = c.Mercure.WithDefaults().Path
	}
	if c.Centrifuge.Enabled {
		if prefix := strings.TrimSuffix(c.Centrifuge.WithDefaults().APIPrefix, "/"); prefix != "/api" {
			taken["centrifuge.api_prefix"] = prefix + "/"
		}
		taken["centrifuge.enabled"] = "/connection/"
	}
	if c.Pusher.Enabled {
		taken["pusher.enabled"] = "/app/"
		taken["pusher.apps"] = "/apps/"
	}
	var all []error
	for _, key := range slices.Sorted(maps.Keys(taken)) {
		at := taken[key]
		for _, own := range c.builtinPaths() {
			if own == at || strings.HasSuffix(at, "/") && strings.HasPrefix(own, at) {
				all = append(all, WithHint(fmt.Errorf("%s: %s is Weir's own", key, own), "give one of them another path; downstream.builtin_prefix moves Weir's"))
				break
			}
		}
	}
	return errors.Join(all...)
}
