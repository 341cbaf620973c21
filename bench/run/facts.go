package main

import (
	"context"
	"debug/buildinfo"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// facts describe where and with what the numbers were made.
type facts struct {
	Date   string `json:"date"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory string `json:"memory"`
	Go     string `json:"go"` // that built weir
	C      string `json:"c_compiler"`
	Commit string `json:"commit"`
	LoadAt string `json:"load_average_at_start"`
}

func gather(ctx context.Context, weir string) facts {
	f := facts{Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), CPUs: runtime.NumCPU()}
	f.Kernel = fileLine("/proc/sys/kernel/osrelease", `(.+)`)
	f.CPU = fileLine("/proc/cpuinfo", `model name\s*:\s*(.+)`)
	f.Memory = fileLine("/proc/meminfo", `MemTotal:\s*(.+)`)
	f.LoadAt = fileLine("/proc/loadavg", `(\S+ \S+ \S+)`)
	if info, err := buildinfo.ReadFile(weir); err == nil {
		f.Go = info.GoVersion
	}
	f.C = output(ctx, "gcc", "-dumpfullversion")
	f.Commit = output(ctx, "git", "rev-parse", "--short=12", "HEAD")
	if f.Commit != "" && output(ctx, "git", "status", "--porcelain", "--untracked-files=no") != "" {
		f.Commit += ", with changes"
	}
	return f
}

func fileLine(path, pattern string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	if m := regexp.MustCompile(`(?m)^` + pattern + `$`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	if m := regexp.MustCompile(`(?m)^` + pattern).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return "unknown"
}

func output(ctx context.Context, name string, args ...string) string {
	text, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
