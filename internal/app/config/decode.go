package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A KeyError reports what is wrong with one key and where it was written.
type KeyError struct {
	Source  string // a file's name, a variable, a flag
	Line    int    // in a file, from 1; 0 means unknown
	Key     string // full path; empty for the source as a whole
	Problem string
	hint    string
}

// Error is "<source>:<line>: <key>: <problem>".
func (e *KeyError) Error() string {
	var b strings.Builder
	b.WriteString(e.Source)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Key != "" {
		b.WriteString(": " + e.Key)
	}
	return b.String() + ": " + redact.Text(e.Problem)
}

// Hint reports what to write instead; it may be empty.
func (e *KeyError) Hint() string { return redact.Text(e.hint) }

// A decoder writes one source over a configuration. It continues after a problem,
// so that all of them are reported at once.
type decoder struct {
	source   string
	root     reflect.Type
	origins  Origins
	problems []error
}

// plainTag marks a scalar that came from a variable or a flag: it is bare text
// and any type may read it.
const plainTag = "!weir-plain"

func (d *decoder) problem(n *yaml.Node, key, hint, format string, a ...any) {
	line := 0
	if n != nil {
		line = n.Line
	}
	d.problems = append(d.problems, &KeyError{d.source, line, key, fmt.Sprintf(format, a...), hint})
}

// value decodes n into v, the value at path.
func (d *decoder) value(n *yaml.Node, path string, f field, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.problem(n, path, "write the value out", "aliases are not read")
		return
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // a key with nothing behind it says nothing
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	switch shapeOf(v.Type()) {
	case section:
		d.section(n, path, v)
	case list:
		d.list(n, path, f, v)
	case mapping:
		d.mapping(n, path, f, v)
	default:
		d.scalar(n, path, f, v)
	}
}

func (d *decoder) section(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, path, field{}, v.Type())
		return
	}
	d.from(n, path)
	fields := fieldsOf(v.Type())
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		kn, vn := n.Content[i], n.Content[i+1]
		if kn.Kind != yaml.ScalarNode {
			d.problem(kn, path, "", "a key must be text")
			continue
		}
		name, vn := d.replace(path, kn, vn)
		full := join(path, name)
		if line, dup := seen[name]; dup {
			d.problem(kn, full, "keep one of the two", "written twice, first in line %d", line)
			continue
		}
		seen[name] = kn.Line
		j := slices.IndexFunc(fields, func(f field) bool { return f.key == name })
		if j < 0 {
			d.unknown(kn, full, d.suggest(path, kn.Value, fields))
			continue
		}
		d.value(vn, full, fields[j], v.FieldByIndex(fields[j].index))
	}
}

// suggest finds what was meant by an unknown key: a sibling spelt alike, or the
// same key in another section.
func (d *decoder) suggest(path, wrong string, siblings []field) string {
	var names []string
	for _, f := range siblings {
		names = append(names, f.key)
	}
	if s := nearest(wrong, names); s != "" {
		return "did you mean " + join(path, s) + "?"
	}
	var elsewhere []string
	for _, k := range keysOf(d.root) {
		if k.key == wrong {
			elsewhere = append(elsewhere, k.path)
		}
	}
	if len(elsewhere) > 0 && len(elsewhere) <= 3 {
		return "did you mean " + strings.Join(elsewhere, " or ") + "?"
	}
	if path == "" {
		return "the keys here are " + strings.Join(names, ", ")
	}
	return "the keys of " + path + " are " + strings.Join(names, ", ")
}

func (d *decoder) list(n *yaml.Node, path string, f field, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(n, path, f, v.Type())
		return
	}
	d.origins.forget(path)
	d.from(n, path)
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, e := range n.Content {
		d.value(e, fmt.Sprintf("%s[%d]", path, i), f, s.Index(i))
	}
	v.Set(s)
}

func (d *decoder) mapping(n *yaml.Node, path string, f field, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, path, f, v.Type())
		return
	}
	d.origins.forget(path)
	d.from(n, path)
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		kn, vn := n.Content[i], n.Content[i+1]
		if kn.Kind != yaml.ScalarNode || v.Type().Key().Kind() != reflect.String {
			d.problem(kn, path, "", "a key must be text")
			continue
		}
		full := join(path, kn.Value)
		k := reflect.ValueOf(kn.Value).Convert(v.Type().Key())
		if m.MapIndex(k).IsValid() {
			d.problem(kn, full, "keep one of the two", "written twice")
			continue
		}
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(vn, full, f, e)
		m.SetMapIndex(k, e)
	}
	v.Set(m)
}

// from notes where the value at path was written.
func (d *decoder) from(n *yaml.Node, path string) {
	if n.Line > 0 {
		d.origins.set(path, fmt.Sprintf("%s:%d", d.source, n.Line))
	} else {
		d.origins.set(path, d.source)
	}
}

func (d *decoder) scalar(n *yaml.Node, path string, f field, v reflect.Value) {
	t := v.Type()
	if n.Kind != yaml.ScalarNode && !reflect.PointerTo(t).Implements(jsonType) {
		d.mismatch(n, path, f, t)
		return
	}
	n = &yaml.Node{Kind: n.Kind, Tag: n.ShortTag(), Value: n.Value, Line: n.Line, Content: n.Content}
	var err error
	switch {
	case t == durationType:
		var x hub.Duration
		err = x.UnmarshalText([]byte(n.Value))
		v.SetInt(int64(x))
	case t == switchType:
		var on bool
		if !d.basic(n, path, f, reflect.ValueOf(&on).Elem()) {
			return
		}
		v.Set(reflect.ValueOf(setting.Of(on)))
	case isText(t):
		err = v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Value))
	case reflect.PointerTo(t).Implements(jsonType):
		err = jsonScalar(n, v)
	default:
		if !d.basic(n, path, f, v) {
			return
		}
	}
	if err != nil {
		d.refuse(n, path, f, err)
		return
	}
	d.from(n, path)
}

// basic reads what the language itself has: text, booleans and numbers.
func (d *decoder) basic(n *yaml.Node, path string, f field, v reflect.Value) bool {
	plain := n.Tag == plainTag
	is := func(tags ...string) bool { return plain || slices.Contains(tags, n.Tag) }
	switch k := v.Kind(); {
	case k == reflect.String && is("!!str", "!!timestamp"):
		v.SetString(n.Value)
	case k == reflect.Bool && is("!!bool"):
		b, err := strconv.ParseBool(strings.ToLower(n.Value))
		if err != nil {
			d.mismatch(n, path, f, v.Type())
			return false
		}
		v.SetBool(b)
	case v.CanInt() || v.CanUint():
		return d.integer(n, path, f, v)
	case v.CanFloat() && is("!!int", "!!float"):
		x, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			d.mismatch(n, path, f, v.Type())
			return false
		}
		v.SetFloat(x)
	default:
		d.mismatch(n, path, f, v.Type())
		return false
	}
	return true
}

func (d *decoder) integer(n *yaml.Node, path string, f field, v reflect.Value) bool {
	var x int64
	var err error
	switch {
	case f.signed && n.Value == "-1":
		x = -1
	case f.size && n.Tag != "!!float" && n.Tag != "!!bool":
		x, err = parseSize(n.Value)
	case n.Tag == plainTag || n.Tag == "!!int":
		// Underscores are YAML's own ("1_000_000"); signs and 0x are read by base 0.
		x, err = strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64)
		if err != nil {
			err = fmt.Errorf("%.40q is not an integer or too large", n.Value)
		}
	default:
		d.mismatch(n, path, f, v.Type())
		return false
	}
	if err == nil && (v.CanInt() && v.OverflowInt(x) || v.CanUint() && (x < 0 || v.OverflowUint(uint64(x)))) {
		err = fmt.Errorf("%d is out of range", x)
	}
	if err != nil {
		d.refuse(n, path, f, err)
		return false
	}
	if v.CanInt() {
		v.SetInt(x)
	} else {
		v.SetUint(uint64(x))
	}
	return true
}

func jsonScalar(n *yaml.Node, v reflect.Value) error {
	b := []byte(n.Value)
	if n.Tag != plainTag || !json.Valid(b) {
		var x any = n.Value
		if n.Tag != plainTag {
			if err := n.Decode(&x); err != nil {
				return err
			}
		}
		var err error
		if b, err = json.Marshal(x); err != nil {
			return err
		}
	}
	return v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(b)
}

// refuse reports a value of the right kind that cannot be read. A secret's text
// stays out of the report.
func (d *decoder) refuse(n *yaml.Node, path string, f field, err error) {
	if f.secret {
		d.problem(n, path, "", "the value cannot be read (it is a secret and not shown)")
		return
	}
	d.problem(n, path, redact.Text(HintOf(err)), "%s", redact.Text(err.Error()))
}

func (d *decoder) mismatch(n *yaml.Node, path string, f field, t reflect.Type) {
	if path == "" {
		d.problem(n, "", "start with: weir config default > weir.yaml", "want keys with values, have %s", has(n, f.secret))
		return
	}
	hint := ""
	switch w := acceptedForm(f, t); {
	case w == "text" && n.Kind == yaml.ScalarNode:
		hint = "put the value in quotes"
	case w == "a list" && n.Kind == yaml.ScalarNode:
		hint = "write it as a list: [" + has(n, true) + ", ...]"
		if !f.secret {
			hint = fmt.Sprintf("write it as a list: [%.40s]", n.Value)
		}
	case w == "a size":
		hint = "write for example 65536, 64KiB or 1GiB"
	}
	d.problem(n, path, hint, "want %s, have %s", acceptedForm(f, t), has(n, f.secret))
}

// has says in words what was written.
func has(n *yaml.Node, secret bool) string {
	what := "text"
	switch n.Kind {
	case yaml.MappingNode:
		return "keys with values"
	case yaml.SequenceNode:
		return "a list"
	default:
		switch n.ShortTag() {
		case "!!int", "!!float":
			what = "the number"
		case "!!bool":
			what = "the boolean"
		}
	}
	switch {
	case secret:
		return strings.TrimPrefix(what, "the ")
	case what == "text":
		return fmt.Sprintf("text %.40q", n.Value)
	default:
		return fmt.Sprintf("%s %.40s", what, n.Value)
	}
}
