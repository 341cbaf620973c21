// Package gin puts a hub into a Gin program:
//
//	h, err := hubhttp.New(hubhttp.Config{})
//	go h.Run(ctx)
//	r := gin.Default()
//	weirgin.Mount(r.Group("/events", yourAuthentication), h)
//
// A plaintext subscriber leaves Gin, and net/http, once the middleware before it
// has let it through: from then on it lives on an event loop.
package gin

import (
	"github.com/gin-gonic/gin"

	"github.com/weir-gateway/weir/hub/hubhttp"
)

// Mount adds GET sse and ws and POST publish to r. Middleware before them in r,
// authentication for instance, applies.
func Mount(r gin.IRouter, h *hubhttp.Handler) {
	r.GET("/sse", SSE(h))
	r.GET("/ws", WebSocket(h))
	r.POST("/publish", Publish(h))
}

// SSE serves a subscription over server-sent events.
func SSE(h *hubhttp.Handler) gin.HandlerFunc {
	return func(c *gin.Context) { h.ServeSSE(c.Writer, c.Request) }
}

// WebSocket serves a subscription over WebSocket.
func WebSocket(h *hubhttp.Handler) gin.HandlerFunc {
	return func(c *gin.Context) { h.ServeWebSocket(c.Writer, c.Request) }
}

// Publish serves the publish API; a body with "channels" is a broadcast.
func Publish(h *hubhttp.Handler) gin.HandlerFunc {
	return func(c *gin.Context) { h.ServePublish(c.Writer, c.Request) }
}
