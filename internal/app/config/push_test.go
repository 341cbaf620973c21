package config_test

import (
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
)

// routed are routes with nothing about channels.
const routed = "clusters: [{name: a, peers: [{address: \"127.0.0.1:1\"}]}]\nroutes: [{path: /*, cluster: a}]\n"

func TestRoutesAloneNeedNoBrokerAndNoKeys(t *testing.T) {
	f := func(text, kind string) {
		t.Helper()
		c := load(t, text)
		if c.Broker.Kind != kind || c.Pushes() != (kind != config.BrokerNone) {
			t.Errorf("broker %q, pushes: %v, want %q for\n%s", c.Broker.Kind, c.Pushes(), kind, text)
		}
		if want := kind != config.BrokerNone; len(c.Namespaces) > 0 != want {
			t.Errorf("%d namespaces for\n%s", len(c.Namespaces), text)
		}
		if kind == config.BrokerNone && c.Broker.NATS.Dir != "" {
			t.Errorf("stores in %q for\n%s", c.Broker.NATS.Dir, text)
		}
		// What was completed stays as it is.
		if again := c.WithDefaults(); again.Broker.Kind != kind || len(again.Namespaces) != len(c.Namespaces) {
			t.Errorf("completed twice: broker %q, %d namespaces for\n%s", again.Broker.Kind, len(again.Namespaces), text)
		}
	}
	f(routed, "none")
	f(routed+"listen: 0.0.0.0:80\n", "none")
	f(routed+"listen: 0.0.0.0:80\ntrusted: {proxies: [127.0.0.1/32]}\nadmin: {listen: off}\nlog: {level: debug}\n", "none")
	f(routed+"listen: 0.0.0.0:80\nauth: {hmac_secret: 0123456789abcdef0123456789abcdef}\nbroker: {kind: none}\n", "none")
	f("broker: {kind: none}\n", "none")

	f("", "nats")
	f(routed+"namespaces: [{name: default}]\n", "nats")
	f(routed+"auth: {hmac_secret: 0123456789abcdef0123456789abcdef}\n", "nats")
	f(routed+"key_sets: {a: {hmac_secret: 0123456789abcdef0123456789abcdef}}\n", "nats")
	f(routed+"broker: {nats: {dir: elsewhere}}\n", "nats")
	f(routed+"broker: {kind: memory}\n", "memory")
	f(routed+"push: {echo: true}\n", "nats")
	f(routed+"mercure: {enabled: true}\n", "nats")
	f(routed+"pusher: {enabled: true, apps: [{id: a, key: k, secret: s-0123456789abcdef}]}\n", "nats")
	f(strings.Replace(routed, "cluster: a}]", "cluster: a, hold: {channels: [orders]}}]", 1), "nats")
	f(strings.Replace(routed, "cluster: a}]", "cluster: a, record: {namespace: default}}]", 1), "nats")
}

// refused is why a configuration is not accepted.
func refused(t *testing.T, text string) string {
	t.Helper()
	_, err := config.Load(config.Sources{File: "weir.yaml", Text: []byte(text)})
	if err == nil {
		t.Fatalf("accepted:\n%s", text)
	}
	return err.Error()
}

func TestWhatNeedsABrokerIsRefusedWithoutOne(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		got := refused(t, text)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%q is not in %q", w, got)
			}
		}
	}
	const none = "broker: {kind: none}\n"
	f(none+"namespaces: [{name: default}]\n", "namespaces: the list needs a broker")
	f(none+"push: {echo: true}\nmercure: {enabled: true}\ncentrifuge: {enabled: true}\n", "push: echo needs", "mercure: Mercure needs", "centrifuge: Centrifuge needs")
	f(none+strings.Replace(routed, "cluster: a}]", "cluster: a, hold: {channels: [orders]}, record: {namespace: x}}]", 1), `routes[0]: hold of "/*" needs`, `routes[0]: record of "/*" needs`)
	// One that has channels still needs keys to be reached.
	f(routed+"listen: 0.0.0.0:80\nnamespaces: [{name: default}]\n", "there are no keys")
	f("listen: 0.0.0.0:80\n", "there are no keys")
}

func TestPrefixesThatAreNoneAreRefused(t *testing.T) {
	for _, bad := range []string{"weir", "/", "/weir/", "//weir", "/a//b", "/a/../b", "/a b", "/%77eir", "/weir?a", "/*"} {
		if got := refused(t, "downstream: {builtin_prefix: \""+bad+"\"}\n"); !strings.Contains(got, "builtin_prefix: \""+bad+"\" is not a prefix of paths") {
			t.Errorf("%s: %s", bad, got)
		}
	}
	for _, good := range []string{"/weir", "/a/b-c/D_1~.x"} {
		load(t, "downstream: {builtin_prefix: "+good+"}\n")
	}
}

func TestPathsOfProtocolsAndOfWeirDoNotMeet(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if want == "" {
			load(t, text)
		} else if got := refused(t, text); !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	f("mercure: {enabled: true, path: /sse}\n", "mercure.path: /sse is Weir's own")
	f("mercure: {enabled: true, path: /sse}\ndownstream: {builtin_prefix: /weir}\n", "")
	f("mercure: {enabled: true, path: /weir/sse}\ndownstream: {builtin_prefix: /weir}\n", "mercure.path: /weir/sse is Weir's own")
	f("centrifuge: {enabled: true}\n", "")
	f("centrifuge: {enabled: true}\ndownstream: {builtin_prefix: /weir}\n", "")
	f("centrifuge: {enabled: true}\ndownstream: {builtin_prefix: /connection}\n", "centrifuge.enabled: /connection/sse is Weir's own")
	f("centrifuge: {enabled: true, api_prefix: /weir}\ndownstream: {builtin_prefix: /weir}\n", "centrifuge.api_prefix: /weir/sse is Weir's own")
	f("pusher: {enabled: true, apps: [{id: a, key: k, secret: s-0123456789abcdef}]}\ndownstream: {builtin_prefix: /apps}\n", "/apps/sse is Weir's own")
}
