package grpc

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// TestGRPCWebInABrowser has the official client of gRPC-Web, in Chromium and on a page of
// another origin, run those cases that a browser can, in both forms, before gRPC's interop
// server.
func TestGRPCWebInABrowser(t *testing.T) {
	judge.Need(t, "grpc", "chromium")
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan map[string]string, 1)
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(judge.Path("test", "grpc", "npm"))))
	mux.HandleFunc("POST /report", func(_ http.ResponseWriter, r *http.Request) {
		var got map[string]string
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&got); err != nil {
			t.Error(err)
		}
		reports <- got
	})
	pages := httptest.NewServer(mux)
	t.Cleanup(pages.Close)
	backend, _ := server(t, "", "")
	cors := map[string]any{"allowed_origins": []string{pages.URL}, "expose_headers": []string{"x-grpc-test-echo-initial"}}
	config := through(backend, "http2", nil)
	config["routes"] = []any{
		map[string]any{"path": "/*", "cluster": "g", "grpc_web": true, "cors": cors},
		map[string]any{"path": "/refused.Service/*", "cluster": "g", "grpc_web": true, "cors": cors, "limits": map[string]any{"max_body": 1}},
	}
	s := judge.New(t, judge.Options{Memory: true, Config: config})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--user-data-dir="+t.TempDir(),
		pages.URL+"/page.html?server=http://"+s.Public)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // and its children
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }() // it is killed
	var got map[string]string
	select {
	case got = <-reports:
	case <-ended:
		t.Fatalf("the browser ended: %s", out.Bytes())
	}
	cancel()
	<-ended
	f := func(name, want string) {
		t.Helper()
		for _, form := range []string{"text ", "binary "} {
			if name == "cancel_after_first_response" && form == "binary " {
				continue // messages come there when the reply is complete
			}
			if got[form+name] != want {
				t.Errorf("%s%s: %s, want %s", form, name, got[form+name], want)
			}
		}
	}
	f("empty_unary", "0 0")
	f("large_unary", "0 314159")
	f("server_streaming", "31415,9,2653,58979 status 0")
	f("custom_metadata", "0 5 test_initial_metadata_value")
	f("status_code_and_message", "2 test status message")
	f("special_status_message", "2 \t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n")
	f("unimplemented_method", "12 method UnimplementedCall not implemented")
	f("unimplemented_service", "12 unknown service grpc.testing.UnimplementedService")
	f("cancel_after_first_response", "cancelled after 100")
	f("timeout_on_sleeping_server", " error 4")
	f("refused by the gateway", "8 the body is too large")
	judge.Eventually(t, 10*time.Second, "nothing is under way at the backend", func() bool { return s.Series("weir_upstream_in_flight_requests") == 0 })
}
