// Package echo puts a hub into an Echo program:
//
//	h, err := hubhttp.New(hubhttp.Config{})
//	go h.Run(ctx)
//	e := echo.New()
//	weirecho.Mount(e.Group("/events", yourAuthentication), h)
//
// A plaintext subscriber leaves Echo, and net/http, once the middleware before it
// has let it through: from then on it lives on an event loop.
package echo

import (
	"github.com/labstack/echo/v4"

	"github.com/weir-gateway/weir/hub/hubhttp"
)

// Mount adds GET sse and ws and POST publish to g. Middleware before them in g,
// authentication for instance, applies.
func Mount(g *echo.Group, h *hubhttp.Handler) {
	g.GET("/sse", SSE(h))
	g.GET("/ws", WebSocket(h))
	g.POST("/publish", Publish(h))
}

// SSE serves a subscription over server-sent events.
func SSE(h *hubhttp.Handler) echo.HandlerFunc {
	return func(c echo.Context) error { h.ServeSSE(c.Response(), c.Request()); return nil }
}

// WebSocket serves a subscription over WebSocket.
func WebSocket(h *hubhttp.Handler) echo.HandlerFunc {
	return func(c echo.Context) error { h.ServeWebSocket(c.Response(), c.Request()); return nil }
}

// Publish serves the publish API; a body with "channels" is a broadcast.
func Publish(h *hubhttp.Handler) echo.HandlerFunc {
	return func(c echo.Context) error { h.ServePublish(c.Response(), c.Request()); return nil }
}
