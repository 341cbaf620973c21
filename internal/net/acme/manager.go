package acme

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mholt/acmez/v3"
	lib "github.com/mholt/acmez/v3/acme"
)

// A Manager obtains and renews the certificates of a Config. Any goroutine may call its methods.
type Manager struct {
	// Fixed at New.
	cfg    Config
	log    *slog.Logger
	ca     *authority
	orders chan struct{} // as many as may run at a time
	names  []*managed    // in the configured order

	stores     stores
	challenges *challenges
	changed    func() // OnChange's

	ordered, failed atomic.Uint64
}

// managed is one name and its certificate.
type managed struct {
	name string
	wake chan struct{} // the store has changed

	mu     sync.Mutex
	record *record // nil: none yet
	failed failures
}

const (
	maxOrders = 4
	// lockPause is how long a lock that another node holds is left alone.
	lockPause = 2 * time.Second
	// storePause is how long a store that failed is left alone.
	storePause = 10 * time.Second
	// longest bounds the time without a look at the store: what another node saved is noticed by
	// its change, usually.
	longest = 10 * time.Minute
)

// New loads the certificates that are in the directory. cfg must be valid and Enabled. dir is
// where they are if cfg.Dir is empty. Run obtains the others.
func New(cfg Config, dir string, log *slog.Logger) (*Manager, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg = cfg.WithDefaults()
	if cfg.Dir != "" {
		dir = cfg.Dir
	}
	roots, err := cfg.directoryRoots()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(cfg.directoryURL()))
	m := &Manager{
		cfg: cfg, log: log, stores: stores{prefix: hex.EncodeToString(sum[:4]) + "/", local: newDirStore(dir)},
		orders: make(chan struct{}, maxOrders), changed: func() {},
	}
	m.challenges = newChallenges(m)
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
	}
	m.ca = &authority{cfg: &m.cfg, log: log, stores: &m.stores, client: &acmez.Client{
		Client: &lib.Client{
			Directory: cfg.directoryURL(), UserAgent: "weir", PollTimeout: orderTimeout,
			HTTPClient: &http.Client{Transport: transport, Timeout: time.Minute},
		},
		ChallengeSolvers: m.challenges.solvers(cfg.Challenges),
	}}
	for _, name := range cfg.Names {
		n := &managed{name: name, wake: make(chan struct{}, 1)}
		r, err := m.loadRecord(context.Background(), m.stores.local, name)
		if err != nil {
			return nil, fmt.Errorf("acme: %w; remove the file to obtain another", err)
		}
		n.record = r
		m.names = append(m.names, n)
	}
	return m, nil
}

// directoryRoots reads directory_ca_file; nil means the system's authorities.
func (c Config) directoryRoots() (*x509.CertPool, error) {
	if c.DirectoryCAFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(c.DirectoryCAFile)
	if err != nil {
		return nil, fmt.Errorf("acme: directory_ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("acme: directory_ca_file: %s has no certificate in PEM", c.DirectoryCAFile)
	}
	return pool, nil
}

// Check returns what New would refuse in the files that c names.
func (c Config) Check() error {
	_, err := c.directoryRoots()
	return err
}

// OnChange has f called after certificates have changed. Before Run.
func (m *Manager) OnChange(f func()) { m.changed = f }

// Run keeps the certificates until ctx is done. shared is the store of all nodes; nil: there are
// no others.
func (m *Manager) Run(ctx context.Context, shared Store) error {
	if shared != nil {
		m.stores.shared.Store(&shared)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer m.ca.client.HTTPClient.CloseIdleConnections()
	for _, n := range m.names {
		running.Go(func() { m.keep(ctx, n) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.stores.current().Changed():
		}
		for _, n := range m.names {
			select {
			case n.wake <- struct{}{}:
			default:
			}
		}
	}
}

// keep keeps n's certificate.
func (m *Manager) keep(ctx context.Context, n *managed) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		case <-timer.C:
		}
		pause := m.step(ctx, n)
		timer.Reset(min(max(pause, 0), longest))
	}
}

// step does what is due for n and returns when to look again.
func (m *Manager) step(ctx context.Context, n *managed) time.Duration {
	if err := m.refresh(ctx, n); err != nil {
		if ctx.Err() == nil {
			m.log.Warn("certificate store", "name", n.name, "err", err, "retry", storePause)
		}
		return storePause
	}
	pause, order, info := n.next(time.Now())
	if !order && !info {
		return pause
	}
	held, unlock, err := m.stores.current().Lock(ctx, m.stores.keyOf("certificates", n.name))
	switch {
	case errors.Is(err, ErrLocked):
		return lockPause + jitter(lockPause/2)
	case err != nil:
		if ctx.Err() == nil {
			m.log.Warn("certificate store: lock", "name", n.name, "err", err, "retry", storePause)
		}
		return storePause
	}
	defer unlock()
	if err := m.refresh(held, n); err != nil { // the node that had the lock may have ordered
		return storePause
	}
	pause, order, info = n.next(time.Now())
	switch {
	case order:
		return m.renew(held, n)
	case info:
		return m.queryRenewalInfo(held, n)
	}
	return pause
}

// next returns what is due for n at a time: an order, or a look at the renewal information; if
// neither, pause is when one will be.
func (n *managed) next(now time.Time) (pause time.Duration, order, info bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.record.due(now) {
		wait := n.failed.RetryAt.Sub(now)
		if n.failed.Count == 0 || wait <= 0 {
			return 0, true, false
		}
		return wait, false, false
	}
	pause = n.record.RenewAt.Sub(now)
	if n.record.infoDue(now) {
		return 0, false, true
	}
	if !n.record.InfoAt.IsZero() {
		pause = min(pause, n.record.InfoAt.Sub(now))
	}
	return pause, false, false
}

// refresh puts the stored certificate in service if it is another than the one in service.
func (m *Manager) refresh(ctx context.Context, n *managed) error {
	s := m.stores.current()
	r, err := m.loadRecord(ctx, s, n.name)
	if err != nil {
		return err
	}
	var f failures
	if _, err := load(ctx, s, m.stores.keyOf("failures", n.name), &f); err != nil {
		return err
	}
	n.mu.Lock()
	was := n.record
	n.failed = f
	n.mu.Unlock()
	switch {
	case r == nil && was != nil && m.stores.shares(): // this node has it, the others do not yet
		return save(ctx, s, m.stores.keyOf("certificates", n.name), was)
	case r == nil:
		return nil
	}
	return m.use(ctx, n, r)
}

// use puts r in service, and keeps a copy in the directory.
func (m *Manager) use(ctx context.Context, n *managed, r *record) error {
	n.mu.Lock()
	was := n.record
	n.record = r
	n.mu.Unlock()
	if was != nil && was.Chain == r.Chain && was.RenewAt.Equal(r.RenewAt) && was.InfoAt.Equal(r.InfoAt) {
		return nil
	}
	if m.stores.shares() {
		if err := save(ctx, m.stores.local, m.stores.keyOf("certificates", n.name), r); err != nil {
			m.log.Warn("copy of a certificate", "name", n.name, "err", err) // it is in service all the same
		}
	}
	if was == nil || was.Chain != r.Chain {
		m.log.Info("certificate in service", "name", n.name, "not_after", r.pair.Leaf.NotAfter, "renew_at", r.RenewAt)
		m.changed()
	}
	return nil
}

// renew orders a certificate for n, and returns when to look again. The lock is held.
func (m *Manager) renew(ctx context.Context, n *managed) time.Duration {
	select {
	case m.orders <- struct{}{}:
	case <-ctx.Done():
		return lockPause
	}
	defer func() { <-m.orders }()
	n.mu.Lock()
	old, f := n.record, n.failed
	n.mu.Unlock()
	began := time.Now()
	r, err := m.ca.order(ctx, n.name, old)
	if err == nil {
		err = save(ctx, m.stores.current(), m.stores.keyOf("certificates", n.name), r)
	}
	if err != nil {
		if ctx.Err() != nil {
			return lockPause // the end, or another node has the lock now
		}
		return m.orderFailed(ctx, n, f.Count+1, err)
	}
	m.ordered.Add(1)
	m.log.Info("certificate obtained", "name", n.name, "took", time.Since(began).Round(time.Millisecond), "renewal", old != nil)
	if f.Count > 0 {
		if err := m.setFailures(ctx, n, failures{}); err != nil {
			m.log.Warn("certificate store", "name", n.name, "err", err)
		}
	}
	_ = m.use(ctx, n, r)
	pause, _, _ := n.next(time.Now())
	return pause
}

// orderFailed notes a failed order and returns the pause until the next.
func (m *Manager) orderFailed(ctx context.Context, n *managed, count int, err error) time.Duration {
	m.failed.Add(1)
	pause := retryAfter(count, time.Duration(m.cfg.RetryMin), time.Duration(m.cfg.RetryMax))
	now := time.Now()
	m.log.Error("certificate order failed", "name", n.name, "failures", count, "retry", pause.Round(time.Millisecond), "err", err)
	f := failures{Count: count, Error: err.Error(), At: now, RetryAt: now.Add(pause)}
	if err := m.setFailures(ctx, n, f); err != nil {
		m.log.Warn("certificate store", "name", n.name, "err", err)
	}
	return pause
}

func (m *Manager) setFailures(ctx context.Context, n *managed, f failures) error {
	n.mu.Lock()
	n.failed = f
	n.mu.Unlock()
	return save(ctx, m.stores.current(), m.stores.keyOf("failures", n.name), f)
}

// queryRenewalInfo queries the CA when to renew n's certificate, and returns when to look again. The lock is
// held.
func (m *Manager) queryRenewalInfo(ctx context.Context, n *managed) time.Duration {
	n.mu.Lock()
	r := *n.record
	n.mu.Unlock()
	was := r.RenewAt
	m.ca.advise(ctx, &r)
	if ctx.Err() != nil {
		return lockPause
	}
	if !was.Equal(r.RenewAt) {
		m.log.Info("the CA suggests another time of renewal", "name", n.name, "was", was, "renew_at", r.RenewAt, "explanation", r.Explanation)
	}
	if err := save(ctx, m.stores.current(), m.stores.keyOf("certificates", n.name), &r); err != nil {
		m.log.Warn("certificate store", "name", n.name, "err", err)
		return storePause
	}
	_ = m.use(ctx, n, &r)
	pause, _, _ := n.next(time.Now())
	return pause
}

// Certificates returns those that there are, in the configured order of the names.
func (m *Manager) Certificates() []*tls.Certificate {
	var all []*tls.Certificate
	for _, n := range m.names {
		n.mu.Lock()
		if n.record != nil {
			all = append(all, n.record.pair)
		}
		n.mu.Unlock()
	}
	return all
}

// Status is one name and what is kept for it.
type Status struct {
	Name string
	// Leaf is the certificate in service; nil: there is none yet.
	Leaf *x509.Certificate
	// RenewAt is when it is due for renewal, RetryAt when the next order is tried after failed
	// ones; zero: nothing has failed.
	RenewAt, RetryAt time.Time
	// Failures counts the failed orders in a row, Error says why the last one failed.
	Failures int
	Error    string
	// Explanation is a URL by the CA about the time of renewal; empty: none.
	Explanation string
}

// Status returns the names in the configured order.
func (m *Manager) Status() []Status {
	var all []Status
	for _, n := range m.names {
		n.mu.Lock()
		s := Status{Name: n.name, RetryAt: n.failed.RetryAt, Failures: n.failed.Count, Error: n.failed.Error}
		if r := n.record; r != nil {
			s.Leaf, s.RenewAt, s.Explanation = r.pair.Leaf, r.RenewAt, r.Explanation
		}
		n.mu.Unlock()
		all = append(all, s)
	}
	return all
}

// Stats are counters of this process since New.
type Stats struct {
	Ordered uint64 // certificates obtained
	Failed  uint64 // orders that failed
}

// Stats returns the counters.
func (m *Manager) Stats() Stats { return Stats{Ordered: m.ordered.Load(), Failed: m.failed.Load()} }
