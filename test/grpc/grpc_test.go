package grpc

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// cases are those of gRPC's interoperability test descriptions that need no account.
var cases = []string{
	"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream", "custom_metadata", "status_code_and_message",
	"special_status_message", "unimplemented_method", "unimplemented_service", "cancel_after_begin", "cancel_after_first_response", "timeout_on_sleeping_server",
}

const interop = "google.golang.org/grpc/interop/"

// A client runs a case against an address. ca is the certificate to trust; without one
// it speaks in cleartext, by prior knowledge.
type client struct {
	name string
	run  func(ctx context.Context, addr, name, ca string) *exec.Cmd
}

func clients(t *testing.T) []client {
	t.Helper()
	judge.Need(t, "grpc")
	goClient := judge.Tool(t, "test/grpc/interop", interop+"client")
	return []client{
		{"grpc-go", func(ctx context.Context, addr, name, ca string) *exec.Cmd {
			host, port, _ := net.SplitHostPort(addr) // it is one of judge's
			args := []string{"-server_host", host, "-server_port", port, "-test_case", name}
			if ca != "" {
				args = append(args, "-use_tls", "-use_test_ca", "-ca_file", ca, "-server_host_override", "localhost")
			}
			return exec.CommandContext(ctx, goClient, args...)
		}},
		{"grpcio", python},
	}
}

func python(ctx context.Context, addr, name, ca string) *exec.Cmd {
	args := []string{judge.Path("test", "grpc", "client.py"), judge.Path(".cache", "grpc-python", "site"), addr, name}
	if ca != "" {
		args = append(args, ca)
	}
	return exec.CommandContext(ctx, "/usr/bin/python3", args...)
}

// server starts grpc-go's interop server, with a certificate if cert is there.
func server(t *testing.T, cert, key string) (addr string, stop func()) {
	t.Helper()
	addr = judge.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-port", port}
	if cert != "" {
		args = append(args, "-use_tls", "-tls_cert_file", cert, "-tls_key_file", key)
	}
	cmd := exec.Command(judge.Tool(t, "test/grpc/interop", interop+"server"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("the interop server: %s", log.Bytes())
		}
	}
	t.Cleanup(stop)
	judge.Eventually(t, 20*time.Second, "the interop server listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return addr, stop
}

// all has every client run every case.
func all(t *testing.T, clients []client, addr, ca string) {
	t.Helper()
	for _, c := range clients {
		for _, name := range cases {
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			out, err := c.run(ctx, addr, name, ca).CombinedOutput()
			cancel()
			if err != nil {
				t.Errorf("%s, %s: %v\n%s", c.name, name, err, out)
			}
		}
	}
}

// TestTheInteropToolsThemselves runs the clients against the server without a gateway between
// them, so that a failure through the gateway is the gateway's.
func TestTheInteropToolsThemselves(t *testing.T) {
	addr, _ := server(t, "", "")
	all(t, clients(t), addr, "")
}

// through is a gateway's configuration: one route to a cluster that speaks protocol.
func through(backend, protocol string, tls map[string]any) map[string]any {
	cluster := map[string]any{"name": "g", "protocol": protocol, "peers": []any{map[string]any{"address": backend}}}
	if tls != nil {
		cluster["tls"] = tls
	}
	return map[string]any{
		"routes":   []any{map[string]any{"path": "/*", "cluster": "g", "limits": map[string]any{"max_body": -1}}},
		"clusters": []any{cluster},
	}
}

// TestInteropThroughTheGateway has all cases pass in cleartext and over TLS, on both
// engines, and nothing left under way at the backend afterwards.
func TestInteropThroughTheGateway(t *testing.T) { throughTheGateway(t, clients(t)) }

func throughTheGateway(t *testing.T, clients []client) {
	for _, engine := range []string{"epoll", "io_uring"} {
		for _, tls := range []bool{false, true} {
			name := engine + ", cleartext"
			if tls {
				name = engine + ", TLS"
			}
			t.Run(name, func(t *testing.T) {
				backend, _ := server(t, "", "")
				config := through(backend, "http2", nil)
				config["eventloop"] = map[string]any{"engine": engine}
				s := judge.New(t, judge.Options{Memory: true, TLS: tls, Config: config})
				all(t, clients, s.Public, s.Authority)
				judge.Eventually(t, 10*time.Second, "nothing is under way at the backend", func() bool { return s.Series("weir_upstream_in_flight_requests") == 0 })
			})
		}
	}
}

// TestInteropWithABackendOverTLS has ALPN agree on the version.
func TestInteropWithABackendOverTLS(t *testing.T) {
	cert, key := judge.Certificate(t, t.TempDir())
	backend, _ := server(t, cert, key)
	s := judge.New(t, judge.Options{Memory: true, Config: through(backend, "auto", map[string]any{"enabled": true, "ca_files": []string{cert}, "server_name": "localhost"})})
	all(t, clients(t), s.Public, "")
}

// TestRefusalsReachClientsAsStatus: what the gateway refuses by itself has the code that
// gRPC has for it (gRPC's "HTTP to gRPC Status Code Mapping").
func TestRefusalsReachClientsAsStatus(t *testing.T) {
	judge.Need(t, "grpc")
	backend, stop := server(t, "", "")
	config := through(backend, "http2", nil)
	s := judge.New(t, judge.Options{Memory: true, Config: config})
	f := func(what, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		out, err := python(ctx, s.Public, "status", "").CombinedOutput()
		if got, _, _ := strings.Cut(strings.TrimSpace(string(out)), " "); err != nil || got != want {
			t.Errorf("%s: %s (%v), want %s", what, out, err, want)
		}
	}
	reload := func(change func(route map[string]any)) {
		t.Helper()
		config := through(backend, "http2", nil)
		change(config["routes"].([]any)[0].(map[string]any))
		s.Configure(config)
		if status, body := s.Reload(); status != 200 {
			t.Fatalf("reload: %d %s", status, body)
		}
	}
	f("a call that is served", "OK")
	reload(func(r map[string]any) { r["path"] = "/elsewhere" })
	f("no route", "UNIMPLEMENTED")
	reload(func(r map[string]any) { r["addresses"] = map[string]any{"deny": []string{"127.0.0.1"}} })
	f("an address that is denied", "PERMISSION_DENIED")
	reload(func(map[string]any) {})
	stop()
	f("a backend that is gone", "UNAVAILABLE")
}
