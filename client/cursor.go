package client

import (
	"slices"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A cursor is the position of a stream, as the token that resumes it. Over SSE the
// server writes the whole token into each event. A WebSocket message only names
// its own place, and the cursor puts it among those of the other logs.
type cursor struct {
	token string
	// The same in parts; used by move only. An epoch belongs to one log, so it
	// shows which part a message moves, once names has learned it.
	parts hub.Positions
	names map[hub.Log]string // log → the epoch of its part
}

func newCursor(token string) cursor {
	c := cursor{names: make(map[hub.Log]string)}
	c.set(token)
	return c
}

// set replaces the whole cursor with a token of the server.
func (c *cursor) set(token string) {
	if token == c.token {
		return
	}
	c.token = token
	c.parts, _ = hub.ParsePositions(token) // nil for "", "0" and what only the server understands
}

// move takes in that everything of the namespace up to p has been seen. With back p
// may be before what was seen: a gap says that the log has started anew from there.
func (c *cursor) move(namespace string, p hub.Position, back bool) {
	if p.IsZero() {
		return
	}
	// A new epoch takes the place of the log's old one.
	log := hub.LogOf(namespace, p.Epoch)
	old, known := c.names[log]
	if known && old != p.Epoch {
		c.parts = slices.DeleteFunc(c.parts, func(q hub.Position) bool { return q.Epoch == old })
	}
	c.names[log] = p.Epoch
	i := slices.IndexFunc(c.parts, func(q hub.Position) bool { return q.Epoch == p.Epoch })
	switch {
	case i < 0:
		c.parts = append(c.parts, p)
	case back || p.Offset > c.parts[i].Offset:
		c.parts[i] = p
	}
	c.token = string(c.parts.AppendTo(nil))
}
