package main

import (
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// A rendered page: ids that links may name, and what it links to or loads.
type rendered struct {
	ids   map[string]bool
	links []string
	h1    int
}

func parse(t *testing.T, name string) rendered {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	root, err := html.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	r := rendered{ids: map[string]bool{}}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if n.Data == "h1" {
			r.h1++
		}
		for _, a := range n.Attr {
			switch {
			case a.Key == "id" || a.Key == "name" && n.Data == "a":
				if r.ids[a.Val] {
					t.Errorf("%s: two elements have the id %q", name, a.Val)
				}
				r.ids[a.Val] = true
			case a.Key == "href" || a.Key == "src":
				if strings.HasPrefix(a.Val, "data:") {
					continue
				}
				r.links = append(r.links, a.Val)
				if strings.Contains(a.Val, "://") && n.Data != "a" {
					t.Errorf("%s: <%s> loads %s from another host", name, n.Data, a.Val)
				}
			}
		}
	}
	return r
}

// TestEveryLinkOfTheSiteLeads builds the site from the tree. Every link that stays in it is
// relative, so that it works from a file, and names a file and an id that exist.
func TestEveryLinkOfTheSiteLeads(t *testing.T) {
	s, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := s.write(out); err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{}
	pages := map[string]rendered{}
	err = filepath.WalkDir(out, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(out, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files[rel] = true
		if strings.HasSuffix(rel, ".html") {
			pages[rel] = parse(t, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) != len(s.pages) || len(pages) < 100 {
		t.Errorf("%d files for %d pages", len(pages), len(s.pages))
	}
	for name, p := range pages {
		if p.h1 == 0 { // a page in two languages has two
			t.Errorf("%s has no title", name)
		}
		for _, link := range p.links {
			u, err := url.Parse(link)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			target := name
			if u.Path != "" {
				target = path.Join(path.Dir(name), u.Path)
			}
			switch {
			case strings.HasPrefix(u.Path, "/") || strings.HasPrefix(target, ".."):
				t.Errorf("%s: %s leads out of the site", name, link)
			case !files[target]:
				t.Errorf("%s: %s: no such file", name, link)
			case u.Fragment != "" && strings.HasSuffix(target, ".html") && !pages[target].ids[u.Fragment]:
				t.Errorf("%s: %s: no such heading", name, link)
			}
		}
	}
}

func TestIDsAreThoseOfGitHub(t *testing.T) {
	ids := &headingIDs{used: map[string]bool{}}
	f := func(heading, want string) {
		t.Helper()
		if got := string(ids.Generate([]byte(heading), 0)); got != want {
			t.Errorf("%q: %q, want %q", heading, got, want)
		}
	}
	f("`clusters[].timeouts.idle`", "clusterstimeoutsidle")
	f("Push: 5,000 dashboards", "push-5000-dashboards")
	f("[A link](x.md) in it", "a-link-in-it")
	f("GET /sse", "get-sse")
	f("GET /sse", "get-sse-1")
	f("snake_case – dash", "snake_case--dash")
	f("1. 启动服务", "1-启动服务")
}

func TestPagesThatCannotBeReachedAreErrors(t *testing.T) {
	f := func(want string, files map[string]string) {
		t.Helper()
		root := t.TempDir()
		for name, text := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := load(root)
		if want == "" {
			if err != nil {
				t.Error(err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	index := "# Docs\n\n## Do\n\n[a](a.md) and [all of b](b/README.md)\n"
	f("", map[string]string{"docs/README.md": index, "docs/a.md": "# A\n\n[one](b/1.md)", "docs/b/README.md": "# B\n", "docs/b/1.md": "# One\n"})
	f("docs/c.md: docs/README.md does not link to it", map[string]string{"docs/README.md": index, "docs/a.md": "# A\n", "docs/b/README.md": "# B\n", "docs/c.md": "# C\n"})
	f("docs/a.md: a page starts with a title", map[string]string{"docs/README.md": index, "docs/a.md": "A\n"})
	f("docs/a.md: link to b/README.md#no: docs/b/README.md has no heading #no", map[string]string{"docs/README.md": index, "docs/a.md": "# A\n\n[b](b/README.md#no)\n", "docs/b/README.md": "# B\n"})
	f("link to gone.txt", map[string]string{"docs/README.md": index, "docs/a.md": "# A\n\n[b](gone.txt)\n", "docs/b/README.md": "# B\n"})
	f("there is no such page", map[string]string{"docs/a.md": "# A\n"})
}
