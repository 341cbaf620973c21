package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A Template is text with names in braces that a message fills in.
type Template struct{ parts []part }

// A part is literal text, or a name.
type part struct {
	text string
	name bool
}

// maxTemplate bounds the text of a template in bytes.
const maxTemplate = 1024

// ParseTemplate reads text such as "orders.{field.customer.id}". "{{" and "}}" are literal
// braces.
func ParseTemplate(text string) (Template, error) {
	var t Template
	if len(text) > maxTemplate {
		return t, fmt.Errorf("invalid template: %d bytes, at most %d", len(text), maxTemplate)
	}
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case (c == '{' || c == '}') && i+1 < len(text) && text[i+1] == c:
			literal.WriteByte(c)
			i++
		case c == '}':
			return t, fmt.Errorf("invalid template %.60q: } at byte %d closes nothing; write }} for a brace", text, i)
		case c == '{':
			name, _, ok := strings.Cut(text[i+1:], "}")
			if !ok || name == "" || strings.ContainsAny(name, "{ \t\r\n") {
				return t, fmt.Errorf("invalid template %.60q: { at byte %d needs a name and }; write {{ for a brace", text, i)
			}
			if literal.Len() > 0 {
				t.parts = append(t.parts, part{text: literal.String()})
				literal.Reset()
			}
			t.parts = append(t.parts, part{text: name, name: true})
			i += len(name) + 1
		default:
			literal.WriteByte(c)
		}
	}
	if literal.Len() > 0 {
		t.parts = append(t.parts, part{text: literal.String()})
	}
	return t, nil
}

// Names returns the names that a message must have.
func (t Template) Names() []string {
	var all []string
	for _, p := range t.parts {
		if p.name {
			all = append(all, p.text)
		}
	}
	return all
}

// Expand returns the text for m.
func (t Template) Expand(m *Message) (string, error) {
	if len(t.parts) == 1 && !t.parts[0].name {
		return t.parts[0].text, nil
	}
	var b strings.Builder
	for _, p := range t.parts {
		v := p.text
		if p.name {
			var err error
			if v, err = m.value(p.text); err != nil {
				return "", fmt.Errorf("{%s}: %w", p.text, err)
			}
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// value returns what name is in m.
func (m *Message) value(name string) (string, error) {
	if path, ok := strings.CutPrefix(name, "field."); ok {
		return Field(m.Data, path)
	}
	if m.Lookup != nil {
		if v, ok := m.Lookup(name); ok {
			return v, nil
		}
	}
	return "", errors.New("the message has none")
}

// Field returns the string, number or boolean at path, names joined by dots, within a JSON
// object.
func Field(data []byte, path string) (string, error) {
	v := json.RawMessage(data)
	for name := range strings.SplitSeq(path, ".") {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(v, &object); err != nil {
			return "", fmt.Errorf("%.40q is not in a JSON object", name)
		}
		var ok bool
		if v, ok = object[name]; !ok {
			return "", fmt.Errorf("the payload has no %.40q", name)
		}
	}
	v = bytes.TrimSpace(v)
	switch {
	case len(v) == 0 || v[0] == '{' || v[0] == '[' || string(v) == "null":
		return "", errors.New("it is not a string, number or boolean")
	case v[0] == '"':
		var s string
		err := json.Unmarshal(v, &s)
		return s, err
	}
	return string(v), nil
}
