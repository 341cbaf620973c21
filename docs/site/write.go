package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

//go:embed theme
var theme embed.FS

var layout = template.Must(template.ParseFS(theme, "theme/page.html"))

// write makes the site in a folder.
func (s *site) write(out string) error {
	for _, name := range slices.Sorted(maps.Keys(s.pages)) {
		text, err := s.render(s.pages[name])
		if err != nil {
			return err
		}
		if err := put(out, s.pages[name].url, text); err != nil {
			return err
		}
	}
	for name := range s.assets {
		data, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if err := put(out, address(name), data); err != nil {
			return err
		}
	}
	for _, name := range []string{"site.css", "site.js"} {
		data, err := theme.ReadFile("theme/" + name)
		if err != nil {
			return err
		}
		if err := put(out, name, data); err != nil {
			return err
		}
	}
	index, err := s.searchIndex()
	if err != nil {
		return err
	}
	return put(out, "search-index.js", index)
}

func put(out, name string, data []byte) error {
	to := filepath.Join(out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// A view is what the layout shows of a page.
type view struct {
	*page
	Lang, Root, Source string
	Home               *page
	Nav                []*group
	Body               template.HTML
	Sections           []section
	Previous, Next     *page
	Up                 *page
}

// Open reports whether the group's list is shown: that of the page's own group, and of the
// first two where the page has none.
func (v *view) Open(g *group) bool {
	return v.group == g || v.group == nil && slices.Index(v.Nav, g) < 2
}

// Current reports whether the entry is the page, or the index that it belongs to.
func (v *view) Current(p *page) bool { return p == v.page || p == v.parent }

// Children are the pages listed under the entry while one of them or it is shown.
func (v *view) Children(p *page) []*page {
	if v.Current(p) {
		return p.children
	}
	return nil
}

func (s *site) render(p *page) ([]byte, error) {
	body, err := p.body()
	if err != nil {
		return nil, err
	}
	v := &view{page: p, Lang: p.lang, Root: strings.Repeat("../", strings.Count(p.url, "/")), Home: s.pages[home], Nav: s.nav,
		Source: repository + "/blob/main/" + p.name, Body: template.HTML(body), Up: p.parent} //nolint:gosec // our own pages
	for _, part := range p.sections() {
		if part.Level == 2 {
			v.Sections = append(v.Sections, part)
		}
	}
	if p.group != nil {
		siblings := p.group.Pages
		if p.parent != nil {
			siblings = p.parent.children
		}
		i := slices.Index(siblings, p)
		if i > 0 {
			v.Previous = siblings[i-1]
		}
		if i+1 < len(siblings) {
			v.Next = siblings[i+1]
		}
	}
	var b bytes.Buffer
	if err := layout.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return b.Bytes(), nil
}

// A section is a heading with the text below it, up to the next heading.
type section struct {
	Level    int
	ID, Name string
	text     string
}

func (p *page) sections() []section {
	list := []section{{Level: 1, Name: p.title}}
	for n := p.doc.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			last := &list[len(list)-1]
			last.text += plain(n, p.source) + " "
			continue
		}
		if h.Level == 1 && len(list) == 1 {
			continue
		}
		id, _ := h.AttributeString("id")
		text, _ := id.([]byte)
		list = append(list, section{Level: h.Level, ID: string(text), Name: plain(h, p.source)})
	}
	return list
}

// searchIndex is a script that sets weirSearch: page URL, page title, and its sections as
// id, heading and text. A script loads from file://, which a fetch does not.
func (s *site) searchIndex() ([]byte, error) {
	index := make([][3]any, 0, len(s.pages))
	for _, name := range slices.Sorted(maps.Keys(s.pages)) {
		p := s.pages[name]
		parts := make([][3]string, 0, 8)
		for _, part := range p.sections() {
			parts = append(parts, [3]string{part.ID, part.Name, strings.TrimSpace(part.text)})
		}
		index = append(index, [3]any{p.url, p.title, parts})
	}
	data, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]byte("var weirSearch = "), data, []byte("\n")), nil
}
