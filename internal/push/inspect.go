package push

import (
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Shards returns the hub's shards, by loop. Any goroutine may read their numbers.
func (all loopStates) Shards() []*hub.Shard {
	shards := make([]*hub.Shard, len(all))
	for i, l := range all {
		shards[i] = l.shard
	}
	return shards
}

// inspected is a handler that can be described.
type inspected interface {
	numbers() Lag
	describe(g Lag) Lag
}

// Inspect describes the subscriber on c; false if there is none. On c's loop.
func (p *Push) Inspect(c *eventloop.Conn) (Lag, bool) {
	h, ok := c.Handler().(inspected)
	if !ok || c.Closing() {
		return Lag{}, false
	}
	return h.describe(h.numbers()), true
}

// Disconnect ends the subscriber on c in words, as a drain does, so that it comes back
// after its own delay; false if there is none. On c's loop, not from a call of the hub.
func (p *Push) Disconnect(c *eventloop.Conn, reason string) bool {
	if c.Closing() {
		return false
	}
	switch h := c.Handler().(type) {
	case interface{ end(code int, reason string) }:
		h.end(codeRestart, reason)
	case interface{ Close(code int, reason string) }:
		h.Close(codeRestart, reason)
	default:
		return false
	}
	return true
}
