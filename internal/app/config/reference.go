package config

import (
	_ "embed" // for the field comments
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// The comments of all fields, taken from the source by `go generate`. They are
// committed so that the program can explain itself without its source;
// TestReferenceIsCurrent fails when they differ.
//
//go:embed docs.json
var docsJSON []byte

// fieldDocs returns the comments: docKey → text.
func fieldDocs() map[string]string {
	docs := map[string]string{}
	if err := json.Unmarshal(docsJSON, &docs); err != nil {
		panic("config: docs.json is embedded and must parse: " + err.Error())
	}
	return docs
}

// docKey names a field in docs.json: "hub.Namespace.Name".
func docKey(f field) string {
	return strings.TrimPrefix(f.owner.PkgPath(), modulePath) + "." + f.owner.Name() + "." + f.name
}

const modulePath = "github.com/weir-gateway/weir/"

// keyed puts the key in place of the Go name that a comment starts with by
// habit: "HistorySize bounds …" → "history_size bounds …".
func keyed(doc string, f field) string {
	if rest, ok := strings.CutPrefix(doc, f.name+" "); ok {
		return f.key + " " + rest
	}
	return doc
}

// wrap breaks text into lines of at most width bytes; blank lines part
// paragraphs and indented lines stay as they are.
func wrap(text string, width int) []string {
	var lines []string
	cur := ""
	flush := func() {
		if cur != "" {
			lines = append(lines, cur)
			cur = ""
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == ' ' || line[0] == '\t' {
			flush()
			lines = append(lines, line)
			continue
		}
		for word := range strings.FieldsSeq(line) {
			if cur != "" && len(cur)+1+len(word) > width-2 {
				flush()
			}
			if cur != "" {
				cur += " "
			}
			cur += word
		}
	}
	flush()
	return lines
}

// Reference explains keys as plain text: all of them for an empty query, else those
// at and under the path that query is, else those with a part of that name
// ("durability"), else those whose name or explanation contains it. If there are none,
// the error suggests a key.
func Reference(query string) (string, error) {
	docs, def := fieldDocs(), reflect.ValueOf(Default())
	all := keysOf(def.Type())
	found := matching(all, query, docs)
	if len(found) == 0 {
		var paths []string
		for _, k := range all {
			paths = append(paths, k.path)
		}
		err := fmt.Errorf("%s: unknown key", query)
		if now := renamedKey(query); now != "" {
			return "", WithHint(err, now)
		}
		if s := nearest(query, paths); s != "" {
			return "", WithHint(err, "did you mean "+s+"?")
		}
		return "", WithHint(err, "weir config docs --all lists all keys")
	}
	var b strings.Builder
	for _, k := range found {
		fmt.Fprintf(&b, "%s  (%s%s)\n", k.path, kindOf(k), defaultText(k, def))
		for _, line := range wrap(keyed(docs[docKey(k.field)], k.field), 76) {
			b.WriteString(strings.TrimRight("    "+line, " ") + "\n")
		}
		if k.shape != section {
			b.WriteString("    reload: " + string(k.class) + "\n")
		}
		if k.env != "" {
			b.WriteString("    env: " + k.env + "\n")
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// matching returns the keys that Reference explains.
func matching(all []key, query string, docs map[string]string) []key {
	word := strings.ToLower(query)
	rules := []func(k key) bool{
		func(k key) bool { return query == "" || within(k.path, query) },
		func(k key) bool {
			return slices.Contains(strings.FieldsFunc(k.path, func(r rune) bool { return strings.ContainsRune(".[]*", r) }), word)
		},
		func(k key) bool {
			return len(word) > 2 && (strings.Contains(k.path, word) || strings.Contains(strings.ToLower(docs[docKey(k.field)]), word))
		},
	}
	for _, rule := range rules {
		var found []key
		for _, k := range all {
			if rule(k) {
				found = append(found, k)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// kindOf names what is written for k, as documentation says it.
func kindOf(k key) string {
	switch k.shape {
	case section:
		return "section"
	case mapping:
		return "map of " + kindOf(key{field: field{key: k.key, size: k.size, typ: k.typ.Elem()}, shape: shapeOf(k.typ.Elem())})
	case list:
		e := deref(k.typ).Elem()
		of := kindOf(key{field: field{key: k.key, size: k.size, typ: e}, shape: shapeOf(e)})
		if of != "text" {
			of += "s"
		}
		return "list of " + of
	}
	return strings.TrimPrefix(strings.TrimPrefix(acceptedForm(k.field, k.typ), "a "), "an ")
}

// defaultText is ", default x" for a key that has one.
func defaultText(k key, def reflect.Value) string {
	if k.shape != scalar && k.shape != list || k.secret {
		return ""
	}
	if k.typ == switchType {
		return ", default true" // also in lists, which have no element to look at
	}
	v, ok := valueAt(def, k.path)
	if ok && v.Kind() == reflect.Pointer {
		v, ok = v.Elem(), !v.IsNil()
	}
	if !ok || k.shape == list && (v.Len() == 0 || shapeOf(deref(v.Type().Elem())) == section) {
		return ""
	}
	if v.IsZero() && v.Kind() != reflect.Bool {
		return ""
	}
	r := renderer{}
	return ", default " + r.inline(v, k.field)
}

// valueAt finds a path in v; "[]" is the first element of a list.
func valueAt(v reflect.Value, path string) (reflect.Value, bool) {
	for part := range strings.SplitSeq(path, ".") {
		name, first := strings.CutSuffix(part, "[]")
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if !v.IsValid() || shapeOf(v.Type()) != section {
			return v, false
		}
		fs := fieldsOf(v.Type())
		i := slices.IndexFunc(fs, func(f field) bool { return f.key == name })
		if i < 0 {
			return v, false
		}
		v = v.FieldByIndex(fs[i].index)
		if first {
			if v.Len() == 0 {
				return v, false
			}
			v = v.Index(0)
		}
	}
	return v, true
}
