// Command weir pushes events to very many clients over SSE and WebSocket.
//
// Each subcommand is in a file of its own and does no more than read its
// flags, call what does the work and print. Its tests are the scripts in
// testdata/script.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/weir-gateway/weir/internal/observe/asynclog"
)

func main() { os.Exit(run()) }

// run is the whole program; it returns the exit status: 0, 1 for a failure, 2
// for wrong usage.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal stops gracefully, the second one kills.
	defer context.AfterFunc(ctx, stop)()

	root := newRoot()
	root.SetArgs(os.Args[1:])
	cmd, err := root.ExecuteContextC(ctx)
	stderr := asynclog.New(os.Stderr, 0, nil) // a blocked pipe must not keep the process
	defer stderr.Close()
	return report(stderr, cmd, err)
}
