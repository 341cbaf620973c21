package policy

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
)

// cors is a compiled CORS. nil: it is not answered here.
type cors struct {
	any         bool
	exact       []string // in lower case
	sub         []wildOrigin
	credentials bool
	methods     string // empty: what is asked for
	headers     string // empty: what is asked for
	expose      string
	maxAge      string
}

// A wildOrigin is "https://*.example.com:8443" parsed.
type wildOrigin struct{ scheme, suffix string } // "https://", ".example.com:8443"

func newCORS(cfg CORS, routeMethods []string) (*cors, error) {
	if len(cfg.AllowedOrigins) == 0 {
		if len(cfg.Methods)+len(cfg.Headers)+len(cfg.ExposeHeaders) > 0 || cfg.Credentials {
			return nil, errors.New("cors: nothing is allowed without allowed_origins")
		}
		return nil, nil
	}
	c := &cors{credentials: cfg.Credentials, maxAge: strconv.Itoa(int(time.Duration(cfg.MaxAge) / time.Second))}
	var errs []error
	for _, o := range cfg.AllowedOrigins {
		if err := c.allow(o); err != nil {
			errs = append(errs, fmt.Errorf("cors.allowed_origins: %w", err))
		}
	}
	if c.any && c.credentials {
		errs = append(errs, errors.New(`cors.credentials: not with the origin "*", which would hand any page what a cookie opens: name the origins`))
	}
	for key, list := range map[string][]string{"methods": cfg.Methods, "headers": cfg.Headers, "expose_headers": cfg.ExposeHeaders} {
		for _, name := range list {
			if !http1.ValidName(name) {
				errs = append(errs, fmt.Errorf("cors.%s: %q is not a name", key, name))
			}
		}
	}
	methods := cfg.Methods
	if len(methods) == 0 {
		methods = routeMethods
	}
	c.methods, c.headers, c.expose = strings.Join(methods, ", "), strings.Join(cfg.Headers, ", "), strings.Join(cfg.ExposeHeaders, ", ")
	return c, errors.Join(errs...)
}

// What clients of gRPC-Web send, and what they read of a reply that is a head alone.
var (
	webRequestNames  = []string{"content-type", "x-grpc-web", "x-user-agent", "grpc-timeout"}
	webResponseNames = []string{"grpc-status", "grpc-message", "grpc-status-details-bin"}
)

// allCORS is CORS with what GRPCWeb needs.
func (c *RouteConfig) allCORS() CORS {
	all := c.CORS
	if !c.GRPCWeb || len(all.AllowedOrigins) == 0 {
		return all
	}
	all.ExposeHeaders = slices.Concat(all.ExposeHeaders, webResponseNames)
	if len(all.Headers) > 0 {
		all.Headers = slices.Concat(all.Headers, webRequestNames)
	}
	return all
}

func (c *cors) allow(o string) error {
	if o == "*" {
		c.any = true
		return nil
	}
	u, err := url.Parse(strings.Replace(o, "://*.", "://", 1))
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.Path+u.RawQuery+u.Fragment != "" ||
		u.User != nil || strings.Contains(u.Host, "*") {
		return fmt.Errorf(`%q is not an origin: write "https://app.example.com", "https://*.example.com" or "*"`, o)
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		host = strings.TrimSuffix(host, ":"+port) // browsers leave the default port out
	}
	if strings.Contains(o, "://*.") {
		c.sub = append(c.sub, wildOrigin{u.Scheme + "://", "." + host})
		return nil
	}
	c.exact = append(c.exact, u.Scheme+"://"+host)
	return nil
}

// allows reports whether pages of an origin are let in.
func (c *cors) allows(origin []byte) bool {
	return c != nil && len(origin) > 0 && (c.any || c.names(origin))
}

// trusts reports whether cookies count that pages of an origin send along.
func (c *cors) trusts(origin []byte) bool { return c != nil && c.credentials && c.names(origin) }

func (c *cors) names(origin []byte) bool {
	for _, o := range c.exact {
		if http1.EqualFold(origin, o) {
			return true
		}
	}
	for _, w := range c.sub {
		cut := len(origin) - len(w.suffix)
		if cut > len(w.scheme) && http1.EqualFold(origin[:len(w.scheme)], w.scheme) && http1.EqualFold(origin[cut:], w.suffix) &&
			!bytes.ContainsAny(origin[len(w.scheme):cut], "/:@?#") {
			return true
		}
	}
	return false
}

// isPreflight distinguishes a preflight from an OPTIONS of its own (Fetch §4.8).
func isPreflight(x *Exchange) bool {
	return string(x.Method) == "OPTIONS" && x.Fields.Get("Origin") != nil && len(x.Fields.Get("Access-Control-Request-Method")) > 0
}

// preflight answers for the request to come.
func (c *cors) preflight(x *Exchange) Verdict {
	if !c.allows(x.origin) {
		return Verdict{Status: 403, Message: "pages of this origin may not come here", Hint: "the route's cors.allowed_origins would have to name it"}
	}
	b := c.appendFields(x.lines[:0], x.origin)
	methods, headers := []byte(nil), x.Fields.Get("Access-Control-Request-Headers")
	if c.methods == "" {
		methods = x.Fields.Get("Access-Control-Request-Method")
	}
	b = append(b, "Access-Control-Allow-Methods: "...)
	b = append(append(append(b, c.methods...), methods...), "\r\n"...)
	switch {
	case c.headers != "":
		b = http1.AppendField(b, "Access-Control-Allow-Headers", c.headers)
	case len(headers) > 0:
		b = http1.AppendField(b, "Access-Control-Allow-Headers", headers)
	}
	b = http1.AppendField(b, "Access-Control-Max-Age", c.maxAge)
	b = append(b, "Vary: Access-Control-Request-Method, Access-Control-Request-Headers\r\n"...)
	x.lines = b
	return Verdict{Action: Respond, Status: 204, Fields: b}
}

// logRefusedOrigin logs that a page of another origin will not be able to read the answer.
func (x *Exchange) logRefusedOrigin() {
	r := x.Route
	if r.cors == nil || len(x.origin) == 0 || r.deps.Auth == nil || r.cors.allows(x.origin) {
		return
	}
	if _, host, _ := bytes.Cut(x.origin, []byte("://")); len(host) == len(x.Host) && http1.EqualFold(host, string(x.Host)) {
		return // the route's own page: a proxy in front may have ended its TLS
	}
	p := auth.Page{Origin: x.origin, Host: x.Host, TLS: x.TLS, Peer: x.Peer.Addr()}
	r.deps.Auth.LogRefusedOrigin(p, x.Path, "add it to cors.allowed_origins of the route "+strconv.Quote(r.Name()))
}

// appendFields appends what lets an allowed origin read an answer.
func (c *cors) appendFields(dst, origin []byte) []byte {
	if c.any && !c.names(origin) {
		dst = append(dst, "Access-Control-Allow-Origin: *\r\n"...)
	} else {
		dst = http1.AppendField(dst, "Access-Control-Allow-Origin", origin)
		if c.credentials {
			dst = append(dst, "Access-Control-Allow-Credentials: true\r\n"...)
		}
	}
	return dst
}

// AppendCORS appends the fields of CORS for an answer to x. Verdicts and
// AppendResponseHead have them already: it is for a front's own answers after
// Admit, that pages may read them. Vary is there for every origin, and without
// one: caches must not mix them up.
func (r *heads) AppendCORS(dst []byte, x *Exchange) []byte {
	c := r.cors
	if c == nil {
		return dst
	}
	if c.allows(x.origin) {
		dst = c.appendFields(dst, x.origin)
		switch {
		case x.link != "" && c.expose != "":
			dst = http1.AppendField(dst, "Access-Control-Expose-Headers", c.expose+", Link")
		case x.link != "": // by which a page finds the hub
			dst = append(dst, "Access-Control-Expose-Headers: Link\r\n"...)
		case c.expose != "":
			dst = http1.AppendField(dst, "Access-Control-Expose-Headers", c.expose)
		}
	}
	if !c.any || len(c.exact)+len(c.sub) > 0 {
		dst = append(dst, "Vary: Origin\r\n"...)
	}
	return dst
}
