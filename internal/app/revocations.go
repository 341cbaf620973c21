package app

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// revocations are the tokens and subjects that an operator has revoked: in memory on every node, and
// stored by NATS for those that start later. Without NATS they last as long as the process and those that
// replace it by an upgrade.
type revocations struct {
	// Fixed at New.
	app  *App
	list *auth.Revocations
	more chan struct{} // holds one: clients are to be checked

	// Any goroutine.
	store  atomic.Pointer[nats.Records] // nil: not connected, or there is none
	closed atomic.Uint64                // connections ended
	away   atomic.Bool                  // another process has what lived in this one

	// mu guards what is known of the store, by its keys.
	mu       sync.Mutex
	known    map[string]bool            // what it has
	seen     map[string]bool            // the same, while it is read; nil: it is not
	unstored map[string]auth.Revocation // made here while it was not available
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
	v.unstored = map[string]auth.Revocation{}
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

// open reads the store. What was in it before and is not any more was ended by another node meanwhile.
func (v *revocations) open(ctx context.Context) (*nats.Records, error) {
	v.mu.Lock()
	v.seen = map[string]bool{}
	v.mu.Unlock()
	r, err := nats.OpenRecords(ctx, v.app.nats, revocationBucket, replicasOf(&v.app.cfg), auth.MaxRevocationTime, v.apply)
	v.mu.Lock()
	was, now := v.known, v.seen
	if v.seen = nil; err == nil {
		v.known = now
	}
	v.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for key := range was {
		if !now[key] {
			v.end(key)
		}
	}
	v.store.Store(r)
	return r, nil
}

// follow opens the store again whenever it ends. r is the first; nil: it could not be opened.
func (v *revocations) follow(ctx context.Context, r *nats.Records) {
	for {
		if r != nil {
			v.storeLate(ctx, r)
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

// storeLate stores what could not be stored when it was made, until r or ctx ends.
func (v *revocations) storeLate(ctx context.Context, r *nats.Records) {
	tick := time.NewTicker(storeRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Ended():
			return
		case <-tick.C:
		}
		v.mu.Lock()
		late := maps.Clone(v.unstored)
		v.mu.Unlock()
		for key, x := range late {
			try, cancel := context.WithTimeout(ctx, storePatience)
			err := putRevocation(try, r, &x)
			cancel()
			if err != nil {
				v.app.log.Debug("revocations: store one that was made before", "err", err)
				break
			}
			v.mu.Lock()
			if v.unstored[key] == x {
				delete(v.unstored, key)
			}
			v.mu.Unlock()
		}
	}
}

func putRevocation(ctx context.Context, s *nats.Records, r *auth.Revocation) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.Put(ctx, revocationKey(r.Kind, r.Name), text)
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
	v.mu.Lock()
	for _, m := range []map[string]bool{v.known, v.seen} {
		if m != nil && value != nil {
			m[key] = true
		} else {
			delete(m, key)
		}
	}
	v.mu.Unlock()
	if value == nil {
		v.end(key)
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

// end ends the one with a key of the store.
func (v *revocations) end(key string) {
	for _, r := range v.list.List() {
		if revocationKey(r.Kind, r.Name) == key {
			v.list.Remove(r.Kind, r.Name)
		}
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
// force on this node alone until that is available. Any goroutine.
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
	if v.away.Load() { // looked at afterwards: what export has missed is not answered as done
		return r, errMoved
	}
	key := revocationKey(r.Kind, r.Name)
	v.mu.Lock()
	delete(v.unstored, key) // an earlier one
	v.mu.Unlock()
	if err := v.stored(ctx, func(ctx context.Context, s *nats.Records) error { return putRevocation(ctx, s, &r) }); err != nil {
		v.mu.Lock()
		v.unstored[key] = r
		v.mu.Unlock()
		return r, fmt.Errorf("in force on this node alone until NATS is back: %w", err)
	}
	v.app.log.Info("revoked", "kind", r.Kind, "name", r.Name, "until", r.Until, "issued_before", r.IssuedBefore)
	return r, nil
}

// Remove ends a revocation on all nodes. Any goroutine.
func (v *revocations) Remove(ctx context.Context, kind, name string) error {
	if v.away.Load() {
		return errMoved
	}
	v.mu.Lock()
	delete(v.unstored, revocationKey(kind, name))
	v.mu.Unlock()
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

// errMoved is for changes in a process that another replaces.
var errMoved = errors.New("another process takes over: repeat it")

// move has this process accept no change: another one has what export sends. back undoes it.
func (v *revocations) move() (back func()) {
	v.away.Store(true)
	return func() { v.away.Store(false) }
}

// export calls send with all that are in force, some at a time.
func (v *revocations) export(send func(piece []byte) error) error {
	for some := range slices.Chunk(v.list.List(), 500) {
		text, err := json.Marshal(some)
		if err == nil {
			err = send(text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moved takes a piece of what another process exported.
func (v *revocations) moved(piece []byte) error {
	var some []auth.Revocation
	if err := json.Unmarshal(piece, &some); err != nil {
		return fmt.Errorf("takeover: revocations: %w", err)
	}
	now := time.Now()
	for i := range some {
		if !some[i].Until.After(now) {
			continue
		}
		if err := some[i].Validate(now); err != nil {
			return fmt.Errorf("takeover: revocations: %w", err)
		}
		v.put(some[i])
	}
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
			Was: a.access, Now: a.access, Valid: auth.Valid,
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
	return observe.RevocationState{RevocationStats: v.list.Stats(), Closed: v.closed.Load(), Stores: v.app.nats != nil, Shared: v.store.Load() != nil}
}
