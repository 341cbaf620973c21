package app

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// loggedText keeps a log's text.
type loggedText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *loggedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *loggedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A NATS that cannot keep logs yet is waited for: health, readiness with the reason and
// the log say so meanwhile, and it serves when NATS can.
func TestAStartThatWaitsSaysWhatFor(t *testing.T) {
	t.Parallel() // it mostly waits
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(trial.Patience) {
		t.Fatal("no NATS server")
	}
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Broker = config.Broker{Kind: config.BrokerNATS}
	cfg.Broker.NATS.URL = srv.ClientURL()
	cfg.EventLoop.Loops = 2
	cfg.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true, Durability: hub.Stored}}
	cfg.Auth.APIKeys = []auth.APIKey{{Name: "test", Key: testKey}}
	var text loggedText
	a, err := New(cfg, Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- a.Run(ctx, context.Background(), func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	client := &http.Client{Timeout: trial.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(url string, fields ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(fields); i += 2 {
			req.Header.Set(fields[i], fields[i+1])
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	admin, public := "http://"+a.AdminAddr().String(), a.URL()
	trial.Eventually(t, "the reason is known", func() bool { _, s := get(admin + "/readyz"); return strings.Contains(s, `namespace \"default\"`) })
	for _, base := range []string{admin, public} {
		if code, s := get(base + "/healthz"); code != 200 {
			t.Errorf("%s/healthz: %d %s", base, code, s)
		}
		if code, s := get(base + "/readyz"); code != 503 || !strings.Contains(s, "starting") || !strings.Contains(s, "default") {
			t.Errorf("%s/readyz: %d %s", base, code, s)
		}
	}
	if code, s := get(admin + "/metrics"); code != 200 || !strings.Contains(s, "weir_") {
		t.Errorf("/metrics: %d %.200s", code, s)
	}
	if code, s := get(admin + "/api/snapshot"); code != 503 || !strings.Contains(s, "starting") {
		t.Errorf("/api/snapshot: %d %.200s", code, s)
	}
	if code, s := get(public+"/sse?channel=a", "Accept", "text/event-stream"); code != 200 || !strings.HasPrefix(s, "retry: ") {
		t.Errorf("a stream: %d %q", code, s)
	}
	if code, _ := get(public + "/api/publish"); code != 503 {
		t.Errorf("a call: %d", code)
	}
	if s := text.String(); strings.Count(s, "waiting for NATS") == 0 {
		t.Errorf("log: %s", s)
	}
	if err := srv.EnableJetStream(&server.JetStreamConfig{StoreDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ready:
	case <-time.After(trial.Patience):
		t.Fatal("it does not start")
	}
	g := &gateway{App: a, url: public, stop: cancel, done: done}
	for _, base := range []string{admin, public} {
		trial.Eventually(t, base+" is ready", func() bool { code, _ := get(base + "/readyz"); return code == 200 })
	}
	g.publish(t, "a", "1")
	http.DefaultClient.CloseIdleConnections()
}
