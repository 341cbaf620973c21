package migrate

import (
	"fmt"
	"slices"
	"strings"
)

// environment lays the variables of Centrifugo over a translation.
type environment struct{ *translation }

// lay lays variables over what the file has: they count more.
func (t environment) lay(env *node) {
	for _, m := range env.fields { // the items that other variables are about
		if path := envList6(m.key); path != "" {
			t.envVariable6(path, inlined(m.value))
		}
	}
	for _, m := range env.fields {
		name, ok := strings.CutPrefix(m.key, "CENTRIFUGO_")
		switch {
		case !ok:
			m.value.markUsed()
			t.note(Unknown, m.value, "not a variable of Centrifugo", "")
		case envList6(m.key) != "":
		default:
			v := inlined(m.value)
			if !t.envItem6(name, v) {
				t.envVariable6(canonicalEnv6(name), v)
			}
		}
	}
}

// inlined is the value of a variable, which may be an object or a list in JSON.
func inlined(v *node) *node {
	if j, ok := inlineJSON(v); ok && (j.kind == object || j.kind == list) {
		return j
	}
	return v
}

// envVariable6 puts the value of a variable at its path, instead of the file's.
func (t environment) envVariable6(path string, v *node) {
	if slices.Contains(envLists6, path) && v.kind == text && !strings.ContainsAny(v.value, "[{") {
		t.envNames6(path, v)
		return
	}
	if !t.root.lay(path, v) {
		v.markUsed()
		t.note(Untaken, v, twice, "")
	}
}

// envLists6 are the lists of Centrifugo 6 whose items have names. The variable of a list
// is JSON, or has the names separated by spaces; that of an item's key is the list's, the
// name and the key joined by underscores: CENTRIFUGO_CHANNEL_NAMESPACES_CHAT_PRESENCE.
var envLists6 = []string{"channel.namespaces", "rpc.namespaces", "proxies"}

// envName6 is a path or a name as it is in variables, in lower case.
func envName6(s string) string {
	return strings.NewReplacer(".", "_", "-", "_").Replace(strings.ToLower(s))
}

// envList6 returns the path of the list that a variable is, empty if it is none.
func envList6(name string) string {
	for _, path := range envLists6 {
		if strings.EqualFold(name, "CENTRIFUGO_"+envName6(path)) {
			return path
		}
	}
	return ""
}

// envNames6 adds the items that the variable v of a list names to those of the file.
func (t environment) envNames6(path string, v *node) {
	all := &node{kind: list, items: itemsOf(t.root.at(path)), line: v.line, where: v.where}
	for name := range strings.FieldsSeq(v.value) {
		if !slices.ContainsFunc(all.items, func(item *node) bool { n := item.at("name"); return n != nil && n.value == name }) {
			item := &node{kind: object, line: v.line, where: v.where}
			item.put("name", &node{kind: text, value: name, line: v.line, where: v.where})
			all.items = append(all.items, item)
		}
	}
	if have := t.root.at(path); have != nil {
		*have = *all
		return
	}
	t.place(path, all)
}

// envItem6 lays the variable of one key of an item over the item. It reports whether
// the variable is one.
func (t environment) envItem6(name string, v *node) bool {
	name = strings.ToLower(name)
	for _, path := range envLists6 {
		rest, ok := strings.CutPrefix(name, envName6(path)+"_")
		if !ok {
			continue
		}
		item, key := (*node)(nil), rest
		for _, i := range itemsOf(t.root.at(path)) {
			if n := i.at("name"); n != nil {
				if k, ok := strings.CutPrefix(rest, envName6(n.value)+"_"); ok && len(k) < len(key) { // the longest name
					item, key = i, k
				}
			}
		}
		if item == nil {
			t.untaken(v, fmt.Sprintf("no item of %s has a name that it starts with", path), "name the item in CENTRIFUGO_"+strings.ToUpper(envName6(path)))
			return true
		}
		if k, ok := strings.CutPrefix(key, "http_"); ok && k != "headers" {
			key = "http." + k
		}
		item.lay(key, v)
		return true
	}
	return false
}
