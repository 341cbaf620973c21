package nats

import (
	"context"
	"errors"
	"fmt"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Request sends data to a subject that is none of the broker's own and waits for the
// answer of anyone who serves it, until ctx is done. Without a connection, or when no one
// serves the subject, it is hub.ErrUnavailable. Any goroutine, after Start.
func (b *Broker) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	m, err := b.nc.RequestWithContext(ctx, subject, data)
	switch {
	case errors.Is(err, natsgo.ErrNoResponders), errors.Is(err, natsgo.ErrConnectionClosed), errors.Is(err, natsgo.ErrConnectionReconnecting):
		return nil, fmt.Errorf("%w: %s: %w", hub.ErrUnavailable, subject, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	return m.Data, nil
}
