package nats

import (
	"context"
	"fmt"

	"github.com/weir-gateway/weir/internal/push/hub"
)

var _ hub.Changer = (*Broker)(nil)

// Add implements hub.Changer: a namespace that comes later takes the steps that those of
// Start take, in the same order.
func (b *Broker) Add(ctx context.Context, n hub.Namespace) error {
	b.changes.Lock()
	defer b.changes.Unlock()
	ctx, cancel := b.untilClosed(ctx)
	defer cancel()
	n = n.WithDefaults()
	if err := mayAdd(b, n); err != nil {
		return err
	}
	newMarks, err := b.admitToMarks(ctx, n)
	if err != nil {
		return err
	}
	s, err := b.newLog(ctx, n)
	if err != nil {
		return err
	}
	if o := b.outside.Load(); o != nil && s.durable() {
		o.create(ctx)
	}
	if err := b.begin(s, newMarks); err != nil {
		return err
	}
	if !s.durable() {
		return nil
	}
	s.nudge() // a reconnect while the log was prepared has passed it by
	return b.markNow(ctx)
}

// untilClosed returns ctx, which ends with the broker too.
func (b *connection) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

func mayAdd(b *Broker, n hub.Namespace) error {
	if err := b.stateErr(); err != nil {
		return err
	}
	if err := b.cfg.check([]hub.Namespace{n}); err != nil {
		return err
	}
	switch {
	case b.all()[n.LogName()] != nil:
		return fmt.Errorf("namespace %s is there already", n.Title())
	case n.Durability == hub.Synced && b.server != nil && !b.server.syncs:
		return fmt.Errorf("namespace %q wants durability synced, and no other had it when the embedded server started: restart the process", n.Name)
	}
	return nil
}

// admitToMarks has external servers keep the marks of a namespace, too, before its log is
// compared with the mark that it may have. It returns the marks if they are new.
func (b *Broker) admitToMarks(ctx context.Context, n hub.Namespace) (*outsideMarks, error) {
	o := b.outside.Load()
	if o == nil {
		err := b.prepareMarks(ctx, []hub.Namespace{n})
		return b.outside.Load(), err
	}
	if o.admit(n) {
		if err := o.ensure(ctx, true); err != nil {
			o.found(err)
		}
	}
	return nil, nil
}

// begin has a stream deliver from now on, and runs what it is the first to need.
func (b *Broker) begin(s *stream, newMarks *outsideMarks) error {
	b.mu.Lock() // Close waits for what has started, or nothing begins
	defer b.mu.Unlock()
	if err := b.stateErr(); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	b.include(s)
	b.wg.Go(s.run)
	if newMarks != nil {
		b.wg.Go(newMarks.run)
	}
	return b.startPulse()
}

// markNow has the marks of all logs written.
func (b *Broker) markNow(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case b.marking <- done:
		return <-done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Change implements hub.Changer. What the stream retains follows at once.
func (b *Broker) Change(ctx context.Context, n hub.Namespace) error {
	b.changes.Lock()
	defer b.changes.Unlock()
	ctx, cancel := b.untilClosed(ctx)
	defer cancel()
	n = n.WithDefaults()
	s, err := b.stream(&n)
	if err != nil {
		return err
	}
	if err := b.cfg.check([]hub.Namespace{n}); err != nil {
		return err
	}
	was := s.opts.Load()
	switch {
	case was.Durability != n.Durability:
		return fmt.Errorf("namespace %q: durability cannot change while the broker runs", n.Name)
	case was.Replicas != n.Replicas && s.durable():
		return fmt.Errorf("namespace %q: replicas cannot change while the broker runs", n.Name)
	case s.durable() && b.room.readOnly():
		return b.room.refusal()
	}
	s.opts.Store(&n)
	if !s.durable() {
		return nil
	}
	in, err := s.ensure(ctx)
	if err != nil {
		s.opts.Store(was)
		return err
	}
	s.adopt(in)
	return nil
}
