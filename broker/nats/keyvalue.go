package nats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A KeyValue is a key-value bucket that all nodes of a broker share, with locks. Values are few
// and small: settings and certificates, not messages. Any goroutine may call its methods.
type KeyValue struct {
	values, locks jetstream.KeyValue
	log           *slog.Logger
	node          string
	lease         time.Duration
	changed       chan struct{}
	watcher       jetstream.KeyWatcher
	done          sync.WaitGroup
}

// errLockHeld is what Lock's caller is given a sentinel of its own for.
var errLockHeld = errors.New("the lock is held")

// lockLease is how long the locks of a node that has vanished are kept.
const lockLease = 30 * time.Second

// OpenKeyValue opens the buckets PREFIX_name and PREFIX_name_locks, which it makes if there are
// none, with replicas copies. After Start. Close ends it.
func (b *Broker) OpenKeyValue(ctx context.Context, name string, replicas int) (*KeyValue, error) {
	if err := b.stateErr(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(b.nc)
	if err != nil {
		return nil, err
	}
	kv := &KeyValue{node: b.bus.node, lease: lockLease, log: b.log, changed: make(chan struct{}, 1)}
	bucket := b.cfg.Prefix + "_" + name
	if kv.values, err = openBucket(ctx, js, jetstream.KeyValueConfig{Bucket: bucket, Replicas: replicas, MaxValueSize: 256 << 10}); err != nil {
		return nil, err
	}
	if kv.locks, err = openBucket(ctx, js, jetstream.KeyValueConfig{Bucket: bucket + "_locks", Replicas: replicas, TTL: lockLease}); err != nil {
		return nil, err
	}
	if kv.watcher, err = kv.values.WatchAll(context.WithoutCancel(ctx), jetstream.UpdatesOnly(), jetstream.MetaOnly()); err != nil {
		return nil, fmt.Errorf("%w: watch the key-value bucket %s: %w", hub.ErrUnavailable, bucket, err)
	}
	kv.done.Go(kv.watch)
	return kv, nil
}

func (kv *KeyValue) watch() {
	for range kv.watcher.Updates() {
		select {
		case kv.changed <- struct{}{}:
		default:
		}
	}
}

// Close ends the watch.
func (kv *KeyValue) Close() error {
	err := kv.watcher.Stop()
	kv.done.Wait()
	return err
}

// Changed receives after a value has changed; changes may be merged.
func (kv *KeyValue) Changed() <-chan struct{} { return kv.changed }

// Load returns the value of key, fs.ErrNotExist if there is none.
func (kv *KeyValue) Load(ctx context.Context, key string) ([]byte, error) {
	e, err := kv.values.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return e.Value(), nil
}

// Save sets the value of key.
func (kv *KeyValue) Save(ctx context.Context, key string, value []byte) error {
	_, err := kv.values.Put(ctx, key, value)
	return err
}

// Delete removes key.
func (kv *KeyValue) Delete(ctx context.Context, key string) error { return kv.values.Purge(ctx, key) }

// LockHeld reports whether err of Lock says that another node, or another caller here, has the
// lock.
func LockHeld(err error) bool { return errors.Is(err, errLockHeld) }

// Lock acquires the lock called key, or returns an error at once. While it is held it is renewed;
// held is done when that has failed for so long that another node may have it, and with ctx. The
// locks of a node that vanishes are free after 30 seconds.
func (kv *KeyValue) Lock(ctx context.Context, key string) (held context.Context, unlock func(), err error) {
	rev, err := kv.locks.Create(ctx, key, []byte(kv.node))
	if errors.Is(err, jetstream.ErrKeyExists) {
		return nil, nil, fmt.Errorf("%s: %w", key, errLockHeld)
	}
	if err != nil {
		return nil, nil, err
	}
	held, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		defer cancel()
		rev = kv.renew(held, key, rev)
	})
	return held, func() {
		cancel()
		renewing.Wait()
		if rev == 0 {
			return // lost
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kv.lease/2)
		defer cancel()
		if err := kv.locks.Delete(ctx, key, jetstream.LastRevision(rev)); err != nil {
			kv.log.Debug("unlock", "key", key, "err", err) // its lease runs out
		}
	}, nil
}

// renew renews a lock until ctx is done, and returns its revision then; 0 if it was lost.
func (kv *KeyValue) renew(ctx context.Context, key string, rev uint64) uint64 {
	tick := time.NewTicker(kv.lease / 4)
	defer tick.Stop()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return rev
		case <-tick.C:
		}
		began := time.Now()
		try, cancel := context.WithTimeout(ctx, kv.lease/4)
		next, err := kv.locks.Update(try, key, []byte(kv.node), rev)
		cancel()
		switch {
		case err == nil:
			rev, renewed = next, began
		case ctx.Err() != nil:
			return rev
		case errors.Is(err, jetstream.ErrKeyRevisionMismatch), time.Since(renewed) > kv.lease*3/4:
			kv.log.Warn("lock lost", "key", key, "err", err)
			return 0
		}
	}
}
