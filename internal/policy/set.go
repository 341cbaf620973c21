package policy

import (
	"errors"
	"log/slog"
	"time"

	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/limit"
)

// Deps are what routes lean on.
type Deps struct {
	// State outlives reloads: buckets, counters of requests under way. nil: a new one.
	State *State
	// Auth verifies tokens and keys; nil: a route with auth is an error.
	Auth *auth.Authenticator
	// Trust says whose forwarding fields are believed; nil: nobody's.
	Trust *limit.Trust
	// Cluster reports whether there is an upstream of that name; nil: not checked.
	Cluster func(name string) bool
	// AccessLog takes the lines; nil: no access log.
	AccessLog *AccessLog
	// Log is for what goes wrong; nil discards.
	Log *slog.Logger
}

// State is what stays when routes are reloaded. Any goroutine.
type State struct {
	Tenants, Addresses *limit.Table
}

// NewState returns a State with room for that many tenants and addresses; 0
// means limit.DefaultBuckets each.
func NewState(buckets int) *State {
	return &State{Tenants: limit.NewTable(buckets), Addresses: limit.NewTable(buckets)}
}

// A Set is a compiled table of routes. Immutable: a reload makes a new one and
// swaps the pointer; exchanges under way keep the Route they have.
type Set struct{}

// New compiles routes. Its error joins all that is wrong, each naming its route.
func New(routes []RouteConfig, deps Deps) (*Set, error) {
	return nil, errors.New("not yet")
}

// Match normalises x.Path and finds x's route: Forward, or Refuse with 400, 404,
// 405 or 414. On Forward x.Route is set and Admit is next.
func (s *Set) Match(x *Exchange) Verdict { return Verdict{} }

// Routes returns the routes in the order configured.
func (s *Set) Routes() []*Route { return nil }

// A Route is one compiled route. Immutable but for counters.
type Route struct{ cfg RouteConfig }

// Config returns what it was made from, defaults filled in. Not to be changed.
func (r *Route) Config() *RouteConfig { return &r.cfg }

// Name returns its name.
func (r *Route) Name() string { return r.cfg.Name }

// Priority returns its class.
func (r *Route) Priority() Priority { return 0 }

// MaxBody returns the bound of request bodies; negative: none. Admit refuses a
// longer Length; the front refuses what turns out longer with 413.
func (r *Route) MaxBody() int64 { return 0 }

// Same reports whether o is configured alike: a connection that uses r has nothing
// to fear from a reload that brings o.
func (r *Route) Same(o *Route) bool { return false }

// Validator validates bodies against the route's document; nil: there is none. With
// one the front collects the whole request body, up to its MaxBody, first.
func (r *Route) Validator() *Validator { return nil }

// Admit decides on a matched request. It never waits. now is in nanoseconds of a
// monotonic clock that all users of one State share. Identify means that x's token
// must be verified: call AdmitIdentity with what came of it.
func (r *Route) Admit(x *Exchange, now int64) Verdict { return Verdict{} }

// AdmitIdentity goes on after Identify: id and err are what auth.Verify returned.
func (r *Route) AdmitIdentity(x *Exchange, id *auth.Identity, err error, now int64) Verdict {
	return Verdict{}
}

// AppendRequestHead appends the head for the upstream, empty line included.
func (r *Route) AppendRequestHead(dst []byte, x *Exchange, f Framing) []byte { return dst }

// AppendResponseHead appends the head for the client, empty line included. fields
// are the upstream's.
func (r *Route) AppendResponseHead(dst []byte, x *Exchange, status int, fields []http1.Field, f Framing) []byte {
	return dst
}

// Reset makes x ready for another request, and keeps its buffers.
func (x *Exchange) Reset() {}

// Retain copies what responses and the access log need, so that the front may let
// the request's bytes go. Call it after AppendRequestHead.
func (x *Exchange) Retain() {}

// NormalPath returns the normalised path after Match: what was matched.
func (x *Exchange) NormalPath() []byte { return x.path }

// Done ends an exchange: a place of MaxConcurrent is given back, the access log gets
// its line. It must be called once for each Match, whatever came of it.
func (x *Exchange) Done(o Outcome) {}

// An AccessLog writes one JSON object per request.
type AccessLog struct{}

// A Validator validates against an OpenAPI document. It allocates and may take
// long: it runs on a goroutine, never on a loop. Any goroutine.
type Validator struct{}

// A ValidationError is what a request or response has wrong.
type ValidationError struct {
	Status  int    // 400, 404, 405, 415 or 422; 502 for a response
	Message string // what is wrong, safe to show
	Pointer string // JSON pointer or parameter it is about; may be empty
}

// Error returns message and pointer.
func (e *ValidationError) Error() string { return e.Message }

// MaxBody bounds the bodies it is to be given.
func (v *Validator) MaxBody() int64 { return 0 }

// Request validates a request with its whole body.
func (v *Validator) Request(method, path, query string, header map[string][]string, body []byte) error {
	return nil
}

// Response validates the response to a request that was valid.
func (v *Validator) Response(method, path, query string, requestHeader map[string][]string, status int, header map[string][]string, body []byte) error {
	return nil
}

// Trace is a request's trace context (W3C Trace Context).
type Trace struct {
	ID     [16]byte
	Parent [8]byte // the caller's span; zero: the trace began here
	Span   [8]byte // ours
	Flags  byte
}

var _ = time.Second
