package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
)

// load reads a configuration file with text.
func load(t *testing.T, text string) config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{File: path})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGuardedChannelsThatOtherCallersReachAreWarnedOf(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		got := load(t, text).Warnings()
		if len(got) != len(want) {
			t.Fatalf("%d warnings %v for\n%s", len(got), got, text)
		}
		for i, w := range want {
			if !strings.Contains(got[i].Text, w) || got[i].Hint == "" {
				t.Errorf("%q is not in %q", w, got[i].Text)
			}
		}
	}
	const app = "pusher: {enabled: true, apps: [{id: a, key: k, secret: s-0123456789abcdef, namespace: p}]}\n"
	const closed = "namespaces: [{name: default, anonymous: true}, {name: p}]\n"
	const open = "namespaces: [{name: default}, {name: p, anonymous: true}]\n"
	const everything = "allow_subscribe_for_client: true, allow_subscribe_for_anonymous: true, allow_publish_for_client: true, allow_publish_for_anonymous: true, " +
		"allow_presence_for_client: true, allow_presence_for_anonymous: true, allow_history_for_client: true, allow_history_for_anonymous: true, allow_user_limited_channels: true"
	f("auth: {allow_weak_secrets: true, hmac_secret: secret}\n", "auth.hmac_secret: 6 bytes can be guessed")
	f("key_sets: {own: {allow_weak_secrets: true, hmac_secret: "+strings.Repeat("ab", 30)+"}}\ncentrifuge: {enabled: true, keys: own}\n", "key_sets.own.hmac_secret: has fewer than 8 different bytes")
	f("auth: {allow_weak_secrets: true, hmac_secret: 0123456789abcdef0123456789abcdef}\n")
	const key = "key_sets: {own: {hmac_secret: 0123456789abcdef0123456789abcdef}}\nmercure: {enabled: true, anonymous: true, publisher_keys: own, subscriber_keys: own"
	f(app + closed)
	f(app + open)
	f(app + open + "centrifuge: {enabled: true, anonymous_connect: true, user_personal_channel: true, personal_namespace: p, namespaces: {p: {" + everything + "}}}\n")
	f(app + closed + key + ", namespace: p}\n")
	f(app+closed+"centrifuge: {enabled: true, insecure: true}\n", "namespaces.default: clients without a token can ", "namespaces.p: clients without a token can ")
}

func TestRoutesBehindPathsOfWeirAreWarnedOf(t *testing.T) {
	const pushes = "namespaces: [{name: default}]\n"
	f := func(path, more, want string) {
		t.Helper()
		got := load(t, "clusters: [{name: a, peers: [{address: \"127.0.0.1:1\"}]}]\nroutes: [{path: \""+path+"\", cluster: a}]\n"+more).Warnings()
		if want == "" {
			if len(got) > 0 {
				t.Errorf("%s: %v", path, got)
			}
			return
		}
		if len(got) != 1 || !strings.HasPrefix(got[0].Text, "routes[0]: path: requests for "+want+" are") ||
			!strings.Contains(got[0].Hint, "builtin_hosts") || !strings.Contains(got[0].Hint, "builtin_prefix") {
			t.Errorf("%s: %v, want one of %s", path, got, want)
		}
	}
	f("/healthz", pushes, "/healthz")
	f("/api/*", pushes, "/api/publish, /api/broadcast, /api/recording")
	f("/ws", pushes, "/ws")
	f("/*", pushes, "")
	f("/shop/*", pushes, "")
	f("/api/orders", pushes, "")
	f("/api/*", pushes+"downstream: {builtin_hosts: [push.example.com]}\n", "")
	// Below a prefix other paths are Weir's.
	const prefix = pushes + "downstream: {builtin_prefix: /weir}\n"
	f("/api/*", prefix, "")
	f("/healthz", prefix, "")
	f("/weir/ws", prefix, "/weir/ws")
	// Where there are only routes no other path than those of health is Weir's.
	f("/ws", "", "")
	f("/api/*", "", "")
	f("/healthz", "", "/healthz")
	f("/healthz", "downstream: {builtin_prefix: /weir}\n", "")
}
