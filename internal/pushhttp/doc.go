// Package pushhttp serves the hub over net/http: a goroutine per stream, for what
// event loops cannot carry (HTTP/2, TLS of others, systems without epoll).
package pushhttp
