package centrifuge

import (
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A position of this protocol has no room for the check of a message. Where one process
// alone serves the logs, its epochs end with the time at which it opened them:
//
//	<epoch>.<time>
//
// A client that comes with another time has seen what it has seen before that: a message
// at its offset that was stored later is another one. One that comes without a time has
// the position of another protocol, or of an older version, and proves nothing.

// epochs translates between the epochs of the hub and those of clients.
type epochs struct{ hub *hub.Hub }

// run returns what ends the epochs of this process; empty if it is not alone.
func (e epochs) run() string {
	t := e.hub.Opened()
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.UnixMilli(), 36)
}

// epoch returns the epoch of the hub as clients get it.
func (e epochs) epoch(of string) string {
	if run := e.run(); run != "" && of != "" {
		return of + "." + run
	}
	return of
}

// position returns what a client means that sends p, with what has to be proved of it.
func (e epochs) position(p protocol.Position) hub.Position {
	at := hub.Position{Offset: p.Offset}
	var run string
	at.Epoch, run, _ = strings.Cut(p.Epoch, ".")
	if mine := e.run(); mine != "" && run != "" && run != mine && p.Offset > 0 {
		at.Check = hub.NewBeforeCheck(e.hub.Opened())
	}
	return at
}
