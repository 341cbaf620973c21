package admin

import "net/http"

// health answers /healthz and /readyz without a token: they say no more than on the
// public listener.
func (src *Sources) health(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		get := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch {
		case get && r.URL.Path == "/healthz":
			src.alive(w, r)
		case get && r.URL.Path == "/readyz":
			src.readiness(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (src *Sources) alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (src *Sources) readiness(w http.ResponseWriter, _ *http.Request) {
	if src.Ready != nil {
		if err := src.Ready(); err != nil {
			w.Header().Set("Retry-After", "1")
			writeError(w, http.StatusServiceUnavailable, err.Error())
			return
		}
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// started refuses what needs the running process while it is not there yet.
func (src *Sources) started(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if src.Starting == nil || !src.Starting() {
			next.ServeHTTP(w, r)
			return
		}
		switch r.URL.Path {
		case "/metrics", "/api/info", "/login", "/login.css":
			next.ServeHTTP(w, r)
			return
		}
		reason := "starting"
		if src.Ready != nil {
			if err := src.Ready(); err != nil {
				reason = err.Error()
			}
		}
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, reason)
	})
}
