// Package bridge lets hub/hubhttp reach the engine behind a hub.Hub without the engine being
// part of the public API.
package bridge

import engine "github.com/weir-gateway/weir/internal/push/hub"

// Open is hub.New for a hub whose messages have wire formats: cfg is a hub.Config, opened is the
// *hub.Hub. formats returns the encoders for its namespaces. Package hub sets it.
var Open func(cfg any, formats func([]engine.Namespace) ([]engine.Encoder, error)) (opened any, e *engine.Hub, err error)
