package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A type owns its state, and a method belongs to the type whose state it works on. One with
// very many methods is several.
const (
	mostMethods = 50
	manyMethods = 20
	// manyTypes is how many types may have more than manyMethods. Lower it with each that
	// is split.
	manyTypes = 25
)

func TestTypesStaySmall(t *testing.T) {
	count := map[string]int{}
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || len(d.Name()) > 1 && d.Name()[0] == '.'):
			return filepath.SkipDir
		case d.IsDir(), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root(t), filepath.Dir(path))
		if err != nil {
			return err
		}
		countMethods(f, dir, count)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(count) < 100 {
		t.Fatalf("%d types found", len(count))
	}
	var many []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		n := count[name]
		if n > manyMethods {
			many = append(many, name)
		}
		if n > mostMethods {
			t.Errorf("%s has %d methods, at most %d: split it by what its methods work on", name, n, mostMethods)
		}
	}
	if len(many) > manyTypes {
		t.Errorf("%d types have more than %d methods, at most %d: %s", len(many), manyMethods, manyTypes, strings.Join(many, ", "))
	}
}

// countMethods adds the methods that f declares to count, by the type with its folder.
func countMethods(f *ast.File, dir string, count map[string]int) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv == nil {
			continue
		}
		x := fn.Recv.List[0].Type
		if p, ok := x.(*ast.StarExpr); ok {
			x = p.X
		}
		switch p := x.(type) { // of a generic type
		case *ast.IndexExpr:
			x = p.X
		case *ast.IndexListExpr:
			x = p.X
		}
		if name, ok := x.(*ast.Ident); ok {
			count[dir+"."+name.Name]++
		}
	}
}

func TestMethodsAreCounted(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
type a struct{}
func (a) one() {}
func (x *a) two() {}
type b[K, V any] struct{}
func (x *b[K, V]) one() {}
type c[K any] struct{}
func (c[K]) one() {}
func none() {}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	countMethods(f, "x", got)
	if want := map[string]int{"x.a": 2, "x.b": 1, "x.c": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
