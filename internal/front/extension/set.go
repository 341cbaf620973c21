package extension

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Options of Extensions.
type Options struct {
	// MayChange returns why a verdict may not set or remove a field of that name; nil: any
	// valid name may be.
	MayChange func(name string) error
	// Log gets failures, of each extension no more than one line in 10 seconds; nil
	// discards.
	Log *slog.Logger
}

// Extensions are those of a process. A nil *Extensions has none. Any goroutine.
type Extensions struct {
	opt Options
	set atomic.Pointer[set]

	mu     sync.Mutex // one Prepare at a time
	closed bool
	old    sync.WaitGroup // extensions that a reload has replaced and that still end
}

// A set is what is in force. Immutable.
type set struct{ byKind [kinds][]*extension }

// New returns Extensions without an extension.
func New(opt Options) *Extensions {
	if opt.MayChange == nil {
		opt.MayChange = func(string) error { return nil }
	}
	opt.Log = cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	x := &Extensions{opt: opt}
	x.set.Store(&set{})
	return x
}

// NewHook returns Extensions with hook alone, which is called at the kinds of events, in the
// goroutine of the caller, without a bound on time or number. Close it.
func NewHook(hook Hook, events []Kind, opt Options) *Extensions {
	x := New(opt)
	cfg := Config{Name: "program"}.WithDefaults()
	cfg.Timeout, cfg.MaxPending = 0, math.MaxInt32
	for _, k := range events {
		cfg.Events = append(cfg.Events, k.String())
	}
	s := &set{}
	s.add(newExtension(cfg, hook, func() {}, x.opt))
	x.set.Store(s)
	return x
}

func (s *set) add(e *extension) {
	for k := range kinds {
		if slices.Contains(e.cfg.Events, names[k]) && k > 0 {
			s.byKind[k] = append(s.byKind[k], e)
		}
	}
}

// all returns each extension once.
func (s *set) all() (list []*extension) {
	for _, of := range s.byKind {
		for _, e := range of {
			if !slices.Contains(list, e) {
				list = append(list, e)
			}
		}
	}
	return list
}

// A Change is a list of extensions that is ready to be put in force.
type Change struct {
	x     *Extensions
	next  *set
	added []*extension
	gone  []*extension
}

// Prepare opens what is new in list: dial returns a Hook for a Config that is valid, and what
// closes it. Extensions whose Config stays are kept, with what they have cached. Commit or Drop
// the result before the next Prepare.
func (x *Extensions) Prepare(list []Config, dial func(Config) (Hook, func(), error)) (*Change, error) {
	have := x.set.Load().all()
	c := &Change{x: x, next: &set{}, gone: slices.Clone(have)}
	for _, cfg := range list {
		cfg = cfg.WithDefaults()
		i := slices.IndexFunc(c.gone, func(e *extension) bool { return reflect.DeepEqual(e.cfg, cfg) })
		if i >= 0 {
			c.next.add(c.gone[i])
			c.gone = slices.Delete(c.gone, i, i+1)
			continue
		}
		hook, end, err := dial(cfg)
		if err != nil {
			c.Drop()
			return nil, fmt.Errorf("extension %q: %w", cfg.Name, err)
		}
		e := newExtension(cfg, hook, end, x.opt)
		c.added = append(c.added, e)
		c.next.add(e)
	}
	return c, nil
}

// Commit puts the list in force. Calls under way at extensions that are gone end first.
func (c *Change) Commit() {
	x := c.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		c.Drop()
		return
	}
	x.set.Store(c.next)
	for _, e := range c.gone {
		x.old.Go(e.retire)
	}
}

// Drop closes what was opened.
func (c *Change) Drop() {
	for _, e := range c.added {
		e.close()
	}
}

// Close ends all extensions: what is queued is dropped, calls under way are cancelled.
func (x *Extensions) Close() {
	if x == nil {
		return
	}
	x.mu.Lock()
	x.closed = true
	s := x.set.Swap(&set{})
	x.mu.Unlock()
	for _, e := range s.all() {
		e.close()
	}
	x.old.Wait()
}

// Handles reports whether an extension is called at events of kind k: of Request and Response
// scope is the route's name, of Subscribe and Publish the channels; without a scope at some. It costs a load and a
// comparison where there is none.
func (x *Extensions) Handles(k Kind, scope ...string) bool {
	if x == nil {
		return false
	}
	for _, e := range x.set.Load().byKind[k] {
		if e.concerns(k, scope) {
			return true
		}
	}
	return false
}

// Decide returns the decision on e, which waits as long as the extensions' timeouts. Of the
// decision Lines and Removed are changes of fields, Identity and Data those of the client and
// the message.
func (x *Extensions) Decide(ctx context.Context, e *Event) *authz.Decision {
	d, _ := x.decide(ctx, e, true)
	return d
}

// Cached is Decide for an event on which all extensions have verdicts that last; otherwise it
// returns nil.
func (x *Extensions) Cached(e *Event) *authz.Decision {
	d, ok := x.decide(context.Background(), e, false)
	if !ok {
		return nil
	}
	return d
}

// decide calls the extensions that e concerns. Without call it reports false when one of them
// would have to be called.
func (x *Extensions) decide(ctx context.Context, e *Event, call bool) (*authz.Decision, bool) {
	all := &authz.Decision{Admit: true, Extension: true}
	if x == nil {
		return all, true
	}
	now := *e
	for _, ext := range x.set.Load().byKind[e.Kind] {
		if !ext.concerns(e.Kind, now.scope()) {
			continue
		}
		d := ext.cached(&now)
		if d == nil && !call {
			return nil, false
		}
		if d == nil {
			d = ext.decide(ctx, &now)
		}
		if !d.Admit {
			return d, true
		}
		merge(all, d, &now)
	}
	return all, true
}

// merge adds d to all, and to the event that the next extension gets.
func merge(all, d *authz.Decision, e *Event) {
	all.Removed = append(all.Removed, d.Removed...)
	all.Lines = append(WithoutLines(nil, all.Lines, d.Removed), d.Lines...)
	if d.Identity != nil {
		all.Identity, e.User = d.Identity, d.Identity.Subject
	}
	if d.Data != nil {
		all.Data, e.Data = d.Data, d.Data
	}
}

// Notify has e delivered to the extensions that want it, later. It does not block.
func (x *Extensions) Notify(e *Event) {
	if x == nil {
		return
	}
	for _, ext := range x.set.Load().byKind[e.Kind] {
		ext.notify(e)
	}
}

// scope is what Handles is given for e.
func (e *Event) scope() []string {
	if e.Kind == Request || e.Kind == Response {
		return []string{e.Route}
	}
	return e.Channels
}

// concerns reports whether e is called at events of kind k and scope.
func (e *extension) concerns(k Kind, scope []string) bool {
	switch k {
	case Request, Response:
		return len(e.cfg.Routes) == 0 || len(scope) == 0 || slices.ContainsFunc(scope, func(route string) bool { return slices.Contains(e.cfg.Routes, route) })
	case Subscribe, Publish:
		return len(e.cfg.Namespaces) == 0 || len(scope) == 0 || slices.ContainsFunc(scope, func(ch string) bool { return slices.Contains(e.cfg.Namespaces, hub.NamespaceOf(ch)) })
	default:
		return true
	}
}
