package policy

import (
	"math"
	"math/rand/v2"
	"net/netip"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/router"
)

// An Exchange is one request and what becomes of it, as the front sees it. A
// front keeps one per request under way and reuses it: Reset, fill in the first
// block, Set.Match, Route.Admit, Route.AppendRequestHead, Route.AppendResponseHead,
// Done. It belongs to one goroutine at a time.
type Exchange struct {
	// Filled in by the front. The slices may point into its input, which must stay
	// as it is until Retain or Done.
	Method, Path, Query, Host []byte // Path as sent, percent-encoded, without query
	Fields                    http1.Fields
	Minor                     uint8 // of HTTP/1; 2 means HTTP/2, 3 for HTTP/3
	Length                    int64 // of the body; -1: not known, or none
	TLS                       bool
	Peer                      netip.AddrPort    // of the connection, or what a trusted PROXY header says
	Certificate               *auth.Certificate // the client's, verified; nil: none
	Connection                uint64            // its number
	Loop                      int               // 1 + the number of the event loop that it is on; 0: on none

	// Set by Match.
	Route *Route

	// Set by Admit.
	Client   netip.Addr // who made the request, by the trusted proxies' words
	Identity *auth.Identity
	Trace    Trace

	decision  *authz.Decision  // of the authorization server; nil: none yet
	extension *authz.Decision  // of extensions on the request; nil: none
	response  *authz.Decision  // of extensions on the response; nil: none
	request   *extension.Event // the request, for the event of its response; nil: it has none
	set       *Set
	params    router.Params
	path      []byte // normalised; may be a part of the input
	out       []byte // as the upstream gets it
	origin    []byte // the Origin field
	preflight bool
	presented presented
	hopsLeft  int16  // what the upstream gets as Max-Forwards; -1: as it came
	counted   bool   // holds a place of MaxConcurrent
	logged    bool   // its line is wanted whatever its status
	detached  bool   // Retain was called
	link      string // the Link field of a route that announces the Mercure hub

	// Buffers, kept by Reset.
	pathBuf, outBuf, cleanBuf []byte
	lines                     []byte // field lines of verdicts
	retained                  []byte // what Retain copies
	line                      []byte // the request's part of the access log's line
	span                      []byte // the method and path for a span, if they were let go
	spanMethod                int    // how much of it is the method
}

// Framing is what the proxy writes into a head besides what is passed on.
type Framing struct {
	// Length is Content-Length; negative: the field is not written.
	Length int64
	// Chunked writes "Transfer-Encoding: chunked". Not with Length.
	Chunked bool
	// Trailers passes the Trailer field on. Only with Chunked.
	Trailers bool
	// Upgrade is the protocol to switch to; it writes Upgrade and its Connection
	// option. nil: none.
	Upgrade []byte
	// Close writes "Connection: close".
	Close bool
	// KeepAlive writes "Connection: keep-alive", for HTTP/1.0 clients.
	KeepAlive bool
	// Expect writes "Expect: 100-continue".
	Expect bool
	// Host is the Host of a route with "$upstream": the peer's address.
	Host string
	// Date is a whole Date line for a response that has none; empty: none.
	Date []byte
	// Extra are complete field lines of the proxy's own.
	Extra []byte

	// shared are the fields of the client's that continue; nil: all.
	shared *nameSet
}

// An Action reports what the front does next.
type Action uint8

const (
	// Refuse: answer Status with Message and Hint.
	Refuse Action = iota
	// Identify: verify Token, off the loop, and call AdmitIdentity.
	Identify
	// Authorize: run Query, off the loop, and call AdmitDecision.
	Authorize
	// Respond: answer Status with ContentType and Body.
	Respond
	// Forward: the request goes to an upstream.
	Forward
)

// A Verdict is what a route specifies of a request. Its slices are valid until the
// Exchange is used again.
type Verdict struct {
	Action Action
	Status int
	// Message and Hint are in words, safe to show (Refuse).
	Message, Hint string
	// RetryAfter is the value of Retry-After in seconds, which the front writes; 0: none.
	RetryAfter int64
	// Fields are complete field lines to write besides the front's own: Allow, Location,
	// WWW-Authenticate, CORS.
	Fields []byte
	// ContentType and Body of the answer (Respond).
	ContentType string
	Body        []byte
	// Token to verify (Identify).
	Token string
	// Query obtains a decision (Authorize). Own says that it is for this request alone, so that
	// it ends with its client.
	Query authz.Query
	Own   bool
}

// An Outcome is how an exchange ended, for the access log.
type Outcome struct {
	Status            int
	BytesIn, BytesOut int64 // of the bodies
	DurationNS        int64
	FirstByteNS       int64  // to the head of the reply; 0: DurationNS is treated as it
	Upstream          string // the peer that answered; empty: none
	Retries           int
	GRPC              bool // GRPCStatus is how a call of gRPC ended
	GRPCStatus        int
}

// Reset makes x ready for another request, and keeps its buffers.
func (x *Exchange) Reset() {
	*x = Exchange{
		pathBuf: x.pathBuf[:0], outBuf: x.outBuf[:0], cleanBuf: x.cleanBuf[:0],
		lines: x.lines[:0], retained: x.retained[:0], line: x.line[:0], span: x.span[:0],
	}
}

// NormalPath returns the normalised path after Match: what was matched.
func (x *Exchange) NormalPath() []byte { return x.path }

// TargetPath returns the path that the upstream gets, after Admit: rewritten and
// normalised, without the query.
func (x *Exchange) TargetPath() []byte { return x.out }

// Param returns the value of a parameter of the route's path, percent-encoded as
// it was matched; nil if the route has none of that name.
func (x *Exchange) Param(name string) []byte {
	i := x.set.router.Param(x.Route.index, name)
	if i < 0 {
		return nil
	}
	return x.params.Value(x.path, i)
}

// begin finds out what every route wants to know.
func (x *Exchange) begin() {
	r := x.Route
	x.Client = r.deps.Trust.Client(x.Peer.Addr(), x.Fields)
	if r.forwards || r.logged { // it is not used otherwise
		x.Trace = continueTrace(x.Fields, r.traceSample)
	}
	x.presented, x.Identity = byNothing, nil
	if r.cors != nil || r.identify {
		x.origin = x.Fields.Get("Origin")
		x.logRefusedOrigin()
	}
	x.logged = r.logged && r.sample > 0 && (r.sample == math.MaxUint32 || rand.Uint32() <= r.sample)
}

// Retain copies what responses and the access log need, so that the front may let
// the request's bytes go. Call it after AppendRequestHead; Param, NormalPath and
// TargetPath are gone with it.
func (x *Exchange) Retain() {
	if x.detached {
		return
	}
	x.detached = true
	x.describe()
	if x.spans() {
		x.span = append(append(x.span[:0], x.Method...), x.Path...)
		x.spanMethod = len(x.Method)
	}
	x.retained = append(x.retained[:0], x.origin...)
	x.origin = x.retained
	x.Method, x.Path, x.Query, x.Host, x.Fields, x.path, x.out = nil, nil, nil, nil, nil, nil, nil
}

// Done ends an exchange: a place of MaxConcurrent is given back, the access log gets
// its line. It must be called once for each Exchange that Match was called on,
// whatever came of it.
func (x *Exchange) Done(o Outcome) {
	if x.set == nil {
		return
	}
	if x.counted {
		x.counted = false
		x.Route.state.underWay.Add(-1)
	}
	if x.Route != nil && x.Route.drift != nil && o.Upstream != "" {
		if o.FirstByteNS == 0 {
			o.FirstByteNS = o.DurationNS
		}
		x.Route.drift.Observe(o.BytesIn, o.FirstByteNS)
	}
	x.writeLine(&o)
	if x.spans() {
		method, path := x.Method, x.Path
		if x.detached {
			method, path = x.span[:x.spanMethod], x.span[x.spanMethod:]
		}
		x.set.deps.Span(x, o, method, path)
	}
	x.set = nil
}

// spans reports whether a span is to be made of x.
func (x *Exchange) spans() bool { return x.Trace.Flags&FlagSampled != 0 && x.set.deps.Span != nil }
