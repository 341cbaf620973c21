package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/router"
	"github.com/weir-gateway/weir/internal/push/hub"
)

const (
	defaultMaxBody        = 2 << 20
	defaultOpenAPIMaxBody = 1 << 20
	defaultMaxAge         = hub.Duration(10 * time.Minute)
)

// WithDefaults returns c with every zero replaced by what it means.
func (c RouteConfig) WithDefaults() RouteConfig {
	c.Path = cmp.Or(c.Path, "/*")
	if c.Name == "" {
		c.Name = c.Host + c.Path
		if len(c.Methods) > 0 {
			c.Name = strings.Join(c.Methods, ",") + " " + c.Name
		}
	}
	if c.Redirect.To != "" && c.Redirect.Status == 0 {
		c.Redirect.Status = 308
	}
	if c.Reply.Status != 0 && c.Reply.ContentType == "" {
		c.Reply.ContentType = "text/plain; charset=utf-8"
	}
	c.Limits.MaxBody = cmp.Or(c.Limits.MaxBody, defaultMaxBody)
	if len(c.CORS.AllowedOrigins) > 0 && c.CORS.MaxAge == 0 {
		c.CORS.MaxAge = defaultMaxAge
	}
	if c.OpenAPI.File != "" && c.OpenAPI.MaxBody == 0 {
		c.OpenAPI.MaxBody = defaultOpenAPIMaxBody
	}
	c.Forwarding = cmp.Or(c.Forwarding, "x-forwarded")
	c.ForwardAuth = c.ForwardAuth.WithDefaults()
	c.Record, c.Hold, c.Batch = c.Record.WithDefaults(), c.Hold.WithDefaults(), c.Batch.WithDefaults()
	return c
}

// Validate returns all that is wrong with c alone, joined. What is in files or
// other sections is evaluated by New.
func (c RouteConfig) Validate() error {
	c = c.WithDefaults()
	errs := []error{c.Match.validate(), c.validateAction(), c.validateRewrite(), c.RequestHeaders.validate("request_headers"), c.ResponseHeaders.validate("response_headers"),
		c.Record.validate(), c.Hold.validate(), c.Batch.validate(&c), c.ClientCertificate.validate(), c.validateForwardAuth()}
	if (c.Record.Enabled() || len(c.Hold.Channels) > 0) && c.Cluster == "" {
		errs = append(errs, errors.New("record and hold are for routes that lead to a cluster"))
	}
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.GRPCWeb && (c.Cluster == "" || c.Record.Enabled() || len(c.Hold.Channels) > 0 || c.OpenAPI.File != "") {
		say("grpc_web: it is for routes that lead to a cluster, without record, hold and openapi")
	}
	if _, err := newCORS(c.allCORS(), c.Methods); err != nil {
		errs = append(errs, err)
	}
	if err := c.Addresses.Validate(); err != nil {
		say("addresses: %w", err)
	}
	for key, r := range map[string]interface{ Validate() error }{
		"per_tenant": c.Limits.PerTenant, "per_address": c.Limits.PerAddress, "per_route": c.Limits.PerRoute,
	} {
		if err := r.Validate(); err != nil {
			say("limits.%s.%w", key, err)
		}
	}
	if c.Limits.MaxConcurrent < 0 {
		say("limits.max_concurrent: %d is negative", c.Limits.MaxConcurrent)
	}
	if err := c.Drift.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.OpenAPI.MaxBody < 0 {
		say("openapi.max_body: %d is negative", c.OpenAPI.MaxBody)
	}
	if err := new(limit.Class).UnmarshalText([]byte(c.Class)); err != nil {
		say("class: %w", err)
	}
	if !slices.Contains([]string{"x-forwarded", "forwarded", "both", "none"}, c.Forwarding) {
		say("forwarding: %q is none of x-forwarded, forwarded, both, none", c.Forwarding)
	}
	for key, f := range map[string]float64{"access_log.sample": c.AccessLog.Sample, "trace_sample": c.TraceSample} {
		if !(f <= 1) {
			say("%s: %v is not within 0..1", key, f)
		}
	}
	if t := c.Timeouts; t.Connect < 0 || t.FirstByte < 0 || t.Idle < 0 || t.Total < 0 {
		say("timeouts: none may be negative")
	}
	if c.CORS.MaxAge < 0 {
		say("cors.max_age: must not be negative")
	}
	for _, name := range c.AccessLog.Headers {
		if !http1.ValidName(name) {
			say("access_log.headers: %q is not a field name", name)
		}
	}
	return errors.Join(errs...)
}

// validateAction checks that a route leads to one place.
func (c *RouteConfig) validateAction() error {
	var has []string
	for name, set := range map[string]bool{
		"cluster": c.Cluster != "", "redirect": c.Redirect.To != "", "reply": c.Reply.Status != 0,
	} {
		if set {
			has = append(has, name)
		}
	}
	slices.Sort(has)
	switch {
	case len(has) == 0:
		return errors.New("leads nowhere: give it a cluster, redirect or reply")
	case len(has) > 1:
		return fmt.Errorf("has %s: give it one", strings.Join(has, " and "))
	}
	var errs []error
	if c.Redirect.To != "" && !slices.Contains([]int{301, 302, 303, 307, 308}, c.Redirect.Status) {
		errs = append(errs, fmt.Errorf("redirect.status: %d is none of 301, 302, 303, 307, 308", c.Redirect.Status))
	}
	if r := c.Reply; r.Status != 0 {
		if r.Status < 200 || r.Status > 599 {
			errs = append(errs, fmt.Errorf("reply.status: %d is not within 200..599", r.Status))
		}
		if r.Body != "" && (r.Status == 204 || r.Status == 304) {
			errs = append(errs, fmt.Errorf("reply.body: status %d has no body", r.Status))
		}
		if !http1.ValidValue(r.ContentType) {
			errs = append(errs, fmt.Errorf("reply.content_type: %q holds bytes that a field may not", r.ContentType))
		}
		errs = append(errs, HeaderRules{Set: r.Headers}.validate("reply.headers"))
	}
	return errors.Join(errs...)
}

func (c *RouteConfig) validateRewrite() error {
	var errs []error
	rw := c.Rewrite
	if rw.Path != "" && (rw.StripPrefix != "" || rw.AddPrefix != "") {
		errs = append(errs, errors.New("rewrite: path already says all: leave strip_prefix and add_prefix out"))
	}
	if strings.ContainsAny(rw.Path, "?#") {
		errs = append(errs, fmt.Errorf("rewrite.path: %q: a path has no query and no fragment", rw.Path))
	}
	for key, p := range map[string]string{"strip_prefix": rw.StripPrefix, "add_prefix": rw.AddPrefix} {
		if p == "" {
			continue
		}
		norm, _, err := router.Normalize(nil, []byte(p))
		if err != nil || string(norm) != p || strings.HasSuffix(p, "/") {
			errs = append(errs, fmt.Errorf("rewrite.%s: %q: write it like /v1/api, without a slash at the end", key, p))
		}
	}
	if h := rw.Host; h != "" && h != "$upstream" && !validHost([]byte(h)) {
		errs = append(errs, fmt.Errorf("rewrite.host: %q is not a host", h))
	}
	if (rw != Rewrite{}) && c.Cluster == "" {
		errs = append(errs, errors.New("rewrite: nothing goes to an upstream here"))
	}
	return errors.Join(errs...)
}

func (h HeaderRules) validate(key string) error {
	var errs []error
	name := func(where, n string) {
		switch low := strings.ToLower(n); {
		case !http1.ValidName(n):
			errs = append(errs, fmt.Errorf("%s.%s: %q is not a field name", key, where, n))
		case slices.Contains(untouchable, low):
			errs = append(errs, fmt.Errorf("%s.%s: %s belongs to the connection and cannot be changed", key, where, n))
		case strings.HasPrefix(low, "x-weir-"):
			errs = append(errs, fmt.Errorf("%s.%s: names that start with X-Weir- are Weir's own", key, where))
		}
	}
	for _, n := range h.Remove {
		name("remove", n)
	}
	for where, m := range map[string]map[string]string{"set": h.Set, "add": h.Add} {
		for n, v := range m {
			name(where, n)
			if !http1.ValidValue(v) {
				errs = append(errs, fmt.Errorf("%s.%s: the value of %s holds bytes that a field may not", key, where, n))
			}
		}
	}
	return errors.Join(errs...)
}
