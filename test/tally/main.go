// Tally reads `go test -json` and says what matters: one line a package, all
// that failed tests wrote, and with -v what passed tests logged too. Its last
// line is "N tests passed, N failed". A package that does not build, or ends
// badly without a failed test, counts as one failure; so does a skipped test,
// since nothing here may be skipped silently.
//
// With -failed FILE it writes there which failed tests may run once more, one
// "package test" a line. A package that ended before its tests did, since one of them
// ended another or took too long, counts as one failure, and what of it has not passed may
// run once more: "package . ^(A|B)$" has the tests to leave out. A data race, another panic, a
// skip and a package that does not build are final: then the file holds the word "final" as well.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
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
	// the tests that have passed, of packages that may be lost, by package.
	done map[string][]string
	// packages that ended before their tests did.
	lost map[string]bool
	// the failed tests that may run once more, and whether any failure is final.
	again []string
	final bool
}

func newTally(w io.Writer, verbose bool) *tally {
	return &tally{
		verbose: verbose, w: w,
		output: map[string]*strings.Builder{}, named: map[string]int{}, done: map[string][]string{}, lost: map[string]bool{},
	}
}

func main() {
	verbose := flag.Bool("v", false, "show what passed tests logged")
	file := flag.String("failed", "", "write the failed tests that may run once more to this file")
	flag.Parse()
	t := newTally(os.Stdout, *verbose)
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
		if loses(e.Output) && strings.HasPrefix(e.Output, "panic: ") {
			t.lost[e.Package] = true
		}
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

// losing is what a test process says that ends before its tests do, for a reason that may be the
// machine's: a parallel part of a test ended its parent, or the time was over.
var losing = []string{"panic: test executed panic(nil) or runtime.Goexit", "panic: test timed out after "}

// loses reports whether the line says that the process ends.
func loses(line string) bool {
	return slices.ContainsFunc(losing, func(p string) bool { return strings.Contains(line, p) })
}

// isFinal reports whether text has a data race, or a panic of another kind.
func isFinal(text string) bool {
	for line := range strings.Lines(text) {
		if strings.Contains(line, "DATA RACE") || strings.Contains(line, "panic: ") && !loses(line) {
			return true
		}
	}
	return false
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
		t.done[e.Package] = append(t.done[e.Package], e.Test)
		if t.verbose {
			fmt.Fprintf(t.w, "ok    %s (%.1fs)\n%s", e.Test, e.Elapsed, text)
		}
		return
	}
	t.failed++
	t.named[e.Package]++
	t.again = append(t.again, e.Package+" "+e.Test)
	t.final = t.final || e.Action == "skip" || isFinal(text)
	fmt.Fprintf(t.w, "%-5s %s %s (%.1fs)\n%s", strings.ToUpper(e.Action), e.Package, e.Test, e.Elapsed, text)
}

// lose counts a package that ended before its tests did as one failure.
func (t *tally) lose(pkg string) {
	t.failed += 1 - t.named[pkg]
	t.again = slices.DeleteFunc(t.again, func(line string) bool { return strings.HasPrefix(line, pkg+" ") })
	t.again = append(t.again, fmt.Sprintf("%s . ^(%s)$", pkg, strings.Join(t.done[pkg], "|")))
}

func (t *tally) pkg(e event, key string) {
	switch e.Action {
	case "skip": // no test files
	case "pass":
		fmt.Fprintf(t.w, "ok    %s (%.1fs)\n", e.Package, e.Elapsed)
		delete(t.done, e.Package)
	default:
		fmt.Fprintf(t.w, "FAIL  %s (%.1fs)\n", e.Package, e.Elapsed)
		switch {
		case t.lost[e.Package]:
			t.lose(e.Package)
		case t.named[e.Package] > 0:
			return
		default:
			t.failed++
			t.final = true
		}
		if e.FailedBuild != "" {
			fmt.Fprint(t.w, t.out(e.FailedBuild))
		}
		// Whatever the package wrote, and the tests that never ended.
		for k, b := range t.output {
			if k == key || strings.HasPrefix(k, e.Package+" ") {
				fmt.Fprint(t.w, b)
				t.final = t.final || isFinal(b.String())
			}
		}
	}
}
