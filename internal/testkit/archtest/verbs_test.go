package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// A privateName is a word that tells a reader too little about what a function, a method, a type or an exported field
// does, because it has another meaning in each place: its domain has a term.
type privateName struct {
	words   []string // its forms, the first is the name in testdata/names.txt
	instead string
	whole   bool     // only where the name has no other word
	in      []string // folders and files in which the word is a term of a standard
}

var privateNames = []privateName{
	{words: []string{"say", "says", "said"}, instead: "write, send, report, set"},
	{words: []string{"take", "takes", "taken"}, instead: "acquire, allow, consume, accept, pop, attach"},
	{words: []string{"give", "gives", "given"}, instead: "release, deliver, provide, abandon"},
	{words: []string{"ask", "asks", "asked"}, instead: "request, query, look up, decide"},
	{words: []string{"hold", "holds", "held"}, instead: "buffer, queue, pause, match, be valid; hold is GRIP's",
		in: []string{"internal/front/downstream/", "internal/front/policy/", "internal/front/access/", "internal/push/held.go"}},
	{words: []string{"judge", "judges", "judgement"}, instead: "evaluate, check, compare; a judge from outside is a test suite of others"},
	{words: []string{"aim", "aims", "aimed"}, instead: "prefetch, resolve"},
	{words: []string{"near"}, instead: "prefetch; seek", whole: true},
	{words: []string{"want", "wants"}, instead: "options, request; matches", whole: true},
	{words: []string{"own"}, instead: "builtin, local, self", whole: true},
	{words: []string{"rare", "extra"}, instead: "extras of what they belong to: sessionExtras", whole: true},
}

// inTests is what the count of a word in test files and in the programs under test/ is called. A word that product code
// has lost may not come back there, whatever tests still have.
const inTests = " (tests)"

// privateNameOf returns the first form of the word that a name in a file begins with, or is; empty for none.
func privateNameOf(file, name string) string {
	words := wordsOf(name)
	for i := range privateNames {
		p := &privateNames[i]
		if len(words) == 0 || !slices.Contains(p.words, words[0]) || p.whole && len(words) > 1 {
			continue
		}
		if slices.ContainsFunc(p.in, func(in string) bool { return strings.HasPrefix(file, in) }) {
			continue
		}
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/") {
			return p.words[0] + inTests
		}
		return p.words[0]
	}
	return ""
}

// visible calls f with the name of every function, method and type that a file declares, and of every exported field.
func visible(file *ast.File, f func(*ast.Ident)) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f(n.Name)
		case *ast.TypeSpec:
			f(n.Name)
		case *ast.InterfaceType:
			for _, m := range n.Methods.List {
				for _, id := range m.Names {
					f(id)
				}
			}
		case *ast.StructType:
			for _, field := range n.Fields.List {
				for _, id := range field.Names {
					if id.IsExported() {
						f(id)
					}
				}
			}
		}
		return true
	})
}

func TestNamesSayWhatTheyDo(t *testing.T) {
	counts, where, names := map[string]int{}, map[string][]string{}, 0
	parsedFiles(t, func(name string, files *token.FileSet, file *ast.File) {
		visible(file, func(id *ast.Ident) {
			names++
			if w := privateNameOf(name, id.Name); w != "" {
				counts[w]++
				where[w] = append(where[w], files.Position(id.Pos()).String()+" "+id.Name)
			}
		})
	})
	if names < 5_000 {
		t.Fatalf("%d names found", names)
	}
	var words []string
	instead := map[string]string{}
	for _, p := range privateNames {
		for _, w := range []string{p.words[0], p.words[0] + inTests} {
			words, instead[w] = append(words, w), p.instead
		}
	}
	compareWithLimits(t, "testdata/names.txt", words, counts, where, instead)
}

func TestPrivateNamesAreRecognized(t *testing.T) {
	f := func(file, name, want string) {
		t.Helper()
		if got := privateNameOf(file, name); got != want {
			t.Errorf("%s in %s: %q, want %q", name, file, got, want)
		}
	}
	f("internal/push/pace.go", "take", "take")
	f("internal/push/pace.go", "TakeGap", "take")
	f("internal/push/pace_test.go", "takesAll", "take"+inTests)
	f("test/judge/judge.go", "Ask", "ask"+inTests)
	f("internal/push/pace.go", "takeover", "")
	f("internal/push/pace.go", "intake", "")
	f("internal/push/pace.go", "mistake", "")
	f("internal/push/hold.go", "holdGap", "hold")
	f("internal/front/policy/stream.go", "Hold", "")
	f("internal/push/session.go", "rare", "rare")
	f("internal/push/session.go", "Extra", "rare")
	f("internal/push/session.go", "ownID", "")
	f("internal/push/session.go", "wantsText", "")
	f("internal/push/session.go", "_", "")
}

func TestFieldsAndMethodsOfInterfacesAreVisible(t *testing.T) {
	var got []string
	visible(parse(t, `package p
type A interface{ Take() }
type b struct { Held, kept int }
func (b) say() { asked := 1; _ = asked }
func give(judge int) {}
`), func(id *ast.Ident) { got = append(got, id.Name) })
	if want := []string{"A", "Take", "b", "Held", "say", "give"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func parse(t *testing.T, text string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
