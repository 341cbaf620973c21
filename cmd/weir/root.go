package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "Push events to very many clients over SSE and WebSocket",
		Long: `Weir pushes events to very many clients over SSE and WebSocket.

Publish over HTTP, subscribe with EventSource, a WebSocket or curl. Messages
are stored, so a client that reconnects resumes where it left off.`,
		Example: `  weir demo                                # see it work
  weir serve                               # run a server on 127.0.0.1:8000
  weir sub news                            # follow a channel
  weir pub news '{"title":"hello"}'        # publish to it`,
		SilenceErrors:              true,
		SilenceUsage:               true,
		Args:                       cobra.ArbitraryArgs,
		RunE:                       group,
		SuggestionsMinimumDistance: 2,
		DisableFlagsInUseLine:      true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(
		newServe(),
		newUpgrade(),
		newSource(),
		newDemo(),
		newPub(),
		newSub(),
		newToken(),
		newRevoke(),
		newCert(),
		newBench(),
		newKnee(),
		newAccept(),
		newTop(),
		newCluster(),
		newCertificates(),
		newTune(),
		newObserve(),
		newAudit(),
		newConfig(),
		newHealth(),
		newVersion(),
	)
	// Not cobra's own: its template engine looks methods up by name, with which the linker
	// drops no method of any type, and the binary is larger by a quarter.
	root.Flags().BoolP("version", "v", false, "version for weir")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if requested, err := cmd.Flags().GetBool("version"); err != nil || !requested {
			return errors.Join(err, group(cmd, args))
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), buildOf(version, buildInfo()))
		return err
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	for _, c := range root.Commands() {
		usageArgs(c)
	}
	return root
}

// group runs a command that only holds others: help, or a complaint about what
// is none of them.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	hint := cmd.CommandPath() + " --help lists the commands"
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "did you mean " + cmd.CommandPath() + " " + s[0] + "?"
	}
	return usage(hint, "%s: unknown command", args[0])
}

// usageArgs makes complaints about arguments, here and below, usage errors.
func usageArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil {
				return nil
			}
			if use := (*usageError)(nil); errors.As(err, &use) {
				return err
			}
			return usage("usage: "+cmd.UseLine(), "%s: %w", strings.TrimPrefix(cmd.CommandPath(), "weir "), err)
		}
	}
	for _, c := range cmd.Commands() {
		usageArgs(c)
	}
}
