package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// configPage is docs/reference/config.md.
func configPage() string {
	docs, def := fieldDocs(), reflect.ValueOf(Default())
	var b strings.Builder
	b.WriteString(`# Configuration: all keys

<!-- Generated from the Go source by go generate ./internal/app/config. Do not edit. -->

Values are read from a YAML file (` + "`--config`" + `), then from environment variables, then from flags
(` + "`--set key.path=value`" + `); a later source overrides an earlier one. Sections are merged key by key, lists are
replaced whole. Unknown keys and variables are errors. Most installations set [less than 25 keys](keys.md); the rest is for
special cases.

- **Durations** are text: ` + "`500ms`, `30s`, `24h`, `7d`" + `.
- **Sizes** are integers or text with a unit: ` + "`65536`, `64KiB`, `1GiB`" + `.
- **Lists** in a variable or flag are separated by commas; lists of sections are written as JSON:
  ` + "`WEIR_NAMESPACES='[{\"name\":\"default\",\"anonymous\":true}]'`" + `.
- **reload** says when a change takes effect in a running server: ` + "`live`" + ` at once, also for open connections;
  ` + "`connection`" + ` at once for new connections and requests; ` + "`restart`" + ` at the next start. ` + "`weir config diff`" + ` shows what a
  reload would change. An entry of a list that is added or removed goes by the class of the list.
- An empty variable counts as not set. What Kubernetes sets for a Service called weir
  (` + "`WEIR_SERVICE_HOST`, `WEIR_PORT`" + ` …) is ignored.

` + "`weir config default`" + ` writes a file with every key, ` + "`weir config check`" + ` checks one, ` + "`weir config effective`" + ` shows
what all sources together give.

Variables read by commands in place of a flag:

`)
	for _, e := range CommandEnv {
		fmt.Fprintf(&b, "- `%s` (`%s`): %s\n", e.Name, e.Flag, e.Doc)
	}
	b.WriteString(deprecatedTable())
	b.WriteString("\n## Keys\n")
	for _, k := range keysOf(def.Type()) {
		level := "###"
		if k.shape == section || k.shape == list && strings.Count(k.path, ".") == 0 {
			level = "##"
		}
		fmt.Fprintf(&b, "\n%s `%s`\n\n", level, k.path)
		if doc := docs[docKey(k.field)]; doc != "" {
			b.WriteString(strings.Join(wrap(keyed(doc, k.field), 112), "\n") + "\n\n")
		}
		fmt.Fprintf(&b, "%s%s", kindOf(k), defaultText(k, def))
		if k.shape != section {
			b.WriteString(" · reload: " + string(k.class))
		}
		if k.env != "" {
			fmt.Fprintf(&b, " · `%s`", k.env)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// deprecatedTable lists the deprecated keys for the reference.
func deprecatedTable() string {
	var b strings.Builder
	b.WriteString("\n## Deprecated keys\n\nThese are accepted still, with a warning by `weir config check` and at the start; [how long](versioning.md#deprecation).\n\n| key | write instead |\n|---|---|\n")
	for _, path := range slices.Sorted(maps.Keys(deprecated)) {
		p := deprecated[path]
		meaning := ""
		if p.invert {
			meaning = ", which means the opposite"
		}
		fmt.Fprintf(&b, "| `%s` | `%s`%s |\n", path, p.successor(path), meaning)
	}
	return b.String()
}

// keysPage is docs/reference/keys.md.
func keysPage() string {
	docs, all := fieldDocs(), essentials()
	var b strings.Builder
	fmt.Fprintf(&b, `# The keys you need

<!-- Generated from the Go source by go generate ./internal/app/config. Do not edit. -->

Every key has a default, and %sweir serve%s starts without any. These %d are the ones that most installations set. The
other %d are for special cases: [all keys](config.md), or %sweir config docs --all%s.

A whole configuration, which %sweir serve --config weir.yaml%s starts with:

%syaml
%s%s

`, "`", "`", len(all), settable()-len(all), "`", "`", "`", "`", "```", essentialYAML, "```")
	b.WriteString("| key | meaning | example |\n|---|---|---|\n")
	for _, e := range all {
		cell := strings.NewReplacer("|", `\|`)
		fmt.Fprintf(&b, "| `%s` | %s | `%s` |\n", e.path, cell.Replace(summary(e.key, docs)), cell.Replace(e.example))
	}
	return b.String()
}
