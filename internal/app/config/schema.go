package config

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/redact"
)

// shape is how a Go type is written in a file.
type shape int

const (
	scalar shape = iota
	section
	list
	mapping
)

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonType     = reflect.TypeFor[json.Unmarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
	switchType   = reflect.TypeFor[setting.Switch]()
)

func shapeOf(t reflect.Type) shape {
	if t.Kind() == reflect.Pointer {
		return shapeOf(t.Elem())
	}
	if isText(t) || reflect.PointerTo(t).Implements(jsonType) {
		return scalar
	}
	switch t.Kind() {
	case reflect.Struct:
		return section
	case reflect.Slice:
		return list
	case reflect.Map:
		return mapping
	default:
		return scalar
	}
}

// isText reports whether t reads itself from text; time.Duration counts, as a
// bare integer of nanoseconds is never meant.
func isText(t reflect.Type) bool {
	return t == durationType || reflect.PointerTo(t).Implements(textType)
}

// isDuration recognises hub.Duration and its like by its ground.
func isDuration(t reflect.Type) bool {
	return t == durationType || t.Kind() == reflect.Int64 && strings.HasSuffix(t.Name(), "Duration")
}

// A field is one key of a section.
type field struct {
	key    string       // its json tag
	name   string       // its Go name, under which its comment is found
	owner  reflect.Type // the struct that declares it
	typ    reflect.Type
	index  []int // for reflect.Value.FieldByIndex
	size   bool  // counts bytes: "_bytes" ends its key, or tagged unit:"bytes"
	signed bool  // a size that may be -1: tagged min:"-1"
	secret bool  // never printed: tagged secret:"true", or see isSecret
	// endpoint is a URL of which only scheme and host are shown: tagged secret:"path".
	endpoint bool
	class    Class // tagged reload:"…"; empty: that of the section around it
}

// fieldsOf returns the keys of section t in the order of its source. A field
// without a json tag, or with "-", is not a key; embedded structs are inlined.
func fieldsOf(t reflect.Type) []field {
	var all []field
	for i := range t.NumField() {
		sf := t.Field(i)
		key, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if sf.Anonymous && key == "" && sf.Type.Kind() == reflect.Struct {
			for _, f := range fieldsOf(sf.Type) {
				f.index = append([]int{i}, f.index...)
				all = append(all, f)
			}
			continue
		}
		if !sf.IsExported() || key == "" || key == "-" {
			continue
		}
		all = append(all, field{
			key: key, name: sf.Name, owner: t, typ: sf.Type, index: []int{i},
			size:   isSize(key) || sf.Tag.Get("unit") == "bytes",
			signed: sf.Tag.Get("min") == "-1",
			secret: isSecret(key, sf), endpoint: sf.Tag.Get("secret") == "path",
			class: Class(sf.Tag.Get("reload")),
		})
	}
	return all
}

// isSecret recognises what must not be shown even where a tag was forgotten: by a type
// called Secret, alone or in a list or map, or text under a name of a secret. What has such
// a name and is none says secret:"false": the name of a cookie, the path of a file.
func isSecret(key string, sf reflect.StructField) bool {
	switch sf.Tag.Get("secret") {
	case "true":
		return true
	case "false", "path":
		return false
	}
	t := deref(sf.Type)
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = deref(t.Elem())
	}
	return t.Name() == "Secret" || t.Kind() == reflect.String && redact.Name(key)
}

// hasSecretHeaders reports whether the map of strings at path is header fields whose values
// are not to be shown. Those of answers go to every client: only those under the name of a
// secret are hidden.
func hasSecretHeaders(path string) bool {
	return strings.Contains(path, "headers") && !strings.Contains(path, "response_headers") && !strings.Contains(path, "reply.headers")
}

// A key is one place in the whole configuration that a value can be given to.
type key struct {
	field
	path  string // "broker.nats.dir"; inside a list "namespaces[].name"
	env   string // "" inside lists and maps, and for sections
	shape shape
}

// keysOf returns every key under t, sections before what they hold.
// The class of a key is its own or that of the section around it, never empty below a
// section that has one.
func keysOf(t reflect.Type) []key { return appendKeys(nil, t, "", "", true) }

func appendKeys(ks []key, t reflect.Type, prefix string, around Class, env bool) []key {
	for _, f := range fieldsOf(t) {
		if f.class == "" {
			f.class = around
		}
		k := key{field: f, path: join(prefix, f.key), shape: shapeOf(f.typ)}
		if env && k.shape != section {
			k.env = envName(k.path)
		}
		ks = append(ks, k)
		e := deref(f.typ)
		switch k.shape {
		case section:
			ks = appendKeys(ks, e, k.path, f.class, env)
		case list:
			if e = deref(e.Elem()); shapeOf(e) == section {
				ks = appendKeys(ks, e, k.path+"[]", f.class, false)
			}
		case mapping:
			if e = deref(e.Elem()); shapeOf(e) == section {
				ks = appendKeys(ks, e, k.path+".*", f.class, false)
			}
		}
	}
	return ks
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

// acceptedForm says in words what can be written for a value of type t.
func acceptedForm(f field, t reflect.Type) string {
	t = deref(t)
	switch shapeOf(t) {
	case section, mapping:
		return "keys with values"
	case list:
		return "a list"
	}
	switch {
	case isDuration(t):
		return "a duration"
	case t == switchType:
		return "true or false"
	case isText(t):
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "text"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if f.size {
			return "a size"
		}
		return "an integer"
	default:
		return "a value"
	}
}
