package downstream

import (
	"errors"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/push"
)

// Mount serves the endpoints of protocols, beside Weir's own and under the same rules:
// builtin_hosts, methods, CORS. A path that is taken already, by one of Weir's own or by
// a configured route, is an error. Before the loops run only.
func (s *Server) Mount(endpoints []socket.Endpoint) error {
	err := s.endpoints.Mount(endpoints, func(e *socket.Endpoint) *endpoint {
		ep := &endpoint{methods: e.Methods, maxBody: e.MaxBody, stream: e.Stream, mounted: true, protocol: s.push.Protocol(e.Protocol)}
		ep.serve = func(r *request) { serveMounted(r, ep, e.Serve) }
		return ep
	})
	if t := s.routes.Load(); t != nil {
		err = errors.Join(err, s.routesCollide(t))
	}
	return err
}

// routesCollide reports routes that no request would come to.
func (s *Server) routesCollide(t *table) error {
	if len(s.cfg.BuiltinHosts) > 0 {
		return nil // they are for other hosts
	}
	var errs []error
	for route := range t.targets {
		errs = append(errs, s.endpoints.Hides(route.Name(), route.Config().Path))
	}
	return errors.Join(errs...)
}

// beginMounted serves a request for an endpoint of a protocol's when its body is there.
// The protocol authenticates it.
func (h *conn) beginMounted(r *request, head, rest []byte) int {
	req, ep := r.head, r.endpoint
	n := req.ContentLength
	switch {
	case !req.Chunked && n <= 0:
		h.loopState.raw = head
		ep.serve(r)
		return 0
	case ep.maxBody == 0:
		// An unneeded body is not read: the connection ends with the answer.
		r.keepAlive, r.unread, h.loopState.raw = false, true, head
		ep.serve(r)
		return len(rest)
	case n > int64(ep.maxBody):
		r.unread = true
		r.tooLarge()
		return len(rest)
	case n >= 0 && int64(len(rest)) >= n:
		h.loopState.raw, r.body = head, rest[:n:n]
		ep.serve(r)
		return int(n)
	}
	r.unread, r.expect = true, req.Expect100 && len(rest) == 0
	r.keepHead(head)
	h.expectBody(r, n)
	h.collectBody(r)
	return h.readBody(rest)
}

// keepHead makes the head of r last: its bytes are gone otherwise when the call that
// brought them is over.
func (r *request) keepHead(head []byte) {
	r.savedHead = append(r.savedHead[:0], head...)
	if _, err := http1.ParseRequest(&r.own, r.savedHead, r.h.loopState.srv.limits); err != nil {
		panic("a head that was understood is not understood again: " + err.Error())
	}
	r.head = &r.own
}

var errTooMuchWork = &push.APIError{Status: http.StatusServiceUnavailable, Message: "overloaded, try again later"}
