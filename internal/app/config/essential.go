package config

import (
	_ "embed" // for the small configuration
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The small configuration of docs/reference/keys.md. A key is essential by being in it,
// or in essentialToo.
//
//go:embed essential.yaml
var essentialYAML string

// essentialToo are essential keys that the small configuration does not have, since it
// would not start without files or servers, with an example of each.
var essentialToo = []struct{ path, example string }{
	{"tls.certificates[].cert_file", "/etc/weir/cert.pem"},
	{"tls.certificates[].key_file", "/etc/weir/key.pem"},
	{"broker.nats.url", "nats://nats.internal:4222"},
}

// An essential is an essential key and an example of its value.
type essential struct {
	key
	example string
}

// essentials returns the essential keys in the order of the reference.
func essentials() []essential {
	examples := map[string]string{}
	for _, e := range essentialToo {
		examples[e.path] = e.example
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(essentialYAML), &doc); err != nil {
		panic("config: essential.yaml is embedded and must parse: " + err.Error())
	}
	leaves(doc.Content[0], "", examples)
	var all []essential
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		if example, ok := examples[k.path]; ok {
			all = append(all, essential{k, example})
		}
	}
	return all
}

// leaves adds the paths below n that have a value.
func leaves(n *yaml.Node, path string, to map[string]string) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		leaves(n.Content[i+1], join(path, n.Content[i].Value), to)
	}
	switch {
	case n.Kind == yaml.ScalarNode:
		to[path] = n.Value
	case n.Kind == yaml.SequenceNode && n.Content[0].Kind == yaml.ScalarNode:
		to[path] = "[" + n.Content[0].Value + "]"
	case n.Kind == yaml.SequenceNode:
		leaves(n.Content[0], path+"[]", to)
	}
}

var sentenceEnd = regexp.MustCompile(`[.:;](\s|$)`)

// summary is the first sentence of a key's explanation, on one line.
// That of "enabled" is its section's.
func summary(k key, docs map[string]string) string {
	if section, ok := strings.CutSuffix(k.path, ".enabled"); ok {
		all := keysOf(reflect.TypeFor[Config]())
		k = all[slices.IndexFunc(all, func(k key) bool { return k.path == section })]
	}
	text := strings.Join(strings.Fields(keyed(docs[docKey(k.field)], k.field)), " ")
	if at := sentenceEnd.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	return text + "."
}

// Essentials explains the keys that most installations set, as plain text.
func Essentials() string {
	docs, def := fieldDocs(), reflect.ValueOf(Default())
	var b strings.Builder
	all := essentials()
	for _, e := range all {
		fmt.Fprintf(&b, "%s  (%s%s)\n", e.path, kindOf(e.key), defaultText(e.key, def))
		for _, line := range wrap(summary(e.key, docs), 76) {
			b.WriteString("    " + line + "\n")
		}
		b.WriteString("    example: " + e.example + "\n")
	}
	fmt.Fprintf(&b, "\nThese are %d keys of %d. The rest: weir config docs --all, or weir config docs KEY|WORD.\n", len(all), settable())
	return b.String()
}

// settable is the number of keys that have a value of their own.
func settable() int {
	all := keysOf(reflect.TypeFor[Config]())
	return len(slices.DeleteFunc(all, func(k key) bool { return k.shape == section }))
}
