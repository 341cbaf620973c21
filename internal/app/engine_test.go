package app

import (
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestEverythingHoldsWithEpoll(t *testing.T) { trial.Again(t, trial.Engine, "epoll") }

func TestTheEngineInUseIsNamed(t *testing.T) {
	for _, name := range []string{"epoll", "io_uring"} {
		g := start(t, func(c *config.Config) { c.EventLoop.Engine = name })
		if got := g.loops.Engine(); got != name {
			t.Errorf("engine %q, want %q", got, name)
		}
	}
}
