package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var nameWord = regexp.MustCompile(`[A-Z]+(?:[a-z]+)?|[a-z]+`)

// wordsOf returns the words of an identifier in lower case.
func wordsOf(name string) []string {
	var words []string
	for _, w := range nameWord.FindAllString(name, -1) {
		// The last capital before small letters begins the next word: HTTPLane.
		for i := 1; i < len(w)-1; i++ {
			if w[i] >= 'A' && w[i] <= 'Z' && w[i+1] >= 'a' && w[i+1] <= 'z' {
				words = append(words, strings.ToLower(w[:i]))
				w = w[i:]
				break
			}
		}
		words = append(words, strings.ToLower(w))
	}
	return words
}

// privateWordOf returns the first of privateWords in an identifier; empty for none.
func privateWordOf(name string) string {
	words := wordsOf(name)
	for i, w := range words {
		if slices.Contains(privateWords, w) {
			return w
		}
		if i > 0 && slices.Contains(privateWords, words[i-1]+" "+w) {
			return words[i-1] + " " + w
		}
	}
	return ""
}

// declared calls f with every identifier that a file declares.
func declared(file *ast.File, f func(*ast.Ident)) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f(n.Name)
		case *ast.TypeSpec:
			f(n.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				f(id)
			}
		case *ast.Field: // and parameters, results, methods of interfaces
			for _, id := range n.Names {
				f(id)
			}
		case *ast.AssignStmt:
			for _, x := range n.Lhs {
				if id, ok := x.(*ast.Ident); ok && n.Tok == token.DEFINE {
					f(id)
				}
			}
		case *ast.RangeStmt:
			for _, x := range []ast.Expr{n.Key, n.Value} {
				if id, ok := x.(*ast.Ident); ok && n.Tok == token.DEFINE {
					f(id)
				}
			}
		}
		return true
	})
}

// parsedFiles parses every Go file that git knows of. f gets its name below the root.
func parsedFiles(t *testing.T, f func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", root(t), "ls-files", "-z", "*.go").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := token.NewFileSet()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			continue // removed, but not yet committed
		}
		file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		f(name, files, file)
	}
}

func TestDeclaredNamesArePlain(t *testing.T) {
	names := 0
	parsedFiles(t, func(_ string, files *token.FileSet, file *ast.File) {
		declared(file, func(id *ast.Ident) {
			names++
			if w := privateWordOf(id.Name); w != "" {
				t.Errorf("%s: %s has the word %q: use the term that the field's standards use (CONTRIBUTING.md)", files.Position(id.Pos()), id.Name, w)
			}
		})
	})
	if names < 10_000 {
		t.Fatalf("%d names found", names)
	}
}

func TestPrivateWordsAreFoundInNames(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		if got := privateWordOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	f("Lane", "lane")
	f("httpLane", "lane")
	f("FuzzHTTPLane", "lane")
	f("lanes2", "lanes")
	f("goesOn", "goes on")
	f("TestNobodyWaits", "nobody")
	f("planet", "")
	f("HTTPPlane", "")
	f("shear", "")
	f("x", "")
}
