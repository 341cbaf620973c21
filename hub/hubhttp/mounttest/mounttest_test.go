package mounttest_test

import (
	"net/http"
	"testing"

	"github.com/weir-gateway/weir/hub/hubhttp"
	"github.com/weir-gateway/weir/hub/hubhttp/mounttest"
)

func TestSubscribersLeaveAServeMuxForTheLoops(t *testing.T) {
	mounttest.Run(t, "mux", func(h *hubhttp.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /events/sse", h.ServeSSE)
		mux.HandleFunc("GET /events/ws", h.ServeWebSocket)
		mux.HandleFunc("POST /events/publish", h.ServePublish)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("let") != "me" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("X-Program", "mux")
			mux.ServeHTTP(w, r)
		})
	})
}
