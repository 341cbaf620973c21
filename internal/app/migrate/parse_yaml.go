package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"go.yaml.in/yaml/v3"
)

// parseYAML reads one YAML document: a mapping.
func parseYAML(file string, data []byte) (*node, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&doc); errors.Is(err, io.EOF) {
		return &node{kind: object}, nil
	} else if err != nil {
		line, what := 0, strings.TrimPrefix(err.Error(), "yaml: ")
		if _, scanErr := fmt.Sscanf(what, "line %d:", &line); scanErr == nil {
			_, what, _ = strings.Cut(what, ": ")
		}
		return nil, problem(file, line, "", "%s", what)
	}
	p := &yamlParser{grower{file: file}}
	if len(doc.Content) == 0 {
		return &node{kind: object}, nil
	}
	n, err := p.value(doc.Content[0], "", 0)
	switch {
	case err != nil:
		return nil, err
	case n.kind == null:
		return &node{kind: object}, nil
	case n.kind != object:
		return nil, problem(file, n.line, "", "want keys with values")
	}
	return n, nil
}

type yamlParser struct{ grower }

func (p *yamlParser) value(y *yaml.Node, key string, depth int) (*node, error) {
	if depth > maxDepth { // an alias may contain itself
		return nil, problem(p.file, y.Line, key, "values in values, more than %d deep", maxDepth)
	}
	switch y.Kind {
	case yaml.AliasNode:
		return p.value(y.Alias, key, depth+1)
	case yaml.MappingNode:
		return p.mapping(y, key, depth)
	case yaml.SequenceNode:
		n, err := p.node(list, "", y.Line, depth, key)
		if err != nil {
			return nil, err
		}
		for i, c := range y.Content {
			item, err := p.value(c, fmt.Sprintf("%s[%d]", key, i), depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
		return n, nil
	case yaml.ScalarNode:
	default:
		return nil, problem(p.file, y.Line, key, "this is not read here")
	}
	k := text
	switch y.Tag {
	case "!!null":
		k = null
	case "!!bool":
		k = boolean
	case "!!int", "!!float":
		k = number
	}
	return p.node(k, y.Value, y.Line, depth, key)
}

func (p *yamlParser) mapping(y *yaml.Node, key string, depth int) (*node, error) {
	n, err := p.node(object, "", y.Line, depth, key)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(y.Content); i += 2 {
		k := y.Content[i]
		if k.Kind != yaml.ScalarNode {
			return nil, problem(p.file, k.Line, key, "a key is not text")
		}
		v, err := p.value(y.Content[i+1], join(key, k.Value), depth+1)
		if err != nil {
			return nil, err
		}
		if k.Tag != "!!merge" {
			n.set(k.Value, v)
			continue
		}
		for _, f := range slices.Concat([]*node{v}, v.items) {
			for _, f := range f.fields { // what is written out counts more
				if n.child(f.key) == nil {
					n.set(f.key, f.value)
				}
			}
		}
	}
	return n, nil
}

// parseTOML reads TOML 1.0.
func parseTOML(file string, data []byte) (*node, error) {
	var m map[string]any
	if err := toml.Unmarshal(data, &m); err != nil {
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ := e.Position()
			return nil, problem(file, line, strings.Join(e.Key(), "."), "%s", strings.TrimPrefix(e.Error(), "toml: "))
		}
		return nil, problem(file, 0, "", "%s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	p := &tomlParser{grower: grower{file: file}, lines: tomlLines(data)}
	return p.value(m, "", 0, 1)
}

type tomlParser struct {
	grower
	lines map[string]int
}

func (p *tomlParser) value(v any, key string, depth, line int) (*node, error) {
	if l := p.lines[key]; l > 0 {
		line = l
	}
	switch v := v.(type) {
	case map[string]any:
		n, err := p.node(object, "", line, depth, key)
		if err != nil {
			return nil, err
		}
		keys := slices.SortedFunc(maps.Keys(v), func(a, b string) int {
			if d := p.lines[join(key, a)] - p.lines[join(key, b)]; d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		for _, k := range keys {
			f, err := p.value(v[k], join(key, k), depth+1, line)
			if err != nil {
				return nil, err
			}
			n.set(k, f)
		}
		return n, nil
	case []any:
		n, err := p.node(list, "", line, depth, key)
		if err != nil {
			return nil, err
		}
		for i, x := range v {
			item, err := p.value(x, fmt.Sprintf("%s[%d]", key, i), depth+1, line)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
		return n, nil
	case string:
		return p.node(text, v, line, depth, key)
	case bool:
		return p.node(boolean, strconv.FormatBool(v), line, depth, key)
	case int64:
		return p.node(number, strconv.FormatInt(v, 10), line, depth, key)
	case float64:
		return p.node(number, strconv.FormatFloat(v, 'g', -1, 64), line, depth, key)
	case time.Time:
		return p.node(text, v.Format(time.RFC3339Nano), line, depth, key)
	default: // local dates and times
		return p.node(text, fmt.Sprint(v), line, depth, key)
	}
}

// tomlLines returns the lines of keys, as far as they are known: the decoder of values
// knows none.
func tomlLines(data []byte) map[string]int {
	lines := map[string]int{}
	elements := map[string]int{} // of arrays of tables
	var p unstable.Parser
	p.Reset(data)
	table := ""
	for p.NextExpression() {
		e := p.Expression()
		path, line := "", 0
		if e.Kind == unstable.KeyValue {
			path = table
		}
		for it := e.Key(); it.Next(); {
			k := it.Node()
			path = join(path, string(k.Data))
			if n, ok := elements[path]; ok && e.Kind != unstable.KeyValue && !(e.Kind == unstable.ArrayTable && it.IsLast()) {
				path = fmt.Sprintf("%s[%d]", path, n)
			}
			line = p.Shape(k.Raw).Start.Line
		}
		if e.Kind == unstable.ArrayTable {
			n, ok := elements[path]
			if ok {
				n++
			}
			elements[path] = n
			path = fmt.Sprintf("%s[%d]", path, n)
		}
		if lines[path] == 0 {
			lines[path] = line
		}
		if e.Kind != unstable.KeyValue {
			table = path
		}
	}
	return lines
}
