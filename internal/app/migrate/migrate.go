package migrate

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/weir-gateway/weir/internal/app/config"
)

// A Kind is a server whose configuration can be translated.
type Kind string

// The kinds.
const (
	Centrifugo Kind = "centrifugo"
	Mercure    Kind = "mercure"
	Soketi     Kind = "soketi"
	Reverb     Kind = "reverb"
)

// Kinds are all of them.
var Kinds = []Kind{Centrifugo, Mercure, Soketi, Reverb}

// Options change what is written. The zero value writes all.
type Options struct {
	// Redact writes placeholders in place of secrets.
	Redact bool
	// Env are variables that the file refers to, or that count more than it: an .env
	// file. Empty: none. EnvName is its name.
	Env     []byte
	EnvName string
}

// A Result is a translation.
type Result struct {
	// YAML is a configuration file of Weir.
	YAML []byte
	// Notes are what is to be known about it, in the order of the input.
	Notes []Note
	// Keys is how many values the input had, Secrets how many secrets the output has.
	Keys, Secrets int
	// Redacted reports that these are placeholders.
	Redacted bool

	file string
}

// Translate translates a file. The error says what cannot be read, and where.
func Translate(kind Kind, file string, data []byte, o Options) (*Result, error) {
	if err := checkInput(file, data); err != nil {
		return nil, err
	}
	if err := checkInput(o.EnvName, o.Env); err != nil {
		return nil, err
	}
	t := &translation{input: input{kind: kind, file: file, root: &node{kind: object}, reasons: reasonsOf(kind)}, o: o, out: &section{}}
	var err error
	switch kind {
	case Centrifugo:
		err = centrifugo{t}.translate(data)
	case Mercure:
		err = mercureHub{t}.translate(data)
	case Soketi:
		err = soketi{t}.translate(data)
	case Reverb:
		err = reverb{soketi{t}}.translate(data)
	default:
		err = config.WithHint(fmt.Errorf("%q is not a server that is known here", kind), "write centrifugo, mercure, soketi or reverb")
	}
	if err != nil {
		return nil, err
	}
	t.rest()
	head := fmt.Sprintf("Translated from %s, of %s, by weir config import. What could not be translated was said on standard error. "+
		"Check it with: weir config check --config FILE", filepath.Base(file), title(kind))
	return &Result{
		YAML: t.out.yaml(head), Notes: t.sorted(), Keys: t.keys, Secrets: t.secrets, Redacted: o.Redact, file: file,
	}, nil
}

func title(k Kind) string { return strings.ToUpper(string(k[:1])) + string(k[1:]) }

// A format is how a file is written.
type format uint8

const (
	formatUnknown format = iota
	formatJSON
	formatYAML
	formatTOML
	formatEnv
)

// formatOf guesses from the name of the file.
func formatOf(file string) format {
	base := strings.ToLower(filepath.Base(file))
	switch filepath.Ext(base) {
	case ".json":
		return formatJSON
	case ".yaml", ".yml":
		return formatYAML
	case ".toml":
		return formatTOML
	case ".env":
		return formatEnv
	}
	if strings.HasPrefix(base, ".env") || strings.HasPrefix(base, "env.") {
		return formatEnv
	}
	return formatUnknown
}

// parse reads a file into a tree, by its name or, failing that, by its first byte.
func parse(file string, data []byte) (*node, format, error) {
	f := formatOf(file)
	if f == formatUnknown && strings.HasPrefix(strings.TrimSpace(string(data)), "{") {
		f = formatJSON
	}
	var n *node
	var err error
	switch f {
	case formatJSON:
		n, err = parseJSON(file, data)
	case formatYAML:
		n, err = parseYAML(file, data)
	case formatTOML:
		n, err = parseTOML(file, data)
	case formatEnv:
		n, err = parseEnv(file, data)
	default:
		return nil, f, config.WithHint(fmt.Errorf("%s: what is it written in?", file), "call it .json, .yaml, .toml or .env")
	}
	if err != nil {
		return nil, f, err
	}
	n.name("")
	return n, f, nil
}
