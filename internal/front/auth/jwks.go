package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
)

const (
	maxJWKSBytes = 1 << 20
	maxJWKSKeys  = 64
)

// A keySet is what one fetch brought. Immutable but for key.gone.
type keySet struct {
	all  []*key
	byID map[string][]*key
}

func newKeySet(keys []*key) *keySet {
	s := &keySet{all: keys, byID: make(map[string][]*key)}
	for _, k := range keys {
		s.byID[k.id] = append(s.byID[k.id], k)
	}
	return s
}

// knows reports whether a key answers to kid by name. A nil set knows nothing.
func (s *keySet) knows(kid string) bool {
	return s != nil && len(s.byID[kid]) > 0
}

// candidates are the keys that may have signed a token with kid: those named so
// and those without a name; without kid all of them.
func (s *keySet) candidates(kid string) []*key {
	if kid == "" {
		return s.all
	}
	return slices.Concat(s.byID[kid], s.byID[""])
}

// jwks fetches the issuer's keys: at intervals, and when a token names one that
// is not there. Keys stay in use while fetches fail; they go when the issuer
// publishes a set without them.
type jwks struct {
	// Fixed.
	url        string
	client     *http.Client
	timeout    time.Duration
	refresh    time.Duration
	minRefetch time.Duration
	log        *slog.Logger
	now        func() time.Time
	life       context.Context // ends with close; fetches outlive the Verify that began them
	end        context.CancelFunc

	// known are keys at hand before the first fetch: those among them that it brings stay
	// the same keys. Fixed before the first fetch.
	known []*key

	// Any goroutine.
	current           atomic.Pointer[keySet] // nil until the first fetch succeeded
	fetches, failures atomic.Uint64
	wg                sync.WaitGroup // fetches

	mu      sync.Mutex
	flight  *flight // the fetch under way; nil: none
	attempt time.Time
	lastErr error // of the last fetch
	closed  bool
}

// A flight is one fetch that any number of callers wait for.
type flight struct {
	done chan struct{}
	err  error // set before done is closed
}

func newJWKS(cfg Config, log *slog.Logger) *jwks {
	j := &jwks{
		url:        cfg.JWKSURL,
		timeout:    time.Duration(cfg.JWKSTimeout),
		refresh:    time.Duration(cfg.JWKSRefreshInterval),
		minRefetch: time.Duration(cfg.JWKSMinRefetchInterval),
		log:        log,
		now:        time.Now,
	}
	j.life, j.end = context.WithCancel(context.Background())
	j.client = &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			ForceAttemptHTTP2:      true,
			IdleConnTimeout:        time.Minute,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 || !safeKeyURL(r.URL) {
				return errors.New("redirect refused: too many, or not to https")
			}
			return nil
		},
	}
	return j
}

func (j *jwks) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.end()
	j.wg.Wait()
	j.client.CloseIdleConnections()
}

// run fetches now and then at intervals that differ by up to a tenth, so that
// nodes started together do not fetch together. After a failure it fetches sooner.
func (j *jwks) run(ctx context.Context, done <-chan struct{}) {
	failed := 0
	for {
		err := j.get(ctx, true)
		if ctx.Err() != nil || j.life.Err() != nil {
			return
		}
		wait := j.refresh
		switch {
		case err != nil:
			if failed == 0 {
				j.log.Warn("cannot fetch keys; those at hand stay in use", "err", err)
			}
			wait = min(time.Second<<min(failed, 20), j.refresh)
			failed++
		case failed > 0:
			j.log.Info("keys fetched again", "keys", len(j.current.Load().all), "failures", failed)
			failed = 0
		}
		timer := time.NewTimer(wait - time.Duration(rand.Int64N(int64(wait)/10+1)))
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-done:
		case <-j.life.Done():
		}
		timer.Stop()
	}
}

// refetch fetches because a key is missing, unless that was done just now:
// else anyone could make this node ask the issuer at any rate. nil means that
// the set at hand is what the issuer publishes.
func (j *jwks) refetch(ctx context.Context) error { return j.get(ctx, false) }

// get joins the fetch under way or starts one; not forced, at most one per
// minRefetch.
func (j *jwks) get(ctx context.Context, force bool) error {
	j.mu.Lock()
	f := j.flight
	if f == nil {
		if j.closed {
			j.mu.Unlock()
			return errors.New("closed")
		}
		now := j.now()
		if !force && !j.attempt.IsZero() && now.Sub(j.attempt) < j.minRefetch {
			err := j.lastErr
			j.mu.Unlock()
			return err
		}
		f = &flight{done: make(chan struct{})}
		j.flight, j.attempt = f, now
		j.wg.Go(func() { j.land(f) })
	}
	j.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// land makes the fetch and notifies the waiters. Only one runs at a time.
func (j *jwks) land(f *flight) {
	j.fetches.Add(1)
	keys, err := j.fetch()
	if err != nil {
		j.failures.Add(1)
	} else {
		j.adopt(keys)
	}
	j.mu.Lock()
	j.flight, j.lastErr = nil, err
	j.mu.Unlock()
	f.err = err
	close(f.done)
}

// adopt puts keys in use. A key that was there before stays the same key, so
// that what it verified stays cached; one that is no longer there is gone.
func (j *jwks) adopt(keys []*key) {
	old := make(map[[sha256.Size]byte]*key)
	set := j.current.Load()
	if set != nil {
		for _, k := range set.all {
			old[k.print] = k
		}
	} else {
		for i, k := range keys {
			keys[i] = sameKey(j.known, k)
		}
	}
	for i, k := range keys {
		if same, ok := old[k.print]; ok {
			keys[i] = same
			delete(old, k.print)
		}
	}
	j.current.Store(newKeySet(keys))
	for _, k := range old {
		k.gone.Store(true)
	}
}

func (j *jwks) fetch() ([]*key, error) {
	ctx, cancel := context.WithTimeout(j.life, j.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	req.Header.Set("User-Agent", "weir")
	res, err := j.client.Do(req)
	if err != nil {
		return nil, hideQuery(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answer has status %d", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxJWKSBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if len(body) > maxJWKSBytes {
		return nil, fmt.Errorf("answer is over %d bytes", maxJWKSBytes)
	}
	return parseJWKS(body, j.log)
}

// hideQuery drops the URL of a request error: its query may hold a secret.
func hideQuery(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// parseJWKS reads a JWK Set (RFC 7517 §5). Keys that are of no use here are left
// out, as the RFC requires; what is not a key set at all is an error, and the keys at
// hand stay. An empty set is a valid answer: the issuer has taken all keys back.
func parseJWKS(body []byte, log *slog.Logger) ([]*key, error) {
	var doc struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &doc); err != nil || doc.Keys == nil {
		return nil, errors.New("answer is not a JWK set")
	}
	keys := []*key{}
	seen := make(map[[sha256.Size]byte]bool)
	for i, raw := range *doc.Keys {
		k, err := parseJWK(raw)
		switch {
		case err != nil:
			log.Debug("key of the jwks left out", "index", i, "err", err)
		case seen[k.print]:
		case len(keys) == maxJWKSKeys:
			log.Warn("jwks has too many keys; the rest is left out", "max", maxJWKSKeys)
			return keys, nil
		default:
			seen[k.print] = true
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		log.Warn("jwks has no usable key: no token of the issuer will pass")
	}
	return keys, nil
}

// parseJWK takes public signature keys only. A symmetric key in a document that
// anyone can read is no secret, and neither is a private one.
func parseJWK(raw []byte) (*key, error) {
	var m jwkset.JWKMarshal
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, errors.New("is not a JWK")
	}
	switch {
	case m.KTY == jwkset.KtyOct || m.K != "":
		return nil, errors.New("is symmetric")
	case m.D != "" || m.P != "" || m.Q != "":
		return nil, errors.New("is private")
	case m.USE != "" && m.USE != jwkset.UseSig:
		return nil, errors.New("is not for signatures")
	case len(m.KEYOPS) > 0 && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify):
		return nil, errors.New("is not for verifying")
	case len(m.E) > 8:
		return nil, errors.New("has an unusable exponent")
	}
	// Only the public parameters continue: certificates and their URLs are of no
	// use, since what is trusted is the JWKS itself. newPublicKey does the checks.
	jwk, err := jwkset.NewJWKFromMarshal(
		jwkset.JWKMarshal{KTY: m.KTY, CRV: m.CRV, X: m.X, Y: m.Y, N: m.N, E: m.E},
		jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{SkipAll: true})
	if err != nil {
		return nil, errors.New("is malformed or of an unknown kind")
	}
	k, err := newPublicKey(m.KID, jwk.Key())
	if err == nil && m.ALG != "" {
		err = k.narrow(m.ALG.String())
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}
