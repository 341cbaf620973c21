// Command promise compares what docs/reference/versioning.md promises with what the last
// release had:
//
//	go run ./packaging/promise -weir bin/weir            compares, and fails for what is gone or changed
//	go run ./packaging/promise -weir bin/weir -update    writes the lists anew, at a release
//
// The lists, in packaging/promise/listed, are the public Go packages, the configuration keys, the
// commands and flags, the metrics, the admin API, the extension's protocol, and a recorded
// conversation on the public listener. What is new is fine until a release. What is gone or
// changed breaks the promise: from 1.0 on only a major version may, and before it a [CHANGE] of
// the changelog's first section has to name it.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A fact is one thing that is promised: its name, and what is said of it.
type fact struct{ name, detail string }

// lister returns the facts of a list.
type lister func(root, weir string) ([]fact, error)

// lists are the lists by the name of their file.
var lists = map[string]lister{
	"go": goAPI, "config": configKeys, "commands": commands, "metrics": metrics, "admin": adminAPI, "extension": extensionProtocol, "wire": conversation,
}

func main() {
	root := flag.String("root", ".", "the tree")
	weir := flag.String("weir", "bin/weir", "the program that is compared")
	version := flag.String("version", "v0.0.0", "the version that is to be released")
	update := flag.Bool("update", false, "write the lists anew")
	flag.Parse()
	if err := run(*root, *weir, *version, *update); err != nil {
		fmt.Fprintln(os.Stderr, "promise:", err)
		os.Exit(1)
	}
}

func run(root, weir, version string, update bool) error {
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	broken := 0
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		facts, err := lists[name](root, weir)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(facts) == 0 {
			return fmt.Errorf("%s: nothing is listed", name)
		}
		file := filepath.Join(root, "packaging/promise/listed", name+".txt")
		if update {
			if err := os.WriteFile(file, []byte(format(facts)), 0o644); err != nil { //nolint:gosec // a file of the tree
				return err
			}
			continue
		}
		old, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		gone, added := compare(parse(string(old)), facts)
		for _, f := range gone {
			if command, _, isFlag := strings.Cut(f.name, " --"); isFlag && slices.Contains(gone, fact{command, "command"}) {
				continue // with its command
			}
			if why := assess(f, version, changes(string(text))); why != "" {
				broken++
				fmt.Printf("%s: %s\t%s: %s\n", name, f.name, f.detail, why)
			}
		}
		fmt.Printf("%s: %d listed, %d gone or changed, %d new\n", name, len(parse(string(old))), len(gone), len(added))
	}
	if broken > 0 {
		return fmt.Errorf("%d promises are broken", broken)
	}
	return nil
}

// format is the text of a list: sorted, each fact once.
func format(facts []fact) string {
	lines := make([]string, 0, len(facts))
	for _, f := range facts {
		lines = append(lines, f.name+"\t"+f.detail)
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

func parse(text string) (facts []fact) {
	for line := range strings.Lines(text) {
		name, detail, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		facts = append(facts, fact{name, detail})
	}
	return facts
}

// compare returns what of old is not in now, gone or with another detail, and the reverse.
func compare(old, now []fact) (gone, added []fact) {
	without := func(a, b []fact) (rest []fact) {
		for _, f := range a {
			if !slices.Contains(b, f) {
				rest = append(rest, f)
			}
		}
		return rest
	}
	return without(old, now), without(now, old)
}

// changes are the [CHANGE]s of the changelog's first section, to the end of their entries.
func changes(changelog string) string {
	_, rest, _ := strings.Cut(changelog, "\n## ")
	first, _, _ := strings.Cut(rest, "\n## ")
	var all []string
	for entry := range strings.SplitSeq(first, "\n- ") {
		if _, text, ok := strings.Cut(entry, "[CHANGE]"); ok {
			all = append(all, text)
		}
	}
	return strings.Join(all, "\n")
}

// assess returns why a fact may not be gone in version; empty if it may.
func assess(f fact, version, changes string) string {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch); err != nil {
		return fmt.Sprintf("invalid version %q: want v1.2.3", version)
	}
	if major > 0 && (minor > 0 || patch > 0) {
		return "only a major version may take it away: keep it, deprecated"
	}
	named := regexp.MustCompile(`(^|[^\w./])` + regexp.QuoteMeta(f.name) + `($|[^\w./]|\.(\W|$))`)
	if !named.MatchString(changes) {
		return "no [CHANGE] of CHANGELOG.md's first section names it"
	}
	return ""
}
