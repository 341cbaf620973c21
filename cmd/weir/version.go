package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker in releases; empty means that the build
// information decides.
var version string

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and platform",
		Example: `  weir version
  weir version --json`,
		Args: cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print a JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b := buildOf(version, buildInfo())
		if *asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(b)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), b)
		return err
	}
	return cmd
}

// buildInfo is what the Go linker knows of this binary.
func buildInfo() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return &debug.BuildInfo{}
}

// A build identifies a binary.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`   // all digits; empty if built outside a repository or with -buildvcs=false
	Modified bool   `json:"modified"` // built from a tree with changes that are not in Commit
	Time     string `json:"time"`     // of the commit, RFC 3339; empty like Commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildOf(version string, info *debug.BuildInfo) build {
	b := build{Version: versionOf(version, info), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		case "vcs.time":
			b.Time = s.Value
		}
	}
	return b
}

// String is "weir <version> (commit <12 digits>[, modified]) <go> <os>/<arch>".
func (b build) String() string {
	line := "weir " + b.Version
	if b.Commit != "" {
		line += " (commit " + b.Commit[:min(12, len(b.Commit))]
		if b.Modified {
			line += ", modified"
		}
		line += ")"
	}
	return line + " " + b.Go + " " + b.Platform
}

// versionOf is the linker's version, else the module's, else "devel".
func versionOf(linked string, info *debug.BuildInfo) string {
	switch {
	case linked != "":
		return linked
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	default:
		return "devel"
	}
}
