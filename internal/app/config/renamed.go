package config

import (
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// renamed are the keys of earlier versions, by path, and what is written now.
var renamed = map[string]string{
	"tls.disable_tickets":                 "tls.tickets: false",
	"tls.disable_ocsp":                    "tls.ocsp_stapling: false",
	"governor.no_canaries":                "governor.probes: false",
	"governor.evidence.no_recorder":       "governor.evidence.flight_recorder: false",
	"telemetry.no_traces":                 "telemetry.traces: false",
	"telemetry.no_metrics":                "telemetry.metrics: false",
	"auth.disable_query_token":            "auth.query_token: false",
	"auth.allow_no_expiry":                "auth.require_expiry: false",
	"mercure.disable_query_token":         "mercure.query_token: false",
	"mercure.publisher":                   "mercure.publisher_keys: NAME, with the keys in key_sets.NAME",
	"mercure.subscriber":                  "mercure.subscriber_keys: NAME, with the keys in key_sets.NAME",
	"mercure.require_expiry":              "key_sets.*.require_expiry: for each of the sets that mercure names",
	"centrifuge.token":                    "centrifuge.keys: NAME, with the keys in key_sets.NAME",
	"centrifuge.subscription_token":       "centrifuge.subscription_keys: NAME, with the keys in key_sets.NAME",
	"pusher.apps[].disabled":              "enabled: false",
	"routes[].openapi.skip_requests":      "validate_requests: false",
	"routes[].access_log.off":             "enabled: false",
	"clusters[].outlier.disabled":         "enabled: false",
	"clusters[].breaker.disabled":         "enabled: false",
	"clusters[].tls.insecure_skip_verify": "verify: false",
	"clusters[].tls.disable_sessions":     "sessions: false",
}

var listIndex = regexp.MustCompile(`\[[0-9]*\]`)

// renamedKey returns a hint for a key of an earlier version, or "".
func renamedKey(path string) string {
	path = listIndex.ReplaceAllString(path, "[]")
	for old := path; old != ""; old = old[:max(0, strings.LastIndexByte(old, '.'))] {
		if now := renamed[old]; now != "" {
			return "it has another name now: " + now
		}
	}
	return ""
}

// renamedEnv returns a hint for the variable of a key of an earlier version, or "".
func renamedEnv(name string) string {
	for old := range renamed {
		if e := envName(old); e == name || strings.HasPrefix(name, e+"_") {
			return renamedKey(old)
		}
	}
	return ""
}

// unknown reports a key that does not exist: with its new name if it had another one,
// else with hint.
func (d *decoder) unknown(n *yaml.Node, path, hint string) {
	if now := renamedKey(path); now != "" {
		hint = now
	}
	d.problem(n, path, hint, "unknown key")
}
