package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSourcesAreChecked(t *testing.T) {
	f := func(sources, says string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "weir.yaml")
		if err := os.WriteFile(file, []byte("broker: {kind: memory}\nnamespaces: [{name: default}, {name: shop}]\nsources:\n"+sources), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(Sources{File: file})
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%v, want %q", err, says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	f("  - {name: a, kind: redis, namespace: shop, dead_letter: 'shop:dead', redis: {url: 'redis://127.0.0.1', streams: [s]}}\n", "")
	f("  - {name: a, kind: udp, udp: {listen: ['127.0.0.1:5000'], price_decimals: 0}}\n", "")
	f("  - {name: a, kind: redis}\n", "sources[0]: redis: the section is missing, and kind is redis")
	f("  - {name: a, kind: redis, redis: {url: 'redis://u:hunter2@127.0.0.1', streams: [s]}, nats: {url: 'nats://x'}}\n", "sources[0]: nats: the section is of another kind")
	f("  - {name: a, kind: redis, redis: {url: 'http://u:hunter2@127.0.0.1'}}\n", "sources[0]: redis: url: invalid scheme")
	f("  - {name: a, kind: redis, namespace: none, redis: {url: 'redis://127.0.0.1', streams: [s]}}\n", `sources[0]: namespace: there is no namespace "none"`)
	f("  - {name: a, kind: redis, dead_letter: 'none:x', redis: {url: 'redis://127.0.0.1', streams: [s]}}\n", `sources[0]: dead_letter: there is no namespace "none"`)
	f("  - {name: a, kind: redis, redis: {url: 'redis://127.0.0.1', streams: [s]}}\n  - {name: a, kind: redis, redis: {url: 'redis://127.0.0.1', streams: [s]}}\n", `sources[1]: name: "a" is the name of sources[0]`)
	f("  - {name: a, kind: redis, chanel: x, redis: {url: 'redis://127.0.0.1', streams: [s]}}\n", "chanel")
}
