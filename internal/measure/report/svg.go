package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// palette is one set of colours: "--name" in style sheets.
type palette []struct{ name, light, dark string }

// The first five are the paper; the others are classes of their own. The series'
// colours are distinguished by the colour-blind in this order.
var colors = palette{
	{"ground", "#ffffff", "#0f1419"},
	{"ink", "#1b1f24", "#e8ebee"},
	{"soft", "#57606a", "#9ba6b1"},
	{"grid", "#e6e9ec", "#262d35"},
	{"axis", "#9aa2ab", "#56616c"},
	{"s1", "#2563c9", "#6ea8fe"},
	{"s2", "#d9730d", "#f2a154"},
	{"s3", "#12876b", "#4cc9a4"},
	{"s4", "#8250c4", "#b794f6"},
	{"s5", "#c2418f", "#f08cc0"},
	{"s6", "#0d8a9e", "#4cc3d4"},
	{"s7", "#7a6f12", "#cfc04f"},
	{"s8", "#6b7280", "#aab2bd"},
	{"good", "#1a7f37", "#4ac26b"},
	{"warn", "#b77400", "#e3b341"},
	{"bad", "#cf222e", "#ff7b72"},
	{"unknown", "#8c959f", "#7d8590"},
}

const seriesColors = 8

// variables is the palette as declarations.
func (p palette) variables(dark bool) string {
	var b strings.Builder
	for _, c := range p {
		v := c.light
		if dark {
			v = c.dark
		}
		fmt.Fprintf(&b, "--%s:%s;", c.name, v)
	}
	return b.String()
}

// rules are the drawings' style; "$name" is a colour of the palette.
const rules = `.wp{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;font-variant-numeric:tabular-nums}
.wp text{fill:$soft}
.wp .t{font-size:15px;font-weight:600;fill:$ink}
.wp .k{fill:$ink}
.wp .v{font-size:11px}
.wp .on{fill:$ground;font-size:11px}
.wp .n{text-anchor:middle}
.wp .e{text-anchor:end}
.wp .g{stroke:$grid}
.wp .a{stroke:$axis}
.wp .l{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.wp .h{stroke-width:1;stroke-opacity:.55}
.wp .x{stroke-dasharray:5 4;stroke-linecap:butt}
.wp .b{fill:currentColor;fill-opacity:.16}
.wp .f{fill:currentColor;fill-opacity:.72}
.wp .d{fill:currentColor;stroke:$ground;stroke-width:1}
.wp .i{stroke:currentColor;stroke-width:1.4;fill:none}
.wp .m{stroke:currentColor;stroke-width:1.2;stroke-dasharray:2 3}
.wp .c{stroke:$ink;stroke-width:2}
.wp .cr{fill:$ink;fill-opacity:.1}
.wp .ml{fill:currentColor;font-size:11px;paint-order:stroke;stroke:$ground;stroke-width:3px;stroke-linejoin:round}
.wp .o{paint-order:stroke;stroke:$ground;stroke-width:3px;stroke-linejoin:round}
.wp .z{color:$soft}
`

// classRules give each colour that shapes use a class of its name.
func classRules() string {
	var b strings.Builder
	for _, c := range colors[5:] {
		fmt.Fprintf(&b, ".wp .%s{color:$%s}\n", c.name, c.name)
	}
	return b.String()
}

// stylesheet is the style of a standalone drawing, or with inline the rules
// that a page brings for all of its drawings.
func stylesheet(t Theme) string {
	text := rules + classRules()
	for _, c := range colors {
		v := "var(--" + c.name + ")"
		switch t {
		case Light:
			v = c.light
		case Dark:
			v = c.dark
		}
		text = strings.ReplaceAll(text, "$"+c.name+"}", v+"}")
		text = strings.ReplaceAll(text, "$"+c.name+";", v+";")
	}
	if t == Auto {
		text = ".wp{" + colors.variables(false) + "}\n@media(prefers-color-scheme:dark){.wp{" + colors.variables(true) + "}}\n" + text
	}
	return text
}

// An svg gathers the elements of one drawing.
type svg struct {
	b bytes.Buffer
	w float64
	h float64
	// narrow is a phone's width.
	narrow bool
}

// A canvas draws charts: frames, axes, legends and marks.
type canvas struct{ svg }

// escape makes any text safe in XML and HTML, in elements and in attributes. What
// XML cannot hold becomes U+FFFD.
func escape(s string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		panic("report: a builder refused to grow: " + err.Error())
	}
	return b.String()
}

// num writes a coordinate, to a tenth of a pixel.
func num(v float64) string {
	if !finite(v) {
		return "0"
	}
	s := strconv.FormatFloat(v, 'f', 1, 64)
	s = strings.TrimSuffix(s, ".0")
	if s == "-0" {
		return "0"
	}
	return s
}

func (c *svg) raw(s string) { c.b.WriteString(s) }

func (c *svg) text(x, y float64, class, s string) {
	if s == "" {
		return
	}
	c.raw(`<text x="` + num(x) + `" y="` + num(y) + `"`)
	c.class(class)
	c.raw(">" + escape(s) + "</text>\n")
}

func (c *svg) class(class string) {
	if class != "" {
		c.raw(` class="` + class + `"`)
	}
}

func (c *svg) line(x1, y1, x2, y2 float64, class string) {
	c.raw(`<line x1="` + num(x1) + `" y1="` + num(y1) + `" x2="` + num(x2) + `" y2="` + num(y2) + `"`)
	c.class(class)
	c.raw("/>\n")
}

func (c *svg) rect(x, y, w, h float64, class, attrs, title string) {
	c.raw(`<rect x="` + num(x) + `" y="` + num(y) + `" width="` + num(max(w, 0)) + `" height="` + num(max(h, 0)) + `"`)
	c.class(class)
	c.raw(attrs)
	c.end("rect", title)
}

func (c *svg) dot(x, y, r float64, title string) {
	c.raw(`<circle cx="` + num(x) + `" cy="` + num(y) + `" r="` + num(r) + `" class="d"`)
	c.end("circle", title)
}

// end closes an element, with what a resting pointer shows.
func (c *svg) end(element, title string) {
	if title == "" {
		c.raw("/>\n")
		return
	}
	c.raw("><title>" + escape(title) + "</title></" + element + ">\n")
}

func (c *svg) path(d, class string) {
	if d == "" {
		return
	}
	c.raw(`<path d="` + d + `"`)
	c.class(class)
	c.raw("/>\n")
}

// clip opens a viewport that hides what lies outside of it; its own coordinates
// begin at its corner, so shift brings the drawing's back.
func (c *svg) clip(x, y, w, h float64) {
	w, h = max(w, 1), max(h, 1)
	c.raw(fmt.Sprintf(`<svg x="%s" y="%s" width="%s" height="%s" viewBox="%s %s %s %s" overflow="hidden">`+"\n",
		num(x), num(y), num(w), num(h), num(x), num(y), num(w), num(h)))
}

func (c *svg) endClip() { c.raw("</svg>\n") }

// write wraps what was gathered into its element.
func (c *svg) write(w io.Writer, t Theme, title string) error {
	var head strings.Builder
	if t != inline {
		head.WriteString(`<?xml version="1.0" encoding="UTF-8"?>` + "\n")
	}
	fmt.Fprintf(&head, `<svg xmlns="http://www.w3.org/2000/svg" class="wp" viewBox="0 0 %s %s" width="%s" height="%s" role="img"`,
		num(c.w), num(c.h), num(c.w), num(c.h))
	if title != "" {
		fmt.Fprintf(&head, ` aria-label="%s"`, escape(title))
	}
	head.WriteString(">\n")
	if t != inline {
		head.WriteString("<style>\n" + stylesheet(t) + "</style>\n")
	}
	switch t {
	case Light:
		head.WriteString(`<rect width="100%" height="100%" fill="` + colors[0].light + `"/>` + "\n")
	case Dark:
		head.WriteString(`<rect width="100%" height="100%" fill="` + colors[0].dark + `"/>` + "\n")
	}
	if _, err := io.WriteString(w, head.String()); err != nil {
		return err
	}
	if _, err := w.Write(c.b.Bytes()); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</svg>\n")
	return err
}

// textWidth estimates what a text takes at a font size; no font is known here, so
// it is on the generous side.
func textWidth(s string, size float64) float64 {
	w := 0.0
	for _, r := range s {
		switch {
		case strings.ContainsRune("iljtfr.,:;'|!()[] ", r):
			w += 0.34
		case r == 'm' || r == 'w' || r == 'M' || r == 'W' || r == '%':
			w += 0.88
		case r >= 'A' && r <= 'Z':
			w += 0.68
		case r >= 0x1100:
			w += 1
		default:
			w += 0.57
		}
	}
	return w * size
}

// fit shortens a text to a width.
func fit(s string, size, width float64) string {
	if textWidth(s, size) <= width {
		return s
	}
	for s != "" && textWidth(s, size)+size*0.9 > width {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return strings.TrimRight(s, " ") + "…"
}

// wrap breaks a text into lines of a width at spaces, at most limit of them.
func wrap(s string, size, width float64, limit int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		switch {
		case line == "":
			line = word
		case textWidth(line+" "+word, size) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	if len(lines) > limit {
		rest := strings.Join(lines[limit-1:], " ")
		lines = append(lines[:limit-1], rest)
	}
	for i := range lines {
		lines[i] = fit(lines[i], size, width)
	}
	return lines
}
