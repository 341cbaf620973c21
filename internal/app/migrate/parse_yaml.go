package migrate

import (
	"bytes"
	"cmp"
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

	"github.com/weir-gateway/weir/internal/app/config"
)

// parseYAML reads one YAML document: a mapping.
func parseYAML(file string, data []byte) (*node, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&doc); errors.Is(err, io.EOF) {
		return &node{kind: object}, nil
	} else if err != nil {
		return nil, config.SyntaxError(file, err)
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
	p := &yamlParser{grower{file: file}}
	return p.value(tomlNode(m, "", 1, tomlLines(data)), "", 0)
}

// tomlNode is a value of TOML as one of YAML, with its line; that of key if lines has it.
func tomlNode(v any, key string, line int, lines map[string]int) *yaml.Node {
	if l := lines[key]; l > 0 {
		line = l
	}
	y := &yaml.Node{Kind: yaml.ScalarNode, Line: line}
	switch v := v.(type) {
	case map[string]any:
		y.Kind = yaml.MappingNode
		for _, k := range slices.SortedFunc(maps.Keys(v), func(a, b string) int {
			return cmp.Or(cmp.Compare(lines[join(key, a)], lines[join(key, b)]), cmp.Compare(a, b))
		}) {
			y.Content = append(y.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: k}, tomlNode(v[k], join(key, k), line, lines))
		}
	case []any:
		y.Kind = yaml.SequenceNode
		for i, x := range v {
			y.Content = append(y.Content, tomlNode(x, fmt.Sprintf("%s[%d]", key, i), line, lines))
		}
	case bool:
		y.Tag, y.Value = "!!bool", strconv.FormatBool(v)
	case int64:
		y.Tag, y.Value = "!!int", strconv.FormatInt(v, 10)
	case float64:
		y.Tag, y.Value = "!!float", strconv.FormatFloat(v, 'g', -1, 64)
	case time.Time:
		y.Value = v.Format(time.RFC3339Nano)
	default: // text, local dates and times
		y.Value = fmt.Sprint(v)
	}
	return y
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
