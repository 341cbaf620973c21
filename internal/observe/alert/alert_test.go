package alert_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/observe/alert"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/monitor"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

const secret = "a-secret-of-the-webhook"

// A receiver is a webhook that keeps what it accepts and answers as it is set to.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	status int // 0: 204
	bodies []map[string]any
	keys   []string // Idempotency-Key of every request
	signed int      // of those with the right signature
}

func receive(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.keys = append(r.keys, req.Header.Get("Idempotency-Key"))
		if r.status != 0 || err != nil {
			w.WriteHeader(r.status)
			return
		}
		at, mac, _ := strings.Cut(strings.TrimPrefix(req.Header.Get("Weir-Signature"), "t="), ",v1=")
		h := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(h, "%s.%s", at, b)
		if hmac.Equal([]byte(mac), []byte(hex.EncodeToString(h.Sum(nil)))) && req.Header.Get("Authorization") == "Bearer x" {
			r.signed++
		}
		var v map[string]any
		if json.Unmarshal(b, &v) == nil && req.Header.Get("Content-Type") == "application/json" {
			r.bodies = append(r.bodies, v)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// got returns what was accepted, and how many requests there were.
func (r *receiver) got() ([]map[string]any, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]map[string]any{}, r.bodies...), len(r.keys)
}

// A node is a process whose numbers the test sets.
type node struct {
	mu      sync.Mutex
	numbers alert.Numbers
}

func (n *node) set(series string, v float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.numbers[series] = v
}

func (n *node) read() alert.Numbers {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := alert.Numbers{}
	for k, v := range n.numbers {
		out[k] = v
	}
	return out
}

var rules = []governor.Alert{
	{Name: "WeirFull", Level: governor.Page, Expr: "weir_used_ratio >= 0.9", Summary: "it is full", Cause: "memory"},
	{Name: "WeirNews", Level: governor.Information, Expr: `weir_mode{mode="x"} == 1`, Summary: "for information"},
}

func start(t *testing.T, cfg alert.Config) (*alert.Alerts, *node) {
	t.Helper()
	n := &node{numbers: alert.Numbers{}}
	a, err := alert.New(cfg, alert.Source{Alerts: rules, Numbers: n.read, Node: func() string { return "node-1:8000" }, Runbooks: "https://runbooks/"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a, n
}

func stats(a *alert.Alerts) (s alert.Stats) {
	for _, v := range a.Stats() {
		s = v
	}
	return s
}

// An alert is posted once when it fires and once when it is resolved, signed, through a
// webhook that answers with errors in between.
func TestAlertsArePosted(t *testing.T) {
	t.Parallel()
	r := receive(t)
	r.answer(http.StatusServiceUnavailable)
	a, n := start(t, alert.Config{ResolveAfter: hub.Duration(time.Millisecond), Webhooks: []alert.Webhook{{URL: r.URL + "/hook/secret", Secret: secret, Authorization: "Bearer x"}}})
	n.set("weir_used_ratio", 0.95)
	n.set(`weir_mode{mode="x"}`, 1) // not for this webhook
	trial.Eventually(t, "it is posted again", func() bool { _, n := r.got(); return n >= 2 })
	r.answer(0)
	trial.Eventually(t, "it is accepted", func() bool { list, _ := r.got(); return len(list) == 1 })
	n.set("weir_used_ratio", 0.5)
	trial.Eventually(t, "it is resolved", func() bool { list, _ := r.got(); return len(list) == 2 })

	list, _ := r.got()
	for i, want := range []string{"firing", "resolved"} {
		b := list[i]
		if b["status"] != want || b["alert"] != "WeirFull" || b["level"] != "page" || b["node"] != "node-1:8000" || b["id"] != list[0]["id"] || b["version"] != 1.0 ||
			b["runbook_url"] != "https://runbooks/WeirFull.md" || b["cause"] != "memory" || b["started"] != list[0]["started"] || (b["ended"] != nil) != (want == "resolved") {
			t.Errorf("%s: %v", want, b)
		}
	}
	if list[0]["value"] != 0.95 {
		t.Errorf("value %v", list[0]["value"])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.signed != 2 {
		t.Errorf("%d of 2 have their signature", r.signed)
	}
	keys := map[string]bool{}
	for _, k := range r.keys {
		keys[k] = true
	}
	if len(keys) != 2 || keys[""] {
		t.Errorf("keys %v: one for each event, the same again for each attempt", r.keys)
	}
	trial.Eventually(t, "both are counted", func() bool { return stats(a).Sent == 2 })
	if s := stats(a); s.Retried == 0 || s.Failed != 0 || s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTheBodyOfAlertmanager(t *testing.T) {
	t.Parallel()
	r := receive(t)
	_, n := start(t, alert.Config{Webhooks: []alert.Webhook{{Name: "duty", URL: r.URL, Format: "alertmanager", Levels: []governor.Level{governor.Information}}}})
	n.set("weir_used_ratio", 1) // not for this webhook
	n.set(`weir_mode{mode="x"}`, 1)
	trial.Eventually(t, "it is posted", func() bool { list, _ := r.got(); return len(list) == 1 })
	list, _ := r.got()
	b := list[0]
	alerts, _ := b["alerts"].([]any)
	if b["version"] != "4" || b["status"] != "firing" || b["receiver"] != "duty" || len(alerts) != 1 || b["groupKey"] == "" {
		t.Fatalf("%v", b)
	}
	one, _ := alerts[0].(map[string]any)
	labels, _ := one["labels"].(map[string]any)
	if labels["alertname"] != "WeirNews" || labels["severity"] != "information" || labels["instance"] != "node-1:8000" || one["endsAt"] != "0001-01-01T00:00:00Z" || one["startsAt"] == one["endsAt"] || one["fingerprint"] == "" {
		t.Errorf("%v", one)
	}
}

// What a webhook rejects is not posted again; a redirect is not followed.
func TestRejectedAlertsAreNotRepeated(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusBadRequest, http.StatusTemporaryRedirect} {
		r := receive(t)
		r.answer(status)
		a, n := start(t, alert.Config{Webhooks: []alert.Webhook{{URL: r.URL}}})
		n.set("weir_used_ratio", 1)
		trial.Eventually(t, "it is given up", func() bool { return stats(a).Failed == 1 })
		if _, requests := r.got(); requests != 1 || stats(a).Retried != 0 {
			t.Errorf("%d: %d requests", status, requests)
		}
	}
}

// Rules wait for their time, do not flap, and evaluate rates.
func TestRules(t *testing.T) {
	type step struct {
		at    time.Duration
		value float64
		want  string
	}
	f := func(name string, a governor.Alert, steps ...step) {
		t.Helper()
		begin, i := time.Now(), 0
		for got := range alert.Replay(a, 30*time.Second, func(yield func(time.Time, alert.Numbers) bool) {
			for _, s := range steps {
				if !yield(begin.Add(s.at), alert.Numbers{"s": s.value}) {
					return
				}
			}
		}) {
			if s := steps[i]; got != s.want {
				t.Errorf("%s: at %v with %v: %q, want %q", name, s.at, s.value, got, s.want)
			}
			i++
		}
	}
	const second = time.Second
	f("at once", governor.Alert{Expr: "s >= 1"}, step{0, 0, ""}, step{second, 1, "firing"}, step{2 * second, 2, ""}, step{3 * second, 0, ""}, step{32 * second, 0, ""}, step{33 * second, 0, "resolved"}, step{34 * second, 1, "firing"})
	f("for a time", governor.Alert{Expr: "s == 1", For: hub.Duration(10 * second)},
		step{0, 1, ""}, step{9 * second, 1, ""}, step{9500 * time.Millisecond, 0, ""}, step{10 * second, 1, ""}, step{19 * second, 1, ""}, step{20 * second, 1, "firing"})
	f("comes and goes", governor.Alert{Expr: "s >= 1"}, step{0, 1, "firing"}, step{second, 0, ""}, step{20 * second, 1, ""}, step{40 * second, 0, ""}, step{60 * second, 1, ""}, step{61 * second, 0, ""}, step{91 * second, 0, "resolved"})
	f("a rate", governor.Alert{Expr: "rate(s[1m]) >= 2"}, step{0, 100, ""}, step{10 * second, 110, ""}, step{20 * second, 150, "firing"}, step{60 * second, 150, ""}, step{89 * second, 150, ""}, step{90 * second, 150, "resolved"})
	f("two", governor.Alert{Expr: "s >= 1 and on(instance) other == 0"}, step{0, 1, ""})
}

// Every alert that is posted has an expression that the process can evaluate, over series
// that there are.
func TestEveryLocalAlertIsEvaluated(t *testing.T) {
	series := map[string]bool{}
	for s := range (&governor.Snapshot{}).Series() {
		series[s.Name] = true
	}
	series["weir_degraded"] = true
	list := monitor.Local(governor.Thresholds{})
	if len(list) < 30 {
		t.Fatalf("only %d", len(list))
	}
	for _, a := range list {
		names, err := alert.SeriesOf(a)
		if err != nil {
			t.Error(err)
		}
		for _, n := range names {
			if name, _, _ := strings.Cut(n, "{"); !series[name] {
				t.Errorf("%s: there is no series %s", a.Name, name)
			}
		}
	}
	if _, err := alert.SeriesOf(governor.Alert{Name: "x", Expr: "sum(a) >= 1"}); err == nil {
		t.Error("an expression that cannot be evaluated is accepted")
	}
}

func TestWebhooksAreValidated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want string, hooks ...alert.Webhook) {
		t.Helper()
		_, err := alert.New(alert.Config{Webhooks: hooks}, alert.Source{}, slog.New(slog.DiscardHandler))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	good := alert.Webhook{URL: "https://hooks.example.com/hunter2", Secret: secret}
	change := func(c func(*alert.Webhook)) alert.Webhook { w := good; c(&w); return w }
	f("", good, change(func(w *alert.Webhook) { w.Name = "second" }))
	f("webhooks[1]: name", good, good)
	f("webhooks[0]: url", change(func(w *alert.Webhook) { w.URL = "ftp://hooks.example.com/hunter2" }))
	f("webhooks[0]: url", alert.Webhook{})
	f("webhooks[0]: levels", change(func(w *alert.Webhook) { w.Levels = []governor.Level{"pager"} }))
	f("webhooks[0]: format", change(func(w *alert.Webhook) { w.Format = "slack" }))
	f("webhooks[0]: secret: 7 bytes", change(func(w *alert.Webhook) { w.Secret = "hunter2" }))
	f("webhooks[0]: secret, secret_file", change(func(w *alert.Webhook) { w.SecretFile = file }))
	f("secret_file", change(func(w *alert.Webhook) { w.Secret, w.SecretFile = "", file }))
	f("authorization", change(func(w *alert.Webhook) { w.Authorization = "hunter2\r\nX: 1" }))
	f("at most 16", make([]alert.Webhook, 17)...)
}
