//go:build amd64 || arm64

package prefetch

// read asks for the line at p. It is a number: the collector has nothing to do with it.
func read(p uintptr)
