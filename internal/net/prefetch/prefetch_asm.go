//go:build amd64 || arm64

package prefetch

// read prefetches the line at p. It is a number: the collector has nothing to do with it.
func read(p uintptr)
