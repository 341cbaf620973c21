package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
)

var keyLine = regexp.MustCompile(`^(\S+)  \((.*)\)$`)

// configKeys lists every key with its type and default, as the program explains it.
func configKeys(_, weir string) (facts []fact, err error) {
	out, err := exec.Command(weir, "config", "docs", "--all").Output()
	if err != nil {
		return nil, fmt.Errorf("weir config docs: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if m := keyLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			facts = append(facts, fact{m[1], m[2]})
		}
	}
	return facts, nil
}

// The references of commands, metrics and the admin API are generated from the code, which
// tests compare.

// page is a page of docs/reference.
func page(root, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "docs/reference", name))
	return string(b), err
}

var (
	commandTitle = regexp.MustCompile("^#+ `?(weir[a-z -]*)`?$")
	flagLine     = regexp.MustCompile(`^ +(?:-\w, )?(--[\w-]+)(?: (\w+))?  `)
)

// commands lists every command and its flags.
func commands(root, _ string) (facts []fact, err error) {
	text, err := page(root, "cli.md")
	command := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := commandTitle.FindStringSubmatch(line); m != nil {
			command = m[1]
			facts = append(facts, fact{command, "command"})
		} else if m := flagLine.FindStringSubmatch(line); m != nil && command != "" {
			detail := "flag"
			if m[2] != "" {
				detail = "flag with a value"
			}
			facts = append(facts, fact{command + " " + m[1], detail})
		}
	}
	return facts, err
}

var metricLine = regexp.MustCompile("^\\| `(weir_\\w+)` \\| ([^|]*) \\| ([^|]*) \\|")

// metrics lists every metric with its type and labels.
func metrics(root, _ string) (facts []fact, err error) {
	text, err := page(root, "metrics.md")
	for line := range strings.Lines(text) {
		if m := metricLine.FindStringSubmatch(line); m != nil {
			facts = append(facts, fact{m[1], m[2] + " " + m[3]})
		}
	}
	return facts, err
}

var endpointLine = regexp.MustCompile("^\\| `([A-Z]+ /[^`]*)` \\|")

// adminAPI lists every endpoint, and the types of its answer.
func adminAPI(root, _ string) (facts []fact, err error) {
	text, err := page(root, "admin-api.md")
	endpoint := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := endpointLine.FindStringSubmatch(line); m != nil {
			facts = append(facts, fact{m[1], "endpoint"})
		} else if title, ok := strings.CutPrefix(line, "### "); ok {
			endpoint = title
		} else if name, typ, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && endpoint != "" && strings.HasPrefix(line, " ") {
			facts = append(facts, fact{endpoint + " " + name, typ})
		}
	}
	return facts, err
}

// extensionProtocol lists the messages, fields and methods of weir.extension.v1.
func extensionProtocol(_, _ string) (facts []fact, err error) {
	file := extensionv1.File_extension_v1_extension_proto
	enums(file.Enums(), &facts)
	messages(file.Messages(), &facts)
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			facts = append(facts, fact{string(m.FullName()), fmt.Sprintf("(%s) %s", m.Input().FullName(), m.Output().FullName())})
		}
	}
	return facts, nil
}

func messages(list protoreflect.MessageDescriptors, facts *[]fact) {
	for i := range list.Len() {
		m := list.Get(i)
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			*facts = append(*facts, fact{string(f.FullName()), fmt.Sprintf("%s %s = %d", f.Cardinality(), f.Kind(), f.Number())})
		}
		enums(m.Enums(), facts)
		messages(m.Messages(), facts)
	}
}

func enums(list protoreflect.EnumDescriptors, facts *[]fact) {
	for i := range list.Len() {
		e := list.Get(i)
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			*facts = append(*facts, fact{string(v.FullName()), fmt.Sprintf("= %d", v.Number())})
		}
	}
}
