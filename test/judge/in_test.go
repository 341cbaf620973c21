package judge

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A parallel part of a test has the test's server for itself by In: what fails would else end the
// test from another goroutine, and with it the package.
func TestParallelPartsBindTheirServer(t *testing.T) {
	servers := map[string]map[string]bool{} // functions that return one, by directory
	files := map[string]*ast.File{}
	set := token.NewFileSet()
	err := filepath.WalkDir(Path("test"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err == nil {
			files[path] = f
			dir := filepath.Dir(path)
			if servers[dir] == nil {
				servers[dir] = map[string]bool{"New": true, "Launch": true}
			}
			addServers(servers[dir], f)
		}
		return err
	})
	if err != nil || len(files) < 100 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for path, f := range files {
		for _, at := range unbound(f, servers[filepath.Dir(path)]) {
			t.Errorf("%s: a parallel part uses the server of its test: want the one that In(t) returns", set.Position(at))
		}
	}
}

// Both cases of the test above.
func TestUnboundServersAreFound(t *testing.T) {
	f := func(part string, want int) {
		t.Helper()
		text := `package p
func Test(t *testing.T) {
	g := judge.New(t, judge.Options{})
	g.Ready()
	for range 3 {
		t.Run("part", func(t *testing.T) {
			` + part + `
		})
	}
}`
		file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := unbound(file, map[string]bool{"New": true}); len(got) != want {
			t.Errorf("%s: %d uses, want %d", part, len(got), want)
		}
	}
	f("t.Parallel(); g.Ready()", 1)
	f("t.Parallel(); play(t, g); f(g.Log)", 2)
	f("t.Parallel(); play(t, g.In(t), g.Public)", 0)
	f("t.Parallel(); g := g.In(t); g.Ready()", 0)
	f("t.Parallel(); g := judge.New(t, judge.Options{}); g.Ready()", 0)
	f("g.Ready()", 0)
}

// isServer reports whether e is *judge.Server.
func isServer(e ast.Expr) bool {
	star, ok := e.(*ast.StarExpr)
	if !ok {
		return false
	}
	s, ok := star.X.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Server"
}

// addServers adds f's functions whose first result is a server.
func addServers(names map[string]bool, f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Type.Results != nil && isServer(fn.Type.Results.List[0].Type) {
			names[fn.Name.Name] = true
		}
	}
}

// called is the name of what e calls, without its package or receiver.
func called(e ast.Expr) string {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return ""
	}
	switch fn := call.Fun.(type) {
	case *ast.Ident:
		return fn.Name
	case *ast.SelectorExpr:
		return fn.Sel.Name
	}
	return ""
}

// unbound returns where parallel parts of f's tests use a server of the test, other than for an
// address or to bind it.
func unbound(f *ast.File, servers map[string]bool) (uses []token.Pos) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		var names []string // of servers
		ast.Inspect(fn, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				if isServer(n.Type) && len(n.Names) == 1 {
					names = append(names, n.Names[0].Name)
				}
			case *ast.AssignStmt:
				if name, ok := n.Lhs[0].(*ast.Ident); ok && servers[called(n.Rhs[0])] {
					names = append(names, name.Name)
				}
			case *ast.CallExpr:
				if called(n) != "Run" || len(n.Args) != 2 {
					return true
				}
				if part, ok := n.Args[1].(*ast.FuncLit); ok && isParallel(part) {
					uses = append(uses, usesOf(part, names)...)
				}
			}
			return true
		})
	}
	return uses
}

func isParallel(part *ast.FuncLit) bool {
	return slices.ContainsFunc(part.Body.List, func(s ast.Stmt) bool {
		e, ok := s.(*ast.ExprStmt)
		return ok && called(e.X) == "Parallel"
	})
}

// usesOf returns where part uses one of names that it does not declare.
func usesOf(part *ast.FuncLit, names []string) (uses []token.Pos) {
	fine := map[ast.Node]bool{}
	names = slices.Clone(names)
	ast.Inspect(part, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			fine[n.Sel] = true
			fine[n.X] = slices.Contains([]string{"In", "Public", "Admin", "Authority"}, n.Sel.Name)
		case *ast.KeyValueExpr:
			fine[n.Key] = true
		case *ast.AssignStmt:
			if name, ok := n.Lhs[0].(*ast.Ident); ok && n.Tok == token.DEFINE {
				names = slices.DeleteFunc(names, func(s string) bool { return s == name.Name })
			}
		case *ast.Ident:
			if slices.Contains(names, n.Name) && !fine[n] {
				uses = append(uses, n.Pos())
			}
		}
		return true
	})
	return uses
}
