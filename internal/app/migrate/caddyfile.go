package migrate

import (
	"strings"
)

// A directive is a line of a Caddyfile: words, and perhaps a block of more.
type directive struct {
	words []string
	line  int
	block []*directive // nil: none
	has   bool         // there is a block
}

func (d *directive) name() string { return d.words[0] }

// arg returns the word after the name, or "".
func (d *directive) arg() string {
	if len(d.words) > 1 {
		return d.words[1]
	}
	return ""
}

// A caddyToken is a word or, with brace, one of the braces of a block.
type caddyToken struct {
	text  string
	line  int
	brace bool
	plain bool // not quoted
}

// caddyTokens takes a Caddyfile apart: words between white space, comments from # at
// the start of a word, quotes and backquotes over lines, heredocs.
func caddyTokens(file, s string) ([]caddyToken, error) {
	var all []caddyToken
	line := 1
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '\\' && i+1 < len(s) && (s[i+1] == '\n' || strings.HasPrefix(s[i+1:], "\r\n")): // the line continues
			i += 1 + strings.IndexByte(s[i+1:], '\n') + 1
			line++
			if len(all) > 0 {
				all = append(all, caddyToken{text: "\\\n", line: line})
			}
		case c == '#':
			n := strings.IndexByte(s[i:], '\n')
			if n < 0 {
				n = len(s) - i
			}
			i += n
		default:
			text, n, ok := caddyWord(s[i:])
			if !ok {
				return nil, problem(file, line, "", "what starts here with %q is not closed", s[i:i+1])
			}
			plain := c != '"' && c != '`' && !strings.HasPrefix(s[i:], "<<")
			all = append(all, caddyToken{text: text, line: line, plain: plain, brace: plain && (text == "{" || text == "}")})
			line += strings.Count(s[i:i+n], "\n")
			i += n
		}
		if len(all) > maxNodes {
			return nil, problem(file, line, "", "more than %d words", maxNodes)
		}
	}
	return all, nil
}

// caddyWord reads the word that s starts with, and returns it and its length.
func caddyWord(s string) (word string, n int, ok bool) {
	switch s[0] {
	case '"':
		var b strings.Builder
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
				i++
				b.WriteByte(s[i])
			case s[i] == '"':
				return b.String(), i + 1, true
			default:
				b.WriteByte(s[i])
			}
		}
		return "", 0, false
	case '`':
		end := strings.IndexByte(s[1:], '`')
		if end < 0 {
			return "", 0, false
		}
		return s[1 : end+1], end + 2, true
	}
	if marker, rest, cut := strings.Cut(strings.TrimPrefix(s, "<<"), "\n"); cut && strings.HasPrefix(s, "<<") {
		if marker = strings.TrimSpace(marker); marker != "" && !strings.ContainsAny(marker, " \t{}\"") {
			return heredoc(s, marker, rest)
		}
	}
	n = strings.IndexAny(s, " \t\r\n")
	if n < 0 {
		n = len(s)
	}
	return s[:n], n, true
}

func heredoc(s, marker, rest string) (word string, n int, ok bool) {
	read := len(s) - len(rest)
	var lines []string
	for line := range strings.Lines(rest) {
		read += len(line)
		if strings.TrimSpace(line) == marker {
			pad := line[:strings.Index(line, marker)]
			for i := range lines {
				lines[i] = strings.TrimPrefix(lines[i], pad)
			}
			end := read
			if strings.HasSuffix(line, "\n") {
				end-- // it ends the directive
			}
			return strings.TrimSuffix(strings.Join(lines, ""), "\n"), end, true
		}
		lines = append(lines, line)
	}
	return "", 0, false
}

// parseCaddyfile reads a Caddyfile as directives in blocks, whatever they mean. What
// begins with a brace is the block of global options: a directive without a name.
func parseCaddyfile(file, s string) ([]*directive, error) {
	tokens, err := caddyTokens(file, s)
	if err != nil {
		return nil, err
	}
	p := &caddyParser{file: file, tokens: tokens}
	return p.block(0)
}

type caddyParser struct {
	file   string
	tokens []caddyToken
	at     int
}

func (p *caddyParser) block(depth int) ([]*directive, error) {
	all := []*directive{}
	for p.at < len(p.tokens) {
		t := p.tokens[p.at]
		switch {
		case t.brace && t.text == "}":
			if depth == 0 {
				return nil, problem(p.file, t.line, "", "} closes nothing")
			}
			p.at++
			return all, nil
		case t.text == "\\\n" && !t.plain:
			p.at++
			continue
		}
		d, err := p.directive(depth)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	if depth > 0 {
		return nil, problem(p.file, p.tokens[len(p.tokens)-1].line, "", "a block is not closed: } is missing")
	}
	return all, nil
}

// directive reads words to the end of the line, and the block that starts there.
func (p *caddyParser) directive(depth int) (*directive, error) {
	d := &directive{line: p.tokens[p.at].line}
	line := d.line
	for p.at < len(p.tokens) {
		t := p.tokens[p.at]
		if t.text == "\\\n" && !t.plain {
			line = t.line
			p.at++
			continue
		}
		if t.line != line && !(depth == 0 && len(d.words) > 0 && strings.HasSuffix(d.words[len(d.words)-1], ",")) {
			break
		}
		if t.brace {
			if t.text == "}" {
				break
			}
			if depth >= maxDepth {
				return nil, problem(p.file, t.line, strings.Join(d.words, " "), "blocks in blocks, more than %d deep", maxDepth)
			}
			p.at++
			var err error
			d.has = true
			if d.block, err = p.block(depth + 1); err != nil {
				return nil, err
			}
			break
		}
		d.words = append(d.words, t.text)
		line = t.line + strings.Count(t.text, "\n")
		p.at++
	}
	if len(d.words) == 0 {
		d.words = []string{""} // global options
	}
	return d, nil
}
