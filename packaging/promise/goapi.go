package main

import (
	"bytes"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
)

const module = "github.com/weir-gateway/weir/"

// public are the packages that versioning.md promises.
var public = []string{"hub", "hub/hubhttp", "broker/memory", "broker/nats", "client", "sse", "websocket", "extension/v1"}

// goAPI lists the exported identifiers of the public packages, with the fields and methods of
// their types, also where a type is an alias of one of internal/.
func goAPI(root, _ string) ([]fact, error) {
	arg := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, p := range public {
		arg = append(arg, "./"+p)
	}
	cmd := exec.Command("go", arg...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string]string{}
	for line := range bytes.Lines(out) {
		path, file, _ := strings.Cut(strings.TrimSpace(string(line)), "\t")
		files[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	var facts []fact
	for _, p := range public {
		pkg, err := imports.Import(module + p)
		if err != nil {
			return nil, err
		}
		facts = append(facts, identifiers(pkg)...)
	}
	return facts, nil
}

// short is how a package is written in the list.
func short(p *types.Package) string { return strings.TrimPrefix(p.Path(), module) }

// text is a type on one line.
func text(t types.Type) string { return types.TypeString(t, short) }

// identifiers lists what pkg exports.
func identifiers(pkg *types.Package) (facts []fact) {
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		full := short(pkg) + "." + name
		switch o := o.(type) {
		case *types.Const:
			facts = append(facts, fact{full, "const " + text(o.Type()) + " = " + o.Val().ExactString()})
		case *types.TypeName:
			facts = append(facts, typeFacts(full, pkg, o)...)
		default: // a variable or a function
			facts = append(facts, fact{full, strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T ", o), "*types.")) + text(o.Type())})
		}
	}
	return facts
}

// typeFacts lists a type with its exported fields and methods.
func typeFacts(full string, pkg *types.Package, o *types.TypeName) []fact {
	t := types.Unalias(o.Type())
	named, ok := t.(*types.Named)
	if !ok {
		return []fact{{full, "type = " + text(t)}}
	}
	if at := named.Obj().Pkg(); at != nil && at != pkg && !strings.HasPrefix(short(at), "internal/") {
		return []fact{{full, "type = " + text(t)}} // listed there
	}
	var facts []fact
	switch u := named.Underlying().(type) {
	case *types.Struct:
		facts = append(facts, fact{full, "type struct"})
		for f := range u.Fields() {
			if f.Exported() {
				facts = append(facts, fact{full + "." + f.Name(), "field " + text(f.Type())})
			}
		}
	case *types.Interface:
		// Users implement it, unless a method is not exported: one method more breaks them.
		all := []string{}
		for m := range u.Methods() {
			all = append(all, m.Name())
			facts = append(facts, fact{full + "." + m.Name(), "method " + text(m.Type())})
		}
		return append(facts, fact{full, "type interface of " + strings.Join(all, ", ")})
	default:
		facts = append(facts, fact{full, "type " + text(u)})
	}
	methods := types.NewMethodSet(types.NewPointer(named))
	for m := range methods.Methods() {
		if m.Obj().Exported() {
			facts = append(facts, fact{full + "." + m.Obj().Name(), "method " + text(m.Type())})
		}
	}
	return facts
}
