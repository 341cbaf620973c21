package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

func TestWhatIsGoneOrChangedBreaksThePromise(t *testing.T) {
	old := parse("a.b\tinteger, default 1\na.c\ttext\n")
	f := func(now string, gone, added string) {
		t.Helper()
		g, a := compare(old, parse(now))
		if format(g) != gone+"\n" || format(a) != added+"\n" {
			t.Errorf("gone %q, new %q; want %q and %q", format(g), format(a), gone, added)
		}
	}
	f("a.c\ttext\na.b\tinteger, default 1\n", "", "")
	f("a.b\tinteger, default 1\na.c\ttext\na.d\ttext\n", "", "a.d\ttext")
	f("a.b\tinteger, default 1\n", "a.c\ttext", "")
	f("a.b\tinteger, default 2\na.c\ttext\n", "a.b\tinteger, default 1", "a.b\tinteger, default 2")
}

func TestChangesExcuseWhatTheyName(t *testing.T) {
	const changelog = "# Changelog\n\n## Unreleased\n\n- [FEATURE] `a.b` is new.\n- [CHANGE] `a.c` is gone:\n  use `x.y`.\n- [ENHANCEMENT] `a.e` is faster. [CHANGE] hub.Message.Key is text.\n\n## 1.0.0\n\n- [CHANGE] `a.z` is gone.\n"
	f := func(name, version string, excused bool) {
		t.Helper()
		if why := assess(fact{name, "x"}, version, changes(changelog)); (why == "") != excused {
			t.Errorf("%s in %s: %q", name, version, why)
		}
	}
	f("a.b", "v0.3.0", false)
	f("a.c", "v0.3.0", true)
	f("x.y", "v0.3.0", true)
	f("a", "v0.3.0", false)
	f("c", "v0.3.0", false)
	f("a.e", "v0.3.0", false)
	f("hub.Message.Key", "v0.0.1", true)
	f("hub.Message", "v0.0.1", false)
	f("a.z", "v0.3.0", false)
	f("a.c", "v2.0.0", true)
	f("a.z", "v2.0.0", false)
	f("a.c", "v1.4.0", false)
	f("a.c", "v1.0.1", false)
	f("a.c", "1.0", false)
}

// The list of a package has what its users can name, and nothing else.
func TestIdentifiersAreListed(t *testing.T) {
	const source = `package p
type T struct { A int; b string; E }
type E struct { Inner bool }
func (E) Promoted() {}
func (t *T) Do(n int) error { return nil }
func (t *T) hidden() {}
type I interface { Get(string) (int, bool) }
type A = T
const Limit = 1 << 3
var Err error
func New[K comparable](k K, rest ...string) *T { return nil }
func private() {}
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := new(types.Config).Check(module+"p", set, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `p.A	type struct
p.A.A	field int
p.A.Do	method func(n int) error
p.A.E	field p.E
p.A.Promoted	method func()
p.E	type struct
p.E.Inner	field bool
p.E.Promoted	method func()
p.Err	var error
p.I	type interface of Get
p.I.Get	method func(string) (int, bool)
p.Limit	const untyped int = 8
p.New	func func[K comparable](k K, rest ...string) *p.T
p.T	type struct
p.T.A	field int
p.T.Do	method func(n int) error
p.T.E	field p.E
p.T.Promoted	method func()
`
	if got := format(identifiers(pkg)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The documents from which lists are made have what the patterns look for.
func TestDocumentsAreRead(t *testing.T) {
	f := func(name, fact string, list lister) {
		t.Helper()
		facts, err := list("../..", "")
		if err != nil || len(facts) < 10 || !slices.Contains(strings.Split(format(facts), "\n"), fact) {
			t.Errorf("%s: %d facts (%v), %q is not among them", name, len(facts), err, fact)
		}
	}
	f("commands", "weir serve --listen\tflag with a value", commands)
	f("metrics", "weir_accepted_total\tcounter ", metrics)
	f("admin", "POST /api/reload\tendpoint", adminAPI)
	f("extension", "weir.extension.v1.Verdict.ttl_ms\toptional uint32 = 6", extensionProtocol)
}
