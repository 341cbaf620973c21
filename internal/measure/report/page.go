package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // page.css
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
)

// A Page is one self-contained HTML file: no script, no request to anywhere, which
// its own Content-Security-Policy enforces.
type Page struct {
	Title string
	// Lead is the line under the title: what was measured, when.
	Lead   string
	Blocks []Block
	// Data is embedded as JSON in an element with the id "data", for anyone who wants the
	// numbers; nil means none. The names of a page and its data are a report's own
	// business: Data should carry a version.
	Data any
	// Footer is the last line: what made the page.
	Footer string
}

// A Block is a piece of a Page: Heading, Text, Code, Verdict, Facts, Figure, Details
// or *Table.
type Block interface{ html(p *pageWriter) }

// A Heading starts a section.
type Heading string

// Text is a paragraph.
type Text string

// Code is text to be copied: a command, a file.
type Code string

// A Verdict is the headline of a result.
type Verdict struct {
	State State
	// Word is the verdict, short; Text is what it rests on.
	Word, Text string
}

// Facts are the figures to be seen first.
type Facts []Fact

// A Fact is one number with its name.
type Fact struct {
	Name, Value string
	// Note reports how sure it is or what it means, in small print.
	Note  string
	State State
}

// A Figure is a drawing with a line that says what it shows. On a narrow screen it
// is drawn for one.
type Figure struct {
	Drawing Drawing
	Caption string
}

// Details are blocks that open on request.
type Details struct {
	Summary string
	Blocks  []Block
}

var (
	_ Block = Heading("")
	_ Block = Text("")
	_ Block = Code("")
	_ Block = Verdict{}
	_ Block = Facts(nil)
	_ Block = Figure{}
	_ Block = Details{}
	_ Block = (*Table)(nil)

	_ Drawing = (*Plot)(nil)
	_ Drawing = (*Bars)(nil)
	_ Drawing = (*Heat)(nil)
	_ Drawing = (*Strip)(nil)
	_ Drawing = (*Grid)(nil)
)

//go:embed page.css
var pageCSS string

// The widths that figures are drawn for.
const (
	wideFigure = 960
	slimFigure = 360
)

// A pageWriter gathers the body of a page. Its first error stays.
type pageWriter struct {
	b   bytes.Buffer
	err error
}

func (p *pageWriter) raw(s string) { p.b.WriteString(s) }

func (p *pageWriter) element(tag, class, text string) {
	if text == "" {
		return
	}
	p.raw("<" + tag)
	if class != "" {
		p.raw(` class="` + class + `"`)
	}
	p.raw(">" + escape(text) + "</" + tag + ">\n")
}

// HTML writes the page. The error is w's, or that Data cannot be written as JSON.
func (pg *Page) HTML(w io.Writer) error {
	css := ":root{color-scheme:light dark;" + colors.variables(false) + "}\n" +
		"@media(prefers-color-scheme:dark){:root{" + colors.variables(true) + "}}\n" +
		"@media print{:root{color-scheme:light;" + colors.variables(false) + "}}\n" +
		stylesheet(inline) + pageCSS
	sum := sha256.Sum256([]byte(css))
	policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'"
	p := &pageWriter{}
	p.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" +
		`<meta http-equiv="Content-Security-Policy" content="` + policy + "\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n" +
		"<meta name=\"color-scheme\" content=\"light dark\">\n")
	p.element("title", "", pg.Title)
	p.raw("<style>" + css + "</style>\n</head>\n<body>\n<main>\n")
	p.element("h1", "", pg.Title)
	p.element("p", "lead", pg.Lead)
	p.blocks(pg.Blocks)
	p.element("footer", "", pg.Footer)
	p.raw("</main>\n")
	p.data(pg.Data)
	p.raw("</body>\n</html>\n")
	if p.err != nil {
		return p.err
	}
	_, err := w.Write(p.b.Bytes())
	return err
}

// data embeds v; encoding/json escapes what could end the element.
func (p *pageWriter) data(v any) {
	if v == nil {
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		p.err = fmt.Errorf("report: the page's data: %w", err)
		return
	}
	p.raw(`<script type="application/json" id="data">` + "\n")
	p.b.Write(text)
	p.raw("\n</script>\n")
}

func (p *pageWriter) blocks(blocks []Block) {
	for _, b := range blocks {
		if b != nil {
			b.html(p)
		}
	}
}

func (h Heading) html(p *pageWriter) { p.element("h2", "", string(h)) }
func (t Text) html(p *pageWriter)    { p.element("p", "", string(t)) }
func (c Code) html(p *pageWriter)    { p.element("pre", "", string(c)) }

func (v Verdict) html(p *pageWriter) {
	p.raw(`<div class="verdict ` + string(v.State.known()) + `">`)
	p.element("b", "", v.Word)
	p.element("span", "", v.Text)
	p.raw("</div>\n")
}

func (f Facts) html(p *pageWriter) {
	if len(f) == 0 {
		return
	}
	p.raw(`<div class="facts">` + "\n")
	for _, fact := range f {
		p.raw(`<div class="` + string(fact.State.known()) + `"><dl>`)
		p.element("dt", "", fact.Name)
		p.element("dd", "", fact.Value)
		p.element("dd", "small", fact.Note)
		p.raw("</dl></div>\n")
	}
	p.raw("</div>\n")
}

func (f Figure) html(p *pageWriter) {
	if f.Drawing == nil {
		return
	}
	p.raw("<figure>\n")
	for _, v := range []struct {
		class string
		width int
	}{{"wide", wideFigure}, {"slim", slimFigure}} {
		p.raw(`<div class="` + v.class + `">`)
		if err := f.Drawing.SVG(&p.b, Options{Theme: inline, Width: v.width}); err != nil && p.err == nil {
			p.err = err
		}
		p.raw("</div>\n")
	}
	p.element("figcaption", "", f.Caption)
	p.raw("</figure>\n")
}

func (d Details) html(p *pageWriter) {
	p.raw("<details>")
	p.element("summary", "", d.Summary)
	p.blocks(d.Blocks)
	p.raw("</details>\n")
}
