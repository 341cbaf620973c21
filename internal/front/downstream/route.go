package downstream

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/batch"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push"
)

// A table is the configured routes and where they lead. Immutable: a request holds
// on to the one it began with.
type table struct {
	set         *policy.Set
	targets     map[*policy.Route]*target
	auth        bool // some route looks at tokens
	forwardAuth bool // some route has an authorization server
	classed     bool // the requests of some route have a class
}

// A target is where a route's requests go.
type target struct {
	cluster *upstream.Cluster // nil: split
	split   *upstream.Split

	timeouts *proxy.Timeouts // nil: the cluster's
	attempts int
	validate *policy.Validator // nil: nothing is validated
	record   policy.Record     // as record.Recorder.Check returned it
	batch    *batchTarget      // nil: nothing is batched
	perPeer  bool              // the Host is the peer's
}

// SetRoutes makes set serve what is not Weir's own, from the next request on; nil
// removes all routes. A request and a connection hold on to what they began with.
// A route's cluster is the name of a split, or of a cluster. After an error nothing
// has changed. Any goroutine may call it.
func (s *Server) SetRoutes(set *policy.Set, clusters *upstream.Set) error {
	if set == nil {
		s.routes.Store(nil)
		return nil
	}
	t := &table{set: set, targets: map[*policy.Route]*target{}}
	var errs []error
	for _, r := range set.Routes() {
		cfg := r.Config()
		t.auth = t.auth || cfg.Auth.Required || cfg.Auth.Forward || len(cfg.Auth.Scopes)+len(cfg.Auth.Claims) > 0
		t.forwardAuth = t.forwardAuth || r.Forward() != nil
		t.classed = t.classed || r.Class() != limit.Unclassed
		tg, err := s.newTarget(r, clusters)
		if err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", r.Name(), err))
			continue
		}
		t.targets[r] = tg
	}
	errs = append(errs, s.routesCollide(t))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for r, tg := range t.targets {
		if tg.batch != nil {
			tg.batch.queue = s.batcher.Queue(r.Name())
		}
	}
	s.routes.Store(t)
	return nil
}

func (s *Server) newTarget(r *policy.Route, clusters *upstream.Set) (*target, error) {
	cfg := r.Config()
	t := &target{attempts: cfg.Retry.Attempts, perPeer: cfg.Rewrite.Host == "$upstream"}
	if cfg.Timeouts != (policy.Timeouts{}) {
		t.timeouts = &proxy.Timeouts{Connect: time.Duration(cfg.Timeouts.Connect), FirstByte: time.Duration(cfg.Timeouts.FirstByte),
			Idle: time.Duration(cfg.Timeouts.Idle), Total: time.Duration(cfg.Timeouts.Total)}
	}
	t.validate = r.Validator()
	if cfg.Record.Enabled() {
		if s.recorder == nil {
			return nil, errors.New("record: this front does not record")
		}
		var err error
		if t.record, err = s.recorder.Check(cfg.Record); err != nil {
			return nil, err
		}
	}
	if cfg.Cluster == "" {
		return t, nil // it answers by itself
	}
	if s.proxy == nil || clusters == nil {
		return nil, errors.New("leads to a cluster, and there are none")
	}
	if cfg.Batch.Enabled() {
		t.batch = &batchTarget{cfg: cfg.Batch, format: batch.FormatNamed(cfg.Batch.Format)}
	}
	if t.split = clusters.Split(cfg.Cluster); t.split != nil {
		return t, nil
	}
	if t.cluster = clusters.Cluster(cfg.Cluster); t.cluster == nil {
		return nil, fmt.Errorf("there is no cluster %q; add it to clusters", cfg.Cluster)
	}
	if t.batch != nil && t.cluster.Config().ProxyProtocol != 0 {
		return nil, fmt.Errorf("batch: cluster %q gets the address of each client (proxy_protocol), and a call of several has none", cfg.Cluster)
	}
	return t, nil
}

// choose returns where r goes.
func (t *target) choose(r *forwarding) upstream.Choice {
	if t.split != nil {
		return t.split.Choose(r, rand.Uint64())
	}
	return upstream.Choice{Cluster: t.cluster}
}

var _ upstream.Request = (*forwarding)(nil)

// Header implements upstream.Request.
func (r *forwarding) Header(name string) []byte { return r.head.Get(name) }

// Cookie implements upstream.Request.
func (r *forwarding) Cookie(name string) []byte {
	for i := range r.head.Fields {
		f := &r.head.Fields[i]
		if len(f.Name) != len("Cookie") || !http1.EqualFold(f.Name, "cookie") {
			continue
		}
		for list := f.Value; len(list) > 0; {
			pair, rest, _ := bytes.Cut(list, semicolon)
			list = bytes.TrimLeft(rest, " ")
			if k, v, ok := bytes.Cut(pair, equals); ok && string(k) == name {
				return v
			}
		}
	}
	return nil
}

var semicolon, equals = []byte(";"), []byte("=")

// Path implements upstream.Request.
func (r *forwarding) Path() []byte { return r.policy.NormalPath() }

// Address implements upstream.Request.
func (r *forwarding) Address() netip.Addr { return r.policy.Client }

// route serves a request by the configured routes. head are the bytes of its head.
func (r *forwarding) route(t *table, head, rest []byte) int {
	h := r.h
	if t.forwardAuth || r.h.loopState.srv.push.Extensions().Handles(extension.Request) || t.auth && mayHoldToken(r.head) || r.lateIn(t) {
		// A token may have to be verified, a server be asked, or a turn be waited for,
		// which takes longer than head is there.
		r.keepHead(head)
	}
	req, x, now := r.head, &r.policy, r.c.Loop().Now()
	x.Reset()
	x.Method, x.Path, x.Query, x.Host, x.Fields = req.Method, req.Path, req.Query, req.Host, req.Fields
	x.Minor, x.Length, x.TLS, x.Peer = versionOf(r.c, req.Minor), req.ContentLength, r.c.Filtered(), r.c.Peer()
	x.Loop, x.Connection = r.c.Loop().ID()+1, r.c.ID()
	if peer := tlsterm.PeerOf(r.c); peer != nil {
		x.Certificate = peer.Certificate
	}
	r.table, r.start = t, now
	r.grpc, r.reply.grpcCode = speaksGRPC(req), -1
	r.expect = req.Expect100 && len(rest) == 0
	r.unread = req.Chunked || req.ContentLength > 0
	if r.unread {
		h.expectBody(r.request, req.ContentLength)
	} else {
		h.expectBody(r.request, 0) // -1 would be chunks
	}
	v := t.set.Match(x)
	r.matched = true
	if v.Action == policy.Forward {
		if x.Route.SpeaksGRPCWeb() {
			r.beginWeb(req)
		}
		v = x.Route.Admit(x, now)
	}
	return r.decide(&v, rest)
}

func mayHoldToken(req *http1.Request) bool {
	return req.Get("Authorization") != nil || req.Get("Cookie") != nil || len(req.Query) > 0
}

// decide does what a route specifies. It returns how much of rest it used.
func (r *forwarding) decide(v *policy.Verdict, rest []byte) int {
	switch v.Action {
	case policy.Forward:
		if class := r.policy.Route.Class(); class != limit.Unclassed && r.h.loopState.srv.push.Admits() {
			return r.forwardQueued(class, rest)
		}
		return r.forward(rest)
	case policy.Identify:
		r.endpoint = notFoundEndpoint // no stream of ours
		r.verifyWith(v.Token, func(r *request, id *auth.Identity, err error) { r.forwarding.identified(id, err) })
		return 0 // a body waits
	case policy.Authorize:
		r.authorize(v.Query, v.Own)
		return 0 // a body waits
	}
	used := r.skip(rest) // what is there of an unneeded body is skipped if it is all of it
	if v.Action == policy.Respond {
		r.answerWith(v.Status, v.ContentType, v.Body, "", v.Fields)
		return used
	}
	r.refuse(v)
	return used
}

// refuse answers what a route does not let through.
func (r *forwarding) refuse(v *policy.Verdict) {
	r.h.loopState.counters.refused.Add(1)
	r.reason = v.Message
	e := &push.APIError{Status: v.Status, Message: v.Message, Hint: v.Hint}
	if v.Status == http.StatusNotFound {
		e.Hint = r.h.loopState.srv.paths + ", and " + strconv.Itoa(len(r.table.targets)) + " configured routes"
	}
	if v.Status == http.StatusRequestEntityTooLarge {
		r.keepAlive = r.keepAlive && !r.unread
	}
	extra := answerFields
	if v.RetryAfter > 0 {
		extra += "Retry-After: " + strconv.FormatInt(v.RetryAfter, 10) + "\r\n"
	}
	r.answerWith(v.Status, "application/json", push.AppendError(nil, e), extra, v.Fields)
}

// identified continues after a route's token was verified.
func (r *forwarding) identified(id *auth.Identity, err error) {
	x := &r.policy
	v := x.Route.AdmitIdentity(x, id, err, r.c.Loop().Now())
	c := r.c
	r.decide(&v, nil)
	if !c.Closing() {
		resumeInput(c)
	}
}

// authorize obtains a decision on a goroutine of the server's. own is policy.Verdict's.
func (r *forwarding) authorize(q authz.Query, own bool) {
	h, c := r.h, r.c
	r.endpoint = notFoundEndpoint // no stream of ours
	h.wait(c)
	r.unread = r.unread || h.pending == r.request && h.left != 0 // its body stays where it is meanwhile
	r.decideAside(q, own, func(d *authz.Decision) {
		h.unwait()
		v := r.policy.Route.AdmitDecision(&r.policy, d)
		r.decide(&v, nil)
		if !c.Closing() {
			resumeInput(c)
		}
	})
}
