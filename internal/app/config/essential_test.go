package config

import (
	"strings"
	"testing"
)

func TestEssentialKeysAreFewAndKnown(t *testing.T) {
	all, found := essentials(), map[string]bool{}
	if len(all) == 0 || len(all) > 25 {
		t.Errorf("%d keys, want 1 to 25", len(all))
	}
	docs := fieldDocs()
	for _, e := range all {
		found[e.path] = true
		if s := summary(e.key, docs); len(s) < 10 || e.example == "" {
			t.Errorf("%s: %q, example %q", e.path, s, e.example)
		}
	}
	for _, e := range essentialToo {
		if !found[e.path] {
			t.Errorf("%s is not a key", e.path)
		}
	}
	if text := Essentials(); strings.Count(text, "    example: ") != len(all) || !strings.Contains(text, "weir config docs --all") {
		t.Errorf("%s", text)
	}
	golden(t, "../../../docs/reference/keys.md", []byte(keysPage()))
}

func TestTheSmallConfigurationIsValid(t *testing.T) {
	if _, err := Load(Sources{File: file(t, essentialYAML)}); err != nil {
		t.Error(err)
	}
}
