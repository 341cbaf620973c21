//go:build !linux

package eventloop

import (
	"log/slog"

	"github.com/weir-gateway/weir/internal/net/poller"
)

// engineOf returns what opens a poller: the loops carry connections without sockets alone.
func engineOf(cfg Config, _ *slog.Logger) (Config, func() (poller.Poller, error)) {
	return cfg, openPortable
}
