package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weir-lab": func() { os.Exit(run(os.Args[1:], os.Stderr)) },
	})
}

// weirIn builds the weir that is measured into dir.
func weirIn(t *testing.T, dir string) {
	t.Helper()
	build := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w -X main.version=v0.0.7", "-o", filepath.Join(dir, "weir"), "../weir") // as make build does
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
}

// Each file in testdata/script runs the real program, and a real weir.
func TestScripts(t *testing.T) {
	trial.Long(t)
	bin := t.TempDir()
	weirIn(t, bin)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or every program ends a second late
			env.Setenv("PLAIN_PATH", env.Getenv("PATH"))
			env.Setenv("PATH", env.Getenv("PATH")+string(os.PathListSeparator)+bin)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"status": status, "says": waitFor},
	})
}

// status N CMD... runs a command that must end with exit status N.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command [arg...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("%s: status %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// waitFor is says FILE TEXT, which waits until a running command has written a line with TEXT into FILE.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: says FILE TEXT")
	}
	name, deadline := ts.MkAbs(args[0]), time.Now().Add(30*time.Second)
	var last []byte
	for time.Now().Before(deadline) {
		if b, err := os.ReadFile(name); err == nil {
			if last = b; strings.Contains(string(b), args[1]) {
				return
			}
		}
		time.Sleep(20 * time.Millisecond) // another process: nothing here to wait on
	}
	ts.Fatalf("%s does not say %q after 30s:\n%s", args[0], args[1], last)
}

// The servers of the experiments, some deliberately bad, are linked by this program and not by weir.
func TestWeirHasNoServersOfExperiments(t *testing.T) {
	deps := func(program string) []string {
		out, err := exec.Command("go", "list", "-deps", program).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	const rungs = "github.com/weir-gateway/weir/internal/measure/lab/rung"
	if !slices.Contains(deps("."), rungs) {
		t.Error("weir-lab does not link them: were they renamed?")
	}
	if slices.Contains(deps("../weir"), rungs) {
		t.Error("weir links them")
	}
}

func TestOnlyAWeirIsTakenForOne(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"#!/bin/sh\necho '{}'\n":  "which no Weir does",
		"#!/bin/sh\necho hello\n": "which no Weir does",
		"#!/bin/sh\nexit 3\n":     "exit status 3",
		"#!/bin/sh\n[ $1$2 = version--json ] && echo '{\"version\":\"v1\",\"commit\":\"abc\",\"modified\":true}'\n": "",
	} {
		file := filepath.Join(dir, "weir")
		if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := versionOf(t.Context(), process.Program{file, "weir"})
		switch {
		case want == "" && (err != nil || got != "v1 of commit abc with changes"):
			t.Errorf("%q, %v", got, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Errors have a line on what to do about them.
func TestErrorsHaveHints(t *testing.T) {
	f := func(status int, want string, args ...string) {
		t.Helper()
		var stderr bytes.Buffer
		if got := run(args, &stderr); got != status || stderr.String() != want {
			t.Errorf("%q: status %d\n%swant %d\n%s", args, got, stderr.String(), status, want)
		}
	}
	f(2, "weir-lab: unknown command \"climb\"\nhint: weir-lab --help lists the commands\n", "climb")
	f(2, "weir-lab: unknown flag: --fast\nhint: usage: weir-lab run NAME...|all [flags]\n", "run", "a", "--fast")
	f(2, "weir-lab: run: requires at least 1 arg(s), only received 0\nhint: usage: weir-lab run NAME...|all [flags]\n", "run")
	f(2, "weir-lab: run: \"fasthttp\": want NAME=VALUE\nhint: weir-lab run --help\n", "run", "e8", "--program", "fasthttp")
	f(1, "weir-lab: run: --weir: exec: \"./nosuch\": stat ./nosuch: no such file or directory\n", "run", "e8", "--weir", "./nosuch")
}
