package config

import (
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A deprecation is what to write in place of a key that will go.
type deprecation struct {
	now    string // the key that replaces it, in the same section
	invert bool   // a boolean that means the opposite
}

// deprecated are the keys that are accepted, with a warning, for as long as
// docs/reference/versioning.md says; no key goes without having been here. Then they move to
// renamed: an error that names the new key.
var deprecated = map[string]deprecation{
	"tls.disable_tickets":                 {"tickets", true},
	"tls.disable_ocsp":                    {"ocsp_stapling", true},
	"governor.no_canaries":                {"probes", true},
	"governor.evidence.no_recorder":       {"flight_recorder", true},
	"telemetry.no_traces":                 {"traces", true},
	"telemetry.no_metrics":                {"metrics", true},
	"auth.disable_query_token":            {"query_token", true},
	"auth.allow_no_expiry":                {"require_expiry", true},
	"mercure.disable_query_token":         {"query_token", true},
	"pusher.apps[].disabled":              {"enabled", true},
	"routes[].openapi.skip_requests":      {"validate_requests", true},
	"routes[].access_log.off":             {"enabled", true},
	"clusters[].outlier.disabled":         {"enabled", true},
	"clusters[].breaker.disabled":         {"enabled", true},
	"clusters[].tls.insecure_skip_verify": {"verify", true},
	"clusters[].tls.disable_sessions":     {"sessions", true},
}

// successor is the path of what replaces the key at path.
func (p deprecation) successor(path string) string {
	return join(path[:max(0, strings.LastIndexByte(path, '.'))], p.now)
}

// value is what the successor has when the deprecated key has text.
func (p deprecation) value(text string) string {
	if on, err := strconv.ParseBool(strings.ToLower(text)); err == nil && p.invert {
		return strconv.FormatBool(!on)
	}
	return text // what is not a boolean is reported when it is read
}

// A deprecatedKey is a finding that is not a problem.
type deprecatedKey struct{ *KeyError }

func isDeprecated(err error) bool {
	_, ok := errors.AsType[*deprecatedKey](err)
	return ok
}

// noteDeprecated notes that the key at path is written with text.
func (d *decoder) noteDeprecated(n *yaml.Node, path, text string, p deprecation) {
	line := 0
	if n != nil {
		line = n.Line
	}
	d.problems = append(d.problems, &deprecatedKey{&KeyError{d.source, line, path, "the key is deprecated and will be an error in a later version", "write " + p.successor(path) + ": " + p.value(text)}})
}

// replace returns the key and the value that stand for those of a section: others if the key
// is deprecated.
func (d *decoder) replace(path string, key, value *yaml.Node) (name string, _ *yaml.Node) {
	full := join(path, key.Value)
	p, ok := deprecated[listIndex.ReplaceAllString(full, "[]")]
	if !ok {
		return key.Value, value
	}
	d.noteDeprecated(key, full, value.Value, p)
	now := *value
	now.Value = p.value(value.Value)
	return p.now, &now
}

// deprecatedEnv returns the path of the deprecated key whose variable is name.
func deprecatedEnv(name string) (path string, p deprecation, ok bool) {
	for path, p := range deprecated {
		if !inList(path) && envName(path) == name {
			return path, p, true
		}
	}
	return "", deprecation{}, false
}

// scalarOf sets the successor of the deprecated key at path, from a variable or a flag.
func (d *decoder) scalarOf(path, text string, p deprecation, keys []key, v reflect.Value) {
	d.noteDeprecated(nil, path, text, p)
	i := slices.IndexFunc(keys, func(k key) bool { return k.path == p.successor(path) })
	d.plain(p.value(text), keys[i], v)
}

// Deprecations returns the deprecated keys that s has, with what to write instead.
func Deprecations(s Sources) (all []Warning) {
	var c Config
	for _, err := range collect(s, reflect.ValueOf(&c).Elem(), Origins{}) {
		if k, ok := errors.AsType[*deprecatedKey](err); ok {
			all = append(all, Warning{k.Error(), k.Hint()})
		}
	}
	return all
}
