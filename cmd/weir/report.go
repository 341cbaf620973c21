package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/client"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/redact"
)

// A usageError is a command that was written wrongly: exit status 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usage makes a usageError with a hint, which may be empty.
func usage(hint, format string, a ...any) error {
	return &usageError{config.WithHint(fmt.Errorf(format, a...), hint)}
}

// errSilent ends with status 1 when everything has been said already.
var errSilent = errors.New("")

// report prints each part of err as "weir: what: cause" with its hint on the
// next line, and returns the exit status.
func report(w io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	_, isUsage := errors.AsType[*usageError](err)
	if errors.Is(err, errSilent) {
		return 1
	}
	exit, hasStatus := errors.AsType[*exitError](err)
	if hasStatus {
		if err = exit.err; err == nil {
			return exit.status
		}
	}
	for _, p := range config.Problems(err) {
		hint := hintFor(p)
		if hint == "" && isUsage {
			hint = cmd.CommandPath() + " --help"
		}
		// Some errors also say their hint in brackets, for readers of logs.
		fmt.Fprintf(w, "weir: %s\n", redact.Text(strings.TrimSuffix(p.Error(), " ("+hint+")")))
		if hint != "" {
			fmt.Fprintf(w, "hint: %s\n", redact.Text(hint))
		}
	}
	switch {
	case hasStatus:
		return exit.status
	case isUsage:
		return 2
	}
	return 1
}

// hintFor returns the error's own hint, or one for what the system said.
func hintFor(err error) string {
	if h := config.HintOf(err); h != "" {
		return h
	}
	if e, ok := errors.AsType[*client.Error](err); ok && e.Hint != "" {
		return e.Hint
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "another process listens there; choose another address with --listen or --admin-listen"
	case errors.Is(err, syscall.EACCES) && strings.Contains(err.Error(), "listen"):
		return "grant cap_net_bind_service, or use a port above 1023"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "no interface of this machine has that address"
	case errors.Is(err, syscall.ECONNREFUSED):
		// Only what Weir listens on by default is known to be missing a `weir serve`.
		if text := err.Error(); strings.Contains(text, "127.0.0.1:800") || strings.Contains(text, "localhost:800") {
			return "nothing listens there; start a server with: weir serve"
		}
		return "nothing listens at that address: check host and port, and that the server runs"
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files: ulimit -n 1048576"
	case errors.Is(err, syscall.ENOSPC):
		return "the disk is full"
	case errors.Is(err, context.DeadlineExceeded):
		return "the server did not answer in time; is the address right?"
	}
	return ""
}
