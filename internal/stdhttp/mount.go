package stdhttp

import (
	"errors"
	"io"
	"net/http"

	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/wire"
)

// Mount serves the endpoints of protocols, as downstream.Server.Mount does. Before
// requests come only.
func (f *Front) Mount(endpoints []socket.Endpoint) error {
	err := f.endpoints.Mount(endpoints, func(e *socket.Endpoint) endpoint {
		protocol := f.deps.Push.Protocol(e.Protocol)
		return endpoint{methods: e.Methods, serve: func(f *Front, w http.ResponseWriter, r *http.Request) { f.serveMounted(w, r, e, protocol) }}
	})
	if set := f.routes.Load(); set != nil && len(f.cfg.BuiltinHosts) == 0 {
		for _, route := range set.Routes() {
			err = errors.Join(err, f.endpoints.Hides(route.Name(), route.Config().Path))
		}
	}
	return err
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
