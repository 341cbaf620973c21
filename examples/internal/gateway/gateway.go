// Package gateway starts Weir for an example, as one would on a command line.
package gateway

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Run runs "weir serve" with config until ctx is done. The program is the one in
// WEIR, or is built from the folder above the examples.
func Run(ctx context.Context, config string) error {
	dir, err := os.MkdirTemp("", "weir-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := os.Getenv("WEIR")
	if program == "" {
		program = filepath.Join(dir, "weir")
		_, here, _, _ := runtime.Caller(0)
		build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/weir")
		build.Dir = filepath.Join(filepath.Dir(here), "..", "..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build weir: %w\n%s", err, out)
		}
	}
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "serve", "--config", file)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("weir serve: %w", err)
	}
	return nil
}

// Listen returns a listener for a backend, on a free port of this machine.
func Listen() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
