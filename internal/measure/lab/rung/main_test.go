package rung

import (
	"runtime"

	"github.com/weir-gateway/weir/internal/net/poller"
)

func uring() bool { return poller.ProbeUring() == nil }

func stacks(b []byte) int { return runtime.Stack(b, true) }
