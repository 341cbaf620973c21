package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestEveryKeyHasAReloadClass(t *testing.T) {
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		if k.class != Live && k.class != OnConnect && k.class != OnRestart {
			t.Errorf(`%s: reload class %q: tag it, or the section around it, with reload:"live", "connection" or "restart"`, k.path, k.class)
		}
	}
}

// TestEveryKeyIsComparedExhaustively changes each scalar key alone, by its path, and wants the diff to
// name it with its class, and Merge to keep exactly the keys that wait for a restart.
func TestEveryKeyIsComparedExhaustively(t *testing.T) {
	old := filled()
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		if k.shape != scalar {
			continue
		}
		now := filled()
		v, ok := fieldAt(reflect.ValueOf(&now).Elem(), k.path)
		if !ok || !alter(v) {
			t.Errorf("%s cannot be changed by this test", k.path)
			continue
		}
		changes := Diff(old, now)
		if isNameKey(k) {
			if len(changes) == 0 {
				t.Errorf("%s: a new name is not a change", k.path)
			}
			continue // an entry of another name is another entry
		}
		bare := strings.NewReplacer("[n]", "", "[default]", "", "[]", "", ".*", "")
		if len(changes) != 1 || changes[0].Class != k.class || !within(bare.Replace(k.path), bare.Replace(changes[0].Key)) {
			t.Errorf("%s: %+v, want one change of class %s", k.path, changes, k.class)
			continue
		}
		if k.secret && strings.HasSuffix(changes[0].Key, k.key) && (changes[0].Old != `"[redacted]"` && changes[0].Old != "[redacted]" && changes[0].Old != `""`) {
			t.Errorf("%s: shown as %s", k.path, changes[0].Old)
		}
		left := Diff(Merge(old, now), now)
		if waits := k.class == OnRestart; waits != (len(left) == 1) {
			t.Errorf("%s (%s): after a reload %v differ", k.path, k.class, left)
		}
	}
}

// filled is a configuration in which every list and map of sections has one entry.
func filled() Config {
	c := Default()
	fill(reflect.ValueOf(&c).Elem())
	return c
}

func fill(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case shapeOf(v.Type()) == section:
		for _, f := range fieldsOf(v.Type()) {
			x := v.FieldByIndex(f.index)
			if slices.Contains([]string{"name", "id", "issuer", "url", "cluster", "address"}, f.key) && x.Kind() == reflect.String && x.String() == "" {
				x.SetString("n")
			}
			fill(x)
		}
	case shapeOf(v.Type()) == list && shapeOf(deref(v.Type().Elem())) == section:
		s := reflect.MakeSlice(v.Type(), 1, 1)
		fill(s.Index(0))
		v.Set(s)
	case shapeOf(v.Type()) == mapping && shapeOf(deref(v.Type().Elem())) == section:
		m := reflect.MakeMap(v.Type())
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e)
		m.SetMapIndex(reflect.ValueOf("n").Convert(v.Type().Key()), e)
		v.Set(m)
	}
}

// fieldAt returns the settable value at a path of keysOf.
func fieldAt(v reflect.Value, path string) (reflect.Value, bool) {
	head, rest, more := strings.Cut(path, ".")
	name, first := strings.CutSuffix(head, "[]")
	for _, f := range fieldsOf(v.Type()) {
		if f.key != name {
			continue
		}
		x := v.FieldByIndex(f.index)
		if x.Kind() == reflect.Pointer {
			x = x.Elem()
		}
		switch {
		case first:
			x = deep(x.Index(0))
		case strings.HasPrefix(rest, "*."):
			rest = rest[2:]
			k := x.MapKeys()[0]
			e := reflect.New(x.Type().Elem()).Elem()
			e.Set(x.MapIndex(k))
			got, ok := fieldAt(e, rest)
			ok = ok && alter(got)
			x.SetMapIndex(k, e)
			return reflect.ValueOf(new(bool)).Elem(), ok // altered already
		}
		if !more {
			return x, true
		}
		return fieldAt(deep(x), rest)
	}
	return v, false
}

func deep(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Pointer {
		return v.Elem()
	}
	return v
}

// alter gives v another value.
func alter(v reflect.Value) bool {
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "x")
	case v.CanInt():
		v.SetInt(v.Int() + 1)
	case v.CanUint():
		v.SetUint(v.Uint() + 1)
	case v.CanFloat():
		v.SetFloat(v.Float() + 1)
	case v.Kind() == reflect.Struct && v.NumField() > 0:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				return alter(f)
			}
		}
		return false
	default:
		return false
	}
	return true
}

func isNameKey(k key) bool {
	return inList(k.path) && slices.Contains([]string{"name", "id", "issuer", "url", "cluster", "address"}, k.key)
}

func TestDiffNamesEntries(t *testing.T) {
	old, now := Default(), Default()
	old.Namespaces = []hub.Namespace{{Name: "a", HistorySize: 1}, {Name: "b"}}
	now.Namespaces = []hub.Namespace{{Name: "c"}, {Name: "a", HistorySize: 2}}
	old.Auth.APIKeys = []auth.APIKey{{Name: "k", Key: "secret-of-the-old"}}
	now.Auth.APIKeys = []auth.APIKey{{Name: "k", Key: "secret-of-the-new"}}
	old.Routes = []policy.RouteConfig{{Name: "r", Path: "/a"}, {Name: "s", Path: "/b"}}
	now.Routes = []policy.RouteConfig{{Name: "s", Path: "/b"}, {Name: "r", Path: "/a"}}
	now.Clusters = []upstream.Config{{Name: "u"}}
	var lines []string
	for _, c := range Diff(old, now) {
		lines = append(lines, strings.Join([]string{c.Kind, c.Key, c.Old, c.New}, "|"))
	}
	want := []string{
		"removed|namespaces[b]||", "added|namespaces[c]||", "changed|namespaces[a].history_size|1|2",
		`changed|auth.api_keys[k].key|"[redacted]"|"[redacted]"`, "changed|routes|[r s]|[s r]", "added|clusters[u]||",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if d := Diff(now, now); d != nil {
		t.Errorf("no change: %v", d)
	}
}
