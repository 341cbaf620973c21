// Package admin serves the operator: metrics, profiles, what runs and who is
// connected, on a listener of its own with net/http. It asks for no key and
// belongs on loopback or a private network.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Sources is what the admin listener shows. All functions may be called by any
// goroutine; the package above provides them.
type Sources struct {
	// Metrics are what /metrics shows, all of it.
	Metrics []prometheus.Collector
	// Info is what /api/info answers.
	Info func() any
	// Connections returns up to limit subscribers, those with most of sort first.
	Connections func(ctx context.Context, sort string, limit int) (any, error)
	// Upstreams are the clusters, peers, splits and drift monitors.
	Upstreams func() any
	// SteerCanary does "roll-back" or "restart" to a split's canary.
	SteerCanary func(split, action string) error
	// Reload reads the configuration again and says what took effect.
	Reload func(ctx context.Context) (any, error)
	// Sorts are the values sort may have; the first is the default.
	Sorts []string
}

// A Server is the admin listener.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen opens addr ("host:port") and prepares to serve src there.
func Listen(addr string, src Sources, log *slog.Logger) (*Server, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin listener: %w", err)
	}
	h, err := handler(src)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &Server{listener: l, http: &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}, nil
}

// Addr returns the address in use.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("admin listener: %w", err)
	}
	return nil
}

// Close ends Run and every request. It is idempotent.
func (s *Server) Close() error {
	_ = s.listener.Close()
	return s.http.Close()
}

func handler(src Sources) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	for _, c := range src.Metrics {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /api/info", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, src.Info()) })
	mux.HandleFunc("GET /api/connections", src.connections)
	mux.HandleFunc("GET /api/upstreams", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, src.Upstreams()) })
	mux.HandleFunc("POST /api/canary/{split}/{action}", src.steer)
	mux.HandleFunc("POST /api/reload", src.reload)
	mux.HandleFunc("GET /{$}", index)
	return localOnly(mux), nil
}

const maxConnections = 10_000

func (src Sources) connections(w http.ResponseWriter, r *http.Request) {
	sort := r.FormValue("sort")
	if sort == "" {
		sort = src.Sorts[0]
	}
	limit := 100
	if s := r.FormValue("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxConnections {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("limit: %q is not within 1..%d", s, maxConnections))
			return
		}
		limit = n
	}
	if !slices.Contains(src.Sorts, sort) {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("sort: %q is none of %v", sort, src.Sorts))
		return
	}
	v, err := src.Connections(r.Context(), sort, limit)
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, v)
}

func (src Sources) steer(w http.ResponseWriter, r *http.Request) {
	if err := src.SteerCanary(r.PathValue("split"), r.PathValue("action")); err != nil {
		writeError(w, http.StatusNotFound, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (src Sources) reload(w http.ResponseWriter, r *http.Request) {
	v, err := src.Reload(r.Context())
	if err != nil {
		writeError(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, v)
}

func index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("weir admin\n\n/metrics\n/api/info\n/api/connections?sort=lag&limit=20\n/api/upstreams\nPOST /api/reload\nPOST /api/canary/SPLIT/roll-back (or restart)\n/debug/pprof/\n"))
}

// localOnly keeps web pages away from a listener without keys: a browser says
// where a page is from, and a name that a page made resolve to this machine
// shows in Host.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'")
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case r.Header.Get("Origin") != "" || site != "" && site != "none" && site != "same-origin":
			writeError(w, http.StatusForbidden, "not for web pages of other origins")
		case !hostFits(r):
			writeError(w, http.StatusForbidden, "reach it as localhost or by its address: the name in Host could be anyone's")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// hostFits reports whether Host is an address or localhost. Names are let
// through only where others than this machine's programs could connect anyway.
func hostFits(r *http.Request) bool {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !local.IP.IsLoopback() {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return host == "" || strings.EqualFold(host, "localhost")
}

func writeError(w http.ResponseWriter, status int, msg string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"code": status, "message": msg}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client may be gone; there is nobody else to tell
}
