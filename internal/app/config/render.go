package config

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-gateway/weir/internal/front/redact"
)

// Effective returns c as YAML. Secrets are shown as "[redacted]", wherever they are: in
// fields and header maps of their own, in URLs, in data source names. With origins, a value that is not a default says at the
// end of its line where it came from.
func (c Config) Effective(origins Origins) string {
	r := renderer{origins: origins, redact: true}
	r.section(reflect.ValueOf(c), "", 0)
	return r.b.String()
}

// File returns c as the text of a configuration file with every key explained.
// Reading it back gives c; secrets are written in plain.
func (c Config) File() string {
	r := renderer{docs: fieldDocs()}
	r.b.WriteString("# Configuration of weir. Every key is shown with its value; remove what you do not change.\n" +
		"# Check it with: weir config check --config FILE\n")
	r.section(reflect.ValueOf(c), "", 0)
	return r.b.String()
}

type renderer struct {
	b       strings.Builder
	origins Origins
	docs    map[string]string
	redact  bool
}

const indentStep = 2

func (r *renderer) section(v reflect.Value, path string, indent int) {
	for i, f := range fieldsOf(v.Type()) {
		pad := strings.Repeat(" ", indent)
		if doc := r.docs[docKey(f)]; doc != "" {
			if i > 0 || indent == 0 {
				r.b.WriteByte('\n')
			}
			for _, line := range wrap(keyed(doc, f), 78-indent) {
				r.b.WriteString(strings.TrimRight(pad+"# "+line, " ") + "\n")
			}
		}
		r.b.WriteString(pad + f.key + ":")
		r.value(v.FieldByIndex(f.index), join(path, f.key), f, indent)
	}
}

// value writes what follows "key:" and ends the line.
func (r *renderer) value(v reflect.Value, path string, f field, indent int) {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	sh := shapeOf(v.Type())
	switch {
	case v.Kind() == reflect.Pointer:
		r.b.WriteString(" null\n")
	case sh == section:
		r.b.WriteByte('\n')
		r.section(v, path, indent+indentStep)
	case sh == list && v.Len() > 0 && shapeOf(deref(v.Type().Elem())) == section:
		r.origin(path)
		r.b.WriteByte('\n')
		for i := range v.Len() {
			r.item(v.Index(i), fmt.Sprintf("%s[%d]", path, i), indent+indentStep)
		}
	case sh == mapping && v.Len() > 0:
		r.origin(path)
		r.b.WriteByte('\n')
		origins := r.origins
		r.origins = nil // a map was written as one
		defer func() { r.origins = origins }()
		for _, k := range sortedKeys(v) {
			r.b.WriteString(strings.Repeat(" ", indent+indentStep) + quote(k.String()) + ":")
			entry := f
			entry.secret = f.secret || hasSecretHeaders(path) || redact.Name(k.String()) && v.Type().Elem().Kind() == reflect.String
			r.value(v.MapIndex(k), join(path, k.String()), entry, indent+indentStep)
		}
	default:
		r.b.WriteString(" " + r.inline(v, f))
		r.origin(path)
		r.b.WriteByte('\n')
	}
}

// item writes one section of a list, its first line led by a dash.
func (r *renderer) item(v reflect.Value, path string, indent int) {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	pad := strings.Repeat(" ", indent)
	if v.Kind() == reflect.Pointer {
		r.b.WriteString(pad + "- null\n")
		return
	}
	sub := renderer{origins: nil, docs: r.docs, redact: r.redact}
	sub.section(v, path, indent+indentStep)
	// The dash comes before the first line, which may be a comment.
	text := sub.b.String()
	if strings.TrimSpace(text) == "" {
		text = pad + "  {}\n"
	}
	r.b.WriteString(pad + "-" + text[indent+1:])
}

func (r *renderer) origin(path string) {
	if o := r.origins[path]; o != "" {
		r.b.WriteString("  # " + strings.Map(func(c rune) rune {
			if c < ' ' {
				return '?'
			}
			return c
		}, o))
	}
}

// inline writes a scalar, a list of scalars or something empty.
func (r *renderer) inline(v reflect.Value, f field) string {
	switch shapeOf(v.Type()) {
	case mapping:
		return "{}"
	case list:
		var items []string
		for i := range v.Len() {
			items = append(items, r.inline(v.Index(i), f))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	if r.redact && f.secret && !v.IsZero() {
		return quote(redact.Mark)
	}
	if v.Kind() == reflect.String && v.Type().Name() == "Secret" || f.secret && v.Kind() == reflect.String {
		return quote(v.String()) // a Secret's own text would hide it
	}
	if r.redact && f.endpoint && v.Kind() == reflect.String {
		return quote(redact.Endpoint(v.String()))
	}
	switch t := v.Type(); {
	case t == durationType:
		return FormatDuration(time.Duration(v.Int()))
	case isDuration(t) && isText(t):
		return FormatDuration(time.Duration(v.Int()))
	case isText(t):
		if m, ok := v.Interface().(encoding.TextMarshaler); ok {
			b, err := m.MarshalText()
			if err == nil {
				return r.text(string(b))
			}
		}
		return r.text(fmt.Sprint(v.Interface()))
	}
	switch {
	case v.Kind() == reflect.String:
		return r.text(v.String())
	case v.CanInt() && f.size:
		return formatSize(v.Int())
	case v.CanFloat():
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	default:
		return fmt.Sprint(v.Interface())
	}
}

func (r *renderer) text(s string) string {
	if r.redact {
		s = redact.Text(s)
	}
	return quote(s)
}

// bare matches text that needs no quotes anywhere, unless YAML takes it for
// something other than text.
var bare = regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./+~-]*(:[A-Za-z0-9_./+~-]+)*$`)

// quote writes s so that YAML reads the same text back. Go's escapes are YAML's.
func quote(s string) string {
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off":
		return strconv.Quote(s) // text in YAML 1.2, a boolean for readers of 1.1
	}
	var back yaml.Node
	if bare.MatchString(s) && yaml.Unmarshal([]byte(s), &back) == nil &&
		len(back.Content) == 1 && back.Content[0].Kind == yaml.ScalarNode &&
		back.Content[0].Tag == "!!str" && back.Content[0].Value == s {
		return s
	}
	return strconv.Quote(s)
}

// FormatDuration is d without the zero units that time.Duration ends with.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func sortedKeys(m reflect.Value) []reflect.Value {
	ks := m.MapKeys()
	slices.SortFunc(ks, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	return ks
}
