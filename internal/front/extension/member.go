package extension

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// extension is one at work.
type extension struct {
	// Fixed at newExtension.
	cfg     Config
	hook    Hook
	end     func()
	opt     Options
	headers []string // in lower case; nil: all
	cache   *authz.Cache[*authz.Decision]
	ctx     context.Context // of notifications
	cancel  context.CancelFunc
	queue   chan *Event // of notifications; nil: none are wanted

	// Any goroutine.
	working sync.WaitGroup // the goroutines of queue
	pending atomic.Int64
	caches  atomic.Bool  // some verdict had a TTL
	logged  atomic.Int64 // when a failure was logged last, in Unix nanoseconds
	seconds metrics.Shared
	counts  [kinds][outcomes]atomic.Uint64
	dropped atomic.Uint64
}

// The outcomes of events, in metrics.
const (
	allowed = iota
	refused
	cachedAllowed
	cachedRefused
	failed
	timedOut
	overloaded
	canceled
	outcomes
)

var outcomeNames = [outcomes]string{"allowed", "refused", "cached_allowed", "cached_refused", "failed", "timeout", "overloaded", "canceled"}

const (
	maxTTL      = time.Hour
	logInterval = 10 * time.Second
	notifiers   = 16 // calls for disconnect events under way
)

func newExtension(cfg Config, hook Hook, end func(), opt Options) *extension {
	e := &extension{cfg: cfg, hook: hook, end: end, opt: opt, cache: authz.NewCache[*authz.Decision](cfg.CacheSize)}
	for _, h := range cfg.Headers {
		e.headers = append(e.headers, strings.ToLower(h))
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if slices.Contains(cfg.Events, names[Disconnect]) {
		e.queue = make(chan *Event, cfg.Queue)
		for range notifiers {
			e.working.Go(e.deliver)
		}
	}
	return e
}

// close cancels what is under way.
func (e *extension) close() {
	e.cancel()
	e.working.Wait()
	e.end()
}

// retire closes e when the calls under way are over, or their time is.
func (e *extension) retire() {
	grace := time.NewTimer(time.Duration(e.cfg.Timeout) + time.Second)
	defer grace.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for e.pending.Load() > 0 || len(e.queue) > 0 {
		select {
		case <-grace.C:
			e.close()
			return
		case <-look.C:
		}
	}
	e.close()
}

// notify queues ev, or drops it.
func (e *extension) notify(ev *Event) {
	select {
	case e.queue <- ev:
	default:
		if e.dropped.Add(1) == 1 {
			e.opt.Log.Warn("disconnect events of an extension are dropped", "extension", e.cfg.Name, "hint", "its calls take too long: raise queue, or answer faster")
		}
	}
}

// deliver calls the hook for what is queued until close.
func (e *extension) deliver() {
	for {
		select {
		case <-e.ctx.Done():
			return
		case ev := <-e.queue:
			if e.ctx.Err() == nil {
				e.decide(e.ctx, ev)
			}
		}
	}
}

// decide calls the hook. It never returns nil.
func (e *extension) decide(ctx context.Context, ev *Event) *authz.Decision {
	counts := &e.counts[ev.Kind]
	if e.pending.Add(1) > int64(e.cfg.MaxPending) {
		e.pending.Add(-1)
		counts[overloaded].Add(1)
		e.log(errOverloaded)
		return e.none(http.StatusServiceUnavailable, "overloaded")
	}
	defer e.pending.Add(-1)
	ev = e.shown(ev)
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if e.cfg.Timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, time.Duration(e.cfg.Timeout))
	}
	defer cancel()
	began := time.Now()
	v, err := e.call(bounded, ev)
	e.seconds.Observe(time.Since(began))
	switch {
	case err != nil && ctx.Err() != nil:
		counts[canceled].Add(1)
		return e.none(http.StatusServiceUnavailable, "cancelled")
	case err != nil && (bounded.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
		counts[timedOut].Add(1)
		e.log(errTimeout)
		return e.none(http.StatusGatewayTimeout, "did not answer in time")
	case err != nil:
		counts[failed].Add(1)
		e.log(err)
		return e.none(http.StatusServiceUnavailable, "is not available")
	case v == nil:
		v = &Verdict{}
	}
	d, err := e.decision(ev, v)
	if err != nil {
		counts[failed].Add(1)
		e.log(err)
		return e.none(http.StatusBadGateway, "answered with an invalid verdict")
	}
	if d.Admit {
		counts[allowed].Add(1)
	} else {
		counts[refused].Add(1)
	}
	if v.TTL > 0 {
		e.caches.Store(true)
		e.cache.Put(keyOf(ev), d, time.Now().Add(min(v.TTL, maxTTL)))
	}
	return d
}

var (
	errOverloaded = errors.New("max_pending calls are under way")
	errTimeout    = errors.New("no answer within timeout")
	errPanicked   = errors.New("it panicked")
)

// call calls the hook; a panic is an error.
func (e *extension) call(ctx context.Context, ev *Event) (v *Verdict, err error) {
	defer func() {
		if r := recover(); r != nil {
			e.opt.Log.Error("panic in an extension", "extension", e.cfg.Name, "event", ev.Kind.String(), "panic", r)
			v, err = nil, errPanicked
		}
	}()
	return e.hook.Decide(ctx, ev)
}

// cached returns the decision on ev that lasts from an earlier call, or nil.
func (e *extension) cached(ev *Event) *authz.Decision {
	if !e.caches.Load() {
		return nil
	}
	d, ok := e.cache.Get(keyOf(e.shown(ev)), time.Now())
	switch {
	case !ok:
		return nil
	case d.Admit:
		e.counts[ev.Kind][cachedAllowed].Add(1)
	default:
		e.counts[ev.Kind][cachedRefused].Add(1)
	}
	return d
}

// none is the decision where the hook made none.
func (e *extension) none(status int, what string) *authz.Decision {
	if e.cfg.FailOpen {
		return &authz.Decision{Admit: true, Extension: true, Unavailable: true}
	}
	return &authz.Decision{Extension: true, Unavailable: true, Status: status, Message: "the extension " + e.cfg.Name + " " + what}
}

// log logs a failure, if none was logged lately.
func (e *extension) log(err error) {
	now, last := time.Now().UnixNano(), e.logged.Load()
	if now-last < int64(logInterval) || !e.logged.CompareAndSwap(last, now) {
		return
	}
	hint := "is its server running at the target, and does it serve weir.extension.v1.Extension?"
	switch {
	case errors.Is(err, errTimeout):
		hint = "answer faster, or raise timeout (" + e.cfg.Timeout.String() + ")"
	case errors.Is(err, errOverloaded):
		hint = "answer faster, run more servers, or raise max_pending"
	case errors.Is(err, errVerdict):
		hint = "correct the server's verdict"
	}
	level := slog.LevelError
	if e.cfg.FailOpen {
		level = slog.LevelWarn
	}
	e.opt.Log.Log(context.Background(), level, "no decision of an extension", "extension", e.cfg.Name, "fail_open", e.cfg.FailOpen, "err", err, "hint", hint)
}

// shown is ev with the fields that the extension gets.
func (e *extension) shown(ev *Event) *Event {
	if e.headers == nil || len(ev.Headers) == 0 {
		return ev
	}
	out := *ev
	out.Headers = nil
	for _, f := range ev.Headers {
		if slices.Contains(e.headers, strings.ToLower(f.Name)) {
			out.Headers = append(out.Headers, f)
		}
	}
	return &out
}

// keyOf is the same for events that differ in their connection alone. Lengths are hashed as
// well.
func keyOf(ev *Event) (k authz.Key) {
	b := append(make([]byte, 0, 512), byte(ev.Kind))
	add := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	for _, s := range []string{ev.Route, ev.Protocol, ev.User, ev.Method, ev.Scheme, ev.Host, ev.Path} {
		add(s)
	}
	b = binary.AppendUvarint(b, uint64(ev.Status))
	b = binary.AppendUvarint(b, uint64(len(ev.Headers)))
	for _, f := range ev.Headers {
		add(strings.ToLower(f.Name))
		add(f.Value)
	}
	b = binary.AppendUvarint(b, uint64(len(ev.Channels)))
	for _, ch := range ev.Channels {
		add(ch)
	}
	address, _ := ev.Client.MarshalBinary() // it cannot fail
	add(string(address))
	return sha256.Sum256(append(b, ev.Data...))
}

// decision checks v and returns it as a decision on ev.
func (e *extension) decision(ev *Event, v *Verdict) (*authz.Decision, error) {
	if v.Refuse != nil {
		return v.Refuse.decision(ev.Kind)
	}
	d := &authz.Decision{Admit: true, Extension: true}
	for _, name := range v.Remove {
		if err := e.mayChange(name); err != nil {
			return nil, verdictError("remove_headers", err)
		}
		d.Removed = append(d.Removed, strings.ToLower(name))
	}
	for _, f := range v.Set {
		if err := e.mayChange(f.Name); err != nil {
			return nil, verdictError("set_headers", err)
		}
		if !http1.ValidValue(f.Value) {
			return nil, verdictError("set_headers", errors.New("the value of "+f.Name+" is not one line of text"))
		}
		d.Removed = append(d.Removed, strings.ToLower(f.Name))
		d.Lines = http1.AppendField(d.Lines, f.Name, f.Value)
	}
	if id := v.Identity; id != nil {
		var err error
		if d.Identity, err = auth.Granted(id.User, id.Subscribe, id.Publish, id.Expires); err != nil {
			return nil, verdictError("identity", err)
		}
	}
	if ev.Kind == Publish {
		d.Data = v.Data
	}
	return d, nil
}

func (e *extension) mayChange(name string) error {
	if !http1.ValidName(name) {
		return errors.New("invalid field name " + strings.ToValidUTF8(name, "?"))
	}
	return e.opt.MayChange(name)
}

// errVerdict is what every error of a verdict wraps.
var errVerdict = errors.New("invalid verdict")

func verdictError(key string, err error) error {
	return errors.Join(errVerdict, errors.New(key+": "+err.Error()))
}

// decision checks r.
func (r *Refusal) decision(k Kind) (*authz.Decision, error) {
	d := &authz.Decision{Extension: true, Status: r.Status, Message: r.Reason, Body: r.Body}
	d.Status = cmp.Or(d.Status, http.StatusForbidden)
	lowest := http.StatusBadRequest
	if k == Request {
		lowest = http.StatusMultipleChoices
	}
	if d.Status < lowest || d.Status > 599 {
		return nil, verdictError("refuse.status", errors.New("want 400 to 599, of a request 300 to 599"))
	}
	d.Message = cmp.Or(d.Message, "refused")
	for _, f := range r.Headers {
		switch {
		case !http1.ValidName(f.Name) || !http1.ValidValue(f.Value):
			return nil, verdictError("refuse.headers", errors.New("invalid field "+strings.ToValidUTF8(f.Name, "?")))
		case strings.EqualFold(f.Name, "Content-Type"):
			d.ContentType = f.Value
		case answerField(f.Name):
			d.Fields = http1.AppendField(d.Fields, f.Name, f.Value)
		}
	}
	return d, nil
}

// answerField reports whether the field of an answer may come from an extension: framing and
// what belongs to the connection may not.
func answerField(name string) bool {
	for _, own := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Date"} {
		if strings.EqualFold(name, own) {
			return false
		}
	}
	return true
}

// WithoutLines appends to dst the field lines that are not named in removed, which is in lower
// case.
func WithoutLines(dst, lines []byte, removed []string) []byte {
	if len(removed) == 0 {
		return append(dst, lines...)
	}
	for line := range strings.Lines(string(lines)) {
		name, _, _ := strings.Cut(line, ":")
		if !slices.Contains(removed, strings.ToLower(name)) {
			dst = append(dst, line...)
		}
	}
	return dst
}
