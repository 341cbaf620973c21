package dashboard

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
)

// files returns the page's text by name.
func files(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(Files(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(Files(), name)
		out[name] = string(b)
		return err
	})
	if err != nil || out["index.html"] == "" {
		t.Fatalf("there is no page: %v", err)
	}
	return out
}

// Whatever a file names is embedded: a page must not need what is not in the binary.
func TestEverythingNamedIsEmbedded(t *testing.T) {
	all := files(t)
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllStringSubmatch(all["index.html"], -1) {
		if _, ok := all[m[1][1:]]; !ok {
			t.Errorf("index.html names %s", m[1])
		}
	}
	imports := regexp.MustCompile(`(?m)^import .* from "([^"]+)";$`)
	for name, text := range all {
		if path.Ext(name) != ".js" {
			continue
		}
		for _, m := range imports.FindAllStringSubmatch(text, -1) {
			if _, ok := all[path.Join(path.Dir(name), m[1])]; !ok || !strings.HasPrefix(m[1], ".") {
				t.Errorf("%s imports %s", name, m[1])
			}
		}
	}
}

// Nothing is there that the policy forbids or that makes markup of text.
func TestTextStaysText(t *testing.T) {
	f := func(pattern string) {
		t.Helper()
		re := regexp.MustCompile(pattern)
		for name, text := range files(t) {
			if s := re.FindString(text); s != "" {
				t.Errorf("%s has %q", name, s)
			}
		}
	}
	f(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc`)
	f(`\beval\(|new Function|setTimeout\("|javascript:`)
	f(`<script>|<style|\sstyle="|\son[a-z]+="`)

	f(`(?:src|href)="(?:https?:)?//`)
}

// Every number that index.html binds is written by a format that there is.
func TestEveryFormatIsThere(t *testing.T) {
	all := files(t)
	for _, m := range regexp.MustCompile(`data-v="[^"|]+\|([a-z]+)"`).FindAllStringSubmatch(all["index.html"], -1) {
		if !strings.Contains(all["format.js"], "export const "+m[1]+" =") {
			t.Errorf("no format %q", m[1])
		}
	}
}
