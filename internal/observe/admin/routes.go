package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/observer"
	"github.com/weir-gateway/weir/internal/observe/tune"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// An endpoint is one thing the listener answers; docs/reference/admin-api.md is made of
// them.
type endpoint struct {
	pattern string // of http.ServeMux
	serve   http.HandlerFunc
	doc     string
	// answer is an example of the type of its answer; nil: not JSON, or any.
	answer any
}

func (src *Sources) endpoints(a *access) []endpoint {
	pages := loginPages{a}
	metrics := promhttp.HandlerFor(src.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second, EnableOpenMetrics: true})
	return []endpoint{
		{"GET /healthz", alive, "200 while the process runs, also while it waits for its broker. No token.", nil},
		{"GET /readyz", health{src.Ready, src.Starting}.readiness, "200 if new clients should be sent here, else 503 with the reason. No token.", nil},
		{"GET /metrics", metrics.ServeHTTP, "Prometheus metrics: text, or protobuf with native histograms where these are on.", nil},
		{"GET /debug/vars", src.vars, "The snapshot and memory, in the form of Go's expvar.", nil},
		{"GET /debug/pprof/", timed(pprof.Index), "Profiles: `?seconds=` for the difference over them, at most 300.", nil},
		{"GET /debug/pprof/cmdline", commandLine, "The command line, without secrets.", nil},
		{"GET /debug/pprof/profile", timed(pprof.Profile), "A processor profile: `?seconds=`, at most 300.", nil},
		{"GET /debug/pprof/symbol", pprof.Symbol, "Names of program counters.", nil},
		{"POST /debug/pprof/symbol", pprof.Symbol, "The same, with the counters in the body.", nil},
		{"GET /debug/pprof/trace", timed(pprof.Trace), "An execution trace: `?seconds=`, at most 300.", nil},
		{"GET /api/info", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, src.Info()) }, "Which program this is and how it is set up.", nil},
		{"GET /api/snapshot", src.snapshot, "Everything the dashboard shows, now.", Snapshot{}},
		{"GET /api/live", src.Live.ServeHTTP, "Server-sent events: a snapshot a few times a second (`admin.live_rate`), the data of each event is what /api/snapshot answers with a shorter `heat_maps`. Without a listener none is made.", nil},
		{"GET /api/connections", listing(src.Sorts, src.Connections), "Subscribers, those with most of `sort` first: `?sort=lag|bytes|age|messages&limit=N`.", Connections{}},
		{"GET /api/connections/{id}", src.connection, "One subscriber, with what the kernel knows of its socket. `id` as /api/connections gives it.", ConnectionDetail{}},
		{"POST /api/connections/{id}/disconnect", src.disconnect, "Ends a subscriber's connection; it may come back. 204.", nil},
		{"GET /api/channels", listing(src.ChannelSorts, src.Channels), "Channels with subscribers on this node: `?sort=rate|subscribers|messages|name&limit=N`.", Channels{}},
		{"GET /api/channels/{name}/messages", src.messages, "The newest messages of a channel, oldest first: `?limit=N`, at most 200. The name is escaped as a path segment.", Messages{}},
		{"POST /api/publish", src.publish, "Publishes by hand: body and answer as POST /api/publish on the public listener.", nil},
		{"GET /api/subscribe", src.Subscribe.ServeHTTP, "Server-sent events of channels: `?channel=a[&channel=b]`, in envelopes; Last-Event-ID resumes.", nil},
		{"POST /api/trace", src.beginTrace, "Follows one message to the sockets: publishes `data` on `channel`, or without data waits for the next publication there. Body: channel, data, timeout_seconds. 202; then GET.", Trace{}},
		{"GET /api/trace/{id}", src.trace, "How far a traced message has come; `?wait=1` answers when it is done or has expired.", Trace{}},
		{"GET /api/bundles", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, src.Bundles()) }, "Evidence bundles, newest first.", Bundles{}},
		{"POST /api/bundles", src.capture, "Captures a bundle now, which takes some seconds: `?reason=text`. 201.", governor.Bundle{}},
		{"GET /api/bundles/{id}", src.bundle, "A bundle: a gzipped tar.", nil},
		{"GET /api/certificates", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, src.Certificates()) }, "Certificates of the public listener, those from files and those obtained by ACME, with expiry, renewal and failed orders, as `weir certificates` shows them.", []Certificate{}},
		{"GET /api/upstreams", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, src.Upstreams()) }, "Clusters, peers, splits, drift monitors and the batches of routes.", nil},
		{"GET /api/cluster", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, http.StatusOK, src.Cluster(r.Context())) }, "The nodes of the cluster with health and load, the logs with leaders and replicas, and what is wrong, as `weir cluster status` prints it.", Cluster{}},
		{"POST /api/cluster/promote", func(w http.ResponseWriter, r *http.Request) { promote(src, w, r) }, "Has the site of this node lead the logs of two sites, as `weir cluster promote` does: `?namespace=a[&namespace=b]`, all without one. 200 with the cluster as it is then; 422 if it cannot.", Cluster{}},
		{"POST /api/canary/{split}/{action}", src.steer, "`roll-back` takes the share from a split's canary, `restart` starts it anew. 204.", nil},
		{"GET /api/sources", src.sources, "What the configured sources do on this node: phase, lag, counters.", SourceList{}},
		{"POST /api/sources/{name}/{action}", src.pauseSource, "`pause` stops reading a source on all nodes that can be reached, `resume` has them read again. A node that restarts follows `sources[].paused`.", ingest.State{}},
		{"GET /api/tune", src.tune, "The kernel's settings, network card, limits and cgroup compared with a profile, as `weir tune check --json` prints them: `?profile=gateway|low-latency|bench`. Nothing is changed.", tune.Report{}},
		{"POST /api/observe", src.observe, "Watches this process from the kernel, as `weir observe` does: `?seconds=`, 1 to 30, 5 by default. Without the right to use eBPF it answers with what /proc has. 429 while another request does.", observer.Report{}},
		{"GET /api/revocations", func(w http.ResponseWriter, r *http.Request) { revocations(src, w, r) }, "Subjects and tokens that are revoked, as `weir revoke --list` shows them.", Revocations{}},
		{"POST /api/revocations/{kind}/{name}", func(w http.ResponseWriter, r *http.Request) { revoke(src, w, r) }, "Revokes all tokens of a subject (`subject` and its sub) or one token (`token` and its jti) on all nodes, and ends what they have open: `?for=24h`, at most 366d; `?issued_before=now` (or a time) for a subject's tokens of before; `?reason=text`. 503 if it is in force on this node alone until NATS is back.", auth.Revocation{}},
		{"DELETE /api/revocations/{kind}/{name}", func(w http.ResponseWriter, r *http.Request) { unrevoke(src, w, r) }, "Ends a revocation on all nodes: a token that has not expired is accepted again. 204.", nil},
		{"POST /api/reload", src.reload, "Reads the configuration again and says what took effect.", nil},
		{"GET /api/upgrade", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, src.UpgradeState()) }, "What the last upgrade did, or how far one under way has come.", Upgrade{}},
		{"POST /api/upgrade", src.upgrade, "Starts the program anew, which takes over all connections, and answers when it serves, as `weir upgrade` does. 422 if it cannot: everything is as it was.", Upgrade{}},
		{"POST /api/config/diff", src.diff, "Says what a reload of the configuration in the body, YAML, would change, and applies nothing. 422 if it is not valid.", nil},
		{"GET /login", pages.show, "The login page, for browsers.", nil},
		{"POST /login", pages.login, "The form `token`; answers with a cookie, SameSite=Strict.", nil},
		{"POST /logout", pages.logout, "Ends the session, and that at the OpenID provider if it offers this.", nil},
		{"GET /oidc/login", pages.withOIDC(pages.beginOIDC), "Sends a browser to the OpenID provider of `admin.oidc`.", nil},
		{"GET /oidc/callback", pages.withOIDC(pages.finishOIDC), "Where the provider sends it back to; answers with a cookie, SameSite=Lax.", nil},
	}
}

func handler(src Sources, a *access) http.Handler {
	mux, h := http.NewServeMux(), health{src.Ready, src.Starting}
	for _, e := range src.endpoints(a) {
		mux.HandleFunc(e.pattern, e.serve)
	}
	mux.HandleFunc("GET /login.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = io.WriteString(w, loginStyle)
	})
	if src.Page == nil {
		mux.HandleFunc("GET /{$}", src.index(a))
		return h.before(a.sameOrigin(a.guard(h.started(mux))))
	}
	files := http.FileServerFS(src.Page)
	return h.before(a.sameOrigin(a.guard(h.started(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPage(r.URL.Path) {
			mux.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-cache") // an upgrade shows at once
		files.ServeHTTP(w, r)
	})))))
}

// isPage reports whether path is of the dashboard, not of the API.
func isPage(path string) bool {
	switch path {
	case "/metrics", "/login", "/logout", "/login.css", pathOIDC, pathCallback:
		return false
	}
	return !strings.HasPrefix(path, "/api/") && !strings.HasPrefix(path, "/debug/")
}

// index lists what there is.
func (src *Sources) index(a *access) http.HandlerFunc {
	text := "weir admin\n\n"
	for _, e := range src.endpoints(a) {
		text += e.pattern + "\n"
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, text)
	}
}

const (
	maxConnections = 10_000
	maxMessages    = 200
	maxBody        = 2 << 20

	maxSeconds = 300
)

// timed refuses profiles that would run for very long: only one of a kind can at a time.
func timed(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s := r.URL.Query().Get("seconds")
		if n, err := strconv.ParseFloat(s, 64); s != "" && (err != nil || !(n >= 0 && n <= maxSeconds)) {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("seconds: %.40q is not within 0..%d", s, maxSeconds))
			return
		}
		serve(w, r)
	}
}

// limitOf reads the query's limit, and answers for one that is none.
func limitOf(w http.ResponseWriter, r *http.Request, normal, most int) (int, bool) {
	s := r.URL.Query().Get("limit")
	if s == "" {
		return normal, true
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("limit: %.40q is not within 1..%d", s, most))
		return 0, false
	}
	return n, true
}

// sorting reads the query's sort, which is one of sorts or absent.
func sorting(w http.ResponseWriter, r *http.Request, sorts []string) (string, bool) {
	s := r.URL.Query().Get("sort")
	if s == "" {
		return sorts[0], true
	}
	if !slices.Contains(sorts, s) {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("sort: %.40q is none of %v", s, sorts))
		return "", false
	}
	return s, true
}

func (src *Sources) snapshot(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, src.Snapshot(r.Context()))
}

// vars is what package expvar's handler answers, with the snapshot among it and without
// the command line, which may hold secrets.
func (src *Sources) vars(w http.ResponseWriter, r *http.Request) {
	all := map[string]json.RawMessage{}
	expvar.Do(func(v expvar.KeyValue) { all[v.Key] = json.RawMessage(v.Value.String()) })
	delete(all, "cmdline")
	if b, err := json.Marshal(src.Snapshot(r.Context())); err == nil {
		all["weir"] = b
	}
	writeJSON(w, http.StatusOK, all)
}

// listing answers with what get returns, in the order and up to the limit that the query
// specifies; sorts are the orders there are.
func listing[T any](sorts []string, get func(ctx context.Context, sort string, limit int) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sort, ok := sorting(w, r, sorts)
		if !ok {
			return
		}
		n, ok := limitOf(w, r, 100, maxConnections)
		if !ok {
			return
		}
		answer(w, http.StatusOK)(get(r.Context(), sort, n))
	}
}

func id(w http.ResponseWriter, r *http.Request) (uint64, bool) {
	n, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("id: %.40q is not a connection's", r.PathValue("id")))
	}
	return n, err == nil
}

func (src *Sources) connection(w http.ResponseWriter, r *http.Request) {
	if n, ok := id(w, r); ok {
		answer(w, http.StatusOK)(src.Connection(r.Context(), n))
	}
}

func (src *Sources) disconnect(w http.ResponseWriter, r *http.Request) {
	n, ok := id(w, r)
	if !ok {
		return
	}
	if err := src.Disconnect(r.Context(), n); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (src *Sources) messages(w http.ResponseWriter, r *http.Request) {
	if n, ok := limitOf(w, r, 20, maxMessages); ok {
		answer(w, http.StatusOK)(src.Messages(r.Context(), r.PathValue("name"), n))
	}
}

// body reads a request's body, and answers for one that is too long or takes too long.
func body(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	defer func() { _ = http.NewResponseController(w).SetReadDeadline(time.Time{}) }() // sameOrigin's: what follows may take longer
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		status := http.StatusBadRequest
		if errors.As(err, new(*http.MaxBytesError)) {
			status = http.StatusRequestEntityTooLarge
		}
		writeError(w, status, err.Error())
		return nil, false
	}
	return b, true
}

func (src *Sources) publish(w http.ResponseWriter, r *http.Request) {
	b, ok := body(w, r)
	if !ok {
		return
	}
	status, text := src.Publish(r.Context(), b)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

func (src *Sources) beginTrace(w http.ResponseWriter, r *http.Request) {
	b, ok := body(w, r)
	if !ok {
		return
	}
	var req TraceRequest
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		writeError(w, http.StatusBadRequest, "body: "+err.Error())
		return
	}
	t, err := src.BeginTrace(&req)
	if err == nil {
		w.Header().Set("Location", "/api/trace/"+t.ID)
	}
	answer(w, http.StatusAccepted)(t, err)
}

func (src *Sources) trace(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusOK)(src.Trace(r.Context(), r.PathValue("id"), r.URL.Query().Get("wait") != ""))
}

func (src *Sources) capture(w http.ResponseWriter, r *http.Request) {
	reason := r.URL.Query().Get("reason")
	reason = cmp.Or(reason, "requested")
	answer(w, http.StatusCreated)(src.Capture(r.Context(), fmt.Sprintf("%.200s", reason)))
}

func (src *Sources) bundle(w http.ResponseWriter, r *http.Request) {
	f, err := src.OpenBundle(r.PathValue("id"))
	if err != nil {
		fail(w, err)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/gzip")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "weir-"+r.PathValue("id")+".tar.gz"))
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.Copy(w, f) // the client sees the connection break
}

func (src *Sources) steer(w http.ResponseWriter, r *http.Request) {
	if err := src.SteerCanary(r.PathValue("split"), r.PathValue("action")); err != nil {
		writeError(w, http.StatusNotFound, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (src *Sources) tune(w http.ResponseWriter, r *http.Request) {
	p, err := tune.ParseProfile(r.URL.Query().Get("profile"))
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	answer(w, http.StatusOK)(src.Tune(p))
}

// maxObserve bounds a window that is watched by request, in seconds.
const maxObserve = 30

func (src *Sources) observe(w http.ResponseWriter, r *http.Request) {
	seconds := 5
	if s := r.URL.Query().Get("seconds"); s != "" {
		var err error
		if seconds, err = strconv.Atoi(s); err != nil || seconds < 1 || seconds > maxObserve {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("seconds: %.40q is not within 1..%d", s, maxObserve))
			return
		}
	}
	answer(w, http.StatusOK)(src.Observe(r.Context(), time.Duration(seconds)*time.Second))
}

func (src *Sources) reload(w http.ResponseWriter, r *http.Request) {
	v, err := src.Reload(r.Context())
	if err != nil {
		writeError(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, v)
}

// maxConfig bounds the body of a configuration.
const maxConfig = 16 << 20

func (src *Sources) diff(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxConfig))
	if err != nil {
		writeError(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("read the configuration, at most %d bytes: %v", maxConfig, err))
		return
	}
	v, err := src.Diff(r.Context(), text)
	if err != nil {
		writeError(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, v)
}

// answer writes what a source returned.
func answer(w http.ResponseWriter, status int) func(v any, err error) {
	return func(v any, err error) {
		if err != nil {
			fail(w, err)
			return
		}
		writeJSON(w, status, v)
	}
}

// fail says in HTTP what a source refused.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, governor.ErrNoBundle):
		status = http.StatusNotFound
	case errors.Is(err, ErrBad):
		status = http.StatusBadRequest
	case errors.Is(err, ErrRefused), errors.Is(err, governor.ErrNoDirectory):
		status = http.StatusUnprocessableEntity
	case errors.Is(err, ErrBusy), errors.Is(err, governor.ErrCapturing):
		status = http.StatusTooManyRequests
	}
	writeError(w, status, err.Error())
}

// commandLine is pprof.Cmdline without secrets, which flags such as --set may hold.
func commandLine(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, strings.Join(redact.Args(os.Args), "\x00")) // the client may be gone
}

func writeError(w http.ResponseWriter, status int, msg string) {
	var e Error
	e.Error.Code, e.Error.Message = status, redact.Text(msg)
	writeJSON(w, status, e)
}

// writeJSON answers with v, and with 500 where v has no JSON, such as a number that is none.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		status = http.StatusInternalServerError
		var e Error
		e.Error.Code, e.Error.Message = status, redact.Text(err.Error())
		body, _ = json.MarshalIndent(e, "", "  ") // a number and a text
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}
