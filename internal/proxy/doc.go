// Package proxy is the wing towards backends: one exchange with an upstream on the
// event loop that the client's connection lives on.
package proxy
