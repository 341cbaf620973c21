package archtest

import (
	"bytes"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var updateLines = flag.Bool("update-lines", false, "write the table of lines in ARCHITECTURE.md")

// mostLines is how many lines with a token the product may have. What adds a feature raises it, in the same
// commit and by no more than it needs; what removes code lowers it.
const mostLines = 147_400

// notProduct are folders that the product does not consist of: tests and what they share, measuring programs,
// examples, and modules of their own.
var notProduct = []string{
	"bench", "cmd/weir-lab", "docs", "examples", "integrations", "internal/measure/lab", "internal/testkit", "packaging", "test",
}

// isProduct reports whether a file of Go, by its path in the tree, is a part of the product.
func isProduct(name string) bool {
	dir := filepath.ToSlash(filepath.Dir(name))
	if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") || strings.HasSuffix(dir, "test") {
		return false
	}
	return !slices.ContainsFunc(notProduct, func(x string) bool { return dir == x || strings.HasPrefix(dir, x+"/") })
}

// codeLines counts the lines that have a token: comments and blank lines have none.
func codeLines(src []byte) int {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(file, src, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue // the end of a line, which is no token of its own
		}
		first := file.Line(pos)
		for i := range 1 + strings.Count(text, "\n") {
			lines[first+i] = true
		}
	}
}

// door is the row of the table that a folder is counted in.
func door(dir string) string {
	parts := strings.Split(filepath.ToSlash(dir), "/")
	if len(parts) > 1 && (parts[0] == "internal" || parts[0] == "broker" || parts[0] == "cmd") {
		return strings.Join(parts[:2], "/")
	}
	return parts[0]
}

// productLines counts the product's lines by door.
func productLines(t *testing.T) map[string]int {
	t.Helper()
	count := map[string]int{}
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "node_modules" || len(d.Name()) > 1 && d.Name()[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(root(t), path)
		if err != nil || !strings.HasSuffix(name, ".go") || !isProduct(name) {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		count[door(filepath.Dir(name))] += codeLines(src)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

var linesTable = regexp.MustCompile(`(?s)<!-- lines:start -->\n(.*)<!-- lines:end -->`)

// The product does not grow unnoticed, and the table in ARCHITECTURE.md says where its lines are.
func TestProductLines(t *testing.T) {
	count := productLines(t)
	sum := 0
	var table bytes.Buffer
	table.WriteString("| | lines |\n|---|---:|\n")
	for _, d := range slices.SortedFunc(maps.Keys(count), func(a, b string) int { return count[b] - count[a] }) {
		fmt.Fprintf(&table, "| `%s` | %d |\n", d, count[d])
		sum += count[d]
	}
	fmt.Fprintf(&table, "| together | %d |\n", sum)
	if sum > mostLines {
		t.Errorf("the product has %d lines with a token, at most %d: is there something to extend or to remove? Else raise mostLines, with the reason in the commit", sum, mostLines)
	}
	if sum < mostLines-1000 {
		t.Errorf("the product has %d lines with a token: lower mostLines, which is %d", sum, mostLines)
	}
	name := filepath.Join(root(t), "ARCHITECTURE.md")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if *updateLines {
		text = linesTable.ReplaceAllLiteral(text, []byte("<!-- lines:start -->\n"+table.String()+"<!-- lines:end -->"))
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	found := linesTable.FindSubmatch(text)
	if found == nil {
		t.Fatal("ARCHITECTURE.md has no table of lines")
	}
	listed := map[string]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(.+)` \\| (\\d+) \\|$").FindAllSubmatch(found[1], -1) {
		listed[string(m[1])], _ = strconv.Atoi(string(m[2])) // digits
	}
	for d := range count {
		if off := count[d] - listed[d]; max(off, -off) > listed[d]/10+100 {
			t.Errorf("%s has %d lines, and %d in ARCHITECTURE.md; run: go test ./internal/testkit/archtest -run %s -update-lines", d, count[d], listed[d], t.Name())
		}
	}
	for d := range listed {
		if count[d] == 0 {
			t.Errorf("ARCHITECTURE.md lists %s, which has no line", d)
		}
	}
}

func TestLinesAreCounted(t *testing.T) {
	src := "// Package x is one.\npackage x\n\n/* two\nlines */\nvar a = `b\nc\n` // d\n\nfunc f() {\n}\n"
	if n := codeLines([]byte(src)); n != 6 {
		t.Errorf("%d lines with a token, want 6", n)
	}
	f := func(name string, want bool) {
		t.Helper()
		if isProduct(name) != want {
			t.Errorf("%s is a part of the product: %v", name, !want)
		}
	}
	f("hub/hub.go", true)
	f("cmd/weir/main.go", true)
	f("cmd/weir-lab/main.go", false)
	f("internal/measure/lab/job/job.go", false)
	f("internal/measure/loadgen/spec.go", true)
	f("internal/push/hub/hubtest/suite.go", false)
	f("hub/hub_test.go", false)
	f("extension/v1/extension.pb.go", false)
	f("benchmark/x.go", true)
}
