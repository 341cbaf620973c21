package config

import (
	"fmt"
	"reflect"
	"slices"
)

// A Class reports when a change of a key takes effect in a running server. It is the tag
// `reload:"…"` of a key, or of the nearest section around it that has one.
type Class string

// The classes.
const (
	// Live takes effect with the reload, also for connections that are open.
	Live Class = "live"
	// OnConnect takes effect with the reload for new connections and requests; open
	// connections keep what they began with.
	OnConnect Class = "connection"
	// OnRestart waits for the next start.
	OnRestart Class = "restart"
)

// A Change is one key that two configurations disagree on, or one entry of a list or map
// that only one of them has.
type Change struct {
	// Key is the path, with the names of entries: "namespaces[chat].history_size".
	Key string `json:"key"`
	// Kind is "added" or "removed" for entries, otherwise "changed".
	Kind  string `json:"kind"`
	Class Class  `json:"reload"`
	// Old and New are the values as they are written, secrets redacted. Empty for an
	// entry that is not there.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
}

// The kinds of changes.
const (
	changed = "changed"
	added   = "added"
	removed = "removed"
)

// Diff returns what changes from old to now, in the order of the keys.
func Diff(old, now Config) []Change {
	d := &differ{}
	d.section(reflect.ValueOf(old), reflect.ValueOf(now), place{class: OnRestart})
	return d.changes
}

// Merge returns what a server that runs with old has in force after a reload of now:
// now, but for the keys that wait for a restart.
func Merge(old, now Config) Config {
	d := &differ{}
	return d.section(reflect.ValueOf(old), reflect.ValueOf(now), place{class: OnRestart}).Interface().(Config)
}

// Waiting returns the keys of changes that wait for a restart.
func Waiting(changes []Change) []string {
	return keysWhere(changes, func(c Class) bool { return c == OnRestart })
}

// Applied returns the keys of changes that a reload applies.
func Applied(changes []Change) []string {
	return keysWhere(changes, func(c Class) bool { return c != OnRestart })
}

func keysWhere(changes []Change, want func(Class) bool) []string {
	keys := []string{} // in JSON a list even where it is empty
	for _, c := range changes {
		if want(c.Class) {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// A differ compares two configurations. Its methods return the merged value.
type differ struct{ changes []Change }

// A place is where values are compared: a path, the field that it belongs to, and the class.
type place struct {
	path  string
	field field
	class Class
}

// below is the place of field f of a section at p.
func (p place) below(f field) place {
	if f.class != "" {
		p.class = f.class
	}
	secret := p.field.secret || f.secret
	p.path, p.field = join(p.path, f.key), f
	p.field.secret = secret
	return p
}

// entry is the place of the entry called name of a list or map at p.
func (p place) entry(name string) place {
	p.path += "[" + name + "]"
	return p
}

func (d *differ) add(p place, kind string, old, now reflect.Value) {
	d.changes = append(d.changes, Change{Key: p.path, Kind: kind, Class: p.class, Old: show(old, p), New: show(now, p)})
}

// show writes a value for people; an entry that is a section has no short form.
func show(v reflect.Value, p place) string {
	if v.IsValid() && v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return ""
	}
	switch shapeOf(v.Type()) {
	case section:
		return ""
	case list:
		if shapeOf(deref(v.Type().Elem())) == section {
			return fmt.Sprintf("%d entries", v.Len())
		}
	}
	p.field.secret = p.field.secret || hasSecretHeaders(p.path)
	r := renderer{redact: true}
	return r.inline(v, p.field)
}

// pick returns which of two values is in force at p after a reload.
func (p place) pick(old, now reflect.Value) reflect.Value {
	if p.class == OnRestart {
		return old
	}
	return now
}

func (d *differ) value(old, now reflect.Value, p place) reflect.Value {
	if old.Kind() == reflect.Pointer {
		if old.IsNil() || now.IsNil() || shapeOf(old.Type()) != section {
			return d.scalar(old, now, p)
		}
		out := reflect.New(old.Type().Elem())
		out.Elem().Set(d.value(old.Elem(), now.Elem(), p))
		return out
	}
	switch shapeOf(old.Type()) {
	case section:
		return d.section(old, now, p)
	case list:
		if a, b := namesOf(old), namesOf(now); a != nil && b != nil {
			return d.list(old, now, a, b, p)
		}
	case mapping:
		return d.mapping(old, now, p)
	}
	return d.scalar(old, now, p)
}

func (d *differ) scalar(old, now reflect.Value, p place) reflect.Value {
	if isEmpty(old) && isEmpty(now) || reflect.DeepEqual(old.Interface(), now.Interface()) {
		return old
	}
	d.add(p, changed, old, now)
	return p.pick(old, now)
}

// isEmpty reports whether v is a list or map without entries, which is the same as none.
func isEmpty(v reflect.Value) bool {
	return (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}

func (d *differ) section(old, now reflect.Value, p place) reflect.Value {
	out := reflect.New(old.Type()).Elem()
	out.Set(now)
	for _, f := range fieldsOf(old.Type()) {
		out.FieldByIndex(f.index).Set(d.value(old.FieldByIndex(f.index), now.FieldByIndex(f.index), p.below(f)))
	}
	return out
}

// list compares the entries of two lists by name.
func (d *differ) list(old, now reflect.Value, oldNames, newNames []string, p place) reflect.Value {
	before := len(d.changes)
	for i, name := range oldNames {
		if !slices.Contains(newNames, name) {
			d.add(p.entry(name), removed, old.Index(i), reflect.Value{})
		}
	}
	out := reflect.MakeSlice(old.Type(), now.Len(), now.Len())
	for i, name := range newNames {
		if j := slices.Index(oldNames, name); j >= 0 {
			out.Index(i).Set(d.value(old.Index(j), now.Index(i), p.entry(name)))
			continue
		}
		d.add(p.entry(name), added, reflect.Value{}, now.Index(i))
		out.Index(i).Set(now.Index(i))
	}
	if len(d.changes) == before && !slices.Equal(oldNames, newNames) {
		d.changes = append(d.changes, Change{Key: p.path, Kind: changed, Class: p.class, Old: fmt.Sprint(oldNames), New: fmt.Sprint(newNames)})
	}
	return p.pick(old, out)
}

func (d *differ) mapping(old, now reflect.Value, p place) reflect.Value {
	if isEmpty(old) && isEmpty(now) {
		return old
	}
	for _, k := range sortedKeys(old) {
		if !now.MapIndex(k).IsValid() {
			d.add(p.entry(k.String()), removed, old.MapIndex(k), reflect.Value{})
		}
	}
	out := reflect.MakeMapWithSize(now.Type(), now.Len())
	for _, k := range sortedKeys(now) {
		v := now.MapIndex(k)
		if have := old.MapIndex(k); have.IsValid() {
			v = d.value(have, v, p.entry(k.String()))
		} else {
			d.add(p.entry(k.String()), added, reflect.Value{}, v)
		}
		out.SetMapIndex(k, v)
	}
	return p.pick(old, out)
}

// namesOf returns the names of a list's entries, which their first key of these is; nil if
// they have none, or not each its own.
func namesOf(v reflect.Value) []string {
	t := deref(v.Type().Elem())
	if shapeOf(t) != section {
		return nil
	}
	var key []int
	for _, want := range []string{"name", "id", "issuer", "url", "cluster", "address"} {
		for _, f := range fieldsOf(t) {
			if f.key == want && f.typ.Kind() == reflect.String && key == nil {
				key = f.index
			}
		}
	}
	if key == nil {
		return nil
	}
	names := make([]string, 0, v.Len())
	for i := range v.Len() {
		e := v.Index(i)
		if e.Kind() == reflect.Pointer {
			if e.IsNil() {
				return nil
			}
			e = e.Elem()
		}
		name := e.FieldByIndex(key).String()
		if name == "" || slices.Contains(names, name) {
			return nil
		}
		names = append(names, name)
	}
	return names
}
