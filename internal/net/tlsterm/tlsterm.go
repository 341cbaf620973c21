// Package tlsterm ends TLS on the event loops.
//
// A Terminator holds what the listener shows and agrees to: certificates, chosen
// by name and reloaded when their files change, the keys of session tickets,
// stapled OCSP answers. Its Accept comes before a handler: it waits on the loop
// for a whole ClientHello, has crypto/tls do the handshake on one of a bounded
// number of goroutines, and then gives the connection back to its loop with a
// record layer of its own (records.go) between socket and handler. An
// established connection has no goroutine and no buffer.
package tlsterm

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// A Terminator is the TLS of a process's public listener. Any goroutine may call
// its methods.
type Terminator struct {
	// Fixed at New.
	cfg        Config
	log        *slog.Logger
	client     *http.Client // for OCSP
	retryMin   time.Duration
	ownSecret  []byte        // of tickets, when none is configured
	gate       chan struct{} // as many as may compute at a time
	admission  *admission
	protocols  []string
	loopStates []*loopState // fixed by Accept
	managed    Managed      // fixed by Manage; nil: there are files only

	counters counters
	tally    tally
	// changed notifies Run that another service is current.
	changed chan struct{}
	current atomic.Pointer[service]

	mu     sync.Mutex // held while files are read: reloads come one after the other
	seen   [32]byte   // what the files held at the last attempt
	failed bool       // and it could not be used for a reason outside of them

	certified certified

	live liveSet[*exchange]
}

// A service is what new handshakes get. Immutable, but for the ticket keys.
type service struct {
	shelf  *shelf
	config *tls.Config
	secret []byte
	scope  string

	revoked *revocations // nil: no lists are configured

	gm      *gm.ServerConfig // nil: no national cryptography
	gmScope string
	gmKeys  atomic.Pointer[[][32]byte]
}

// New reads the certificates. cfg must be Enabled. Run does the work in the
// background; without it nothing is reloaded, stapled or rotated. protocols are
// what ALPN may agree on, the preferred one first (RFC 7301); none means http/1.1.
// What was agreed is not passed on: a protocol shows in its first bytes.
func New(cfg Config, log *slog.Logger, protocols ...string) (*Terminator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !cfg.Enabled() {
		return nil, errors.New("certificates: there is none, and no acme")
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	cfg = cfg.WithDefaults()
	cfg.HandshakeCPUs = cmp.Or(cfg.HandshakeCPUs, max(sys.Processors()/2, 1))
	t := &Terminator{
		cfg: cfg, log: log, retryMin: ocspRetryMin, ownSecret: make([]byte, minTicketSecret),
		gate: make(chan struct{}, cfg.HandshakeCPUs), admission: newAdmission(cfg), changed: make(chan struct{}, 1),
		client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}},
		live:   newLiveSet[*exchange](), protocols: protocols,
	}
	if len(protocols) == 0 {
		t.protocols = []string{"http/1.1"}
	}
	t.certified = certified{conns: map[*certifiedConn]struct{}{}, log: log, revoked: &t.counters.revokedOpen}
	_, _ = rand.Read(t.ownSecret) // never fails
	t.seen = t.cfg.filesDigest()
	s, err := t.load()
	if err != nil {
		return nil, err
	}
	t.current.Store(s)
	return t, nil
}

// load reads all files and makes a service of them.
func (t *Terminator) load() (*service, error) {
	shelf, err := loadShelf(t.cfg.Certificates)
	if err != nil {
		return nil, err
	}
	if err := shelf.addManaged(t.managed); err != nil {
		return nil, err
	}
	trust, err := t.cfg.loadTrust()
	if err != nil {
		return nil, err
	}
	s := &service{shelf: shelf, scope: t.cfg.ClientAuth + " " + hex.EncodeToString(trust.digest)}
	if s.secret, err = t.cfg.ticketSecret(); err != nil {
		return nil, err
	}
	if len(s.secret) == 0 {
		s.secret = t.ownSecret
	}
	s.config = &tls.Config{
		MinVersion: version(t.cfg.MinVersion), MaxVersion: version(t.cfg.MaxVersion),
		CipherSuites: suites12, NextProtos: t.protocols,
		ClientCAs: trust.pool, SessionTicketsDisabled: !t.cfg.Tickets.On(),
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			now := time.Now()
			c := shelf.pick(hello, now)
			if c == nil {
				return nil, missing(hello.ServerName)
			}
			if !c.complete(now) {
				t.counters.unstapled.Add(1)
			}
			return c.current(now), nil
		},
	}
	if t.managed != nil {
		s.config.GetConfigForClient = t.validates
	}
	switch t.cfg.ClientAuth {
	case ClientAuthRequest:
		s.config.ClientAuth = tls.VerifyClientCertIfGiven
	case ClientAuthRequire:
		s.config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if revoked := trust.revoked; revoked != nil {
		s.revoked = revoked
		s.config.VerifyConnection = func(state tls.ConnectionState) error {
			return revoked.verify(state, time.Now())
		}
	}
	if err := s.loadGM(&t.cfg, t.protocols, trust); err != nil {
		return nil, err
	}
	s.rotate(&t.cfg, time.Now())
	return s, nil
}

// rotate sets the ticket keys of a time.
func (s *service) rotate(cfg *Config, now time.Time) {
	if cfg.Tickets.On() {
		s.config.SetSessionTicketKeys(ticketKeys(s.secret, s.scope, time.Duration(cfg.TicketRotation), now))
		keys := ticketKeys(s.secret, s.gmScope, time.Duration(cfg.TicketRotation), now)
		s.gmKeys.Store(&keys)
	}
}

// Reload reads the files again. What is not valid as a whole changes nothing: the
// certificates in service stay, and the error says why. Established connections
// stay, but for those whose client's certificate is revoked now.
func (t *Terminator) Reload() error { return t.reload(context.Background()) }

func (t *Terminator) reload(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen, t.failed = t.cfg.filesDigest(), false
	s, err := t.load()
	if err == nil {
		err = t.stapleNew(ctx, s)
		t.failed = err != nil
	}
	if err != nil {
		t.counters.reloadFailures.Add(1)
		return fmt.Errorf("reload: %w", err)
	}
	t.current.Store(s)
	t.certified.revoke(s)
	t.counters.reloads.Add(1)
	select {
	case t.changed <- struct{}{}:
	default:
	}
	return nil
}

// stapleNew takes over the staples of certificates that stay, and fetches those
// that new ones may not be shown without.
func (t *Terminator) stapleNew(ctx context.Context, s *service) error {
	old := map[[32]byte]*cert{}
	for _, c := range t.current.Load().shelf.certs {
		old[c.id] = c
	}
	ctx, cancel := context.WithTimeout(ctx, ocspTimeout)
	defer cancel()
	for i, c := range s.shelf.certs {
		if o := old[c.id]; o != nil {
			c.stapled.Store(o.stapled.Load())
		}
		if c.complete(time.Now()) || !t.cfg.OCSPStapling.On() || old[c.id] != nil {
			continue
		}
		if !c.canStaple() {
			return fmt.Errorf("certificates[%d]: %s: it says must-staple, and has no responder or no issuer behind it", i, c.file)
		}
		if _, err := c.staple(ctx, t.client, time.Now); err != nil {
			t.counters.ocspFailures.Add(1)
			return fmt.Errorf("certificates[%d]: %s: it says must-staple: %w", i, c.file, err)
		}
		t.counters.ocspFetches.Add(1)
	}
	return nil
}

// filesDigest changes when any file has changed. One that cannot be read counts
// as empty: reading it for use will say why.
func (c *Config) filesDigest() (sum [32]byte) {
	h := sha256.New()
	add := func(name string) {
		if name == "" {
			return
		}
		f, err := os.Open(name)
		if err != nil {
			_, _ = io.WriteString(h, "\x00")
			return
		}
		defer f.Close()
		n, _ := io.Copy(h, f)
		fmt.Fprintf(h, "\x00%d\x00", n)
	}
	for _, pair := range c.Certificates {
		add(pair.CertFile)
		add(pair.KeyFile)
	}
	for _, f := range slices.Concat(c.ClientCAFiles, c.ClientCRLFiles) {
		add(f)
	}
	for _, f := range c.GM.files() {
		add(f)
	}
	add(c.TicketSecretFile)
	h.Sum(sum[:0])
	return sum
}

// Run watches the files, rotates the ticket keys and keeps the staples fresh,
// until ctx is done.
func (t *Terminator) Run(ctx context.Context) error {
	keepers := keepers{t: t, stop: map[*cert]context.CancelFunc{}}
	defer keepers.close()
	keepers.follow(ctx, t.current.Load().shelf)
	poll := time.NewTicker(time.Duration(t.cfg.ReloadInterval))
	defer poll.Stop()
	rotation := time.Duration(t.cfg.TicketRotation)
	period := time.NewTimer(untilNextPeriod(time.Now(), rotation))
	defer period.Stop()
	outdated := t.reportOutdated(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.changed:
			keepers.follow(ctx, t.current.Load().shelf)
		case <-poll.C:
			t.poll(ctx)
			outdated = t.reportOutdated(outdated)
		case <-period.C:
			now := time.Now()
			t.mu.Lock()
			t.current.Load().rotate(&t.cfg, now)
			t.mu.Unlock()
			period.Reset(untilNextPeriod(now, rotation))
		}
	}
}

// reportOutdated logs when revocation lists in service have run out: with client_crl_policy
// require the clients of their issuers are refused then. It returns how many have.
func (t *Terminator) reportOutdated(before int) int {
	files := t.current.Load().revoked.expired(time.Now())
	if len(files) > before {
		t.log.Error("certificate revocation lists are out of date", "files", files, "policy", t.cfg.ClientCRLPolicy)
	}
	return len(files)
}

// poll reloads when a file has changed.
func (t *Terminator) poll(ctx context.Context) {
	t.mu.Lock()
	same := !t.failed && t.cfg.filesDigest() == t.seen
	t.mu.Unlock()
	if same {
		return
	}
	switch err := t.reload(ctx); {
	case ctx.Err() != nil:
	case err != nil:
		t.log.Error("certificates stay as they were", "err", err)
	default:
		t.log.Info("certificates reloaded")
	}
}

// keepers are the goroutines that keep staples fresh, one per certificate in
// service that has a responder.
type keepers struct {
	t    *Terminator
	stop map[*cert]context.CancelFunc
	done sync.WaitGroup
}

// follow starts keepers for the certificates of s and stops all others.
func (k *keepers) follow(ctx context.Context, s *shelf) {
	for _, cancel := range k.stop {
		cancel()
	}
	clear(k.stop)
	if !k.t.cfg.OCSPStapling.On() {
		return
	}
	for _, c := range s.certs {
		if !c.canStaple() {
			if c.mustStaple {
				k.t.log.Error("must-staple without a responder, or without its issuer behind it", "file", c.file)
			}
			continue
		}
		first := time.Duration(0)
		if st := c.stapled.Load(); st != nil {
			first = max(time.Until(st.until)/2, 0)
		}
		ctx, cancel := context.WithCancel(ctx)
		k.stop[c] = cancel
		k.done.Go(func() { k.keep(ctx, c, first) })
	}
}

func (k *keepers) close() {
	for _, cancel := range k.stop {
		cancel()
	}
	k.done.Wait()
}

// Close ends the handshakes under way and lets none start. Connections that are
// established stay.
func (t *Terminator) Close() error {
	t.live.close(func(x *exchange) { x.cancel(errGone) })
	t.admission.close()
	t.client.CloseIdleConnections()
	return nil
}

type counters struct {
	full, resumed, failed, timeouts, shed, notTLS, validated      atomic.Uint64
	revoked, revokedOpen                                          atomic.Uint64
	reloads, reloadFailures, ocspFetches, ocspFailures, unstapled atomic.Uint64
}

// Stats are counters since New, and what is the case now.
type Stats struct {
	Full           uint64 // handshakes finished, without resuming
	Resumed        uint64 // handshakes finished that resumed a session
	Failed         uint64 // handshakes that failed
	Timeouts       uint64 // connections closed for being too slow, or waiting too long
	Shed           uint64 // connections closed because too many waited
	NotTLS         uint64 // connections that did not start with a ClientHello
	Validated      uint64 // handshakes by which a CA validated a name
	Revoked        uint64 // handshakes refused: the client's certificate is revoked, or no list is in date
	RevokedOpen    uint64 // connections closed because a list that came later revokes the client's certificate
	Running        int    // handshakes under way now
	Waiting        int    // connections that wait for theirs now
	Reloads        uint64 // certificates put in service anew
	ReloadFailures uint64 // attempts that changed nothing
	OCSPFetches    uint64 // good answers
	OCSPFailures   uint64
	Unstapled      uint64 // handshakes with a must-staple certificate and no staple

	Suites []SuiteCount // handshakes finished, by protocol and cipher suite
	Groups []GroupCount // handshakes finished with a key exchange, by its group
}

// Throttle lets handshakes run one at a time while there is too little time for them.
// Any goroutine.
func (t *Terminator) Throttle(on bool) { t.admission.throttle(on) }

// Stats may be called from any goroutine.
func (t *Terminator) Stats() Stats {
	c := &t.counters
	return Stats{
		Full: c.full.Load(), Resumed: c.resumed.Load(), Failed: c.failed.Load(), Timeouts: c.timeouts.Load(),
		Shed: c.shed.Load(), NotTLS: c.notTLS.Load(), Validated: c.validated.Load(), Revoked: c.revoked.Load(), RevokedOpen: c.revokedOpen.Load(), Running: t.admission.runs(), Waiting: t.admission.waits(),
		Reloads: c.reloads.Load(), ReloadFailures: c.reloadFailures.Load(),
		OCSPFetches: c.ocspFetches.Load(), OCSPFailures: c.ocspFailures.Load(), Unstapled: c.unstapled.Load(),
		Suites: t.tally.suites(), Groups: t.tally.groups(),
	}
}
