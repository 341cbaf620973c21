//go:build !linux

package hubhttp

import (
	"context"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/pushhttp"
	engine "github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// loops are for Linux: elsewhere every stream is a goroutine.
type loops struct{}

func newLoops(Config, *wire.Formats, *engine.Hub, *pushhttp.Server, *extension.Extensions) (*loops, error) {
	return nil, nil
}

func (*loops) run(ctx context.Context) error { <-ctx.Done(); return nil }
func (*loops) release()                      {}
func (*loops) drain(wire.DrainPlan)          {}
func (*loops) streams() int64                { return 0 }

func (*loops) adoptSSE(http.ResponseWriter, *http.Request, *wire.Subscription, *auth.Identity) bool {
	return false
}

func (*loops) adoptWebSocket(http.ResponseWriter, *http.Request, *wire.Subscription, *auth.Identity) bool {
	return false
}
