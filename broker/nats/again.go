package nats

import (
	"context"
	"errors"
	"time"

	natsgo "github.com/nats-io/nats.go"
)

// A server that was left, or that went away, is replaced well within
// reconnectPatience if its cluster has another. That long what can be asked again
// waits for the new connection; in a longer outage it is answered at once.
const (
	reconnectPatience = 3 * time.Second
	reconnectPoll     = 20 * time.Millisecond
	maxAgain          = 5
)

// again calls f, which changes nothing, and calls it again when its connection was
// lost and the next one was made soon.
func (b *connection) again(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		l := b.link.Load()
		err := f()
		if err == nil || try == maxAgain || !lostConnection(err) || !b.replaced(ctx, l) {
			return err
		}
	}
}

func lostConnection(err error) bool {
	return errors.Is(err, errDisconnected) || errors.Is(err, natsgo.ErrReconnectBufExceeded) ||
		errors.Is(err, natsgo.ErrConnectionReconnecting) || errors.Is(err, natsgo.ErrDisconnected)
}

// replaced waits for the connection after l, and reports whether it came soon enough.
func (b *connection) replaced(ctx context.Context, l *link) bool {
	t := time.NewTicker(reconnectPoll)
	defer t.Stop()
	for end := time.Now().Add(b.patience); ; {
		if b.link.Load() != l {
			return true
		}
		now := time.Now()
		lost := l.lost.Load()
		if now.After(end) || lost != 0 && now.UnixNano()-lost > int64(b.patience) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-b.ctx.Done():
			return false
		case <-t.C:
		}
	}
}
