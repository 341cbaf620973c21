package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// markdown is GitHub's dialect. Raw HTML passes: the pages are ours.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(html.WithUnsafe()),
)

// A page is a file of Markdown and where it goes.
type page struct {
	name     string // its file's
	url      string // relative to the site's folder
	title    string
	lang     string
	source   []byte
	doc      ast.Node
	ids      map[string]bool // of headings, as GitHub makes them
	group    *group          // nil: reached by links alone
	parent   *page           // the index of its folder, if that lists it
	children []*page
}

func parsePage(root, name string) (*page, error) {
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	ids := &headingIDs{used: map[string]bool{}}
	p := &page{name: name, url: address(name), source: source, lang: "en", ids: ids.used}
	if strings.HasSuffix(name, ".zh.md") || strings.HasPrefix(name, "docs/zh/") {
		p.lang = "zh-Hans"
	}
	p.doc = markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	for n := p.doc.FirstChild(); n != nil && p.title == ""; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level == 1 {
			p.title = plain(h, source)
		}
	}
	if p.title == "" {
		return nil, fmt.Errorf("%s: a page starts with a title, \"# …\"", name)
	}
	return p, nil
}

// address is where a file of the checkout goes: docs/ is the site's root, README.md the
// index of its folder, and what is not in docs/ goes to project/.
func address(name string) string {
	to, ok := strings.CutPrefix(name, "docs/")
	if !ok {
		to = "project/" + name
	}
	if dir, base := path.Split(to); base == "README.md" {
		return dir + "index.html"
	}
	if base, ok := strings.CutSuffix(to, ".md"); ok {
		return base + ".html"
	}
	return to
}

// to is the relative link from the page to a file of the site.
func (p *page) to(url string) string {
	if url == p.url {
		return path.Base(url)
	}
	to, err := filepath.Rel(path.Dir(p.url), url)
	if err != nil {
		return url // both are relative: it cannot fail
	}
	return filepath.ToSlash(to)
}

// Link is to with the page itself as target, for the templates.
func (p *page) Link(other *page) string { return p.to(other.url) }

// Title is the page's first heading.
func (p *page) Title() string { return p.title }

// A reference is a link or an image of a page.
type reference struct{ dest *[]byte }

func (r reference) destination() string { return string(*r.dest) }
func (r reference) set(to string)       { *r.dest = []byte(to) }

func (p *page) links() []reference { return linksOf(p.doc) }

func linksOf(n ast.Node) (list []reference) {
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				list = append(list, reference{&n.Destination})
			}
		case *ast.Image:
			if entering {
				list = append(list, reference{&n.Destination})
			}
		}
		return ast.WalkContinue, nil
	})
	return list
}

// plain is the text of a node, without markup. Blocks and table cells are apart by a space.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if n.Type() == ast.TypeBlock || n.Kind() == extast.KindTableCell {
				b.WriteByte(' ')
			}
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(n.Value)
		case *ast.AutoLink:
			b.Write(n.Label(source))
		case *ast.CodeBlock, *ast.FencedCodeBlock:
			b.Write(n.Lines().Value(source))
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// headingIDs are made as GitHub makes them, so that a link works there and here.
type headingIDs struct{ used map[string]bool }

var (
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func (h *headingIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	slug := linkText.ReplaceAllString(strings.TrimSpace(string(value)), "$1")
	slug = strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(slug), ""), " ", "-")
	name := slug
	for n := 1; h.used[name]; n++ {
		name = slug + "-" + strconv.Itoa(n)
	}
	h.used[name] = true
	return []byte(name)
}

func (h *headingIDs) Put(value []byte) { h.used[string(value)] = true }

var (
	headings = regexp.MustCompile(`<h([2-6]) id="([^"]*)">(.*?)</h[2-6]>`)
	table    = strings.NewReplacer("<table>", `<div class="table"><table>`, "</table>", "</table></div>")
)

// body is the page's HTML: wide tables scroll within themselves, headings can be linked to.
func (p *page) body() (string, error) {
	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, p.source, p.doc); err != nil {
		return "", fmt.Errorf("%s: %w", p.name, err)
	}
	out := table.Replace(b.String())
	return headings.ReplaceAllString(out, `<h$1 id="$2">$3 <a class="anchor" href="#$2" aria-label="Link to this section">#</a></h$1>`), nil
}
