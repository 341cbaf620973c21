package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// smallDisk returns a directory on a file system of its own, and what fills it to the
// last byte. Without root the server is given a disk on which much must stay free.
func smallDisk(t *testing.T) (dir string, config map[string]any, fill, empty func(s *judge.Server)) {
	dir = t.TempDir()
	nats := func(minFree int64) map[string]any {
		return map[string]any{"broker": map[string]any{"nats": map[string]any{"dir": dir, "min_free": minFree}}}
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Logf("no file system can be mounted: %v", err)
		return dir, nats(0), func(s *judge.Server) { s.Configure(nats(1 << 60)) }, nil
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	ballast := filepath.Join(dir, "ballast")
	fill = func(*judge.Server) {
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for b := make([]byte, 4096); err == nil; {
			_, err = f.Write(b)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return dir, nats(0), fill, func(*judge.Server) {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
}

// eventsOf reads a stream until n events were delivered, and returns their data.
func eventsOf(t *testing.T, c *http.Client, url string, n int) (data []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewScanner(res.Body)
	for len(data) < n && in.Scan() {
		if s, ok := strings.CutPrefix(in.Text(), "data:"); ok && s != "" {
			data = append(data, s)
		}
	}
	if len(data) < n {
		t.Fatalf("%s: %s, %d events of %d, %v", url, res.Status, len(data), n, in.Err())
	}
	return data
}

// TestAFullDiskStartsReadOnly: killed and started again on a disk that takes no byte more,
// the server proxies, replays and says why it refuses to publish; with space it publishes
// again without being restarted. HTTP/1.1 and HTTP/2 answer alike.
func TestAFullDiskStartsReadOnly(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "backend") }))
	defer backend.Close()
	dir, config, fill, empty := smallDisk(t)
	config["clusters"] = []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": backend.Listener.Addr().String()}}}}
	config["routes"] = []any{map[string]any{"path": "/app/*", "cluster": "b"}}
	s := judge.New(t, judge.Options{Config: config})
	const before = 50
	p := &judge.Publisher{Addr: s.Public}
	for i := range before {
		if err := p.Publish(t.Context(), "a", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill()
	fill(s)
	s.StartUntil("/healthz")

	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	clients := map[string]*http.Client{
		"h1": {Timeout: 30 * time.Second, Transport: &http.Transport{}},
		"h2": {Timeout: 30 * time.Second, Transport: &http.Transport{Protocols: &h2}},
	}
	url := "http://" + s.Public
	call := func(c *http.Client, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if body != "" {
			req, err = http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, bytes.NewReader([]byte(body)))
		}
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", judge.APIKey)
		req.Header.Set("Content-Type", "application/json")
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	for name, c := range clients {
		defer c.CloseIdleConnections()
		f := func(path, body string, status int, text string) {
			t.Helper()
			if code, answer := call(c, path, body); code != status || !strings.Contains(answer, text) {
				t.Errorf("%s: %s: %d %s; want %d with %q", name, path, code, answer, status, text)
			}
		}
		f("/healthz", "", 200, "ok")
		f("/readyz", "", 503, "storage full: publishing is refused, reading works")
		f("/app/x", "", 200, "backend")
		f("/api/publish", `{"channel":"a","data":1}`, 507, "publishing resumes by itself")
		f("/api/publish", `{"channel":"a","data":1}`, 507, "nothing was stored, reading works")
		events := eventsOf(t, c, url+"/sse?channel=a&lastEventId=0", before)
		for i, e := range events {
			if strings.TrimSpace(e) != fmt.Sprintf("%q", fmt.Sprint(i)) {
				t.Fatalf("%s: event %d is %s", name, i, e)
			}
		}
	}
	var received []judge.Event
	ctx, cancel := context.WithCancel(t.Context())
	socket := &judge.Subscriber{Addr: s.Public, Socket: true, Channels: []string{"a"}, Last: "0", On: func(e judge.Event) {
		if received = append(received, e); len(received) == before {
			cancel()
		}
	}}
	if err := socket.Run(ctx); err != nil {
		t.Error(err)
	}
	cancel()
	if n := strings.Count(s.Log(), "data directory is full: publishing is refused"); n != 1 || !strings.Contains(s.Log(), "dir="+dir) {
		t.Errorf("%d log lines say so", n)
	}
	if empty == nil {
		return
	}
	empty(s)
	judge.Eventually(t, 30*time.Second, "readiness", func() bool { code, _ := s.Get("/readyz"); return code == 200 })
	if err := p.Publish(t.Context(), "a", fmt.Sprint(before)); err != nil {
		t.Error(err)
	}
	for _, c := range clients {
		eventsOf(t, c, url+"/sse?channel=a&lastEventId=0", before+1)
	}
	s.Kill()
	s.Start()
	eventsOf(t, clients["h1"], url+"/sse?channel=a&lastEventId=0", before+1)
}
