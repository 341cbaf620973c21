package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Sources are what a configuration is read from, the weakest first. The zero
// value reads nothing and gives Default.
type Sources struct {
	// File is the path of a YAML (or JSON) file; empty means none. No place is
	// searched for one.
	File string
	// Text is read in place of File, which then only names it in messages. Nil: File is read.
	Text []byte
	// Env is os.Environ(): variables that start with WEIR_ are read. An empty
	// variable counts as not set.
	Env []string
	// Flags override everything, the last one for a key wins.
	Flags []Override
}

// An Override is one value given on the command line.
type Override struct {
	Flag  string // as the user wrote it: "--listen"
	Key   string // the path that it sets
	Value string // plain text; JSON for lists of sections
}

// ParseSet reads the argument of --set: "key.path=value".
func ParseSet(s string) (Override, error) {
	k, v, ok := strings.Cut(s, "=")
	if k = strings.TrimSpace(k); !ok || k == "" {
		return Override{}, WithHint(fmt.Errorf("--set %s: no key and value", s), "write --set listen=127.0.0.1:9000")
	}
	return Override{Flag: "--set", Key: k, Value: v}, nil
}

// Origins reports where each value came from: path → file and line, variable or
// flag. What is not in it is a default.
type Origins map[string]string

// at leads an error about the key at path with the place where that key, or the
// nearest section around it, was written. What has no known place stays as it is.
func (o Origins) at(path string, err error) error {
	for path != "" {
		if place := o[path]; place != "" {
			return fmt.Errorf("%s: %w", place, err)
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return err
}

// set notes the place of a value that replaces the one at path.
func (o Origins) set(path, place string) {
	if o != nil {
		o[path] = place
	}
}

// forget drops what is known of the elements of a list or map that is replaced.
func (o Origins) forget(path string) {
	maps.DeleteFunc(o, func(p, _ string) bool {
		return strings.HasPrefix(p, path+"[") || strings.HasPrefix(p, path+".")
	})
}

// Load reads, completes and validates a configuration. The error joins all that
// is wrong (see Problems), each part with its place and perhaps a hint: keys that
// cannot be read, then what Validate and each of checks find in the rest. A check is
// called for configurations that are not valid, too. Problems that only follow from a
// key that could not be read are left out, and so are repetitions.
func Load(s Sources, checks ...func(Config) error) (Config, error) {
	c, origins, err := lay(s)
	f := findings{cfg: c, origins: origins}
	f.unread(err)
	for _, check := range append([]func(Config) error{Config.Validate}, checks...) {
		f.add(check(c))
	}
	return c, errors.Join(f.all...)
}

// Read is Load without Validate: the error covers only what cannot be
// understood. It also says where every value came from.
func Read(s Sources) (Config, Origins, error) {
	c, origins, err := lay(s)
	if err != nil {
		return Config{}, nil, err
	}
	return c, origins, nil
}

// lay reads all sources into a completed configuration. The error joins the keys that
// could not be read; they have their defaults in it.
func lay(s Sources) (Config, Origins, error) {
	var c Config
	origins := Origins{}
	err := read(s, reflect.ValueOf(&c).Elem(), origins)
	complete(reflect.ValueOf(&c).Elem())
	return c, origins, err
}

// read lays the sources over v, a section, in order.
func read(s Sources, v reflect.Value, origins Origins) error {
	return errors.Join(slices.DeleteFunc(collect(s, v, origins), isDeprecated)...)
}

// collect is read, with the deprecated keys among what it finds.
func collect(s Sources, v reflect.Value, origins Origins) []error {
	var problems []error
	if s.Text != nil || s.File != "" {
		b, err := s.Text, error(nil)
		if b == nil {
			b, err = os.ReadFile(s.File)
		}
		if err != nil {
			return []error{WithHint(fmt.Errorf("read config: %w", err), "write one with: weir config default > "+s.File)}
		}
		problems = append(problems, readYAML(s.File, b, v, origins)...)
	}
	keys := keysOf(v.Type())
	problems = append(problems, readEnv(s.Env, keys, v, origins)...)
	for _, o := range s.Flags {
		d := &decoder{source: o.Flag, root: v.Type(), origins: origins}
		d.override(o, keys, v)
		problems = append(problems, d.problems...)
	}
	return problems
}

// readYAML lays a file over v. JSON is YAML.
func readYAML(name string, b []byte, v reflect.Value, origins Origins) []error {
	d := &decoder{source: name, root: v.Type(), origins: origins}
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return []error{SyntaxError(name, err)}
	}
	if len(doc.Content) == 1 {
		d.value(doc.Content[0], "", field{}, v)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		d.problem(&more, "", "keep one document per file", "a second document starts")
	} else if !errors.Is(err, io.EOF) {
		return append(d.problems, SyntaxError(name, err))
	}
	return d.problems
}

// SyntaxError turns "yaml: line 3: what" into "name:3: what".
func SyntaxError(name string, err error) error {
	e := &KeyError{Source: name, Problem: strings.TrimPrefix(err.Error(), "yaml: ")}
	var line int
	if _, scanErr := fmt.Sscanf(e.Problem, "line %d:", &line); scanErr == nil {
		e.Line = line
		_, e.Problem, _ = strings.Cut(e.Problem, ": ")
	}
	return e
}

// override sets one key from a flag.
func (d *decoder) override(o Override, keys []key, v reflect.Value) {
	for _, k := range keys {
		if k.path == o.Key && !inList(k.path) {
			d.plain(o.Value, k, v)
			return
		}
	}
	if p, ok := deprecated[o.Key]; ok && !inList(o.Key) {
		d.scalarOf(o.Key, o.Value, p, keys, v)
		return
	}
	var paths []string
	for _, k := range keys {
		if !inList(k.path) {
			paths = append(paths, k.path)
		}
	}
	hint := "weir config docs --all lists all keys"
	if s := nearest(o.Key, paths); s != "" {
		hint = "did you mean " + s + "?"
	} else if i := strings.IndexAny(o.Key, "[*"); i > 0 {
		hint = "give the whole list as JSON: --set '" + o.Key[:i] + "=[…]'"
	} else {
		for _, k := range keys {
			if k.key == o.Key[strings.LastIndexByte(o.Key, '.')+1:] && !inList(k.path) {
				hint = "did you mean " + k.path + "?"
			}
		}
	}
	d.unknown(nil, o.Key, hint)
}

func inList(path string) bool { return strings.Contains(path, "[]") || strings.Contains(path, ".*") }

// plain sets the key from bare text: scalars as they are, lists of scalars
// separated by commas, everything else as JSON or YAML flow.
func (d *decoder) plain(text string, k key, root reflect.Value) {
	if !utf8.ValidString(text) {
		d.problem(nil, k.path, "", "the value is not UTF-8")
		return
	}
	v := root
	for f := range strings.SplitSeq(k.path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		for _, sf := range fieldsOf(v.Type()) {
			if sf.key == f {
				v = v.FieldByIndex(sf.index)
				break
			}
		}
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: plainTag, Value: text}
	flow := strings.HasPrefix(strings.TrimSpace(text), "[")
	switch {
	case k.shape == scalar:
	case k.shape == list && !flow && shapeOf(deref(deref(k.typ).Elem())) == scalar:
		n = &yaml.Node{Kind: yaml.SequenceNode}
		for s := range strings.SplitSeq(text, ",") {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: plainTag, Value: strings.TrimSpace(s)})
		}
	default:
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil || len(doc.Content) != 1 {
			d.problem(nil, k.path, "write it as JSON", "want %s", acceptedForm(k.field, k.typ))
			return
		}
		n = doc.Content[0]
		clearLines(n)
	}
	d.value(n, k.path, k.field, v)
}

// clearLines forgets positions that mean nothing outside a file.
func clearLines(n *yaml.Node) {
	n.Line = 0
	for _, c := range n.Content {
		clearLines(c)
	}
}
