// Package authz has requests of routes decided by others: an authorization server that is asked
// by HTTP (forward authorization).
//
// A decision comes off the event loops: Route.Admit returns a Query, whose Do the front calls on a
// goroutine. Decisions are cached by what they depend on, within a bound; those that are requested at
// the same time share one subrequest.
package authz

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// ForwardConfig is a route's authorization server. The zero value means none.
type ForwardConfig struct {
	// URL of the authorization server, http or https. Each request is sent there first, as
	// GET without a body, with X-Forwarded-Method, -Proto, -Host, -Uri and -For. A status
	// of 2xx admits the request. Any other below 500 is the client's answer, with its body
	// and Location, Set-Cookie, WWW-Authenticate, Content-Type, Cache-Control and
	// Retry-After. Empty: no authorization server.
	URL string `json:"url"`
	// Timeout bounds a subrequest; 0 means 2s.
	Timeout hub.Duration `json:"timeout"`
	// RequestHeaders are the client's fields that the server gets. Empty means
	// Authorization, Cookie and X-API-Key.
	RequestHeaders []string `json:"request_headers"`
	// ResponseHeaders are fields of the server's response that the upstream gets. What the
	// client sends under these names is always removed. Empty: none.
	ResponseHeaders []string `json:"response_headers"`
	// FailOpen admits requests, without response_headers, when the server does not answer,
	// answers with 5xx, or max_pending is reached. False: they are answered with 503.
	FailOpen bool `json:"fail_open"`
	// CacheTTL is how long a decision to admit is reused. Only requests with at least one of
	// request_headers are cached. 0: never.
	CacheTTL hub.Duration `json:"cache_ttl"`
	// NegativeTTL is how long a refusal with 401 or 403 is reused; 0: never.
	NegativeTTL hub.Duration `json:"negative_ttl"`
	// CacheBy is what a decision depends on: "request" (request_headers, method, scheme,
	// host, path with query, and the client's address) or "credential" (request_headers
	// alone: the same credentials are admitted to all of the route). Empty means request.
	CacheBy string `json:"cache_by"`
	// CacheSize bounds the cached decisions of the route; 0 means 16,384. At the bound the
	// oldest half is dropped.
	CacheSize int `json:"cache_size"`
	// MaxPending bounds the subrequests under way; 0 means 1,024. Requests beyond it are
	// handled as fail_open says.
	MaxPending int `json:"max_pending"`
}

// Enabled reports whether there is an authorization server.
func (c *ForwardConfig) Enabled() bool { return c.URL != "" }

// WithDefaults returns c with zeros replaced by what they mean.
func (c ForwardConfig) WithDefaults() ForwardConfig {
	if !c.Enabled() {
		return c
	}
	c.Timeout = cmp.Or(c.Timeout, hub.Duration(2*time.Second))
	if len(c.RequestHeaders) == 0 {
		c.RequestHeaders = []string{"Authorization", "Cookie", "X-API-Key"}
	}
	c.CacheBy = cmp.Or(c.CacheBy, byRequest)
	c.CacheSize = cmp.Or(c.CacheSize, 1<<14)
	c.MaxPending = cmp.Or(c.MaxPending, 1024)
	return c
}

const (
	byRequest    = "request"
	byCredential = "credential"
)

// Validate returns all that is wrong with c, joined. Names that belong to the connection are
// the caller's to refuse.
func (c ForwardConfig) Validate() error {
	if !c.Enabled() {
		return nil
	}
	c = c.WithDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if u, err := url.Parse(c.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Fragment != "" {
		bad("url: invalid value %.100q: want http://host/path or https://host/path", c.URL)
	}
	for key, list := range map[string][]string{"request_headers": c.RequestHeaders, "response_headers": c.ResponseHeaders} {
		for i, name := range list {
			switch {
			case !http1.ValidName(name):
				bad("%s[%d]: invalid field name %.60q", key, i, name)
			case strings.HasPrefix(strings.ToLower(name), "x-forwarded-"):
				bad("%s[%d]: %s is Weir's own", key, i, name)
			}
		}
	}
	if c.Timeout < hub.Duration(time.Millisecond) || c.Timeout > hub.Duration(time.Minute) {
		bad("timeout: %v is not within 1ms..1m", c.Timeout)
	}
	for key, d := range map[string]hub.Duration{"cache_ttl": c.CacheTTL, "negative_ttl": c.NegativeTTL} {
		if d < 0 || d > hub.Duration(24*time.Hour) {
			bad("%s: %v is not within 0..24h", key, d)
		}
	}
	if !slices.Contains([]string{byRequest, byCredential}, c.CacheBy) {
		bad("cache_by: invalid value %.40q: want request or credential", c.CacheBy)
	}
	if c.CacheSize < 2 || c.CacheSize > 1<<22 {
		bad("cache_size: %d is not within 2..4194304", c.CacheSize)
	}
	if c.MaxPending < 1 || c.MaxPending > 1<<16 {
		bad("max_pending: %d is not within 1..65536", c.MaxPending)
	}
	return errors.Join(errs...)
}

// A Request is what is decided on. Its slices are not kept.
type Request struct {
	Method, Host, Path, Query []byte
	Scheme                    string
	Client                    netip.Addr
	Fields                    http1.Fields
}

// A Decision admits or refuses a request, or what else an extension decides on. Immutable:
// requests share it.
type Decision struct {
	Admit bool
	// Lines are complete field lines for the upstream (Admit).
	Lines []byte
	// Status, ContentType, Body and Fields, whole lines, are the client's answer (not Admit).
	Status      int
	ContentType string
	Body        []byte
	Fields      []byte
	// Unavailable reports that there was no decision, and the client may try again.
	Unavailable bool

	// Extension reports that package extension decided; the fields below are its own.
	Extension bool
	// Message reports why, for the client (not Admit).
	Message string
	// Removed are fields, in lower case, that do not continue; Lines replace some (Admit).
	Removed []string
	// Identity is who the client is from now on; nil: as before (Admit).
	Identity *auth.Identity
	// Data replaces a message; nil: as it is (Admit).
	Data []byte
}

// A Query is a decision that is to be obtained.
type Query interface {
	// Do obtains it, which may take as long as the configured timeout.
	Do(ctx context.Context) *Decision
}

// Forward queries a route's authorization server. Any goroutine.
type Forward struct {
	// Fixed at NewForward.
	cfg    ForwardConfig
	client *http.Client
	url    *url.URL
	cache  *Cache[*Decision]

	pending atomic.Int64
	counters

	mu      sync.Mutex
	flights map[Key]*flight
}

// A flight is a subrequest that several requests wait for.
type flight struct {
	done     chan struct{}
	decision *Decision
}

type counters struct {
	admitted, refused, cachedAdmitted, cachedRefused, failed, overloaded, shared atomic.Uint64
	wait                                                                         atomic.Int64 // nanoseconds of subrequests
}

// NewForward returns a Forward for a valid cfg that is Enabled.
func NewForward(cfg ForwardConfig) *Forward {
	cfg = cfg.WithDefaults()
	u, _ := url.Parse(cfg.URL) // Validate has accepted it
	transport := &http.Transport{
		Proxy: nil, MaxIdleConns: 256, MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
		MaxResponseHeaderBytes: maxHead, DisableCompression: true,
	}
	return &Forward{
		cfg: cfg, url: u, cache: NewCache[*Decision](cfg.CacheSize), flights: map[Key]*flight{},
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

const (
	maxHead = 32 << 10
	maxBody = 64 << 10
)

// Close closes idle connections.
func (f *Forward) Close() { f.client.CloseIdleConnections() }

// Decide returns the decision on r, from the cache, or the Query that obtains it.
func (f *Forward) Decide(r *Request, now time.Time) (*Decision, Query) {
	k, cacheable := f.keyOf(r)
	if cacheable {
		if d, ok := f.cache.Get(k, now); ok {
			if d.Admit {
				f.cachedAdmitted.Add(1)
			} else {
				f.cachedRefused.Add(1)
			}
			return d, nil
		}
	}
	if f.pending.Add(1) > int64(f.cfg.MaxPending) {
		f.pending.Add(-1)
		f.overloaded.Add(1)
		return f.none(), nil
	}
	return nil, &forwardQuery{f: f, req: f.subrequest(r), key: k, cacheable: cacheable}
}

// keyOf returns what the decision on r depends on. Lengths are hashed as well, so that no two
// requests have the same key.
func (f *Forward) keyOf(r *Request) (k Key, cacheable bool) {
	if f.cfg.CacheTTL == 0 && f.cfg.NegativeTTL == 0 {
		return k, false
	}
	var scratch [512]byte
	b := scratch[:0]
	add := func(v []byte) { b = append(strconv.AppendInt(b, int64(len(v)), 10), ':'); b = append(b, v...) }
	for _, name := range f.cfg.RequestHeaders {
		n := 0
		for v := range r.Fields.Values(name) {
			cacheable = true
			n++
			add(v)
		}
		b = append(strconv.AppendInt(b, int64(n), 10), ';')
	}
	if !cacheable {
		return k, false
	}
	if f.cfg.CacheBy == byRequest {
		add(r.Method)
		add([]byte(r.Scheme))
		add(r.Host)
		add(r.Path)
		add(r.Query)
		b = append(b, r.Client.String()...)
	}
	return sha256.Sum256(b), true
}

// subrequest makes the request to the server.
func (f *Forward) subrequest(r *Request) *http.Request {
	h := http.Header{}
	for _, name := range f.cfg.RequestHeaders {
		for v := range r.Fields.Values(name) {
			addField(h, name, v)
		}
	}
	uri := string(r.Path)
	if r.Query != nil {
		uri += "?" + string(r.Query)
	}
	h.Set("X-Forwarded-Method", string(r.Method))
	h.Set("X-Forwarded-Proto", r.Scheme)
	h.Set("X-Forwarded-Host", string(r.Host))
	h.Set("X-Forwarded-Uri", uri)
	if r.Client.IsValid() {
		h.Set("X-Forwarded-For", r.Client.String())
	}
	if len(h.Values("User-Agent")) == 0 {
		h.Set("User-Agent", "weir")
	}
	return &http.Request{Method: http.MethodGet, URL: f.url, Host: f.url.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

// addField adds a client's field to h, without the cookie of Weir's own admin listener.
func addField(h http.Header, name string, value []byte) {
	if strings.EqualFold(name, "Cookie") {
		if value = http1.AppendWithoutCookie(nil, value, auth.AdminCookie); len(value) == 0 {
			return
		}
	}
	h.Add(name, string(value))
}

type forwardQuery struct {
	f         *Forward
	req       *http.Request
	key       Key
	cacheable bool
}

// Do implements Query.
func (q *forwardQuery) Do(ctx context.Context) *Decision {
	defer q.f.pending.Add(-1)
	if !q.cacheable {
		return q.f.sendSubrequest(ctx, q)
	}
	f := q.f
	f.mu.Lock()
	if fl := f.flights[q.key]; fl != nil {
		f.mu.Unlock()
		f.shared.Add(1)
		<-fl.done // bounded as the subrequest is
		return fl.decision
	}
	fl := &flight{done: make(chan struct{}), decision: f.none()}
	f.flights[q.key] = fl
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.flights, q.key)
		f.mu.Unlock()
		close(fl.done)
	}()
	fl.decision = f.sendSubrequest(ctx, q)
	return fl.decision
}

// sendSubrequest sends the subrequest.
func (f *Forward) sendSubrequest(ctx context.Context, q *forwardQuery) *Decision {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(f.cfg.Timeout))
	defer cancel()
	began := time.Now()
	defer func() { f.wait.Add(int64(time.Since(began))) }()
	res, err := f.client.Do(q.req.WithContext(ctx))
	if err != nil {
		f.failed.Add(1)
		return f.none()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err != nil || len(body) > maxBody || res.StatusCode >= 500 || res.StatusCode < 200 {
		f.failed.Add(1)
		return f.none()
	}
	if res.StatusCode < 300 {
		f.admitted.Add(1)
		d := &Decision{Admit: true, Lines: linesOf(res.Header, f.cfg.ResponseHeaders)}
		if q.cacheable && f.cfg.CacheTTL > 0 {
			f.cache.Put(q.key, d, time.Now().Add(time.Duration(f.cfg.CacheTTL)))
		}
		return d
	}
	f.refused.Add(1)
	d := &Decision{Status: res.StatusCode, ContentType: res.Header.Get("Content-Type"), Body: body, Fields: linesOf(res.Header, answerNames)}
	if !http1.ValidValue(d.ContentType) {
		d.ContentType = ""
	}
	if q.cacheable && f.cfg.NegativeTTL > 0 && (d.Status == http.StatusUnauthorized || d.Status == http.StatusForbidden) {
		f.cache.Put(q.key, d, time.Now().Add(time.Duration(f.cfg.NegativeTTL)))
	}
	return d
}

// answerNames are the fields of a refusal that the client gets.
var answerNames = []string{"Location", "Set-Cookie", "WWW-Authenticate", "Cache-Control", "Retry-After"}

// linesOf returns the fields of names in h as lines. What would not be one line is left out.
func linesOf(h http.Header, names []string) (b []byte) {
	for _, name := range names {
		for _, v := range h.Values(name) {
			if http1.ValidValue(v) {
				b = http1.AppendField(b, name, v)
			}
		}
	}
	return b
}

// none is the decision without an answer of the server.
func (f *Forward) none() *Decision {
	if f.cfg.FailOpen {
		return failedOpen
	}
	return failedClosed
}

var (
	failedOpen   = &Decision{Admit: true, Unavailable: true}
	failedClosed = &Decision{Status: http.StatusServiceUnavailable, Unavailable: true}
)

// Config returns what f was made of.
func (f *Forward) Config() ForwardConfig { return f.cfg }

// Stats are counters since NewForward, and what is the case now.
type Stats struct {
	Admitted, Refused             uint64 // by the server's answer
	CachedAdmitted, CachedRefused uint64
	Failed                        uint64 // subrequests without a decision
	Overloaded                    uint64 // requests at max_pending
	Shared                        uint64 // requests that waited for another's subrequest
	WaitSeconds                   float64
	Pending                       int64
}

// Stats may be called from any goroutine.
func (f *Forward) Stats() Stats {
	return Stats{
		Admitted: f.admitted.Load(), Refused: f.refused.Load(), CachedAdmitted: f.cachedAdmitted.Load(), CachedRefused: f.cachedRefused.Load(),
		Failed: f.failed.Load(), Overloaded: f.overloaded.Load(), Shared: f.shared.Load(), WaitSeconds: time.Duration(f.wait.Load()).Seconds(),
		Pending: f.pending.Load(),
	}
}
