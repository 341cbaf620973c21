package migrate

import (
	"fmt"
	"strings"
)

var headings = map[Verdict]string{
	Changed:    "translated, but it does not mean quite the same:",
	Untaken:    "not translated:",
	Unknown:    "not known:",
	Security:   "before this serves clients:",
	incomplete: "read without all that belongs to it:",
}

// Report is the notes in words, a few lines each.
func (r *Result) Report() string {
	var b strings.Builder
	var untaken, unknown int
	for _, n := range r.Notes {
		switch n.Verdict {
		case Untaken:
			untaken += len(n.Keys)
		case Unknown:
			unknown += len(n.Keys)
		}
	}
	fmt.Fprintf(&b, "%s: %s, %d not translated, %d not known\n", printable(r.file), count(r.Keys, "value"), untaken, unknown)
	last := Verdict(255)
	for _, n := range r.Notes {
		if n.Verdict != last {
			last = n.Verdict
			fmt.Fprintf(&b, "\n%s\n", headings[last])
		}
		n.write(&b)
	}
	switch {
	case r.Secrets == 0:
	case r.Redacted:
		fmt.Fprintf(&b, "\n%s left out: put them where the output says replace-me\n", count(r.Secrets, "secret"))
	default:
		fmt.Fprintf(&b, "\nthe output holds %s in plain text: keep it as you kept the input, or use --redact\n", count(r.Secrets, "secret"))
	}
	return b.String()
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// reportWidth is that of lines, as far as words allow.
const reportWidth = 110

func (n *Note) write(b *strings.Builder) {
	var words []string
	for i, k := range n.Keys {
		s := printable(k.Key)
		if k.Line > 0 {
			s += fmt.Sprintf(" (line %d)", k.Line)
		}
		if i < len(n.Keys)-1 {
			s += ","
		} else {
			s += ":"
		}
		words = append(words, strings.Fields(s)...)
	}
	words = append(words, strings.Fields(printable(n.Outcome))...)
	fill(b, reportWidth, "  ", "    ", words)
	if n.Instead != "" && n.Instead != "nothing" {
		fill(b, reportWidth, "    instead: ", "      ", strings.Fields(printable(n.Instead)))
	}
}

// fill writes words in lines as wide as words allow, the first led by first, others by rest.
func fill(b *strings.Builder, width int, first, rest string, words []string) {
	line, started := first, false
	for _, w := range words {
		if started && len(line)+1+len(w) > width {
			b.WriteString(line + "\n")
			line, started = rest, false
		}
		if started {
			line += " "
		}
		line += w
		started = true
	}
	b.WriteString(line + "\n")
}
