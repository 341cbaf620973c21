package stdhttp

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/wire"
)

// prefix is an endpoint that serves all paths that begin with path.
type prefix struct {
	path string
	ep   endpoint
}

// Mount serves the endpoints of protocols, as downstream.Server.Mount does. Before
// requests come only.
func (f *Front) Mount(endpoints []socket.Endpoint) error {
	var errs []error
	for _, e := range endpoints {
		if err := f.mount(e); err != nil {
			errs = append(errs, fmt.Errorf("endpoint %s (%s): %w", e.Path, e.Protocol, err))
		}
	}
	slices.SortStableFunc(f.prefixes, func(a, b prefix) int { return len(b.path) - len(a.path) })
	if set := f.routes.Load(); set != nil {
		errs = append(errs, f.routesCollide(set))
	}
	return errors.Join(errs...)
}

func (f *Front) mount(e socket.Endpoint) error {
	path, all := strings.CutSuffix(e.Path, "*")
	switch {
	case !strings.HasPrefix(path, "/"), all && !strings.HasSuffix(path, "/"), strings.ContainsAny(path, "*?# "):
		return errors.New(`a path is "/a", or "/a/*" for everything below`)
	case e.Methods == "" || e.Serve == nil:
		return errors.New("it serves no method")
	case e.MaxBody < 0:
		return errors.New("max body is negative")
	}
	protocol := f.deps.Push.Protocol(e.Protocol)
	ep := endpoint{e.Methods, func(f *Front, w http.ResponseWriter, r *http.Request) { f.serveMounted(w, r, &e, protocol) }}
	if all {
		for taken := range endpoints {
			if strings.HasPrefix(taken, path) {
				return fmt.Errorf("%s is below it, and one of Weir's own", taken)
			}
		}
		if slices.ContainsFunc(f.prefixes, func(p prefix) bool { return p.path == path }) {
			return errors.New("the path is taken")
		}
		f.prefixes = append(f.prefixes, prefix{path, ep})
		return nil
	}
	_, own := endpoints[path]
	_, file := f.deps.Files[path]
	if _, twice := f.mounted[path]; own || file || twice {
		return errors.New("the path is taken")
	}
	f.mounted[path] = ep
	return nil
}

// find finds what serves path, routes apart.
func (f *Front) find(path string) (endpoint, bool) {
	if file, ok := f.deps.Files[path]; ok {
		return endpoint{"GET, HEAD", func(_ *Front, w http.ResponseWriter, _ *http.Request) { file.serve(w) }}, true
	}
	if ep, ok := endpoints[path]; ok {
		return ep, true
	}
	if ep, ok := f.mounted[path]; ok {
		return ep, true
	}
	for i := range f.prefixes {
		if p := &f.prefixes[i]; strings.HasPrefix(path, p.path) {
			return p.ep, true
		}
	}
	return endpoint{}, false
}

// builtin reports whether Weir's own paths and those of protocols are served on host.
func (f *Front) builtin(host string) bool {
	if len(f.cfg.BuiltinHosts) == 0 {
		return true
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && host[len(host)-1] != ']' {
		host = host[:i]
	}
	return slices.ContainsFunc(f.cfg.BuiltinHosts, func(h string) bool { return http1.EqualFold([]byte(host), h) })
}

// routesCollide reports routes that no request would come to.
func (f *Front) routesCollide(set *policy.Set) error {
	if len(f.cfg.BuiltinHosts) > 0 {
		return nil // they are for other hosts
	}
	var errs []error
	for _, route := range set.Routes() {
		path := route.Config().Path
		_, taken := f.mounted[path]
		if below, all := strings.CutSuffix(path, "*"); all {
			taken = taken || slices.ContainsFunc(f.prefixes, func(p prefix) bool { return p.path == below })
		}
		if taken {
			errs = append(errs, fmt.Errorf("route %q: %s is an endpoint of a protocol's: give one of them another path, or list builtin_hosts", route.Name(), path))
		}
	}
	return errors.Join(errs...)
}

// serveMounted lets a protocol serve r, on r's goroutine.
func (f *Front) serveMounted(w http.ResponseWriter, r *http.Request, e *socket.Endpoint, protocol int) {
	a := &ask{f: f, w: w, r: r, e: e, protocol: protocol, posted: make(chan struct{}, 1)}
	if e.MaxBody > 0 && r.Body != nil && !isExtendedConnect(r) {
		if r.ContentLength > int64(e.MaxBody) {
			f.tooLarge(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(e.MaxBody)))
		if err != nil {
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				f.tooLarge(w, r)
			} else {
				f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "the body was cut"})
			}
			return
		}
		a.body = body
	}
	e.Serve(a)
	a.run()
}
