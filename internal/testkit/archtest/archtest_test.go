// Package archtest holds the code to the floors of ARCHITECTURE.md.
package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weir-gateway/weir"

// A listed is what `go list -json` says of a package.
type listed struct {
	ImportPath, Dir                    string
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
	Standard                           bool
}

// A plan is the floors table: each package's floor, and the imports allowed
// between packages of one floor ("a → b").
type plan struct {
	floor      map[string]int
	neighbours map[string]bool
}

var quoted = regexp.MustCompile("`([^`]+)`")

// parsePlan reads the table between the two comment marks of ARCHITECTURE.md.
func parsePlan(text string) (plan, error) {
	p := plan{floor: map[string]int{}, neighbours: map[string]bool{}}
	_, rest, ok := strings.Cut(text, "<!-- floors:begin -->")
	table, _, ok2 := strings.Cut(rest, "<!-- floors:end -->")
	if !ok || !ok2 {
		return p, errors.New("no floors table between its marks")
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		floor, err := strconv.Atoi(strings.TrimSpace(cells[0]))
		if err != nil || len(cells) != 3 {
			continue // head, rule or blank line
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			if _, twice := p.floor[m[1]]; twice {
				return p, fmt.Errorf("%s is on two floors", m[1])
			}
			p.floor[m[1]] = floor
		}
		pairs := quoted.FindAllStringSubmatch(cells[2], -1)
		if len(pairs)%2 != 0 {
			return p, fmt.Errorf("floor %d: same-floor imports are written as `a` → `b`", floor)
		}
		for i := 0; i < len(pairs); i += 2 {
			from, to := pairs[i][1], pairs[i+1][1]
			p.neighbours[from+" → "+to] = true
		}
	}
	if len(p.floor) == 0 {
		return p, errors.New("the floors table is empty")
	}
	return p, nil
}

// check returns what is wrong with pkgs by the plan, one sentence each.
func (p plan) check(pkgs []listed) []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	for _, pkg := range pkgs {
		from := local(pkg.ImportPath)
		seen[from] = true
		floor, ok := p.floor[from]
		if !ok {
			say("%s has no floor in ARCHITECTURE.md", from)
			continue
		}
		for _, path := range pkg.Imports {
			p.checkImport(from, floor, path, false, say)
		}
		for _, path := range pkg.TestImports {
			p.checkImport(from, floor, path, true, say)
		}
		for _, path := range pkg.XTestImports { // a package of its own, above what it tests
			if fence := fenced(from, path, true); fence != "" {
				say("%s imports %s: %s", from, local(path), fence)
			}
		}
	}
	for name := range p.floor {
		if !seen[name] {
			say("%s has a floor in ARCHITECTURE.md but no code", name)
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

func (p plan) checkImport(from string, floor int, path string, inTest bool, say func(string, ...any)) {
	if fence := fenced(from, path, inTest); fence != "" {
		say("%s imports %s: %s", from, local(path), fence)
	}
	if !ours(path) || local(path) == from {
		return
	}
	to := local(path)
	below, ok := p.floor[to]
	switch {
	case !ok:
		say("%s imports %s, which has no floor", from, to)
	case below > floor:
		say("%s (floor %d) imports %s (floor %d): imports only point down", from, floor, to, below)
	case below == floor && !inTest && !p.neighbours[from+" → "+to]:
		say("%s imports %s on its own floor %d", from, to, floor)
	}
}

// lent are the exceptions: RFC 7692 is a codec of a codec, and asking for memory ahead is
// an instruction that the language lacks.
var lent = map[string]string{
	"websocket":         "github.com/klauspost/compress/flate",
	"internal/push/hub": module + "/internal/net/prefetch",
}

// fenced returns which of the three fences of ARCHITECTURE.md an import
// crosses, or nothing.
func fenced(from, path string, inTest bool) string {
	standard := !strings.Contains(strings.SplitN(path, "/", 2)[0], ".")
	switch {
	case strings.HasPrefix(path, "golang.org/x/sys") && from != "internal/net/sys":
		return "only internal/net/sys makes raw system calls"
	case slices.Contains([]string{"internal/push/hub", "sse", "websocket"}, from) && !standard && !inTest && path != lent[from]:
		return "it takes nothing outside the standard library"
	case ours(path) && forTests(local(path)) && !inTest && !forTests(from) && !strings.HasPrefix(from, "test/"):
		return "only tests import what they share"
	}
	return ""
}

// forTests reports whether the package called name is what tests share.
func forTests(name string) bool {
	return name == "internal/testkit/history" || name == "internal/testkit/trial" || strings.HasSuffix(name, "test")
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

func local(path string) string { return strings.TrimPrefix(path, module+"/") }

// root returns the module's directory: the test runs two folders below it.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImportsPointDown(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePlan(string(text))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,XTestImports,Standard", "./...")
	cmd.Dir = root(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pkgs []listed
	for dec := json.NewDecoder(out); ; {
		var pkg listed
		if err := dec.Decode(&pkg); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, pkg)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, w := range p.check(pkgs) {
		t.Error(w)
	}
}

// The judge itself: each kind of violation is planted once.
func TestViolationsAreFound(t *testing.T) {
	const table = "<!-- floors:begin -->\n| floor | packages | on the same floor |\n|---:|---|---|\n" +
		"| 2 | `top`, `test/x` | `top` → `test/x` |\n| 1 | `mid`, `side`, `mid/midtest` | |\n| 0 | `internal/push/hub`, `internal/testkit/history`, `internal/net/sys` | |\n<!-- floors:end -->"
	p, err := parsePlan(table)
	if err != nil {
		t.Fatal(err)
	}
	all := []listed{}
	for name := range p.floor {
		all = append(all, listed{ImportPath: module + "/" + name})
	}
	f := func(want string, pkg listed) {
		t.Helper()
		pkg.ImportPath = module + "/" + pkg.ImportPath
		pkgs := append(slices.DeleteFunc(slices.Clone(all), func(l listed) bool { return l.ImportPath == pkg.ImportPath }), pkg)
		got := strings.Join(p.check(pkgs), "\n")
		if got != want {
			t.Errorf("%s: got %q, want %q", pkg.ImportPath, got, want)
		}
	}
	us := func(paths ...string) []string {
		for i := range paths {
			paths[i] = module + "/" + paths[i]
		}
		return paths
	}
	f("", listed{ImportPath: "top", Imports: us("mid", "internal/push/hub", "test/x")})
	f("", listed{ImportPath: "mid", TestImports: us("side", "internal/testkit/history"), XTestImports: us("mid")})
	f("", listed{ImportPath: "internal/net/sys", Imports: []string{"golang.org/x/sys/unix"}})
	f("", listed{ImportPath: "internal/push/hub", Imports: []string{"net/http"}, TestImports: []string{"go.uber.org/goleak"}})
	f("", listed{ImportPath: "test/x", Imports: us("internal/testkit/history")})
	f("internal/push/hub (floor 0) imports mid (floor 1): imports only point down\ninternal/push/hub imports mid: it takes nothing outside the standard library",
		listed{ImportPath: "internal/push/hub", Imports: us("mid")})
	f("mid imports side on its own floor 1", listed{ImportPath: "mid", Imports: us("side")})
	f("mid (floor 1) imports top (floor 2): imports only point down", listed{ImportPath: "mid", TestImports: us("top")})
	f("new has no floor in ARCHITECTURE.md", listed{ImportPath: "new"})
	f("mid imports new, which has no floor", listed{ImportPath: "mid", Imports: us("new")})
	f("mid imports golang.org/x/sys/unix: only internal/net/sys makes raw system calls",
		listed{ImportPath: "mid", XTestImports: []string{"golang.org/x/sys/unix"}})
	f("internal/push/hub imports example.org/x: it takes nothing outside the standard library",
		listed{ImportPath: "internal/push/hub", Imports: []string{"example.org/x"}})
	f("mid imports internal/testkit/history: only tests import what they share", listed{ImportPath: "mid", Imports: us("internal/testkit/history")})
	f("", listed{ImportPath: "mid/midtest", Imports: us("internal/testkit/history")})
	f("", listed{ImportPath: "top", Imports: []string{"net/http/httptest"}, XTestImports: us("mid/midtest")})
	f("top imports mid/midtest: only tests import what they share", listed{ImportPath: "top", Imports: us("mid/midtest")})
	p.floor["gone"] = 0
	f("gone has a floor in ARCHITECTURE.md but no code", listed{ImportPath: "mid"})
}

func TestABrokenTableIsAnError(t *testing.T) {
	f := func(table string) {
		t.Helper()
		if _, err := parsePlan(table); err == nil {
			t.Errorf("parsePlan(%q) found nothing wrong", table)
		}
	}
	f("no marks")
	f("<!-- floors:begin -->\n| 1 | `a` | |")
	f("<!-- floors:begin -->\n<!-- floors:end -->")
	f("<!-- floors:begin -->\n| 1 | `a` | |\n| 0 | `a` | |\n<!-- floors:end -->")
	f("<!-- floors:begin -->\n| 1 | `a` | `a` |\n<!-- floors:end -->")
}
