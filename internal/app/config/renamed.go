package config

import (
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// renamed are the keys of earlier versions that are errors, by path, and what is written now.
var renamed = map[string]string{
	"mercure.publisher":             "mercure.publisher_keys: NAME, with the keys in key_sets.NAME",
	"mercure.subscriber":            "mercure.subscriber_keys: NAME, with the keys in key_sets.NAME",
	"mercure.require_expiry":        "key_sets.*.require_expiry: for each of the sets that mercure names",
	"centrifuge.token":              "centrifuge.keys: NAME, with the keys in key_sets.NAME",
	"centrifuge.subscription_token": "centrifuge.subscription_keys: NAME, with the keys in key_sets.NAME",
}

var listIndex = regexp.MustCompile(`\[[0-9]*\]`)

// renamedKey returns a hint for a key of an earlier version, or "".
func renamedKey(path string) string {
	path = listIndex.ReplaceAllString(path, "[]")
	for old := path; old != ""; old = old[:max(0, strings.LastIndexByte(old, '.'))] {
		if now := renamed[old]; now != "" {
			return "it has another name now: " + now
		}
		if p, ok := deprecated[old]; ok {
			return "it has another name now: " + p.successor(old)
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
