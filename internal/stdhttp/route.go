package stdhttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/upstream"
	"github.com/weir-gateway/weir/internal/wire"
)

// exchange is one request of a route.
type exchange struct {
	policy.Exchange
	f     *Front
	w     http.ResponseWriter
	r     *http.Request
	out   policy.Outcome
	begin int64  // on the clock of deps
	body  []byte // the whole request body, when it was needed first
	held  bool   // body has it
}

// route serves a request by the configured routes.
func (f *Front) route(set *policy.Set, w http.ResponseWriter, r *http.Request) {
	if isExtendedConnect(r) { // RFC 8441 is for our own streams: upstreams speak HTTP/1.1
		f.fail(w, r, &wire.Error{Status: http.StatusNotImplemented, Message: "no WebSocket over HTTP/2 on this path"})
		return
	}
	f.exchanges.Add(1)
	defer f.exchanges.Add(-1)
	x := &exchange{f: f, w: w, r: r}
	r.Body = &watched{ReadCloser: r.Body}
	x.fill()
	x.begin = f.deps.Now()
	defer func() {
		x.out.DurationNS = f.deps.Now() - x.begin
		x.Done(x.out)
	}()
	v := set.Match(&x.Exchange)
	if v.Action == policy.Forward {
		v = x.Route.Admit(&x.Exchange, x.begin)
	}
	if v.Action == policy.Identify {
		id, err := f.deps.Auth.Verify(r.Context(), v.Token, time.Now())
		v = x.Route.AdmitIdentity(&x.Exchange, id, err, f.deps.Now())
	}
	switch v.Action {
	case policy.Forward:
		if bad := f.turn(r, x.Route.Class()); bad != nil {
			addLines(w.Header(), x.Route.AppendCORS(nil, &x.Exchange))
			x.out.Status = bad.Status
			pushhttp.Fail(w, bad)
			return
		}
		x.forward()
	case policy.Respond:
		x.respond(v)
	default:
		x.refuse(v, len(set.Routes()))
	}
}

// fill makes the request what policy reads.
func (x *exchange) fill() {
	r := x.r
	x.Reset()
	x.Method, x.Path, x.Query, x.Host = []byte(r.Method), []byte(rawPath(r)), bytesOrNil(r.URL.RawQuery), []byte(r.Host)
	x.Minor, x.Length, x.TLS = uint8(r.ProtoMinor), r.ContentLength, encrypted(r)
	if r.ProtoMajor == 2 {
		x.Minor = 2
	}
	if r.ContentLength == 0 && r.Header.Get("Content-Length") == "" {
		x.Length = -1
	}
	if r.URL.ForceQuery {
		x.Query = []byte{} // a "?" with nothing behind it
	}
	x.Peer, _ = netip.ParseAddrPort(r.RemoteAddr)
	x.Certificate = certificate(r)
	x.Fields = fieldsOf(r.Header)
}

// fieldsOf lists h in an order of its own: net/http keeps none.
func fieldsOf(h http.Header) []http1.Field {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	var fields []http1.Field
	for _, name := range names {
		for _, v := range h[name] {
			fields = append(fields, http1.Field{Name: []byte(name), Value: []byte(v)})
		}
	}
	return fields
}

// addLines adds whole field lines to h.
func addLines(h http.Header, lines []byte) {
	for line := range bytes.SplitSeq(lines, []byte("\r\n")) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok {
			h.Add(string(name), string(bytes.TrimSpace(value)))
		}
	}
}

// refuse answers what a route does not let through; routes is how many there are.
func (x *exchange) refuse(v policy.Verdict, routes int) {
	addLines(x.w.Header(), v.Fields)
	if v.RetryAfter > 0 {
		x.w.Header().Set("Retry-After", strconv.FormatInt(v.RetryAfter, 10))
	}
	if v.Status == http.StatusNotFound {
		v.Hint = x.f.paths + ", and " + strconv.Itoa(routes) + " configured routes"
	}
	x.fail(&wire.Error{Status: v.Status, Message: v.Message, Hint: v.Hint})
}

func (x *exchange) fail(e *wire.Error) {
	x.out.Status = e.Status
	body := wire.AppendError(nil, e)
	x.out.BytesOut = int64(len(body))
	pushhttp.Answer(x.w, e.Status, body)
}

func (x *exchange) respond(v policy.Verdict) {
	h := x.w.Header()
	addLines(h, v.Fields)
	if v.ContentType != "" {
		h.Set("Content-Type", v.ContentType)
	}
	x.out.Status, x.out.BytesOut = v.Status, int64(len(v.Body))
	x.w.WriteHeader(v.Status)
	_, _ = x.w.Write(v.Body) // the client may be gone
}

// request is what the choice of a cluster and of a peer read.
type request struct{ x *exchange }

// Header implements upstream.Request.
func (q *request) Header(name string) []byte { return bytesOrNil(q.x.r.Header.Get(name)) }

// Cookie implements upstream.Request.
func (q *request) Cookie(name string) []byte {
	c, err := q.x.r.Cookie(name)
	if err != nil {
		return nil
	}
	return []byte(c.Value)
}

// Path implements upstream.Request.
func (q *request) Path() []byte { return q.x.NormalPath() }

// Address implements upstream.Request.
func (q *request) Address() netip.Addr { return q.x.Client }

// choose finds the cluster.
func (x *exchange) choose() upstream.Choice {
	cfg := x.Route.Config()
	if x.f.deps.Upstreams == nil {
		return upstream.Choice{}
	}
	if s := x.f.deps.Upstreams.Split(cfg.Cluster); s != nil {
		return s.Choose(&request{x}, rand.Uint64())
	}
	return upstream.Choice{Cluster: x.f.deps.Upstreams.Cluster(cfg.Cluster)}
}

// forward asks an upstream.
func (x *exchange) forward() {
	if bad := x.takeBody(); bad != nil {
		x.fail(bad)
		return
	}
	choice := x.choose()
	if choice.Cluster == nil {
		x.fail(&wire.Error{Status: http.StatusServiceUnavailable, Message: "there is no upstream for this route"})
		return
	}
	if choice.SetCookie {
		http.SetCookie(x.w, &http.Cookie{Name: choice.Split.CookieName(), Value: string(upstream.AppendCookie(nil, choice.Fresh)), Path: "/", HttpOnly: true})
	}
	upgrade := ""
	if x.r.ProtoMajor == 1 && http1.HasToken([]byte(x.r.Header.Get("Connection")), "upgrade") && http1.EqualFold([]byte(x.r.Header.Get("Upgrade")), "websocket") {
		upgrade = "websocket"
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	a := &attempts{x: x, choice: choice, upgrade: upgrade, key: rand.Uint64(), cancel: cancel}
	if src := choice.Cluster.HashKey(); src.Kind != upstream.KeyNone {
		if k, ok := src.Of(&request{x}); ok {
			a.key = k
		}
	}
	if choice.Mirror != nil {
		a.mirror(choice.Mirror)
	}
	total := time.Duration(choice.Cluster.Config().Timeouts.Total)
	if d := time.Duration(x.Route.Config().Timeouts.Total); d > 0 {
		total = d
	}
	if total > 0 {
		late := time.AfterFunc(total, a.slow)
		defer late.Stop()
	}
	a.run(ctx)
}

// takeBody collects the body where it has to be seen first, and bounds it.
func (x *exchange) takeBody() *wire.Error {
	limit := x.Route.MaxBody()
	if limit >= 0 {
		x.r.Body = &watched{ReadCloser: http.MaxBytesReader(x.w, x.r.Body, limit)}
	}
	v := x.Route.Validator()
	small := x.r.ContentLength >= 0 && x.r.ContentLength <= replayBytes
	if v == nil && !small {
		return nil
	}
	b, err := io.ReadAll(x.r.Body)
	if err != nil {
		return bodyError(err)
	}
	x.body, x.held = b, true
	if v == nil {
		return nil
	}
	bad := v.Request(x.r.Context(), x.r.Method, string(x.NormalPath()), x.r.URL.RawQuery, x.r.Header, b)
	if e, ok := errors.AsType[*policy.ValidationError](bad); ok {
		return &wire.Error{Status: e.Status, Message: e.Error()}
	}
	return nil
}

// replayBytes bounds what is kept of a request to send it again.
const replayBytes = 64 << 10

// watched remembers why a request's body could not be read: a transport that sends
// it says only that the request failed.
type watched struct {
	io.ReadCloser
	failed atomic.Pointer[error]
}

// Read implements io.Reader.
func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// bodyFailed returns why the body of x could not be read, or nil.
func (x *exchange) bodyFailed() error {
	if b, ok := x.r.Body.(*watched); ok {
		if err := b.failed.Load(); err != nil {
			return *err
		}
	}
	return nil
}

func bodyError(err error) *wire.Error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &wire.Error{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large"}
	}
	return &wire.Error{Status: http.StatusBadRequest, Message: "the body was cut"}
}
