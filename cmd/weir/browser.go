package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// openBrowser has the desktop show url and reports whether it could. Without
// a desktop, over SSH or in a container, it does nothing.
func openBrowser(url string) bool {
	var cmd *exec.Cmd
	switch {
	case runtime.GOOS == "darwin":
		cmd = exec.CommandContext(context.Background(), "open", url)
	case os.Getenv("SSH_CONNECTION") != "":
		return false
	case os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "":
		cmd = exec.CommandContext(context.Background(), "xdg-open", url)
	default:
		return false
	}
	// It may stay as long as the browser does: it is not waited for, and it does
	// not end with us.
	if cmd.Start() != nil {
		return false
	}
	return cmd.Process.Release() == nil
}

// self is how to run this program again from the same shell: the lines that
// demo prints must work as they are written.
func self() string {
	exe, err := os.Executable()
	if err != nil {
		return "weir"
	}
	if strings.Contains(exe, string(filepath.Separator)+"go-build") {
		// Run by `go run`, which removes what it has built.
		if _, err := os.Stat("cmd/weir/main.go"); err == nil {
			return "go run ./cmd/weir"
		}
		return "go run github.com/weir-gateway/weir/cmd/weir"
	}
	if found, err := exec.LookPath("weir"); err == nil {
		a, errA := os.Stat(found)
		b, errB := os.Stat(exe)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return "weir"
		}
	}
	return os.Args[0]
}
