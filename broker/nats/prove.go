package nats

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Prove compares p.Check with the message at p.Offset: with its stored time, which also
// comes with every republished message, or its content. One read, of the leader if there
// are replicas: any other may be behind.
func (b *Broker) Prove(ctx context.Context, ns *hub.Namespace, p hub.Position) (hub.Check, error) {
	s, err := b.stream(ns)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil || !s.durable() || s.epochNow() != p.Epoch {
		return 0, err
	}
	var c hub.Check
	err = b.again(ctx, func() (err error) {
		c, err = s.prove(ctx, p)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("prove %v: %w", p, err)
	}
	if s.epochNow() != p.Epoch {
		return 0, nil
	}
	return c, nil
}

func (s *readable) prove(ctx context.Context, p hub.Position) (hub.Check, error) {
	m, at, err := s.messageAt(ctx, p.Offset)
	switch {
	case err != nil:
		return 0, err
	case m != nil:
		data, _ := unpack(m)
		if p.Check.Proves(p.Offset, at, unquote(m.Header.Get(headerKey)), data) {
			return p.Check, nil
		}
		return hub.NewCheck(p.Offset, at), nil
	case p.Check == 0:
		return 0, nil
	}
	return s.proveRemoved(ctx, p)
}

// skew is how far the clocks of servers that lead one after the other may differ.
const skew = 2 * time.Second

// proveRemoved judges the check of a message that is not there any more: nothing
// that was stored later may have a lower offset.
func (s *readable) proveRemoved(ctx context.Context, p hub.Position) (hub.Check, error) {
	in, err := s.info(ctx)
	if err != nil || p.Offset > in.last || in.epoch != p.Epoch {
		return 0, err
	}
	next := time.Now()
	r, err := s.reader(ctx, anyToken)
	if err != nil {
		return 0, err
	}
	after, _, err := r.next(ctx, p.Offset, 1)
	if err != nil {
		return 0, err
	}
	if len(after) > 0 {
		next = time.UnixMilli(after[0].time)
	}
	from := p.Check.Latest(next).Add(skew)
	q := query{StartTime: from.UTC().Format(time.RFC3339Nano), Batch: 1}
	later, err := s.b.reads.get(ctx, s.direct(), q)
	if err != nil || len(later.messages) > 0 && later.messages[0].seq <= p.Offset {
		return 0, err
	}
	return p.Check, nil
}

// storedAt returns when the message at seq was stored; the zero Time if it is not there.
func (s *logReader) storedAt(ctx context.Context, seq uint64) (time.Time, error) {
	_, at, err := s.messageAt(ctx, seq)
	return at, err
}
