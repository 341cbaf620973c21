//go:build !amd64 && !arm64

package prefetch

func read(uintptr) {}
