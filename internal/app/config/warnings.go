package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
)

// A Warning is something that is allowed and may not be meant.
type Warning struct{ Text, Hint string }

// Warnings returns what of c is likely to surprise: secrets that can be guessed, where
// the access model lets callers in who are not meant, and routes whose requests Weir
// answers itself. It expects c to be valid.
func (c Config) Warnings() []Warning {
	var all []Warning
	sets := map[string]auth.KeySet{"auth": c.Auth.KeySet}
	for name, set := range c.KeySets {
		sets["key_sets."+name] = set
	}
	for _, at := range slices.Sorted(maps.Keys(sets)) {
		for _, weak := range sets[at].WeakSecrets() {
			all = append(all, Warning{at + "." + weak + ", and allow_weak_secrets accepts it: an attacker who guesses it can be any user", "issue tokens with a secret made with: head -c 48 /dev/urandom | base64 -w0"})
		}
	}
	warned := map[string]bool{} // by namespace
	for _, f := range access.Findings(c.AccessModel().Table(c.Namespaces)) {
		if warned[f.Namespace] {
			continue
		}
		warned[f.Namespace] = true
		all = append(all, Warning{
			fmt.Sprintf("namespaces.%s: %s", f.Namespace, f),
			"leave centrifuge.insecure out; weir config access shows who may do what",
		})
	}
	return append(all, c.shadowedRoutes()...)
}

// shadowedRoutes warns of routes that name paths of Weir's own, which are never routed
// unless downstream.builtin_hosts says on which hosts they are Weir's, or builtin_prefix
// below which path. A route of every path ("/*") is not meant for them.
func (c Config) shadowedRoutes() []Warning {
	if len(c.Downstream.BuiltinHosts) > 0 {
		return nil
	}
	var all []Warning
	for i, r := range c.Routes {
		var hidden []string
		for _, own := range c.builtinPaths() {
			if prefix, ok := strings.CutSuffix(r.Path, "*"); r.Path == own || ok && prefix != "/" && strings.HasPrefix(own, prefix) {
				hidden = append(hidden, own)
			}
		}
		if len(hidden) > 0 {
			all = append(all, Warning{
				fmt.Sprintf("routes[%d]: path: requests for %s are answered by Weir itself and never reach this route", i, strings.Join(hidden, ", ")),
				"move Weir's own paths below a prefix: downstream: {builtin_prefix: /weir}; or list the hosts on which they are Weir's: downstream: {builtin_hosts: [push.example.com]}",
			})
		}
	}
	return all
}
