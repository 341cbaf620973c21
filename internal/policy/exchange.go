package policy

import (
	"net/netip"

	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/router"
)

// An Exchange is one request and what becomes of it, as both fronts see it. A
// front keeps one per request under way and reuses it: Reset, fill in the first
// block, Set.Match, Route.Admit, Route.AppendRequestHead, Route.AppendResponseHead,
// Done. It belongs to one goroutine at a time.
type Exchange struct {
	// Filled in by the front. The slices may point into its input, which must stay
	// as it is until Retain or Done.
	Method, Path, Query, Host []byte // Path as sent, percent-encoded, without query
	Fields                    []http1.Field
	Minor                     uint8 // of HTTP/1; 2 stands for HTTP/2
	Length                    int64 // of the body; -1: not known, or none
	TLS                       bool
	Peer                      netip.AddrPort // of the connection, or what a trusted PROXY header says

	// Set by Match.
	Route *Route

	// Set by Admit.
	Client   netip.Addr // who made the request, by the trusted proxies' words
	Identity *auth.Identity
	Trace    Trace

	set      *Set
	params   router.Params
	path     []byte // normalised
	odd      router.Odd
	counted  bool // holds a place of MaxConcurrent
	pathBuf  []byte
	lines    []byte // field lines of verdicts
	retained []byte
}

// Framing is what the proxy writes into a head besides what is passed on.
type Framing struct {
	// Length is Content-Length; negative: the field is not written.
	Length int64
	// Chunked writes "Transfer-Encoding: chunked". Not with Length.
	Chunked bool
	// Trailers passes Trailer on, and TE: trailers of a request. Only with Chunked.
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
	// Host is the Host of a route that asks for "$upstream": the peer's address.
	Host string
	// Date is a whole Date line for a response that has none; empty: none.
	Date []byte
	// Extra are whole field lines of the proxy's own.
	Extra []byte
}

// An Action says what the front does next.
type Action uint8

const (
	// Refuse: answer Status with Message and Hint.
	Refuse Action = iota
	// Identify: verify Token, off the loop, and call AdmitIdentity.
	Identify
	// Respond: answer Status with ContentType and Body.
	Respond
	// Forward: the request goes to an upstream.
	Forward
)

// A Verdict is what a route says of a request. Its slices are valid until the
// Exchange is used again.
type Verdict struct {
	Action Action
	Status int
	// Message and Hint are in words, safe to show (Refuse).
	Message, Hint string
	// RetryAfter is the value of Retry-After in seconds, which the front writes; 0: none.
	RetryAfter int64
	// Fields are whole field lines to write besides the front's own: Allow, Location,
	// WWW-Authenticate, CORS.
	Fields []byte
	// ContentType and Body of the answer (Respond).
	ContentType string
	Body        []byte
	// Token to verify (Identify).
	Token string
}

// An Outcome is how an exchange ended, for the access log.
type Outcome struct {
	Status            int
	BytesIn, BytesOut int64 // of the bodies
	DurationNS        int64
	Upstream          string // the peer that answered; empty: none
	Retries           int
}
