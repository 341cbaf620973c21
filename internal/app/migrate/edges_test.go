package migrate

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Whatever is at a key, what comes out is accepted, and the key is taken or named.
func TestAnyValueAtAnyKeyGivesWhatIsAcceptedExhaustively(t *testing.T) {
	values := []any{
		nil, "", "x", "a b:c\n#", strings.Repeat("é", 300), true, false, 0, -1, 1, 1 << 40, 0.5, "10s", "-5s", "1h", []any{}, []any{"x", 1, nil, []any{}}, map[string]any{},
		map[string]any{"zz": "1"}, "http://127.0.0.1/x", "https://u:p@h.example/{{x}}", "0123456789abcdef0123456789abcdef", "-----BEGIN PUBLIC KEY-----", "127.0.0.1", "[::1]:80", "*",
	}
	f := func(kind Kind, file, base string) {
		t.Helper()
		for i := 0; ; i++ {
			done := false
			for j, v := range values {
				if j%3 != i%3 { // each value at every third key: all of them take long
					continue
				}
				var tree any
				if err := json.Unmarshal([]byte(base), &tree); err != nil {
					t.Fatal(err)
				}
				at := i
				key := replaceLeaf(tree, &at, v)
				if key == "" {
					done = true
					break
				}
				b, err := json.Marshal(tree)
				if err != nil {
					t.Fatal(err)
				}
				r, err := Translate(kind, file, b, Options{})
				if err != nil {
					t.Fatalf("%s: %v: %v", key, v, err)
				}
				if err := load(t, r.YAML); err != nil {
					t.Errorf("%s: %v: %v\n%s", key, v, err, r.YAML)
				}
			}
			if done {
				return
			}
		}
	}
	f(Centrifugo, "c.json", string(readSample(t, "centrifugo6.json")))
	f(Soketi, "s.json", string(readSample(t, "soketi.json")))
	f(Centrifugo, "c.json", `{
		"http_server": {"address": "", "port": 1, "internal_address": "", "internal_port": "", "tls": {"enabled": true, "cert_pem": "c.pem", "key_pem": "k.pem", "client_ca_pem": "ca.pem"}},
		"client": {"token": {"hmac_previous_secret_key": "", "rsa_public_key": "", "ecdsa_public_key": "", "jwks_public_endpoint": "", "audience": "", "issuer": ""},
			"expired_close_delay": "", "stale_close_delay": "", "queue_max_size": 0, "user_connection_limit": 0, "connection_limit": 0,
			"history_max_publication_limit": 0, "recovery_max_publication_limit": 0, "proxy": {"refresh": {"enabled": true, "endpoint": "http://h/x", "timeout": "1s"}}},
		"broker": {"enabled": true, "type": "nats", "nats": {"url": "", "prefix": ""}},
		"channel": {"publication_data_format": "", "namespaces": [{"name": "a", "history_size": 1, "history_ttl": "1s", "publish_proxy_enabled": true, "publish_proxy_name": "p"}]},
		"proxies": [{"name": "p", "endpoint": "http://h/p", "http_headers": [], "http": {"static_headers": {"a": "b"}}}],
		"http_api": {"key": "", "handler_prefix": "", "error_mode": ""}, "node": {"name": ""}, "shutdown": {"timeout": ""}}`)
	f(Soketi, "s.json", `{"adapter": {"driver": "nats", "nats": {"servers": [], "user": "", "pass": "", "token": "", "prefix": ""}},
		"appManager": {"array": {"apps": [{"id": "1", "key": "k", "secret": "s", "webhooks": [{"url": "http://h", "event_types": [], "headers": {"a": "b"}, "filter": {"channel_name_ends_with": ""}}]}]}},
		"eventLimits": {"maxChannelsAtOnce": 1}, "host": "", "ssl": {"certPath": "", "keyPath": ""}, "metrics": {"enabled": true, "host": ""}}`)
}

// replaceLeaf puts v at the n-th leaf and returns its key, "" if there are fewer.
func replaceLeaf(tree any, n *int, v any) string {
	try := func(x any, set func(any)) string {
		switch y := x.(type) {
		case map[string]any:
			if len(y) > 0 {
				return replaceLeaf(y, n, v)
			}
		case []any:
			if len(y) > 0 {
				return replaceLeaf(y, n, v)
			}
		}
		if *n > 0 {
			*n--
			return ""
		}
		set(v)
		return "leaf"
	}
	switch t := tree.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(t)) {
			if at := try(t[k], func(v any) { t[k] = v }); at != "" {
				return k + "." + at
			}
		}
	case []any:
		for i := range t {
			if at := try(t[i], func(v any) { t[i] = v }); at != "" {
				return "[]." + at
			}
		}
	}
	return ""
}

// What Centrifugo grants where nothing is kept is named, and names of namespaces with
// capitals are kept.
func TestRecoveryWithoutHistoryIsNamed(t *testing.T) {
	r, err := Translate(Centrifugo, "config.json", []byte(`{"channel":{"namespaces":[
		{"name":"Chat","history_size":10,"history_ttl":"60s","force_recovery":true},
		{"name":"live","force_recovery":true,"allow_positioning":true,"allow_recovery":false}]}}`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := load(t, r.YAML); err != nil || !strings.Contains(string(r.YAML), "- name: Chat") {
		t.Errorf("%v\n%s", err, r.YAML)
	}
	var named []string
	for _, n := range r.Notes {
		if strings.Contains(n.Outcome, "neither recoverable nor positioned") {
			for _, p := range n.Keys {
				named = append(named, p.Key)
			}
		}
	}
	if want := []string{"channel.namespaces[1].force_recovery", "channel.namespaces[1].allow_positioning"}; !slices.Equal(named, want) {
		t.Errorf("named %q, want %q", named, want)
	}
}
