package admin

import "net/http"

// health is what /healthz and /readyz answer with, without a token: they say no more than
// on the public listener.
type health struct {
	ready    func() error // nil: always
	starting func() bool  // nil: never
}

// before answers the two paths and leaves all others to next.
func (h health) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		get := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch {
		case get && r.URL.Path == "/healthz":
			alive(w, r)
		case get && r.URL.Path == "/readyz":
			h.readiness(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (h health) readiness(w http.ResponseWriter, _ *http.Request) {
	if h.ready != nil {
		if err := h.ready(); err != nil {
			w.Header().Set("Retry-After", "1")
			writeError(w, http.StatusServiceUnavailable, err.Error())
			return
		}
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// started refuses what needs the running process while it is not there yet.
func (h health) started(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.starting == nil || !h.starting() {
			next.ServeHTTP(w, r)
			return
		}
		switch r.URL.Path {
		case "/metrics", "/api/info", "/api/cluster/promote", "/login", "/login.css", pathOIDC, pathCallback:
			next.ServeHTTP(w, r)
			return
		}
		reason := "starting"
		if h.ready != nil {
			if err := h.ready(); err != nil {
				reason = err.Error()
			}
		}
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, reason)
	})
}
