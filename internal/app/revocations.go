package app

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// revocations are the tokens and subjects that an operator has revoked: in memory on every node, and
// stored by NATS for those that start later. Without NATS they last as long as the process.
type revocations struct {
	// Fixed at New.
	app  *App
	list *auth.Revocations
	more chan struct{} // holds one: clients are to be checked

	// Any goroutine.
	store  atomic.Pointer[nats.Records] // nil: not connected, or there is none
	closed atomic.Uint64                // connections ended
}

const (
	revocationBucket = "revocations"
	// firstLoad bounds how long a start waits for what is stored. After it the node serves, and
	// follows as soon as it can.
	firstLoad = 10 * time.Second
	// storePatience bounds a call of the admin API.
	storePatience = 5 * time.Second
	// expireEvery is how often those that have ended are removed.
	expireEvery = time.Minute
)

func (v *revocations) build(a *App) {
	v.app, v.list, v.more = a, auth.NewRevocations(), make(chan struct{}, 1)
}

// start reads what is stored, before a client is served, and runs what follows. The broker has
// started.
func (v *revocations) start(parts *group, ctx context.Context) { //nolint:revive // the context is the parts', not this call's
	parts.run(func() error { v.review(ctx); return nil })
	parts.run(func() error { v.expire(ctx); return nil })
	if v.app.nats == nil {
		return
	}
	first, cancel := context.WithTimeout(ctx, firstLoad)
	defer cancel()
	records, err := v.open(first)
	if err != nil {
		v.app.log.Warn("revocations: what is stored cannot be read yet: revoked tokens are accepted until it can", "err", err)
	}
	parts.run(func() error { v.follow(ctx, records); return nil })
}

func (v *revocations) open(ctx context.Context) (*nats.Records, error) {
	r, err := nats.OpenRecords(ctx, v.app.nats, revocationBucket, replicasOf(&v.app.cfg), auth.MaxRevocationTime, v.apply)
	if err == nil {
		v.store.Store(r)
	}
	return r, err
}

// follow opens the store again whenever it ends. r is the first; nil: it could not be opened.
func (v *revocations) follow(ctx context.Context, r *nats.Records) {
	for {
		if r != nil {
			select {
			case <-ctx.Done():
			case <-r.Ended():
			}
			v.store.Store(nil)
			if err := r.Close(); err != nil {
				v.app.log.Debug("revocations: close the store", "err", err) // the broker may be gone before
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(storeRetry):
		}
		try, cancel := context.WithTimeout(ctx, firstLoad)
		var err error
		if r, err = v.open(try); err != nil {
			r = nil
			v.app.log.Debug("revocations: the store is not available", "err", err)
		}
		cancel()
	}
}

// decodeRevocation reads a value of the store. A value whose key does not fit is of a version
// that is not known, and not applied.
func decodeRevocation(key string, value []byte) (r auth.Revocation, err error) {
	if err := json.Unmarshal(value, &r); err != nil {
		return r, err
	}
	now := time.Now()
	if !r.Until.After(now) {
		return r, errEnded
	}
	if err := r.Validate(now); err != nil {
		return r, err
	}
	if revocationKey(r.Kind, r.Name) != key {
		return r, fmt.Errorf("the key is not that of %s %.40q", r.Kind, r.Name)
	}
	return r, nil
}

var errEnded = errors.New("it has ended")

// revocationKey is the key in the store: the names of subjects and tokens are not those of NATS subjects.
func revocationKey(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return kind + "." + base64.RawURLEncoding.EncodeToString(sum[:])
}

// apply takes a change of the store. A removed one is found by its key, which is rare.
func (v *revocations) apply(key string, value []byte) {
	if value == nil {
		for _, r := range v.list.List() {
			if revocationKey(r.Kind, r.Name) == key {
				v.list.Remove(r.Kind, r.Name)
			}
		}
		return
	}
	r, err := decodeRevocation(key, value)
	switch {
	case errors.Is(err, errEnded):
	case err != nil:
		v.app.log.Warn("revocations: a stored one is not understood", "key", key, "err", err)
	default:
		v.put(r)
	}
}

func (v *revocations) put(r auth.Revocation) {
	if v.list.Put(r) {
		select {
		case v.more <- struct{}{}:
		default:
		}
	}
}

// Add puts r in force here and stores it for the other nodes. With an error of the store it is in
// force on this node alone. Any goroutine.
func (v *revocations) Add(ctx context.Context, r auth.Revocation) (auth.Revocation, error) {
	r.Made = time.Now().UTC().Truncate(time.Millisecond)
	r.Until, r.IssuedBefore = r.Until.UTC(), r.IssuedBefore.UTC()
	if err := v.list.Check(&r, time.Now()); err != nil {
		kind := admin.ErrBad
		if errors.Is(err, auth.ErrTooManyRevocations) {
			kind = admin.ErrRefused
		}
		return r, fmt.Errorf("%w: %w", kind, err)
	}
	v.put(r)
	err := v.stored(ctx, func(ctx context.Context, s *nats.Records) error {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return s.Put(ctx, revocationKey(r.Kind, r.Name), text)
	})
	if err != nil {
		return r, fmt.Errorf("in force on this node alone, repeat it: %w", err)
	}
	v.app.log.Info("revoked", "kind", r.Kind, "name", r.Name, "until", r.Until, "issued_before", r.IssuedBefore)
	return r, nil
}

// Remove ends a revocation on all nodes. Any goroutine.
func (v *revocations) Remove(ctx context.Context, kind, name string) error {
	if !v.list.Remove(kind, name) {
		return fmt.Errorf("%w: no %.20s %.80q is revoked", admin.ErrNotFound, kind, name)
	}
	err := v.stored(ctx, func(ctx context.Context, s *nats.Records) error { return s.Remove(ctx, revocationKey(kind, name)) })
	if err != nil {
		return fmt.Errorf("ended on this node alone, revoke it again and repeat: %w", err)
	}
	v.app.log.Info("revocation ended", "kind", kind, "name", name)
	return nil
}

// stored runs f with the store. Without NATS there is none.
func (v *revocations) stored(ctx context.Context, f func(context.Context, *nats.Records) error) error {
	if v.app.nats == nil {
		return nil
	}
	s := v.store.Load()
	if s == nil {
		return errors.New("NATS is away")
	}
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	return f(ctx, s)
}

// expire removes those that have ended.
func (v *revocations) expire(ctx context.Context) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, r := range v.list.Expire(now) {
				err := v.stored(ctx, func(ctx context.Context, s *nats.Records) error {
					return s.Forget(ctx, revocationKey(r.Kind, r.Name))
				})
				if err != nil {
					v.app.log.Debug("revocations: remove one that has ended", "err", err) // it ends with the bucket's age
				}
			}
		}
	}
}

// review ends the connections of clients that are revoked, after every change.
func (v *revocations) review(ctx context.Context) {
	a := v.app
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.more:
		}
		closing := a.reload.review(ctx, &access.Review{
			Was: a.access, Now: a.access, Holds: auth.Holds,
			Identity: func(id *auth.Identity) (*auth.Identity, bool) {
				return id, !v.list.RevokesIdentity(id, time.Now())
			},
			Revoked: func(user string, t auth.TokenID) bool { return v.list.Revokes(user, t, time.Now()) },
		})
		v.closed.Add(uint64(closing.Connections))
	}
}

// state is what metrics show.
func (v *revocations) state() observe.RevocationState {
	return observe.RevocationState{RevocationStats: v.list.Stats(), Closed: v.closed.Load(), Shared: v.store.Load() != nil}
}
