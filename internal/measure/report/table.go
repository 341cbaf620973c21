package report

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"
)

// A Table has columns and rows, as text, Markdown and HTML alike.
type Table struct {
	Caption string
	Columns []Column
	// Rows may be shorter than Columns; cells beyond them are left out.
	Rows [][]Cell
}

// A Column describes one of its columns.
type Column struct {
	Name string
	// Left aligns to the left; numbers stand to the right.
	Left bool
}

// A Cell is one entry.
type Cell struct {
	Text  string
	State State
}

// Cells makes a row of plain texts.
func Cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, t := range texts {
		row[i].Text = t
	}
	return row
}

// Add appends a row of plain texts.
func (t *Table) Add(texts ...string) { t.Rows = append(t.Rows, Cells(texts...)) }

// cell is the text at a place, on one line; empty where there is none.
func (t *Table) cell(row []Cell, i int) string {
	if i >= len(row) {
		return ""
	}
	return printable(row[i].Text)
}

// printable makes one line of a text and takes what could command a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case r < 0x20, r >= 0x7f && r < 0xa0:
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// Text writes the table for a terminal, columns two spaces apart, each line started
// with indent.
func (t *Table) Text(w io.Writer, indent string) error {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = utf8.RuneCountInString(printable(c.Name))
		for _, row := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(t.cell(row, i)))
		}
	}
	var b bytes.Buffer
	if t.Caption != "" {
		b.WriteString(indent + printable(t.Caption) + "\n")
	}
	line := func(text func(int) string) {
		var l strings.Builder
		for i, c := range t.Columns {
			s := text(i)
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s))
			if i > 0 {
				l.WriteString("  ")
			}
			if c.Left {
				l.WriteString(s + pad)
			} else {
				l.WriteString(pad + s)
			}
		}
		b.WriteString(strings.TrimRight(indent+l.String(), " ") + "\n")
	}
	line(func(i int) string { return printable(t.Columns[i].Name) })
	for _, row := range t.Rows {
		line(func(i int) string { return t.cell(row, i) })
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Markdown writes the table for a Markdown file.
func (t *Table) Markdown(w io.Writer) error {
	clean := strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "&", "&amp;")
	var b bytes.Buffer
	if t.Caption != "" {
		b.WriteString(clean.Replace(printable(t.Caption)) + "\n\n")
	}
	line := func(text func(int) string) {
		b.WriteByte('|')
		for i := range t.Columns {
			b.WriteString(" " + text(i) + " |")
		}
		b.WriteByte('\n')
	}
	line(func(i int) string { return clean.Replace(printable(t.Columns[i].Name)) })
	line(func(i int) string {
		if t.Columns[i].Left {
			return ":--"
		}
		return "--:"
	})
	for _, row := range t.Rows {
		line(func(i int) string { return clean.Replace(t.cell(row, i)) })
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (t *Table) html(p *pageWriter) {
	p.raw(`<div class="scroll"><table>`)
	if t.Caption != "" {
		p.raw("<caption>" + escape(t.Caption) + "</caption>")
	}
	p.raw("\n<thead><tr>")
	for _, c := range t.Columns {
		p.raw("<th scope=\"col\"" + side(c) + ">" + escape(c.Name) + "</th>")
	}
	p.raw("</tr></thead>\n<tbody>\n")
	for _, row := range t.Rows {
		p.raw("<tr>")
		for i, c := range t.Columns {
			text, state := "", State("")
			if i < len(row) {
				text, state = row[i].Text, row[i].State.known()
			}
			if state != "" {
				p.raw("<td" + side(c) + `><span class="chip ` + string(state) + `">` + escape(text) + "</span></td>")
				continue
			}
			class := side(c)
			if c.Left && utf8.RuneCountInString(text) > 28 {
				class = ` class="left long"`
			}
			p.raw("<td" + class + ">" + escape(text) + "</td>")
		}
		p.raw("</tr>\n")
	}
	p.raw("</tbody></table></div>\n")
}

func side(c Column) string {
	if c.Left {
		return ` class="left"`
	}
	return ""
}
