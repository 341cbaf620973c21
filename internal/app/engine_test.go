package app

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/weir-gateway/weir/internal/config"
)

// testEngine names the engine for all tests of this package; empty means the default.
const testEngine = "WEIR_TEST_ENGINE"

// Every test here must hold with every engine: this one runs them all again, in
// a process of its own.
func TestEverythingHoldsWithEpoll(t *testing.T) {
	if os.Getenv(testEngine) != "" {
		return // this is that process
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, fmt.Sprintf("-test.short=%v", testing.Short()))
	cmd.Env = append(os.Environ(), testEngine+"=epoll")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheEngineInUseIsNamed(t *testing.T) {
	for _, name := range []string{"epoll", "io_uring"} {
		g := start(t, func(c *config.Config) { c.EventLoop.Engine = name })
		if got := g.loops.Engine(); got != name {
			t.Errorf("engine %q, want %q", got, name)
		}
	}
}
