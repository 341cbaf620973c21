// Package hubhttp is the hub as an http.Handler: SSE, WebSocket and publishing for programs on
// net/http.
package hubhttp
