// With an assembly file in the package, Go functions may have no body: those of go:linkname.
