package socket

import "github.com/weir-gateway/weir/internal/app/takeover"

// A Mover is a Session that can continue in another process of the same program.
type Mover interface {
	Session
	// AppendState appends what the session knows to dst; ok is false if it cannot move now.
	// Nothing changes. The owner calls it, never within another call of the session.
	AppendState(dst takeover.State) (state takeover.State, ok bool)
	// Moved is the last call, in place of Closed: the client is connected to another process.
	// Its subscriptions have ended.
	Moved()
}

// An Arriving is a session of another process, read and not yet open.
type Arriving struct {
	// MaxMessage is WebSocketOptions'.
	MaxMessage int
	// Open makes the session on its transport and subscribes from where it was. The owner
	// calls it, once.
	Open func(Transport) Session
}

// A Reader reads the state of a session that AppendState has written. An error means that the
// session cannot continue here. Any goroutine.
type Reader func(takeover.State) (*Arriving, error)

// A SubscriptionReader reads the state that Subscription.AppendState has written.
type SubscriptionReader func(takeover.State) (*Subscription, error)
