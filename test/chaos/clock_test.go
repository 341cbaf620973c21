package chaos

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// What is put into package time of the program whose clock jumps, and into its main
// package: the wall clock is ahead by as many seconds as the file says.
const (
	clockInTime = `
var chaosOffset int64

// ChaosClock has Now be ahead by the seconds.
func ChaosClock(seconds int64) { chaosStore(&chaosOffset, seconds) }

//go:nosplit
func chaosStore(p *int64, v int64) { *p = v }
`
	clockInMain = `package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

func init() {
	file := os.Getenv("CHAOS_CLOCK") // not WEIR_: those are configuration
	if file == "" {
		return
	}
	read := func() {
		if b, err := os.ReadFile(file); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				time.ChaosClock(n)
			}
		}
	}
	read()
	go func() {
		for {
			time.Sleep(20 * time.Millisecond)
			read()
		}
	}()
}
`
	clockBefore = "\tsec += unixToInternal - minWall\n"
	clockAfter  = "\tsec += unixToInternal - minWall + chaosOffset\n"
)

// clocked builds the program with a package time whose wall clock can be set. No library
// can do that to a static program, and a time namespace has no wall clock of its own.
func (c *trial) clocked() string {
	c.Helper()
	dir := c.TempDir()
	root, err := exec.CommandContext(c.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		c.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(file)
	if err != nil {
		c.Fatal(err)
	}
	if strings.Count(string(text), clockBefore) != 1 {
		c.Fatalf("%s is not as expected: time.Now cannot be changed", file)
	}
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			c.Fatal(err)
		}
		return path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		file: put("time.go", strings.Replace(string(text), clockBefore, clockAfter, 1)+clockInTime),
		judge.Path("cmd", "weir", "chaos_clock.go"): put("clock.go", clockInMain),
	}})
	if err != nil {
		c.Fatal(err)
	}
	out := filepath.Join(dir, "weir")
	cmd := exec.Command("go", "build", "-overlay", put("overlay.json", string(overlay)), "-o", out, "./cmd/weir")
	cmd.Dir, cmd.Env = judge.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		c.Fatalf("build with another clock: %v: %s", err, b)
	}
	return out
}

// jsonTime reads the time of a snapshot.
func jsonTime(b []byte) (time.Time, bool) {
	var v struct{ Time time.Time }
	err := json.Unmarshal(b, &v)
	return v.Time, err == nil && !v.Time.IsZero()
}
