package socket

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// maxEndpointBody bounds what an endpoint may want of a body.
const maxEndpointBody = 64 << 20

// A Table is what a front serves by path, in a form E of its own: Weir's own paths and
// those of protocols. The zero value is empty. It is filled before requests come; Find
// is for any goroutine from then on.
type Table[E any] struct {
	whole map[string]*entry[E]
	below []*entry[E] // all that starts with a path, the longest first
}

type entry[E any] struct {
	path    string
	mounted bool // it is a protocol's
	serve   E
}

// SetBuiltin has serve serve a path of Weir's own, instead of what was there.
func (t *Table[E]) SetBuiltin(path string, serve E) {
	t.put(&entry[E]{path: path, serve: serve})
}

func (t *Table[E]) put(e *entry[E]) {
	if t.whole == nil {
		t.whole = map[string]*entry[E]{}
	}
	t.whole[e.path] = e
}

// Mount adds the endpoints of protocols, in the form that serve gives them. A path that
// is taken is an error; the others are mounted.
func (t *Table[E]) Mount(endpoints []Endpoint, serve func(*Endpoint) E) error {
	var errs []error
	for _, e := range endpoints {
		if err := t.mount(&e, serve); err != nil {
			errs = append(errs, fmt.Errorf("endpoint %s (%s): %w", e.Path, e.Protocol, err))
		}
	}
	slices.SortStableFunc(t.below, func(a, b *entry[E]) int { return len(b.path) - len(a.path) })
	return errors.Join(errs...)
}

func (t *Table[E]) mount(e *Endpoint, serve func(*Endpoint) E) error {
	path, all := strings.CutSuffix(e.Path, "*")
	switch {
	case !strings.HasPrefix(path, "/"), all && !strings.HasSuffix(path, "/"), strings.ContainsAny(path, "*?# "):
		return errors.New(`a path is "/a", or "/a/*" for everything below`)
	case e.Methods == "" || e.Serve == nil:
		return errors.New("it serves no method")
	case e.MaxBody < 0 || e.MaxBody > maxEndpointBody:
		return fmt.Errorf("a body of %d bytes is not within 0..%d", e.MaxBody, maxEndpointBody)
	case t.occupied(path, all, e.Replaces):
		return errors.New("the path is taken")
	}
	if all {
		for taken, other := range t.whole {
			if strings.HasPrefix(taken, path) && !other.mounted {
				return fmt.Errorf("%s is below it, and one of Weir's own", taken)
			}
		}
		t.below = append(t.below, &entry[E]{path, true, serve(e)})
		return nil
	}
	t.put(&entry[E]{path, true, serve(e)})
	return nil
}

// occupied reports whether an endpoint for path has to be refused: another endpoint is
// there already, or one of Weir's own that it does not replace.
func (t *Table[E]) occupied(path string, all, replaces bool) bool {
	e := t.is(path, all)
	return e != nil && (e.mounted || !replaces)
}

// is returns the entry for path itself, or for all below it.
func (t *Table[E]) is(path string, all bool) *entry[E] {
	if !all {
		return t.whole[path]
	}
	for _, e := range t.below {
		if e.path == path {
			return e
		}
	}
	return nil
}

// Find returns what serves path. It does not allocate.
func (t *Table[E]) Find(path []byte) (serve E, ok bool) {
	if e := t.whole[string(path)]; e != nil {
		return e.serve, true
	}
	for _, e := range t.below {
		if len(path) >= len(e.path) && string(path[:len(e.path)]) == e.path {
			return e.serve, true
		}
	}
	return serve, false
}

// Hides returns an error if a route for path would never be asked, because a protocol is
// served there on every host.
func (t *Table[E]) Hides(route, path string) error {
	p, all := strings.CutSuffix(path, "*")
	e := t.is(path, false)
	if e == nil && all {
		e = t.is(p, true)
	}
	if e == nil || !e.mounted {
		return nil
	}
	return fmt.Errorf("route %q: %s is an endpoint of a protocol's: give one of them another path, or list builtin_hosts", route, path)
}

// BuiltinHost reports whether Weir's own paths and those of protocols are served on
// host, which may name a port: on those of hosts, or on all if it names none.
func BuiltinHost(hosts []string, host []byte) bool {
	if len(hosts) == 0 {
		return true
	}
	if i := bytes.LastIndexByte(host, ':'); i >= 0 && host[len(host)-1] != ']' {
		host = host[:i]
	}
	return slices.ContainsFunc(hosts, func(h string) bool { return http1.EqualFold(host, h) })
}

// BuiltinPaths says, for hints, which paths are Weir's own: below prefix, and those of push
// if it is there.
func BuiltinPaths(prefix string, push bool) string {
	health := prefix + "/healthz and " + prefix + "/readyz"
	if !push {
		return "there are " + health
	}
	return "there are " + prefix + "/sse, " + prefix + "/ws, " + prefix + "/api/publish, " + prefix + "/api/broadcast, " + health
}

// CheckPrefix returns what is wrong with a prefix of Weir's own paths. Requests have to
// spell it as it is: nothing in it may be written in two ways.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	segments := strings.Split(prefix, "/")
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-._~", c)
	}
	bad := func(s string) bool {
		return s == "" || s == "." || s == ".." || strings.ContainsFunc(s, func(c rune) bool { return !plain(c) })
	}
	if segments[0] != "" || slices.ContainsFunc(segments[1:], bad) {
		return fmt.Errorf("%q is not a prefix of paths: want \"/\" and segments of A-Z, a-z, 0-9, -, ., _ and ~, such as /weir", prefix)
	}
	return nil
}
