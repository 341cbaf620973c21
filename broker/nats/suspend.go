package nats

import (
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Suspend stops the server in this process and lets its directory go, so that another process
// can open it. Until Resume everything that needs the log is answered with
// hub.ErrUnavailable. The file of marks is the other process's. With ahead the server that opens the directory next does
// not read the idempotency keys that were sent ahead, nor those of logs that have more: see KeysAhead. nil means that it reads all.
func (b *Broker) Suspend(ahead *KeysAhead) error {
	return b.onKeep(func() error {
		b.recount()
		if ahead != nil {
			ahead.finish()
		}
		b.suspended.Store(true)
		b.server.stopServer()
		// As when it is closed: what is marked is what the files have.
		return errors.Join(b.mark(true), b.server.release())
	})
}

// Resume opens the directory again, which no process has.
func (b *Broker) Resume() error {
	return b.onKeep(func() error {
		if !b.suspended.Load() {
			return nil
		}
		if err := b.server.resume(); err != nil {
			return fmt.Errorf("open %s again: %w", b.cfg.Dir, err)
		}
		b.suspended.Store(false)
		return nil
	})
}

// onKeep runs f on keep's goroutine, which owns the marks.
func (b *Broker) onKeep(f func() error) error {
	if b.server == nil {
		return errors.New("there is no NATS server in this process")
	}
	done := make(chan error, 1)
	select {
	case b.onKeeps <- func() { done <- f() }:
		return <-done
	case <-b.ctx.Done():
		return hub.ErrClosed
	}
}
