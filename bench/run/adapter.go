package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// An adapter reports how to start a server and how the load client speaks to it.
// It is one JSON file in bench/peers; bench/README.md explains the fields.
type adapter struct {
	Name    string            `json:"name"`
	Program string            `json:"program"` // looked for in -bin, then on PATH
	Env     string            `json:"env"`     // environment variable that names the program instead
	Install string            `json:"install"` // what to say when it is absent
	Modules []string          `json:"modules"` // one of these files must exist; {module}
	Args    []string          `json:"args"`
	Files   map[string]string `json:"files"` // name in {dir} → template in bench/peers
	Ready   string            `json:"ready"` // path that answers 200; empty: the port
	WS      []string          `json:"ws"`    // options of the load client; absent: cannot do it
	SSE     []string          `json:"sse"`
	Echo    []string          `json:"echo"`
	Publish []string          `json:"publish"`
	Batch   []string          `json:"batch"`
	Replay  bool              `json:"replay"` // understands Last-Event-ID, history as {history}
	Only    []string          `json:"only"`   // the scenarios it is for; absent: all

	path, module, folder string
}

// errAbsent is a peer that is not on this machine.
var errAbsent = errors.New("not installed")

// readAdapter reads bench/peers/NAME.json and finds the program.
func readAdapter(folder, name, bin string) (*adapter, error) {
	text, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hinted(fmt.Errorf("no server %q", name), "the names are those of "+folder+"/*.json")
	}
	if err != nil {
		return nil, err
	}
	a, err := parseAdapter(text)
	if err != nil {
		return nil, fmt.Errorf("%s.json: %w", name, err)
	}
	a.folder = folder
	return a, a.find(bin)
}

func parseAdapter(text []byte) (*adapter, error) {
	var a adapter
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return nil, err
	}
	if a.Name == "" || a.Program == "" || len(a.WS)+len(a.SSE) == 0 {
		return nil, errors.New(`"name", "program" and one of "ws" and "sse" are needed`)
	}
	return &a, nil
}

// find looks for the program and its module.
func (a *adapter) find(bin string) error {
	absent := func(what string) error {
		return hinted(fmt.Errorf("%s: %s is %w", a.Name, what, errAbsent), a.Install)
	}
	var err error
	switch named := os.Getenv(a.Env); {
	case a.Env != "" && named != "":
		if a.path, err = exec.LookPath(named); err != nil {
			return hinted(fmt.Errorf("%s=%s: %w", a.Env, named, err), a.Install)
		}
	default:
		if a.path, err = exec.LookPath(filepath.Join(bin, a.Program)); err == nil {
			break
		}
		if a.path, err = exec.LookPath(a.Program); err != nil {
			return absent(a.Program)
		}
	}
	if a.path, err = filepath.Abs(a.path); err != nil {
		return err
	}
	if len(a.Modules) == 0 {
		return nil
	}
	modules := a.Modules
	if named := os.Getenv(a.Env + "_MODULE"); named != "" {
		modules = []string{named}
	}
	i := slices.IndexFunc(modules, func(m string) bool { _, err := os.Stat(m); return err == nil })
	if i < 0 {
		return absent(filepath.Base(modules[0]))
	}
	a.module = modules[i]
	return nil
}

// place is where one start of a server lives.
type place struct {
	port, admin int
	dir         string
}

func (a *adapter) fill(s string, p place, sc *scenario) string {
	history := 0
	if sc.missed > 0 {
		history = sc.missed + 32
	}
	return strings.NewReplacer(
		"{port}", strconv.Itoa(p.port), "{admin}", strconv.Itoa(p.admin), "{dir}", p.dir, "{module}", a.module,
		"{history}", strconv.Itoa(history), "{buffer}", strconv.Itoa(max(history, 10)), "{batch}", strconv.Itoa(max(sc.batch, 1)),
		"{files}", strconv.FormatUint(maxFiles(), 10), "{connections}", strconv.FormatUint(maxFiles()-100, 10),
	).Replace(s)
}

func (a *adapter) fillAll(list []string, p place, sc *scenario) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = a.fill(s, p, sc)
	}
	return out
}

// write puts the server's files into its directory.
func (a *adapter) write(p place, sc *scenario) error {
	for name, template := range a.Files {
		text, err := os.ReadFile(filepath.Join(a.folder, template))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(a.fill(string(text), p, sc)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// isFor reports whether a has something to say about sc.
func (a *adapter) isFor(sc *scenario) bool {
	return len(a.Only) == 0 || slices.Contains(a.Only, sc.Name)
}

// errCannot is a scenario that a server has no options for.
var errCannot = errors.New("cannot do it")

// load returns the load client's options for sc against a. batch false publishes
// one by one where the scenario publishes in batches.
func (a *adapter) load(sc *scenario, p place, batch bool) ([]string, error) {
	var parts [][]string
	kind := a.WS
	if sc.sse {
		kind = a.SSE
	}
	switch {
	case sc.echo > 0:
		parts = [][]string{a.Echo}
	case sc.missed > 0 && !a.Replay:
		return nil, fmt.Errorf("%s: replay: %w", a.Name, errCannot)
	case sc.publishes() && sc.batch > 1 && batch:
		parts = [][]string{kind, a.Batch}
	case sc.publishes():
		parts = [][]string{kind, a.Publish}
	default:
		parts = [][]string{kind}
	}
	var out []string
	for _, part := range parts {
		if len(part) == 0 {
			return nil, fmt.Errorf("%s: %s: %w", a.Name, sc.Name, errCannot)
		}
		out = append(out, a.fillAll(part, p, sc)...)
	}
	return out, nil
}
