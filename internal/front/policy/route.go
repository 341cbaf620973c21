package policy

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/router"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A Route is one compiled route. Immutable but for counters.
type Route struct {
	admission

	// Fixed at New.
	index       int
	fingerprint [sha256.Size]byte
	validator   *Validator
	drift       *upstream.Drift // nil: not watched; set by Watch
	hold        auth.Patterns   // what the upstream may hold connections on
}

// admission is what a route decides of a request before it is forwarded or answered.
type admission struct {
	heads

	// Fixed at New.
	class    limit.Class
	identify bool // looks who it is
	required bool

	addresses                       *limit.Addresses
	perTenant, perAddress, perRoute limit.Quota
	scope, tenantScope              uint64 // of its buckets
	routeKey                        uint64
	rewrite, redirect               template
	replyFields                     []byte
	replyBody                       []byte
	replyType                       string
	maxBody                         int64
	logged                          bool
	forwards                        bool   // to an upstream; it does not answer by itself
	sample                          uint32 // of 1<<32-1: how many requests are logged
	traceSample                     uint32
	allow                           string // the methods, for Allow
	allowsTrace                     bool
	certificates                    []certRule
	forward                         *authz.Forward // nil: no authorization server

	// Any goroutine.
	state *routeState
}

// heads are the rules by which a route writes the heads of requests and responses. Fixed
// at New.
type heads struct {
	cfg               RouteConfig
	deps              *Deps
	cors              *cors
	request, response rules
	fromProxy         rules // request, for those of trusted proxies
	dated             bool  // a rule sets Date
	forwarding        forwardingFields
	redact            []string
	shared            *nameSet // in the calls of batch; nil: nothing is batched
}

// defaultTenantRate is what the doc of Limits.PerTenant says.
var defaultTenantRate = limit.Rate{PerSecond: 500, Burst: 500}

func newRoute(cfg RouteConfig, deps *Deps) (*Route, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Route{admission: admission{heads: heads{cfg: cfg, deps: deps}, state: deps.State.route(cfg.Name)}}
	a := cfg.Auth
	r.required = a.Required || len(a.Scopes) > 0 || len(a.Claims) > 0
	r.identify = r.required || a.Forward
	var errs []error
	if r.identify && deps.Auth == nil {
		errs = append(errs, errors.New("auth: there are no keys to verify anyone with: fill in the auth section"))
	}
	for _, name := range r.Clusters() {
		if deps.Cluster != nil && !deps.Cluster(name) {
			errs = append(errs, fmt.Errorf("there is no cluster %q: name one of those under clusters", name))
		}
	}
	var err error
	if r.addresses, err = limit.NewAddresses(cfg.Addresses); err != nil {
		errs = append(errs, err) // Validate has said so already
	}
	if r.cors, err = newCORS(cfg.allCORS(), cfg.Methods); err != nil {
		errs = append(errs, err)
	}
	if cfg.OpenAPI.File != "" {
		if r.validator, err = newValidator(cfg.OpenAPI); err != nil {
			errs = append(errs, fmt.Errorf("openapi: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r.compile()
	return r, nil
}

func (r *Route) compile() {
	cfg := &r.cfg
	_ = r.class.UnmarshalText([]byte(cfg.Class)) // Validate has evaluated it
	sum := sha256.Sum256([]byte(cfg.Name))
	for i := range 8 {
		r.scope = r.scope<<8 | uint64(sum[i])
	}
	r.perTenant, r.tenantScope = cfg.Limits.PerTenant.Quota(), r.scope
	if !r.perTenant.Limited() {
		rate := defaultTenantRate
		if r.tenantScope = sharedTenants; !cfg.Limits.PerTenant.Shared.On() {
			rate.Shared, r.tenantScope = cfg.Limits.PerTenant.Shared, nodeTenants
		}
		r.perTenant = rate.Quota()
	}
	r.perAddress, r.perRoute = cfg.Limits.PerAddress.Quota(), cfg.Limits.PerRoute.Quota()
	r.routeKey = limit.FixedKey(r.scope)
	r.request, r.fromProxy = requestRules(cfg.RequestHeaders, r.deps.Trust.Pass())
	drop := func(name string) {
		r.request.drop.add(name)
		r.fromProxy.drop.add(name)
	}
	if !cfg.MethodOverride {
		for _, name := range overrideNames {
			drop(name)
		}
	}
	if cfg.Record.Enabled() {
		drop("accept-encoding") // events are read, and written in their own coding
	}
	for _, name := range cfg.ForwardAuth.ResponseHeaders {
		drop(name) // only the authorization server sets it
	}
	if cfg.Batch.Enabled() {
		r.shared = cfg.Batch.sharedFields()
	}
	if cfg.ForwardAuth.Enabled() {
		r.forward = r.state.forwardTo(cfg.ForwardAuth)
	}
	r.hold, _ = auth.CompilePatterns(cfg.Hold.Channels) // Validate has evaluated them
	r.response = newRules(cfg.ResponseHeaders, responseNames, responsePrefixes)
	for name := range cfg.ResponseHeaders.Set {
		r.dated = r.dated || strings.EqualFold(name, "Date")
	}
	if r.cors != nil {
		r.response.drop.addPrefix("access-control-")
	}
	r.forwarding = newForwardingFields(cfg)
	r.maxBody = cfg.Limits.MaxBody
	if v := r.validator; v != nil && !v.skip && (r.maxBody < 0 || r.maxBody > v.maxBody) {
		r.maxBody = v.maxBody // it is held for validation
	}
	r.logged = r.deps.AccessLog != nil && cfg.AccessLog.Enabled.On()
	r.forwards = len(r.Clusters()) > 0
	for _, a := range cfg.ClientCertificate.Allow {
		rule, _ := parseCertRule(a) // Validate has accepted it
		r.certificates = append(r.certificates, rule)
	}
	r.sample, r.traceSample = part(cfg.AccessLog.Sample), part(cfg.TraceSample)
	r.redact = cfg.AccessLog.Redact
	r.allow, r.allowsTrace = allowOf(cfg.Methods), slices.Contains(cfg.Methods, "TRACE")
	if cfg.Reply.Status != 0 {
		r.replyBody, r.replyType = []byte(cfg.Reply.Body), cfg.Reply.ContentType
		for _, name := range sortedKeys(cfg.Reply.Headers) {
			r.replyFields = http1.AppendField(r.replyFields, name, cfg.Reply.Headers[name])
		}
	}
	text, _ := json.Marshal(cfg) // plain data: it cannot fail
	h := sha256.New()
	h.Write(text)
	if r.validator != nil {
		h.Write(r.validator.sum[:])
	}
	h.Sum(r.fingerprint[:0])
}

// Scopes of the buckets that tenants have over all routes without a rate of their own: those that
// the nodes of a cluster share, and those of this node.
const (
	sharedTenants = 1
	nodeTenants   = 2
)

// part turns 0..1 into a threshold for a random uint32; 0 means all.
func part(f float64) uint32 {
	switch {
	case f == 0:
		return math.MaxUint32
	case f < 0:
		return 0
	}
	return uint32(f * math.MaxUint32)
}

// bind compiles what needs the parameters that the router gave the route.
func (r *Route) bind(rt *router.Router, i int) error {
	r.index = i
	param := func(name string) int { return rt.Param(i, name) }
	var err, err2 error
	if r.cfg.Rewrite.Path != "" {
		if r.rewrite, err = parseTemplate(r.cfg.Rewrite.Path, param, false); err != nil {
			err = fmt.Errorf("rewrite.path: %w", err)
		}
	}
	if r.cfg.Redirect.To != "" {
		if r.redirect, err2 = parseTemplate(r.cfg.Redirect.To, param, true); err2 != nil {
			err2 = fmt.Errorf("redirect.to: %w", err2)
		}
	}
	if !strings.HasSuffix(r.cfg.Path, "/*") && (r.rewrite.has(restPlace) || r.redirect.has(restPlace)) {
		return errors.Join(err, err2, errors.New("{*} is what the path's /* matched, and the path has none"))
	}
	return errors.Join(err, err2)
}

// Config returns what it was made from, defaults filled in. Not to be changed.
func (r *Route) Config() *RouteConfig { return &r.cfg }

// Name returns its name.
func (r *Route) Name() string { return r.cfg.Name }

// Class returns how important its requests are.
func (r *Route) Class() limit.Class { return r.class }

// Clusters returns the cluster, or split, it leads to; none if it answers by itself.
func (r *Route) Clusters() []string {
	if r.cfg.Cluster != "" {
		return []string{r.cfg.Cluster}
	}
	return nil
}

// MaxBody returns the bound of request bodies; negative: none. Admit refuses a
// longer Length; the front refuses what turns out longer with 413.
func (r *Route) MaxBody() int64 { return r.maxBody }

// UnderWay returns how many requests of a route with MaxConcurrent are under way.
func (r *Route) UnderWay() int64 { return r.state.underWay.Load() }

// Same reports whether o is configured alike, OpenAPI document included: a
// connection that uses r has nothing to fear from a reload that brings o.
func (r *Route) Same(o *Route) bool { return o != nil && r.fingerprint == o.fingerprint }

// Validator validates bodies against the route's document; nil: there is none. With
// one the front collects the whole request body, up to its MaxBody, first.
func (r *Route) Validator() *Validator { return r.validator }

// Admit decides on a matched request. It never waits. now is in nanoseconds of a
// monotonic clock that all users of one State share. Identify means that x's token
// must be verified: call AdmitIdentity with what came of it.
func (r *admission) Admit(x *Exchange, now int64) Verdict {
	x.begin()
	if v, refused := r.traced(x); refused {
		return v
	}
	if !r.addresses.Allowed(x.Client) {
		return r.refuse(x, 403, "this address may not come here", "")
	}
	if x.preflight {
		return r.cors.preflight(x)
	}
	if v, refused := r.certified(x); refused {
		return v
	}
	if r.perAddress.Limited() {
		t := r.deps.State.Addresses
		if wait, ok := t.Allow(t.KeyAddr(r.scope, x.Client, 0), r.perAddress, now); !ok {
			return r.later(x, limit.RetryAfter(wait), "too many requests from this address")
		}
	}
	if r.maxBody >= 0 && x.Length > r.maxBody {
		return r.refuse(x, 413, "the body is too large", "see the route's limits.max_body")
	}
	if r.forwards && connectionBytes(x.Fields) > maxConnection {
		return r.refuse(x, 400, "the Connection field is too long", "")
	}
	if !r.identify {
		x.Identity = auth.Anonymous
		return r.admitted(x, now)
	}
	return r.identity(x, now)
}

// AdmitIdentity continues after Identify: id and err are what auth.Verify returned.
// A front whose input has moved meanwhile fills in x's first block again and
// calls Match before, but not Reset.
func (r *admission) AdmitIdentity(x *Exchange, id *auth.Identity, err error, now int64) Verdict {
	if err != nil {
		return r.notVerified(x, err)
	}
	x.Identity = id
	if v, ok := r.entitled(x); !ok {
		return v
	}
	return r.admitted(x, now)
}

// admitted takes what x's identity and route may use up, and prepares the way on.
func (r *admission) admitted(x *Exchange, now int64) Verdict {
	t := r.deps.State.Tenants
	if x.Identity.By != "" {
		if wait, ok := t.Allow(r.tenantKey(t, x.Identity), r.perTenant, now); !ok {
			return r.later(x, limit.RetryAfter(wait), "too many requests")
		}
	}
	if wait, ok := t.Allow(r.routeKey, r.perRoute, now); !ok {
		return r.later(x, limit.RetryAfter(wait), "too many requests for this route")
	}
	if r.forward != nil {
		return r.authorize(x)
	}
	return extend(r, x)
}

// passed prepares the way on of a request that nothing refuses any more.
func (r *admission) passed(x *Exchange) Verdict {
	if r.cfg.Redirect.To != "" {
		return r.redirected(x)
	}
	if r.cfg.Reply.Status != 0 {
		x.lines = append(x.lines[:0], r.replyFields...)
		x.lines = r.AppendCORS(x.lines, x)
		return Verdict{Action: Respond, Status: r.cfg.Reply.Status, Fields: x.lines, ContentType: r.replyType, Body: r.replyBody}
	}
	if v, last := r.hops(x); last {
		return v
	}
	if !r.rewritten(x) {
		return r.refuse(x, 400, "the path cannot be rewritten", "its parts make a path of several readings")
	}
	if most := int64(r.cfg.Limits.MaxConcurrent); most > 0 {
		if r.state.underWay.Add(1) > most {
			r.state.underWay.Add(-1)
			v := r.later(x, 1, "too many requests are under way")
			v.Status = 503
			return v
		}
		x.counted = true
	}
	if r.cfg.Mercure && r.deps.Link != nil {
		x.link = r.deps.Link() // before the upstream is asked
	}
	if r.deps.Extensions.Handles(extension.Response, r.cfg.Name) {
		x.request = x.event(extension.Response)
	}
	return Verdict{Action: Forward}
}

// refuse answers with words, readable for pages that CORS lets in.
func (r *admission) refuse(x *Exchange, status int, message, hint string) Verdict {
	x.lines = r.AppendCORS(x.lines[:0], x)
	return Verdict{Status: status, Message: message, Hint: hint, Fields: x.lines}
}

// later is refuse for what may be tried again.
func (r *admission) later(x *Exchange, seconds int64, message string) Verdict {
	v := r.refuse(x, 429, message, "wait as long as Retry-After says")
	v.RetryAfter = seconds
	return v
}
