package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/app/config"
)

// problem is an error at a place of the input.
func problem(file string, line int, key, format string, a ...any) error {
	return &config.KeyError{Source: file, Line: line, Key: key, Problem: fmt.Sprintf(format, a...)}
}

// checkInput refuses what no parser should see.
func checkInput(file string, data []byte) error {
	if len(data) > maxInput {
		return problem(file, 0, "", "%d bytes, at most %d: no configuration is that long", len(data), maxInput)
	}
	if !utf8.Valid(data) {
		line := 1
		for rest := data; len(rest) > 0; {
			r, n := utf8.DecodeRune(rest)
			if r == utf8.RuneError && n == 1 {
				break
			}
			if r == '\n' {
				line++
			}
			rest = rest[n:]
		}
		return problem(file, line, "", "it is not UTF-8")
	}
	return nil
}

// A grower makes nodes, within the bounds of the input.
type grower struct {
	file  string
	count int
}

func (g *grower) node(k kind, value string, line, depth int, key string) (*node, error) {
	if g.count++; g.count > maxNodes {
		return nil, problem(g.file, line, key, "more than %d values", maxNodes)
	}
	if depth > maxDepth {
		return nil, problem(g.file, line, key, "values in values, more than %d deep", maxDepth)
	}
	return &node{kind: k, value: value, line: line, where: key}, nil
}

// parseJSON reads one JSON object.
func parseJSON(file string, data []byte) (*node, error) {
	p := &jsonParser{grower: grower{file: file}, data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	n, err := p.value("", 0)
	if err != nil {
		return nil, err
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, problem(file, p.line(), "", "something follows the end of the object")
	}
	if n.kind != object {
		return nil, problem(file, n.line, "", "want an object: {…}")
	}
	return n, nil
}

type jsonParser struct {
	grower
	data   []byte
	dec    *json.Decoder
	lines  int // line feeds before offset
	offset int
}

// line returns that of what was read last.
func (p *jsonParser) line() int {
	to := min(int(p.dec.InputOffset()), len(p.data))
	p.lines += bytes.Count(p.data[p.offset:max(to, p.offset)], []byte{'\n'})
	p.offset = max(to, p.offset)
	return p.lines + 1
}

func (p *jsonParser) token(key string) (json.Token, error) {
	t, err := p.dec.Token()
	if err == nil {
		return t, nil
	}
	line := p.line()
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		line = 1 + bytes.Count(p.data[:min(max(int(e.Offset)-1, 0), len(p.data))], []byte{'\n'})
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, problem(p.file, line, key, "it ends too early")
	}
	return nil, problem(p.file, line, key, "%s", strings.TrimPrefix(err.Error(), "json: "))
}

func (p *jsonParser) value(key string, depth int) (*node, error) {
	t, err := p.token(key)
	if err != nil {
		return nil, err
	}
	line := p.line()
	switch t := t.(type) {
	case json.Delim:
		return p.members(t, key, line, depth)
	case string:
		return p.node(text, t, line, depth, key)
	case json.Number:
		return p.node(number, t.String(), line, depth, key)
	case bool:
		return p.node(boolean, strconv.FormatBool(t), line, depth, key)
	default:
		return p.node(null, "", line, depth, key)
	}
}

// members reads what is in an object or a list, which open started.
func (p *jsonParser) members(open json.Delim, key string, line, depth int) (*node, error) {
	n, err := p.node(map[json.Delim]kind{'{': object, '[': list}[open], "", line, depth, key)
	if err != nil {
		return nil, err
	}
	for p.dec.More() {
		name, at := "", fmt.Sprintf("%s[%d]", key, len(n.items))
		if n.kind == object {
			t, err := p.token(key)
			if err != nil {
				return nil, err
			}
			name, _ = t.(string)
			at = join(key, name)
		}
		v, err := p.value(at, depth+1)
		if err != nil {
			return nil, err
		}
		if n.kind == object {
			n.set(name, v)
		} else {
			n.items = append(n.items, v)
		}
	}
	_, err = p.token(key)
	return n, err
}

// inlineJSON reads the JSON that a text of the input is; it is at the place of the text.
func inlineJSON(n *node) (*node, bool) {
	if n.kind != text || !json.Valid([]byte(n.value)) {
		return nil, false
	}
	in, err := parseJSON("", []byte(`{"x":`+n.value+`}`))
	if err != nil {
		return nil, false
	}
	in = in.child("x")
	in.name(n.where)
	setLines(in, n.line)
	return in, true
}

func setLines(n *node, line int) {
	n.line = line
	for _, i := range n.items {
		setLines(i, line)
	}
	for _, f := range n.fields {
		setLines(f.value, line)
	}
}

// set is what parsers do with a key: the last one counts, as with the servers' own.
func (n *node) set(key string, v *node) {
	for i := range n.fields {
		if n.fields[i].key == key {
			n.fields[i].value = v
			return
		}
	}
	n.fields = append(n.fields, member{key, v})
}

// parseEnv reads lines of NAME=value, as docker compose does: comments, "export",
// single and double quotes, which may span lines.
func parseEnv(file string, data []byte) (*node, error) {
	g := grower{file: file}
	root := &node{kind: object, line: 1}
	lines := strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		at := i + 1
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \t\"'") {
			return nil, problem(file, at, "", "want NAME=value") // not what is there: it may be part of a secret
		}
		value = strings.TrimSpace(value)
		if value != "" && (value[0] == '"' || value[0] == '\'') {
			for closing(value) < 0 && i+1 < len(lines) {
				i++
				value += "\n" + lines[i]
			}
			end := closing(value)
			if end < 0 {
				return nil, problem(file, at, name, "the quote is not closed")
			}
			value = unquote(value[:end+1])
		} else if j := strings.Index(value, " #"); j >= 0 {
			value = strings.TrimSpace(value[:j])
		}
		n, err := g.node(text, value, at, 1, name)
		if err != nil {
			return nil, err
		}
		root.set(name, n)
	}
	return root, nil
}

// closing returns where the quote that s starts with ends, or -1.
func closing(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] == s[0]:
			return i
		}
	}
	return -1
}

func unquote(s string) string {
	in := s[1 : len(s)-1]
	if s[0] == '\'' {
		return in
	}
	return strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", `\"`, `"`, `\\`, `\`, `\$`, `$`).Replace(in)
}
