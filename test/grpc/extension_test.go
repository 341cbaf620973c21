package grpc_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// The servers of docs/howto/extensions.md, in Go and in Python, decide for a gateway.
func TestExampleExtensionsDecide(t *testing.T) {
	judge.Need(t, "grpc")
	page, err := os.ReadFile(judge.Path("docs", "howto", "extensions.md"))
	if err != nil {
		t.Fatal(err)
	}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "plan "+r.Header.Get("X-Plan")+" account "+r.Header.Get("X-Account"))
	}))
	defer backend.Close()
	for name, example := range map[string]struct {
		file string
		run  func(addr string) *exec.Cmd
	}{
		"go": {judge.Path("examples", "extension", "main.go"), func(addr string) *exec.Cmd {
			return exec.CommandContext(t.Context(), judge.Tool(t, "examples", "github.com/weir-gateway/weir/examples/extension"), "-addr", addr)
		}},
		"python": {judge.Path("examples", "extension", "python", "server.py"), func(addr string) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", judge.Path("examples", "extension", "python", "server.py"), addr)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+judge.Path(".cache", "grpc-python", "site"), "PYTHONDONTWRITEBYTECODE=1")
			return cmd
		}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(example.file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(page), string(text)) {
				t.Errorf("docs/howto/extensions.md does not have %s as it is", example.file)
			}
			addr := judge.FreeAddr(t)
			cmd := example.run(addr)
			cmd.SysProcAttr, cmd.Stderr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // killed
			})
			if !bufio.NewScanner(out).Scan() {
				t.Fatal("the server has printed nothing")
			}
			s := judge.New(t, judge.Options{Memory: true, Config: map[string]any{
				"clusters":   []any{map[string]any{"name": "app", "peers": []any{map[string]any{"address": strings.TrimPrefix(backend.URL, "http://")}}}},
				"routes":     []any{map[string]any{"name": "app", "path": "/app/*", "cluster": "app"}},
				"extensions": []any{map[string]any{"name": "rules", "target": addr, "events": []string{"request", "connect", "publish", "disconnect"}, "timeout": "30s"}},
			}})
			decides(t, s)
		})
	}
}

// decides meets the rules of the examples through s.
func decides(t *testing.T, s *judge.Server) {
	t.Helper()
	do := func(ctx context.Context, method, path, body, account string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Public+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Account", account)
		req.Header.Set("X-API-Key", judge.APIKey)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	f := func(method, path, body, account string, status int, want string) {
		t.Helper()
		res := do(t.Context(), method, path, body, account)
		defer func() { _ = res.Body.Close() }()
		if b, err := io.ReadAll(res.Body); res.StatusCode != status || !strings.Contains(string(b), want) || err != nil {
			t.Errorf("%s %s as %q: %d %q (%v), want %d %q", method, path, account, res.StatusCode, b, err, status, want)
		}
	}
	f("GET", "/app/x", "", "ann", 200, "plan pro account ")
	f("GET", "/app/x", "", "bob", 200, "plan free account ")
	f("GET", "/app/x", "", "eve", 402, "no plan for this account")
	f("POST", "/api/publish", `{"channel":"account.ann","data":"`+strings.Repeat("x", 1001)+`"}`, "", 413, "at most 1000 bytes")
	f("POST", "/api/publish", `{"channel":"account.ann","data":"darn it"}`, "", 200, "offset")
	ctx, leave := context.WithTimeout(t.Context(), 30*time.Second)
	defer leave()
	res := do(ctx, "GET", "/sse?channel=account.ann&since=0", "", "ann")
	defer func() { _ = res.Body.Close() }()
	got := ""
	for in := bufio.NewScanner(res.Body); !strings.Contains(got, "it") && in.Scan(); {
		got += in.Text() + "\n"
	}
	if !strings.Contains(got, "**** it") {
		t.Errorf("the stream has %q", got)
	}
}
