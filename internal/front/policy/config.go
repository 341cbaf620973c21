package policy

import (
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// RouteConfig is one route: what it is for, where it leads, and what it requires of a
// request on the way. See package router for which of two routes wins.
type RouteConfig struct {
	// Name appears in logs, metrics and errors, and keeps a route's counters over a
	// reload. Empty means host and path.
	Name string `json:"name"`
	// Host is "example.com", "*.example.com" or empty for any.
	Host string `json:"host"`
	// Path is exact ("/a"), a prefix ("/a/*") or has parameters ("/users/{id}").
	// Empty means "/*".
	Path string `json:"path"`
	// Methods it is for; GET includes HEAD. Empty means any.
	Methods []string `json:"methods"`
	// Match are further conditions. Of routes for the same host, path and method those with
	// conditions are tried first, in the order of the file; then the one without. Where none
	// holds the answer is 404.
	Match Match `json:"match"`

	// Cluster is the upstream that requests go to, or the split that divides them among
	// several. A route has exactly one of cluster, redirect and reply.
	Cluster string `json:"cluster"`
	// Redirect answers with another place.
	Redirect Redirect `json:"redirect"`
	// Reply answers by itself.
	Reply Reply `json:"reply"`

	// Rewrite changes path and host on the way to the upstream.
	Rewrite Rewrite `json:"rewrite"`
	// RequestHeaders changes what the upstream gets.
	RequestHeaders HeaderRules `json:"request_headers"`
	// ResponseHeaders changes what the client gets.
	ResponseHeaders HeaderRules `json:"response_headers"`
	// Auth specifies who may come.
	Auth Auth `json:"auth"`
	// ForwardAuth has an authorization server decide on each request, after auth and limits.
	ForwardAuth authz.ForwardConfig `json:"forward_auth"`
	// ClientCertificate admits clients by their certificates.
	ClientCertificate ClientCertificate `json:"client_certificate"`
	// Limits bound how often, how many and how much.
	Limits Limits `json:"limits"`
	// Addresses says from where one may come.
	Addresses limit.Lists `json:"addresses"`
	// CORS lets web pages of other origins in; it is answered here, the upstream's
	// own CORS fields are replaced. Without allowed_origins CORS is the upstream's.
	CORS CORS `json:"cors"`
	// GRPCWeb serves browsers that speak gRPC-Web, in its binary and its text form: their
	// calls go to the upstream as gRPC, and the replies are turned back. With cors, pages may
	// send what such clients send and read what they need. False: such requests are passed on
	// as they are. Not with record, hold and openapi.
	GRPCWeb bool `json:"grpc_web"`
	// Paths lets spellings of a path pass that are refused otherwise.
	Paths Paths `json:"paths"`
	// OpenAPI validates requests and responses against a document.
	OpenAPI OpenAPI `json:"openapi"`
	// MethodOverride passes X-HTTP-Method-Override and its like on. False: they are
	// removed, since a backend that heeds them takes a request for one that another
	// route is for.
	MethodOverride bool `json:"method_override"`
	// Timeouts in place of the cluster's.
	Timeouts Timeouts `json:"timeouts"`
	// Retry in place of the cluster's.
	Retry Retry `json:"retry"`
	// Forwarding specifies which fields report to the upstream where a request comes from:
	// "x-forwarded" (X-Forwarded-For, -Proto, -Host), "forwarded" (RFC 7239), "both"
	// or "none". What clients send under these names is never passed on; of what
	// trusted proxies say the client's address, scheme and host are. Empty means
	// x-forwarded.
	Forwarding string `json:"forwarding"`
	// TraceSample is the part of the traces started here that is marked as sampled, 0
	// to 1; 0 means all, as backends would sample their own, negative none. A
	// caller's trace is continued as it is.
	TraceSample float64 `json:"trace_sample"`
	// Class specifies who goes first when there is more to do than can be done: control,
	// order, account, market or replay. Requests of a class may have to wait, and are
	// refused when they would wait for too long. Empty means that they are no part of
	// that: they are served as they come.
	Class string `json:"class"`
	// AccessLog specifies what the access log gets of it.
	AccessLog AccessLogRule `json:"access_log"`
	// Drift raises an alarm when what it forwards is no longer what it was.
	Drift Drift `json:"drift"`
	// Record keeps the upstream's event streams, so that clients resume them.
	Record Record `json:"record"`
	// Hold lets the upstream turn a client's connection into a subscription.
	Hold Hold `json:"hold"`
	// Batch makes one call to the upstream of several requests.
	Batch Batch `json:"batch"`
	// Mercure adds the Link field by which Mercure clients find the hub, with where its
	// position when the request came: a subscription from there misses nothing. It needs
	// mercure.enabled.
	Mercure bool `json:"mercure"`
}

// Redirect answers with another place.
type Redirect struct {
	// To is the Location: an absolute URL or a path. "{id}" represents a parameter
	// of the route's path, "{*}" for what its "/*" matched, "$path" for the whole
	// path, "$query" for "?" and the query if there is one, "$host" for the host without
	// its port.
	// Empty means no redirect.
	To string `json:"to"`
	// Status is 301, 302, 303, 307 or 308; 0 means 308, which keeps the method.
	Status int `json:"status"`
}

// Reply is an answer that never changes.
type Reply struct {
	// Status is 200 to 599; 0 means no reply.
	Status int `json:"status"`
	// ContentType of the body; empty means text/plain; charset=utf-8.
	ContentType string `json:"content_type"`
	// Body is sent as it is.
	Body string `json:"body"`
	// Headers are further fields.
	Headers map[string]string `json:"headers"`
}

// Rewrite changes path and host on the way to the upstream. What comes of it is
// normalised again.
type Rewrite struct {
	// Path replaces the path: "{id}" represents a parameter, "{*}" for what the
	// route's "/*" matched. Not with strip_prefix and add_prefix. Empty: as it is.
	Path string `json:"path"`
	// StripPrefix is removed from the path's front, whole segments only; a path
	// without it stays. Empty: nothing.
	StripPrefix string `json:"strip_prefix"`
	// AddPrefix is put before the path, after strip_prefix. Empty: nothing.
	AddPrefix string `json:"add_prefix"`
	// Host replaces the Host. Empty: the client's, which is what backends expect of
	// a gateway; "$upstream" is the address of the peer.
	Host string `json:"host"`
}

// HeaderRules change fields. Those of the message's framing and of the connection
// (Content-Length, Transfer-Encoding, Connection, Host …) cannot be changed.
type HeaderRules struct {
	// Remove takes all fields of these names away, first.
	Remove []string `json:"remove"`
	// Set replaces all fields of a name by one.
	Set map[string]string `json:"set"`
	// Add adds a field and leaves those of its name.
	Add map[string]string `json:"add"`
}

// Auth specifies who may come through a route. Keys and issuers are in the auth section.
type Auth struct {
	// Required refuses requests without a valid token or key with 401. The token must
	// name a subject (sub), and be for clients, not for Mercure or one channel. False: a
	// request without one passes; a wrong one is refused only where identities are
	// looked at, which is with required, forward, scopes or claims.
	Required bool `json:"required"`
	// APIKeys lets API keys in besides tokens. False: they are not looked at.
	APIKeys bool `json:"api_keys"`
	// Scopes that a token must all have, in its scope or scp claim (403). They imply
	// required, and no API key has any.
	Scopes []string `json:"scopes"`
	// Claims that a token must have: claim by name, to a value that it must be or,
	// for a list, contain (403). They imply required, and no API key has any.
	Claims map[string]string `json:"claims"`
	// Forward sends the upstream the identity in X-Weir-User, X-Weir-Auth ("token" or
	// "api_key") and X-Weir-Scopes, and takes the token or key out of the request,
	// but for a cookie.
	// What a client sends under names that start with X-Weir- is removed on every
	// route.
	Forward bool `json:"forward"`
}

// Limits bound what a route takes.
type Limits struct {
	// PerTenant bounds requests by identity: the token's subject, or the name of the
	// API key. Without per_second a tenant has 500 requests per second, in all over
	// the routes that say nothing else; with it the route has a bucket of its own.
	// Requests without an identity have no tenant. The nodes of a cluster share it.
	PerTenant limit.Rate `json:"per_tenant"`
	// TenantClaim is the claim that names the tenant; empty means the subject.
	TenantClaim string `json:"tenant_claim"`
	// PerAddress bounds requests by client address (IPv6: by /64). Zero: no limit.
	PerAddress limit.Rate `json:"per_address"`
	// PerRoute bounds the requests of all clients together. Zero: no limit.
	PerRoute limit.Rate `json:"per_route"`
	// MaxBody bounds a request's body; 0 means 2 MiB, -1 no limit. Beyond: 413.
	MaxBody int64 `json:"max_body" unit:"bytes" min:"-1"`
	// MaxConcurrent bounds the requests under way. Beyond: 503. 0 means no limit.
	MaxConcurrent int `json:"max_concurrent"`
}

// CORS is the fetch standard's protocol for requests from pages of other origins.
type CORS struct {
	// AllowedOrigins are "https://app.example.com", "https://*.example.com" (any
	// subdomain) or "*". Empty means that CORS is not answered here.
	AllowedOrigins []string `json:"allowed_origins"`
	// Methods a page may use; empty means the route's, or all if it has none.
	Methods []string `json:"methods"`
	// Headers a page may send; empty means those it requests.
	Headers []string `json:"headers"`
	// ExposeHeaders are response fields that a page may read besides the usual.
	ExposeHeaders []string `json:"expose_headers"`
	// MaxAge is how long a browser remembers; 0 means 10m.
	MaxAge hub.Duration `json:"max_age"`
	// Credentials allows cookies and the like. Not with "*".
	Credentials bool `json:"credentials"`
}

// Paths lets spellings pass that backends may read in two ways. Each opens a way
// around other routes if the backend decodes or cuts what Weir does not.
type Paths struct {
	// EncodedSlash lets "%2F" pass, as part of its segment. False: 400.
	EncodedSlash bool `json:"encoded_slash"`
	// Semicolon lets ";" and "%3B" pass, as part of their segment. False: 400.
	Semicolon bool `json:"semicolon"`
}

// OpenAPI validates against an OpenAPI 3 document.
type OpenAPI struct {
	// File is the document, YAML or JSON. Empty means no validation.
	File string `json:"file"`
	// ValidateRequests validates requests (400 if they do not hold).
	ValidateRequests setting.Switch `json:"validate_requests"`
	// ValidateResponses validates what the upstream answers (502 if it does not
	// hold). False: responses pass as they come.
	ValidateResponses bool `json:"validate_responses"`
	// MaxBody bounds the bodies that are held for validation; 0 means 1 MiB. A
	// longer request is refused with 413, a longer response is not validated.
	MaxBody int64 `json:"max_body" unit:"bytes"`
}

// Timeouts in place of the cluster's; 0 means the cluster's.
type Timeouts struct {
	// Connect bounds the connection to a peer.
	Connect hub.Duration `json:"connect"`
	// FirstByte bounds the wait for the response's head after the request is sent.
	FirstByte hub.Duration `json:"first_byte"`
	// Idle bounds a silence while the response is relayed.
	Idle hub.Duration `json:"idle"`
	// Total bounds the whole exchange.
	Total hub.Duration `json:"total"`
}

// Retry in place of the cluster's.
type Retry struct {
	// Attempts is how many further peers are tried; 0 means the cluster's, negative
	// none.
	Attempts int `json:"attempts"`
}

// AccessLogRule specifies what the access log gets of a route.
type AccessLogRule struct {
	// Sample is the part of the requests that is logged, 0 to 1; 0 means all, negative none.
	// Answers of status 500 and above are always logged.
	Sample float64 `json:"sample"`
	// Enabled writes the route's requests to the access log.
	Enabled setting.Switch `json:"enabled"`
	// Redact are further query parameters whose values are not written, besides
	// token, access_token, api_key and the like.
	Redact []string `json:"redact"`
	// Headers are request fields that are written; of those that hold credentials
	// only that they were there. Empty means none.
	Headers []string `json:"headers"`
}

// Drift compares a route's requests with those of its first window, in the size of
// their bodies and in latency: a changed client or backend shows before it fails.
type Drift struct {
	// Watch compares, and says in the log and at /api/upstreams what differs. False:
	// nothing is compared.
	Watch bool `json:"watch"`
	upstream.DriftConfig
}
