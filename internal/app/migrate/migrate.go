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

// sources are how each is translated, and the reasons for keys that are not.
var sources = map[Kind]struct {
	reasons   []reason
	translate func(t *translation, data []byte) error
}{
	Centrifugo: {centrifugoReasons, func(t *translation, data []byte) error { return centrifugo{t}.translate(data) }},
	Mercure:    {mercureReasons, func(t *translation, data []byte) error { return mercureHub{t}.translate(data) }},
	Soketi:     {soketiReasons, func(t *translation, data []byte) error { return soketi{t}.translate(data) }},
	Reverb:     {reverbReasons, func(t *translation, data []byte) error { return reverb{soketi{t}}.translate(data) }},
}

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
	s, known := sources[kind]
	if !known {
		return nil, config.WithHint(fmt.Errorf("%q is not a server that is known here", kind), "write centrifugo, mercure, soketi or reverb")
	}
	t := &translation{input: input{kind: kind, file: file, root: &node{kind: object}, reasons: byPath(s.reasons)}, o: o, out: &section{}}
	if err := s.translate(t, data); err != nil {
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

// parsers are those of the ways in which a file may be written, by the end of its name.
var parsers = map[string]func(file string, data []byte) (*node, error){
	".json": parseJSON, ".yaml": parseYAML, ".yml": parseYAML, ".toml": parseTOML, ".env": parseEnv,
}

// formatOf guesses from the name of the file: the key of a parser, or "".
func formatOf(file string) string {
	base := strings.ToLower(filepath.Base(file))
	if ext := filepath.Ext(base); parsers[ext] != nil {
		return ext
	}
	if strings.HasPrefix(base, ".env") || strings.HasPrefix(base, "env.") {
		return ".env"
	}
	return ""
}

// read parses a file, by its name or, failing that, by its first byte, and gives it to keys,
// or to variables if that is what it has. The variables of the options come after it.
func (t *translation) read(data []byte, keys func(in *node), variables func(env *node)) error {
	f := formatOf(t.file)
	if f == "" && strings.HasPrefix(strings.TrimSpace(string(data)), "{") {
		f = ".json"
	}
	if f == "" {
		return config.WithHint(fmt.Errorf("%s: what is it written in?", t.file), "call it .json, .yaml, .toml or .env")
	}
	in, err := parsers[f](t.file, data)
	if err != nil {
		return err
	}
	in.name("")
	if f == ".env" {
		variables(in)
	} else {
		keys(in)
	}
	if len(t.o.Env) > 0 {
		env, err := parseEnv(t.o.EnvName, t.o.Env)
		if err != nil {
			return err
		}
		variables(env)
	}
	return nil
}
