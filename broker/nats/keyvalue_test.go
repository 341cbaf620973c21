package nats_test

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Two nodes share values, see each other's changes, and exclude each other by locks.
func TestKeyValueIsShared(t *testing.T) {
	url := natstest.Server(t)
	open := func() *nats.KeyValue {
		b, err := nats.New(nats.Config{URL: url}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Start(t.Context(), nil, func(*hub.Message) {}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		kv, err := b.OpenKeyValue(t.Context(), "things", 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kv.Close() })
		return kv
	}
	a, b := open(), open()
	if _, err := a.Load(t.Context(), "x/y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	if err := a.Save(t.Context(), "x/y", []byte("v")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.Changed():
	case <-time.After(30 * time.Second):
		t.Fatal("a change is not reported")
	}
	if v, err := b.Load(t.Context(), "x/y"); string(v) != "v" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if err := b.Delete(t.Context(), "x/y"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Load(t.Context(), "x/y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted: %v", err)
	}
	held, unlock, err := a.Lock(t.Context(), "l")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Lock(t.Context(), "l"); !nats.LockHeld(err) {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	if held.Err() == nil {
		t.Error("held after unlock")
	}
	_, unlock, err = b.Lock(t.Context(), "l")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
