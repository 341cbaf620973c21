package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

// The generator is this test: `go generate` runs it with -update, CI without.
func TestReferenceIsCurrent(t *testing.T) {
	docs := map[string]string{}
	sources := map[string]map[string]*ast.StructType{}
	seen := map[string]bool{}
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		id := docKey(k.field)
		if seen[id] {
			continue
		}
		seen[id] = true
		pkg := k.owner.PkgPath()
		if sources[pkg] == nil {
			sources[pkg] = parseStructs(t, pkg)
		}
		doc := fieldComment(sources[pkg][k.owner.Name()], k.name)
		if doc == "" {
			t.Errorf("%s (%s) has no comment above its field", k.path, id)
		}
		docs[id] = doc
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(docs); err != nil {
		t.Fatal(err)
	}
	golden(t, "docs.json", b.Bytes())
	if *update {
		docsJSON = b.Bytes()
	}
	golden(t, "../../../docs/reference/config.md", []byte(configPage()))
}

// golden compares got with the committed file, or writes it with -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not current (%v); run: go generate ./internal/app/config", name, err)
	}
}

// parseStructs returns the structs that a package of this module declares.
func parseStructs(t *testing.T, pkg string) map[string]*ast.StructType {
	t.Helper()
	dir := filepath.Join("../../..", filepath.FromSlash(strings.TrimPrefix(pkg, modulePath)))
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if ts, ok := n.(*ast.TypeSpec); ok {
				if st, ok := ts.Type.(*ast.StructType); ok {
					structs[ts.Name.Name] = st
				}
			}
			return true
		})
	}
	return structs
}

func fieldComment(st *ast.StructType, name string) string {
	if st == nil {
		return ""
	}
	last := ""
	for _, f := range st.Fields.List {
		// A field right under a commented one may share its comment: "User and
		// Password for …".
		if doc := strings.TrimSpace(f.Doc.Text() + f.Comment.Text()); doc != "" {
			last = doc
		}
		for _, id := range f.Names {
			if id.Name == name {
				return last
			}
		}
	}
	return ""
}

// A field that no file can set is either a slip or says so with "-".
func TestEveryExportedFieldIsAKeyOrSaysNot(t *testing.T) {
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		for i := range k.owner.NumField() {
			sf := k.owner.Field(i)
			if sf.IsExported() && !sf.Anonymous && sf.Tag.Get("json") == "" {
				t.Errorf("%s.%s has no json tag", k.owner, sf.Name)
			}
		}
	}
}

func TestVariableNamesAreUnique(t *testing.T) {
	owner := map[string]string{}
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		if k.env == "" {
			continue
		}
		if other, dup := owner[k.env]; dup {
			t.Errorf("%s sets both %s and %s", k.env, other, k.path)
		}
		owner[k.env] = k.path
		if isCommandEnv(k.env) || orchestratorEnv.MatchString(k.env) {
			t.Errorf("%s (%s) is spoken for", k.env, k.path)
		}
	}
}

func TestReferenceOfOneKey(t *testing.T) {
	s, err := Reference("log.level")
	if err != nil || !strings.HasPrefix(s, "log.level  (text, default info)\n") || !strings.Contains(s, "env: WEIR_LOG_LEVEL") {
		t.Errorf("Reference(log.level) = %q, %v", s, err)
	}
	s, err = Reference("namespaces")
	if err != nil || !strings.Contains(s, "namespaces[].history_ttl  (duration, default 24h)\n") {
		t.Errorf("Reference(namespaces) = %q, %v", s, err)
	}
	_, err = Reference("log.levl")
	if HintOf(err) != "did you mean log.level?" {
		t.Errorf("Reference(log.levl): %v, hint %q", err, HintOf(err))
	}
}
