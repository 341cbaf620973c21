package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A watch is a gateway, the real binary, and a real Prometheus that scrapes it twice a
// second and has the rules that are deployed.
type watch struct {
	*judge.Server
	t          *testing.T
	prometheus string
}

// patience is for what comes within seconds on a quiet machine.
const patience = 90 * time.Second

// governed makes the governor judge windows of a second, on as many samples as these
// have. Neighbours on the machine are to be no excuse, unless the test is about them.
func governed(thresholds map[string]any) map[string]any {
	all := map[string]any{"min_samples": 50, "host_wait": 1000}
	for k, v := range thresholds {
		all[k] = v
	}
	return map[string]any{"interval": "50ms", "window": "1s", "thresholds": all}
}

// newWatch starts both.
func newWatch(t *testing.T, o judge.Options, native bool) *watch {
	t.Helper()
	judge.Need(t, "prometheus")
	w := &watch{Server: judge.New(t, o), t: t, prometheus: judge.FreeAddr(t)}
	dir := t.TempDir()
	config := fmt.Sprintf(`global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - job_name: weir
    static_configs: [{targets: [%q]}]
`, judge.Path(deployed), w.Admin)
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	arg := []string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + w.prometheus, "--log.level=warn"}
	if native {
		arg = append(arg, "--enable-feature=native-histograms")
	}
	var said strings.Builder
	cmd := exec.Command(judge.Path(".cache", "prometheus", "usr", "bin", "prometheus"), arg...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("prometheus: %v\n%s", err, said.String())
		}
	})
	judge.Eventually(t, patience, "Prometheus has scraped the gateway", func() bool { return w.value(`up{job="weir"}`) == 1 })
	return w
}

// ask is a call of Prometheus's API; false while it does not answer.
func (w *watch) ask(path string, query url.Values, v any) bool {
	w.t.Helper()
	resp, err := judge.HTTP.Get("http://" + w.prometheus + path + "?" + query.Encode())
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: v}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		w.t.Fatalf("%s %v: %v %.300s", path, query, err, body)
	}
	return true
}

// results reports how many series an expression has now, and the greatest value.
func (w *watch) results(expr string) (n int, most float64) {
	w.t.Helper()
	var data struct {
		Result []struct {
			Value     [2]any
			Histogram []any
		}
	}
	if !w.ask("/api/v1/query", url.Values{"query": {expr}}, &data) {
		return 0, 0
	}
	for i, r := range data.Result {
		var v float64
		if text, ok := r.Value[1].(string); ok {
			_, _ = fmt.Sscan(text, &v)
		}
		if i == 0 || v > most {
			most = v
		}
	}
	return len(data.Result), most
}

// value is the greatest value of an expression, −1 if it has none.
func (w *watch) value(expr string) float64 {
	w.t.Helper()
	if n, most := w.results(expr); n > 0 {
		return most
	}
	return -1
}

// alerting reports whether the rule of that name holds now: fires, or waits to.
func (w *watch) alerting(name string) bool {
	w.t.Helper()
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	return w.ask("/api/v1/alerts", nil, &data) && slices.ContainsFunc(data.Alerts, func(a struct {
		Labels map[string]string
		State  string
	}) bool {
		return a.Labels["alertname"] == name && (a.State == "firing" || a.State == "pending")
	})
}

// A snapshot is what the dashboard's panels read of /api/snapshot, spelt out here.
type snapshot struct {
	Governor struct {
		State struct {
			Now          string
			Inconclusive bool
			Causes       []cause
			Windows      int
			Baseline     struct {
				P99 float64 `json:"delivery_p99"`
			}
		}
		Delivery struct {
			Second struct {
				N   int
				P99 float64
			}
		}
		Timeline []struct{ From, To, Evidence string }
		Loops    []struct {
			Busy    float64
			Stalled int
		}
		Goroutines struct{ Other int }
		Broker     struct {
			Waiting int
			Oldest  float64
		}
		Host     struct{ Wait, Busy, Throttled float64 }
		Evidence struct {
			Armed   bool
			Writing string
			Bundles []struct {
				ID, Reason string
				Bytes      int64
			}
		}
	}
	Lag     struct{ Subscribers, Lagging int }
	Slowest []struct {
		Peer   string
		Kernel int64 `json:"kernel_bytes"`
		Bytes  int64 `json:"lag_bytes"`
	}
}

type cause struct {
	Name, Text, State string
	Value, Limit      float64
}

func (w *watch) snapshot() (s snapshot) {
	w.t.Helper()
	judge.Soon(w.t, patience, "/api/snapshot answers", func() error { return w.ReadAdmin("/api/snapshot", &s) })
	return s
}

// named waits until a cause is in the snapshot, in the metric of causes, and in the
// alert that is made of it, and returns the snapshot.
func (w *watch) named(name, alert string) (s snapshot, c cause) {
	w.t.Helper()
	judge.Eventually(w.t, patience, "the page names "+name, func() bool {
		s = w.snapshot()
		i := slices.IndexFunc(s.Governor.State.Causes, func(c cause) bool { return c.Name == name })
		if i >= 0 {
			c = s.Governor.State.Causes[i]
		}
		return i >= 0
	})
	judge.Eventually(w.t, patience, "the metric has "+name, func() bool { return w.value(`weir_governor_cause{cause="`+name+`"}`) == 1 })
	judge.Eventually(w.t, patience, alert+" holds", func() bool { return w.alerting(alert) })
	w.t.Logf("%s: %s", name, c.Text)
	return s, c
}

// gone waits until the cause and the alert are gone.
func (w *watch) gone(name, alert string) {
	w.t.Helper()
	judge.Eventually(w.t, patience, name+" and "+alert+" are over", func() bool {
		return !slices.ContainsFunc(w.snapshot().Governor.State.Causes, func(c cause) bool { return c.Name == name }) && !w.alerting(alert)
	})
}

// audience subscribes n readers to a channel, which throw away what they get, until the
// test ends.
func (w *watch) audience(n int, channel string) {
	w.t.Helper()
	judge.Descriptors(w.t, uint64(n)+2000)
	var wg sync.WaitGroup
	conns := make([]net.Conn, 0, n)
	w.t.Cleanup(func() {
		for _, c := range conns {
			_ = c.Close()
		}
		wg.Wait()
	})
	for range n {
		c, err := net.Dial("tcp", w.Public)
		if err != nil {
			w.t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, "GET /sse?channel="+channel+" HTTP/1.1\r\nHost: weir\r\n\r\n"); err != nil {
			w.t.Fatal(err)
		}
		wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
	}
	judge.Eventually(w.t, patience, "all are subscribed", func() bool { return w.Series("weir_connections", `transport="sse"`) >= float64(n) })
}

// publishers publish on a channel, n at a time, each as soon as the one before is
// answered and pause has passed.
func (w *watch) publishers(n int, channel string, size int, pause time.Duration) (stop func()) {
	w.t.Helper()
	return w.posters(n, "/api/publish", fmt.Sprintf(`{"channel":%q,"data":"%s%%d"}`, channel, strings.Repeat("x", size)), pause)
}

// broadcasters publish times messages on a channel with each request.
func (w *watch) broadcasters(n int, channel string, times int) (stop func()) {
	w.t.Helper()
	channels := strings.Repeat(fmt.Sprintf("%q,", channel), times)
	return w.posters(n, "/api/broadcast", fmt.Sprintf(`{"channels":[%s],"data":%%d}`, strings.TrimSuffix(channels, ",")), 0)
}

// posters post a body, in which %d is a number, n at a time. stop ends them; what they meet besides success is of
// no interest here.
func (w *watch) posters(n int, path, body string, pause time.Duration) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	var wg sync.WaitGroup
	var number atomic.Int64
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.Public+path, strings.NewReader(fmt.Sprintf(body, number.Add(1))))
				if err != nil {
					return
				}
				req.Header.Set("X-API-Key", judge.APIKey)
				resp, err := client.Do(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				select { // the pace
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		client.CloseIdleConnections()
	})
	w.t.Cleanup(stop)
	return stop
}
