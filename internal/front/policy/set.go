package policy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/router"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// Deps are what routes lean on.
type Deps struct {
	// State outlives reloads: buckets, counters of requests under way. nil: a new one.
	State *State
	// Auth verifies tokens and keys; nil: a route with auth is an error.
	Auth *auth.Authenticator
	// Extensions decide on requests and responses; nil: there are none.
	Extensions *extension.Extensions
	// Trust reports whose forwarding fields are trusted; nil: none.
	Trust *limit.Trust
	// Cluster reports whether there is an upstream of that name; nil: not checked.
	Cluster func(name string) bool
	// AccessLog takes the lines; nil: no access log.
	AccessLog *AccessLog
	// Span takes a sampled request that is over, on the goroutine that ended it; nil: no
	// spans are made. method and path are valid until it returns.
	Span func(x *Exchange, o Outcome, method, path []byte)
	// Link returns the value of a Link field for routes that announce the Mercure hub;
	// nil: there is none.
	Link func() string
	// Log is for what goes wrong; nil discards.
	Log *slog.Logger
}

// State is what stays when routes are reloaded. Any goroutine.
type State struct {
	// Tenants and Addresses hold the buckets of identities and of client addresses;
	// a route's own bucket is among the tenants.
	Tenants, Addresses *limit.Table

	mu     sync.Mutex // guards routes
	routes map[string]*routeState
}

// A routeState is what a route of one name counts, whatever its configuration.
type routeState struct {
	underWay atomic.Int64

	mu      sync.Mutex
	forward *authz.Forward // nil: no authorization server was configured
}

// NewState returns a State with room for that many tenants and addresses; 0
// means limit.DefaultBuckets each.
func NewState(buckets int) *State {
	return &State{Tenants: limit.NewTable(buckets), Addresses: limit.NewTable(buckets), routes: map[string]*routeState{}}
}

func (s *State) route(name string) *routeState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.routes[name]
	if st == nil {
		st = &routeState{}
		s.routes[name] = st
	}
	return st
}

// A Set is a compiled table of routes. Immutable: a reload makes a new one and
// swaps the pointer; exchanges under way keep the Route they have.
type Set struct {
	router *router.Router
	chains [][]*Route // by rule of router: see table
	routes []*Route
	deps   Deps
}

// New compiles routes. Its error joins all that is wrong, each naming its route.
func New(routes []RouteConfig, deps Deps) (*Set, error) {
	if deps.State == nil {
		deps.State = NewState(0)
	}
	deps.Log = cmp.Or(deps.Log, slog.New(slog.DiscardHandler))
	s := &Set{deps: deps}
	var errs []error
	names := map[string]bool{}
	for _, cfg := range routes {
		cfg = cfg.WithDefaults()
		if names[cfg.Name] {
			errs = append(errs, fmt.Errorf("route %q: another route has the same name: give each its own", cfg.Name))
		}
		names[cfg.Name] = true
		r, err := newRoute(cfg, &s.deps)
		if err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", cfg.Name, err))
			continue
		}
		s.routes = append(s.routes, r)
	}
	t := newTable(s.routes)
	rt, err := router.New(t.rules)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	s.router, s.chains = rt, t.chains
	bound := map[*Route]bool{}
	for i, chain := range t.chains {
		for _, r := range chain {
			if bound[r] {
				continue // by another method: the path and its parameters are the same
			}
			bound[r] = true
			if err := r.bind(rt, i); err != nil {
				errs = append(errs, fmt.Errorf("route %q: %w", r.cfg.Name, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// Routes returns the routes in the order configured. Not to be changed.
func (s *Set) Routes() []*Route { return s.routes }

// Watch gives the routes that request one the drift monitors of their names, and
// forgets those of others. Call it once, before the set serves: a set that is
// refused must not take the monitors of the one that stays. A nil set has none.
func (s *Set) Watch(in *upstream.Set) {
	watched := map[string]bool{}
	var routes []*Route
	if s != nil {
		routes = s.routes
	}
	for _, r := range routes {
		if r.cfg.Drift.Watch {
			r.drift = in.Drift(r.cfg.Name, r.cfg.Drift.DriftConfig)
			watched[r.cfg.Name] = true
		}
	}
	in.KeepDrifts(func(name string) bool { return watched[name] })
}

// Match normalises x.Path and finds x's route: Forward, or Refuse with 400, 404,
// 405 or 414. On Forward x.Route is set and Admit is next. A preflight of CORS
// finds the route that the request to come would have.
func (s *Set) Match(x *Exchange) Verdict {
	x.set, x.Route, x.preflight = s, nil, false
	if len(x.Host) > 0 && !validHost(x.Host) {
		return Verdict{Status: 400, Message: "bad Host"}
	}
	path, odd, err := router.Normalize(x.pathBuf[:0], x.Path)
	if err != nil {
		if e, ok := errors.AsType[*router.PathError](err); ok {
			return Verdict{Status: e.Status, Message: e.Reason, Hint: "send the path as its resource is called, once"}
		}
		return Verdict{Status: 400, Message: "bad path"}
	}
	if &path[0] != &x.Path[0] {
		x.pathBuf = path
	}
	x.path = path
	if s.router.Ambiguous(odd) {
		return Verdict{Status: 400, Message: "the path has a byte encoded that a route has plain", Hint: "send reserved bytes such as : and @ as they are"}
	}
	if isPreflight(x) {
		i, outcome := s.router.Match(x.Host, path, x.Fields.Get("Access-Control-Request-Method"), &x.params)
		if outcome == router.Found {
			if r := chooseCORS(s.chains[i], x); r != nil {
				x.Route, x.preflight = r, true
				return r.checkPath(odd)
			}
		}
	}
	switch i, outcome := s.router.Match(x.Host, path, x.Method, &x.params); outcome {
	case router.Found:
		if x.Route = choose(s.chains[i], x); x.Route != nil {
			return x.Route.checkPath(odd)
		}
	case router.MethodNotAllowed:
		allow := s.router.Allow(i)
		x.lines = http1.AppendField(x.lines[:0], "Allow", allow)
		return Verdict{Status: 405, Message: "method not allowed", Hint: "there are other methods for this path, see Allow", Fields: x.lines}
	}
	return Verdict{Status: 404, Message: "no such path", Hint: "no route leads there"}
}

// checkPath refuses spellings that the route does not request.
func (r *admission) checkPath(odd router.Odd) Verdict {
	switch {
	case odd&router.OddSlash != 0 && !r.cfg.Paths.EncodedSlash:
		return Verdict{Status: 400, Message: "encoded slash in the path", Hint: "the route would have to request it with paths.encoded_slash"}
	case odd&router.OddSemicolon != 0 && !r.cfg.Paths.Semicolon:
		return Verdict{Status: 400, Message: "semicolon in the path", Hint: "the route would have to request it with paths.semicolon"}
	}
	return Verdict{Action: Forward}
}
