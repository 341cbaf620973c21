// Tally reads `go test -json` and says what matters: one line a package, all
// that failed tests wrote, and with -v what passed tests logged too. Its last
// line is "N tests passed, N failed". A package that does not build, or ends
// badly without a failed test, counts as one failure; so does a skipped test,
// since nothing here may be skipped silently.
//
// With -failed FILE it writes there which failed tests may run once more, one
// "package test" a line. A data race, a panic, a skip and a package that does
// not build are final: then the file holds the word "final" as well.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// An event is a line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64
}

type tally struct {
	verbose        bool
	w              io.Writer
	passed, failed int
	// output of tests that run, by package and test; of packages under the empty
	// test name; of builds under the import path.
	output map[string]*strings.Builder
	// failures named so far, by package.
	named map[string]int
	// the failed tests that may run once more, and whether any failure is final.
	again []string
	final bool
}

func main() {
	verbose := flag.Bool("v", false, "show what passed tests logged")
	file := flag.String("failed", "", "write the failed tests that may run once more to this file")
	flag.Parse()
	t := tally{verbose: *verbose, w: os.Stdout, output: map[string]*strings.Builder{}, named: map[string]int{}}
	if err := t.read(os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "tally: %v\n", err)
		t.failed++
		t.final = true
	}
	if t.passed+t.failed == 0 {
		t.failed++ // nothing ran
		t.final = true
	}
	if err := t.write(*file); err != nil {
		fmt.Fprintf(os.Stderr, "tally: %v\n", err)
		t.failed++
	}
	fmt.Printf("%d tests passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 {
		os.Exit(1)
	}
}

// write writes the file of -failed; without a name, nothing.
func (t *tally) write(name string) error {
	if name == "" {
		return nil
	}
	lines := t.again
	if t.final {
		lines = append(lines, "final")
	}
	return os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600)
}

func (t *tally) read(r io.Reader) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Fprintf(t.w, "%s\n", sc.Bytes()) // the go command itself speaks
			continue
		}
		t.event(e)
	}
	return sc.Err()
}

func (t *tally) event(e event) {
	sub := strings.LastIndexByte(e.Test, '/')
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if !noise(e.Output) {
			t.out(key).WriteString(e.Output)
		}
	case "build-output":
		t.out(e.ImportPath).WriteString(e.Output)
	case "pass", "fail", "skip":
		switch {
		case sub >= 0: // its top-level test says what a failed part wrote
			if e.Action != "pass" {
				t.out(e.Package + " " + e.Test[:sub]).WriteString(t.out(key).String())
			}
			delete(t.output, key)
		case e.Test != "":
			t.test(e, key)
		default:
			t.pkg(e, key)
		}
	}
}

func (t *tally) out(key string) *strings.Builder {
	b := t.output[key]
	if b == nil {
		b = &strings.Builder{}
		t.output[key] = b
	}
	return b
}

// noise is what only says that a test runs.
func noise(line string) bool {
	line = strings.TrimLeft(line, " ")
	for _, p := range []string{"=== ", "--- PASS", "PASS\n", "ok  \t"} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

func (t *tally) test(e event, key string) {
	text := t.out(key).String()
	delete(t.output, key)
	if e.Action == "pass" {
		t.passed++
		if t.verbose {
			fmt.Fprintf(t.w, "ok    %s (%.1fs)\n%s", e.Test, e.Elapsed, text)
		}
		return
	}
	t.failed++
	t.named[e.Package]++
	t.again = append(t.again, e.Package+" "+e.Test)
	t.final = t.final || e.Action == "skip" || strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic: ")
	fmt.Fprintf(t.w, "%-5s %s %s (%.1fs)\n%s", strings.ToUpper(e.Action), e.Package, e.Test, e.Elapsed, text)
}

func (t *tally) pkg(e event, key string) {
	switch e.Action {
	case "skip": // no test files
	case "pass":
		fmt.Fprintf(t.w, "ok    %s (%.1fs)\n", e.Package, e.Elapsed)
	default:
		fmt.Fprintf(t.w, "FAIL  %s (%.1fs)\n", e.Package, e.Elapsed)
		if t.named[e.Package] > 0 {
			return
		}
		t.failed++
		t.final = true
		if e.FailedBuild != "" {
			fmt.Fprint(t.w, t.out(e.FailedBuild))
		}
		// Whatever the package wrote, and the tests that never ended.
		for k, b := range t.output {
			if k == key || strings.HasPrefix(k, e.Package+" ") {
				fmt.Fprint(t.w, b)
			}
		}
	}
}
