// Command licenses prints the licenses of the modules that are linked into a Go binary,
// each with its text, as a release has to ship them:
//
//	go run ./packaging/licenses BINARY
//
// A module without a license, or with one that is not accepted, is an error. The texts
// are read from the module cache; what is not there is downloaded.
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: licenses BINARY")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// A module is a dependency and where its source is.
type module struct{ Path, Version, Dir, Error string }

func run(w io.Writer, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	var names []string
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		names = append(names, d.Path+"@"+d.Version)
	}
	modules, err := download(names)
	if err != nil {
		return err
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	modules = append([]module{{Path: "Go and its standard library", Version: info.GoVersion, Dir: strings.TrimSpace(string(goroot))}}, modules...)
	return write(w, modules)
}

// download returns the modules in the order of names, with their folders.
func download(names []string) (list []module, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	out, err := exec.Command("go", append([]string{"mod", "download", "-json"}, names...)...).Output()
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var m module
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go mod download: %w", err)
		}
		if m.Error != "" {
			return nil, fmt.Errorf("%s@%s: %s", m.Path, m.Version, m.Error)
		}
		list = append(list, m)
	}
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w", err)
	}
	slices.SortFunc(list, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

// write prints each module with its texts, and returns all that is not accepted, joined.
func write(w io.Writer, modules []module) error {
	var errs []error
	for _, m := range modules {
		texts, err := texts(m.Dir)
		if err != nil {
			return err
		}
		var kinds []string
		for _, t := range texts {
			if k := kind(t.text); k != "" && !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
		if len(kinds) == 0 {
			errs = append(errs, fmt.Errorf("%s@%s: no license that is accepted: want one of %s", m.Path, m.Version, accepted))
		}
		fmt.Fprintf(w, "%s\n%s %s: %s\n", strings.Repeat("=", 78), m.Path, m.Version, strings.Join(kinds, ", "))
		for _, t := range texts {
			fmt.Fprintf(w, "%s\n%s\n\n%s\n", strings.Repeat("-", 78), t.name, strings.TrimRight(t.text, "\n"))
		}
	}
	return errors.Join(errs...)
}

// A text is a file that grants rights or that must go with copies.
type text struct{ name, text string }

var named = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)([-._].*)?$`)

func texts(dir string) (list []text, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !named.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, text{e.Name(), string(b)})
	}
	return list, nil
}

const accepted = "Apache-2.0, MIT, BSD-2-Clause, BSD-3-Clause, ISC"

// kind is the SPDX identifier of a text that grants an accepted license, or empty.
func kind(text string) string {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	has := func(parts ...string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
	}
	switch {
	case has("gnu", "general public license"), has("mozilla public license"), has("server side public license"), has("business source license"):
		return "" // whatever else is written beside it, a person has to read it
	case has("apache license", "version 2.0"):
		return "Apache-2.0"
	case has("permission is hereby granted, free of charge", "the software is provided \"as is\""):
		return "MIT"
	case has("redistribution and use in source and binary forms", "neither the name"):
		return "BSD-3-Clause"
	case has("redistribution and use in source and binary forms", "may not be used to endorse or promote"):
		return "BSD-3-Clause"
	case has("redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	case has("permission to use, copy, modify, and", "distribute this software for any purpose"):
		return "ISC"
	}
	return ""
}
