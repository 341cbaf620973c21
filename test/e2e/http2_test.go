package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// bodySize is that of the bodies that clients send and fetch.
const bodySize = 20 << 20

const alphabet = "0123456789abcdef"

// pattern returns n bytes that every client can make, and their sum.
func pattern(n int) (body []byte, sum string) {
	body = bytes.Repeat([]byte(alphabet), (n+len(alphabet)-1)/len(alphabet))[:n]
	h := sha256.Sum256(body)
	return body, hex.EncodeToString(h[:])
}

// bodies is a backend that says what it got, and sends what is wanted.
func bodies(t *testing.T) (addr string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /backend/upload", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"bytes": n, "sum": hex.EncodeToString(h.Sum(nil)), "trailer": r.Trailer.Get("X-Sum")})
	})
	mux.HandleFunc("GET /backend/download", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		body, _ := pattern(n)
		w.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = w.Write(body) // the client judges
	})
	mux.HandleFunc("GET /backend/echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.FormValue("n")) })
	mux.HandleFunc("GET /backend/trailers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "of-the-body")
	})
	mux.HandleFunc("GET /backend/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>page</title>")
	})
	mux.HandleFunc("POST /limited", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	ts := httptest.NewServer(mux)
	t.Cleanup(ts.Close)
	return strings.TrimPrefix(ts.URL, "http://")
}

// http2Server starts the gateway before such a backend.
func http2Server(t *testing.T, tls bool, more map[string]any) *judge.Server {
	t.Helper()
	config := map[string]any{
		"routes": []any{
			map[string]any{"path": "/backend/*", "cluster": "b", "limits": map[string]any{"max_body": -1}},
			map[string]any{"path": "/limited", "cluster": "b", "limits": map[string]any{"max_body": 1000}},
		},
		"clusters": []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": bodies(t)}}}},
	}
	for k, v := range more {
		config[k] = v
	}
	return judge.New(t, judge.Options{Memory: true, TLS: tls, Config: config})
}

// overBoth runs f with a server that speaks TLS, where ALPN agrees on the version, and
// with one that clients have to know it of.
func overBoth(t *testing.T, f func(t *testing.T, s *judge.Server, url string)) {
	for _, tls := range []bool{true, false} {
		name, scheme := "TLS", "https://"
		if !tls {
			name, scheme = "prior knowledge", "http://"
		}
		t.Run(name, func(t *testing.T) {
			s := http2Server(t, tls, nil)
			f(t, s, scheme+s.Public)
		})
	}
}

// A command runs a client to its end and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, bad bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, tailOf(out.String()), tailOf(bad.String()))
	}
	return out.String()
}

func tailOf(s string) string { return s[max(0, len(s)-2000):] }

func TestCurlOverHTTP2(t *testing.T) {
	t.Parallel()
	judge.Need(t, "tools")
	overBoth(t, func(t *testing.T, s *judge.Server, url string) {
		base := []string{"-sS", "--http2-prior-knowledge", "--max-time", "50"}
		if s.Authority != "" {
			base = []string{"-sS", "--http2", "--cacert", s.Authority, "--max-time", "50"}
		}
		curl := func(args ...string) string {
			return command(t, "curl", append(append([]string(nil), base...), args...)...)
		}
		if got := curl("-o", "/dev/null", "-w", "%{http_version} %{http_code}", url+"/healthz"); got != "2 200" {
			t.Errorf("a built-in endpoint: %s", got)
		}
		head := curl("-I", url+"/backend/download?n=100")
		if !strings.HasPrefix(head, "HTTP/2 200") || !strings.Contains(head, "\r\ncontent-length: 100\r\n") {
			t.Errorf("HEAD: %q", head)
		}
		body, sum := pattern(bodySize)
		file := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"bytes":%d,"sum":"%s","trailer":""}`, bodySize, sum)
		if got := strings.TrimSpace(curl("-X", "POST", "-T", file, url+"/backend/upload")); got != want {
			t.Errorf("upload: %s, want %s", got, want)
		}
		if got := curl(url + "/backend/download?n=" + strconv.Itoa(bodySize)); got != string(body) {
			t.Errorf("download: %d bytes that differ", len(got))
		}
		if got := curl("-D", "-", "-H", "TE: trailers", url+"/backend/trailers"); !strings.Contains(got, "x-sum: of-the-body") {
			t.Errorf("trailers: %q", got)
		}
		small := filepath.Join(t.TempDir(), "small")
		if err := os.WriteFile(small, body[:200_000], 0o600); err != nil {
			t.Fatal(err)
		}
		// What is refused before its body is complete is answered all the same (RFC 9113 §8.1).
		for _, c := range []struct{ args, want string }{
			{"/nowhere", "404"}, {"-d x /nowhere", "404"}, {"-d {} /api/publish", "401"}, {"-T " + small + " -X POST /limited", "413"}, {"-d x /nowhere", "404"}, {"-d {} /api/publish", "401"}, {"-X DELETE /api/publish", "405"},
		} {
			args := strings.Fields(c.args)
			args[len(args)-1] = url + args[len(args)-1]
			if got := curl(append(args, "-o", "/dev/null", "-w", "%{http_code}")...); got != c.want {
				t.Errorf("%s: %s, want %s", c.args, got, c.want)
			}
		}
		curlFollows(t, base, url)
	})
}

// curlFollows has one curl follow a stream while others publish.
func curlFollows(t *testing.T, base []string, url string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "curl", append(append([]string(nil), base...), "-N", url+"/sse?channel=curl")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(stdout)
	next := func(prefix string) string {
		t.Helper()
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				return rest
			}
		}
		t.Fatalf("the stream ended before %q: %v", prefix, lines.Err())
		return ""
	}
	next("id: ") // it starts with its position
	for i := range 3 {
		data := fmt.Sprintf(`{"n":%d}`, i)
		answer := command(t, "curl", append(append([]string(nil), base...), "-H", "X-API-Key: "+judge.APIKey, "-d", `{"channel":"curl","data":`+data+`}`, url+"/api/publish")...)
		if !strings.Contains(answer, `"offset"`) {
			t.Fatalf("publish: %s", answer)
		}
		if got := next("data: "); got != data {
			t.Errorf("event %d is %q", i, got)
		}
	}
}

func TestNghttp2ToolsOverHTTP2(t *testing.T) {
	t.Parallel()
	judge.Need(t, "h2load")
	overBoth(t, func(t *testing.T, s *judge.Server, url string) {
		body, sum := pattern(bodySize)
		file := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Fatal(err)
		}
		got := command(t, "nghttp", "-d", file, "-H:method: POST", url+"/backend/upload")
		if want := fmt.Sprintf(`{"bytes":%d,"sum":"%s","trailer":""}`, bodySize, sum); strings.TrimSpace(got) != want {
			t.Errorf("nghttp uploads: %s, want %s", got, want)
		}
		// With padding, and a trailer, which the backend gets.
		got = command(t, "nghttp", "-d", file, "-H:method: POST", "--padding=40", "--no-content-length", "--trailer", "x-sum: of-the-upload", url+"/backend/upload")
		if want := fmt.Sprintf(`{"bytes":%d,"sum":"%s","trailer":"of-the-upload"}`, bodySize, sum); strings.TrimSpace(got) != want {
			t.Errorf("nghttp uploads with padding and a trailer: %s, want %s", got, want)
		}
		// With windows of 4 KiB.
		if got := command(t, "nghttp", "-w", "12", "-W", "12", url+"/backend/download?n=2000000"); got != string(body[:2000000]) {
			t.Errorf("nghttp downloads %d bytes that differ", len(got))
		}
		// Many streams of one connection, and what it says of each.
		out := command(t, "nghttp", "-nv", "-m", "50", url+"/backend/echo?n=1")
		if n := len(regexp.MustCompile(`:status.*: 200`).FindAllString(out, -1)); n != 50 {
			t.Errorf("nghttp: %d of 50 answers\n%s", n, tailOf(out))
		}
		f := func(what string, want int, args ...string) {
			t.Helper()
			out := command(t, "h2load", args...)
			if line := fmt.Sprintf("%d succeeded, 0 failed, 0 errored, 0 timeout", want); !strings.Contains(out, line) || !strings.Contains(out, fmt.Sprintf("%d 2xx", want)) {
				t.Errorf("h2load, %s:\n%s", what, tailOf(out))
			}
		}
		f("a route", 5000, "-n", "5000", "-c", "10", "-m", "100", url+"/backend/echo?n=1")
		f("a built-in endpoint", 5000, "-n", "5000", "-c", "10", "-m", "100", url+"/healthz")
		f("small windows", 20, "-n", "20", "-c", "2", "-m", "10", "-w", "12", "-W", "12", url+"/backend/download?n=100000")
		small := filepath.Join(t.TempDir(), "small")
		if err := os.WriteFile(small, body[:10000], 0o600); err != nil {
			t.Fatal(err)
		}
		f("bodies", 1000, "-n", "1000", "-c", "5", "-m", "20", "-d", small, url+"/backend/upload")
		publication := filepath.Join(t.TempDir(), "publication")
		if err := os.WriteFile(publication, []byte(`{"channel":"h2load","data":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		f("publishing", 2000, "-n", "2000", "-c", "5", "-m", "20", "-d", publication, "-H", "X-API-Key: "+judge.APIKey, "-H", "Content-Type: application/json", url+"/api/publish")
	})
}

// A reported is what a client of test/e2e did; every client has the same to do.
type reported map[string]any

// expected is what each reports that could do everything.
func expected() reported {
	_, sum := pattern(bodySize)
	events, echoes := []any{}, []any{}
	for i := range 3 {
		events = append(events, fmt.Sprintf(`{"n":%d}`, i))
	}
	for i := range 50 {
		echoes = append(echoes, strconv.Itoa(i))
	}
	return reported{
		"version": "2", "events": events, "echoes": echoes, "head": "200 100", "refused": "404", "limited": "413", "afterwards": "200",
		"uploaded": fmt.Sprintf("%d %s", bodySize, sum), "downloaded": fmt.Sprintf("%d %s", bodySize, sum), "trailer": "of-the-body",
	}
}

// compareReport compares what a client prints with what it should have been. cannot
// are the parts that the client has no interface for.
func compareReport(t *testing.T, text string, cannot ...string) {
	t.Helper()
	var got reported
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%q: %v", tailOf(text), err)
	}
	want := expected()
	for _, name := range cannot {
		delete(want, name)
		delete(got, name)
	}
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s: %v, want %v", name, got[name], want[name])
		}
	}
}

// task is the argument of the clients.
func task(t *testing.T, s *judge.Server, url string, more map[string]any) string {
	t.Helper()
	arg := map[string]any{"url": url, "ca": s.Authority, "key": judge.APIKey, "size": bodySize, "alphabet": alphabet}
	for k, v := range more {
		arg[k] = v
	}
	text, err := json.Marshal(arg)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestNodeOverHTTP2(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm")
	overBoth(t, func(t *testing.T, s *judge.Server, url string) {
		compareReport(t, command(t, "node", judge.Path("test", "e2e", "npm", "http2.mjs"), task(t, s, url, nil)))
	})
}

// undici speaks HTTP/2 over TLS alone, and has no trailers there.
func TestUndiciOverHTTP2(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm")
	s := http2Server(t, true, nil)
	compareReport(t, command(t, "node", judge.Path("test", "e2e", "npm", "undici.mjs"), task(t, s, "https://"+s.Public, nil)), "trailer")
}

func TestHTTPXOverHTTP2(t *testing.T) {
	t.Parallel()
	judge.Need(t, "interop")
	overBoth(t, func(t *testing.T, s *judge.Server, url string) {
		site := judge.Path(".cache", "interop-python", "site")
		compareReport(t, command(t, "/usr/bin/python3", judge.Path("test", "e2e", "http2.py"), task(t, s, url, map[string]any{"site": site})), "trailer")
	})
}
