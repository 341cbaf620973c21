package upstream

import (
	"errors"
	"sync/atomic"
	"time"
)

// What Pick answers when there is no peer to ask. All mean 503 to a client.
var (
	ErrNoPeers      = errors.New("no peers")            // none configured, or no name resolved yet
	ErrAllUnhealthy = errors.New("all peers unhealthy") // down by checks, or ejected
	ErrBreakerOpen  = errors.New("breakers open")       // of every peer that is up
	ErrOverloaded   = errors.New("peers at their limit")
	ErrAllTried     = errors.New("all peers tried") // no other peer for a retry
)

// A Cluster is the peers that serve the same thing, and the policy towards them.
// It stays the same through reloads as long as its name is configured.
type Cluster struct {
	name string
	view atomic.Pointer[view]
}

// A view is what the hot path reads: immutable, replaced as a whole.
type view struct {
	config Config
	peers  []*Peer
}

// Name is the configured name.
func (c *Cluster) Name() string { return c.name }

// Config is the configuration in force, with defaults. It must not be changed.
func (c *Cluster) Config() *Config { return &c.view.Load().config }

// HashKey is what the key of Pick is made from; its Kind is KeyNone unless the
// cluster balances by consistent hash.
func (c *Cluster) HashKey() KeySource { return KeySource{} }

// Pick returns the peer to ask and counts it in flight; Done must follow, once.
// key matters to consistent_hash only (see HashKey, HashBytes). tried holds the
// peers asked already for this request and gets the new one; nil for requests
// that are never retried.
//
// Any goroutine may call it.
func (c *Cluster) Pick(now int64, key uint64, tried *Tried) (*Peer, error) {
	return nil, ErrNoPeers
}

// Head tells that the head of a final reply (not 1xx) came: the verdict on the peer
// is known, however long the body lasts. It is called at most once per Pick, before
// Done, whose Outcome then has Headed set. Exchanges that end soon may leave it out.
func (c *Cluster) Head(p *Peer, start, now int64, status int) {}

// Done ends what Pick began.
func (c *Cluster) Done(p *Peer, o Outcome) {}

// An Attempt is what MayRetry and MayHedge need to know of a request.
type Attempt struct {
	Outcome Outcome // of the attempt that failed; for MayHedge the zero value
	Made    int     // attempts so far, at least 1
	// Idempotent: its method is (RFC 9110 §9.2.2).
	Idempotent bool
	// Replayable: its body is still at hand, or there was none.
	Replayable bool
	// Started: a byte of a reply went downstream.
	Started bool
}

// MayRetry reports whether another attempt may be made, and takes it from the
// budget if so.
func (c *Cluster) MayRetry(now int64, a Attempt) bool { return false }

// HedgeAfter is how long to wait for a first byte before asking MayHedge; 0 means
// never.
func (c *Cluster) HedgeAfter() time.Duration { return 0 }

// MayHedge reports whether a second attempt may run beside the first, and takes it
// from the share if so. The loser of the two is Done as Canceled.
func (c *Cluster) MayHedge(now int64, a Attempt) bool { return false }

// EnterPending counts a request that waits for a connection; false means that there
// are as many as may wait.
func (c *Cluster) EnterPending() bool { return true }

// LeavePending ends what EnterPending began.
func (c *Cluster) LeavePending() {}
