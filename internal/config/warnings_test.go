package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/config"
)

func TestWhatMayBeReadPastPushersSignaturesIsWarnedOf(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "weir.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{File: path})
		if err != nil {
			t.Fatal(err)
		}
		got := c.Warnings()
		if len(got) != min(len(want), 1) {
			t.Fatalf("%d warnings %v for\n%s", len(got), got, text)
		}
		for _, w := range want {
			if !strings.Contains(got[0].Text, w) || got[0].Hint == "" {
				t.Errorf("%q is not in %q", w, got[0].Text)
			}
		}
	}
	const app = "pusher: {enabled: true, apps: [{id: a, key: k, secret: s-0123456789abcdef, namespace: p}]}\n"
	const closed = "namespaces: [{name: default, anonymous: true}, {name: p}]\n"
	const open = "namespaces: [{name: default}, {name: p, anonymous: true}]\n"
	f(app + closed)
	f("auth: {allow_weak_secrets: true, hmac_secret: secret}\n", "auth.hmac_secret: 6 bytes can be guessed")
	f("centrifuge: {enabled: true, token: {allow_weak_secrets: true, hmac_secret: "+strings.Repeat("ab", 30)+"}}\n", "centrifuge.token.hmac_secret: has fewer than 8 different bytes")
	f("auth: {allow_weak_secrets: true, hmac_secret: 0123456789abcdef0123456789abcdef}\n")
	f("pusher: {enabled: false, apps: [{id: a, key: k, secret: s-0123456789abcdef, namespace: p}]}\n" + open)
	f(app+open, "pusher.apps[0]", `"p"`, "/sse and /ws")
	f("pusher: {enabled: true, apps: [{id: a, key: k, secret: s-0123456789abcdef}]}\n"+closed, `"default"`, "/sse and /ws")
	f(app + closed + "centrifuge: {enabled: true, namespaces: {default: {allow_subscribe_for_client: true}}}\n")
	f(app + closed + "centrifuge: {enabled: false, namespaces: {p: {allow_subscribe_for_client: true}}}\n")
	f(app+open+"centrifuge: {enabled: true}\n", "/sse and /ws", "Centrifuge, as the namespace is anonymous")
	f(app+closed+"centrifuge: {enabled: true, insecure: true}\n", "centrifuge.insecure")
	f(app+closed+"centrifuge: {enabled: true, namespaces: {p: {allow_subscribe_for_client: true}}}\n", "allow_subscribe_for_client")
	f(app+closed+"centrifuge: {enabled: true, namespaces: {p: {allow_subscribe_for_client: true, allow_subscribe_for_anonymous: true}}}\n", "allow_subscribe_for_anonymous")
	f(app+closed+"centrifuge: {enabled: true, namespaces: {p: {subscribe_proxy: true}}, proxies: {subscribe: {endpoint: 'http://127.0.0.1:1/'}}}\n", "proxies.subscribe")
	const key = "mercure: {enabled: true, anonymous: true, publisher: {secret: 0123456789abcdef0123456789abcdef}, subscriber: {secret: 0123456789abcdef0123456789abcdef}"
	f(app+closed+key+", namespace: p}\n", "mercure.namespace")
	f(app + closed + key + ", namespace: default}\n")
	f("namespaces: [{name: default, anonymous: true}]\ncentrifuge: {enabled: true, namespaces: {default: {allow_user_limited_channels: true}}}\n", "centrifuge.namespaces.default.allow_user_limited_channels")
	f("namespaces: [{name: default}]\ncentrifuge: {enabled: true, namespaces: {default: {allow_user_limited_channels: true}}}\n")
}
