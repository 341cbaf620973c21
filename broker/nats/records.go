package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Records are small values by key that every node of a broker has in memory: each node is given all
// that are stored, and then every change. Any goroutine may call its methods.
type Records struct {
	values  jetstream.KeyValue
	stream  jetstream.Stream
	watcher jetstream.KeyWatcher
	ended   chan struct{} // closed when changes are followed no more
	done    sync.WaitGroup

	mu        sync.Mutex
	revisions map[string]uint64 // of the values
}

// OpenRecords opens the bucket PREFIX_name, which it makes if there is none, with replicas copies
// and values that are kept for maxAge. It calls f for every value that is there, before it
// returns, and then for every change in order, with a nil value for one that is removed. f is
// called by one goroutine at a time and may keep the value. After Start. Close ends it.
func OpenRecords(ctx context.Context, b *Broker, name string, replicas int, maxAge time.Duration, f func(key string, value []byte)) (*Records, error) {
	if err := b.stateErr(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(b.nc)
	if err != nil {
		return nil, err
	}
	r := &Records{ended: make(chan struct{}), revisions: map[string]uint64{}}
	cfg := jetstream.KeyValueConfig{Bucket: b.cfg.Prefix + "_" + name, Replicas: replicas, TTL: maxAge, MaxValueSize: 16 << 10}
	if r.values, err = openBucket(ctx, js, cfg); err != nil {
		return nil, err
	}
	if r.stream, err = js.Stream(ctx, "KV_"+cfg.Bucket); err != nil {
		return nil, fmt.Errorf("%w: key-value bucket %s: %w", hub.ErrUnavailable, cfg.Bucket, err)
	}
	if r.watcher, err = r.values.WatchAll(context.WithoutCancel(ctx)); err != nil {
		return nil, fmt.Errorf("%w: watch the key-value bucket %s: %w", hub.ErrUnavailable, cfg.Bucket, err)
	}
	loaded := make(chan struct{})
	r.done.Go(func() { r.follow(f, sync.OnceFunc(func() { close(loaded) })) })
	select {
	case <-loaded:
		return r, nil
	case <-r.ended:
		err = errDisconnected
	case <-ctx.Done():
		err = fmt.Errorf("%w: read the key-value bucket %s: %w", hub.ErrUnavailable, cfg.Bucket, ctx.Err())
	}
	_ = r.Close()
	return nil, err
}

// openBucket opens a bucket, or makes it.
func openBucket(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	have, err := js.KeyValue(ctx, cfg.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		have, err = js.CreateKeyValue(ctx, cfg)
	}
	if errors.Is(err, jetstream.ErrBucketExists) { // another node was faster
		have, err = js.KeyValue(ctx, cfg.Bucket)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: key-value bucket %s: %w", hub.ErrUnavailable, cfg.Bucket, err)
	}
	return have, nil
}

func (r *Records) follow(f func(key string, value []byte), loaded func()) {
	defer close(r.ended)
	for e := range r.watcher.Updates() {
		if e == nil {
			loaded()
			continue
		}
		r.mu.Lock()
		if e.Operation() == jetstream.KeyValuePut {
			r.revisions[e.Key()] = e.Revision()
		} else {
			delete(r.revisions, e.Key())
		}
		r.mu.Unlock()
		if e.Operation() == jetstream.KeyValuePut {
			f(e.Key(), e.Value())
		} else {
			f(e.Key(), nil)
		}
	}
}

// Ended is closed when changes are followed no more: the records are to be opened again.
func (r *Records) Ended() <-chan struct{} { return r.ended }

// Put sets the value of key, on all nodes. A nil error means that it is stored.
func (r *Records) Put(ctx context.Context, key string, value []byte) error {
	_, err := r.values.Put(ctx, key, value)
	return unavailable(err)
}

// Remove removes key, on all nodes.
func (r *Records) Remove(ctx context.Context, key string) error {
	return unavailable(r.values.Purge(ctx, key))
}

// Forget removes the value of key that this node knows from the store, without notifying a node: for
// values that have ended by themselves. A newer value stays.
func (r *Records) Forget(ctx context.Context, key string) error {
	r.mu.Lock()
	rev, ok := r.revisions[key]
	r.mu.Unlock()
	if !ok {
		return nil
	}
	err := r.stream.Purge(ctx, jetstream.WithPurgeSubject("$KV."+r.values.Bucket()+"."+key), jetstream.WithPurgeSequence(rev+1))
	if err != nil {
		return unavailable(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.revisions[key] == rev {
		delete(r.revisions, key)
	}
	return nil
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", hub.ErrUnavailable, err)
}

// Close ends the calls of f.
func (r *Records) Close() error {
	err := r.watcher.Stop()
	r.done.Wait()
	return err
}
