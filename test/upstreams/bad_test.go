package upstreams

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A script is a backend that does not do what it should: it is given each
// connection once the head of a request was read from it.
type script func(c *net.TCPConn, r *bufio.Reader)

// stageScript listens and plays s on every connection. It ends with the test.
func stageScript(t *testing.T, s script) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	ended := false
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if ended {
				_ = c.Close()
			}
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				if _, err := http.ReadRequest(r); err == nil {
					s(c.(*net.TCPConn), r)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		ended = true
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return ln.Addr().String()
}

func says(text string) script {
	return func(c *net.TCPConn, _ *bufio.Reader) {
		_, _ = io.WriteString(c, strings.ReplaceAll(text, "\n", "\r\n"))
	}
}

// keeps says text to every request, on a connection that it keeps.
func keeps(text string) script {
	return func(c *net.TCPConn, r *bufio.Reader) {
		for {
			says(text)(c, r)
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
		}
	}
}

// reset is a backend that says text and then breaks the connection.
func resetAfter(text string) script {
	return func(c *net.TCPConn, r *bufio.Reader) {
		says(text)(c, r)
		<-time.After(50 * time.Millisecond) // a reset takes away what was not read yet
		_ = c.SetLinger(0)
	}
}

// silent is a backend that says text and then nothing until it is left.
func silent(text string) script {
	return func(c *net.TCPConn, r *bufio.Reader) {
		says(text)(c, r)
		_, _ = io.Copy(io.Discard, r)
	}
}

// dribbles is a backend that says text byte by byte.
func dribbles(text string, pace time.Duration) script {
	return func(c *net.TCPConn, _ *bufio.Reader) {
		for _, b := range []byte(strings.ReplaceAll(text, "\n", "\r\n")) {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			<-time.After(pace)
		}
	}
}

// What a client may get instead of a reply that is complete.
const (
	isCut = -1 // the reply starts with 200, and its end is seen to be missing
)

// A sickness is a backend and what a client and the counters must say of it.
type sickness struct {
	name   string
	script script
	status int    // isCut, or what the client gets
	body   string // with status 200
	cause  string // of weir_upstream_failed_total; empty: none
}

func sicknesses() []sickness {
	const head = "HTTP/1.1 200 OK\nContent-Length: 10\n\n"
	return []sickness{
		{"500", keeps("HTTP/1.1 500 Internal Server Error\nContent-Length: 0\n\n"), 500, "", ""},
		{"closes without a word", says(""), 502, "", "reset"},
		{"resets without a word", resetAfter(""), 502, "", "reset"},
		{"hangs", silent(""), 504, "", "first_byte_timeout"},
		{"hangs within the head", silent("HTTP/1.1 200 OK\nContent-Le"), 504, "", "first_byte_timeout"},
		{"closes within the head", says("HTTP/1.1 200 OK\nContent-Le"), 502, "", "reset"},
		{"hangs within the body", silent(head + "12345"), isCut, "", "idle_timeout"},
		{"hangs within a chunk", silent("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\na\n12345"), isCut, "", "idle_timeout"},
		{"closes within the body", says(head + "12345"), isCut, "", "truncated"},
		{"closes within a chunk", says("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\na\n12345"), isCut, "", "truncated"},
		{"closes between chunks", says("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\n12345\n"), isCut, "", "truncated"},
		{"closes before the last line", says("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\n12345\n0\n"), isCut, "", "truncated"},
		{"resets within the body", resetAfter(head + "12345"), isCut, "", "truncated"},
		{"resets within a chunk", resetAfter("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\na\n12345"), isCut, "", "truncated"},
		{"resets a body without length", resetAfter("HTTP/1.1 200 OK\n\n12345"), isCut, "", "truncated"},
		{"bad chunk", silent("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\n12345\nzz\n"), isCut, "", "bad_reply"},
		{"garbage", silent("\x16\x03\x01\x02\n\n"), 502, "", "bad_reply"},
		{"speaks another protocol", silent("+OK POP3 ready\n\n"), 502, "", "bad_reply"},
		{"two lengths", silent("HTTP/1.1 200 OK\nContent-Length: 5\nContent-Length: 6\n\n12345"), 502, "", "bad_reply"},
		{"length and chunks", silent("HTTP/1.1 200 OK\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\n\n"), 502, "", "bad_reply"},
		{"bare CR", silent("HTTP/1.1 200 OK\nX-A: b\rc\nContent-Length: 0\n\n"), 502, "", "bad_reply"},
		{"huge head", silent("HTTP/1.1 200 OK\nX-A: " + strings.Repeat("a", 70_000) + "\n\n"), 502, "", "bad_reply"},
		{"endless interim replies", func(c *net.TCPConn, _ *bufio.Reader) {
			for {
				if _, err := io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n"); err != nil {
					return
				}
			}
		}, 502, "", "interim_replies"},
		{"switches unasked", silent("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\n"), 502, "", "bad_reply"},
		{"more than it said", keeps(head + "1234567890HTTP/1.1 200 OK\nContent-Length: 4\n\nevil"), 200, "1234567890", ""},
		// Its reply closes the connection: the next request must not find it open for another 2 ms.
		{"slow bytes", dribbles("HTTP/1.1 200 OK\nConnection: close\nContent-Length: 10\n\n1234567890", 2*time.Millisecond), 200, "1234567890", ""},
		{"closes at once when idle", says(head + "1234567890"), 200, "1234567890", ""},
		{"says close", says("HTTP/1.1 200 OK\nConnection: close\n\n1234567890"), 200, "1234567890", ""},
		{"HTTP/1.0", says("HTTP/1.0 200 OK\n\n1234567890"), 200, "1234567890", ""},
	}
}

// TestWhatAClientSeesOfABadBackend sends each several requests: the first request gets
// a fresh connection, the others may get one that the backend has spoilt.
func TestWhatAClientSeesOfABadBackend(t *testing.T) {
	t.Parallel()
	all := sicknesses()
	var routes, clusters []any
	for i, s := range all {
		name := fmt.Sprint("c", i)
		routes = append(routes, map[string]any{"path": fmt.Sprint("/", i), "cluster": name})
		clusters = append(clusters, map[string]any{
			"name": name, "peers": []any{map[string]any{"address": stageScript(t, s.script)}},
			"outlier": map[string]any{"enabled": false}, "breaker": map[string]any{"enabled": false},
			"retry":    map[string]any{"attempts": 1},
			"timeouts": map[string]any{"first_byte": "2s", "idle": "2s", "total": "10s"},
		})
	}
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{"routes": routes, "clusters": clusters}})
	for i, s := range all {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			g := g.In(t)
			label := fmt.Sprintf(`cluster="c%d"`, i)
			for range 3 {
				s.ask(t, g.Public, fmt.Sprint("/", i), "1.1")
			}
			s.ask(t, g.Public, fmt.Sprint("/", i), "1.0")
			switch failed := g.Series("weir_upstream_failed_total", label); {
			case s.cause != "":
				if n := g.Series("weir_upstream_failed_total", label, fmt.Sprintf("cause=%q", s.cause)); n < 4 {
					t.Errorf("4 requests, and weir_upstream_failed_total counts %v for %s (%v in all)", n, s.cause, failed)
				}
			case s.status == 502 || s.status == isCut:
				if failed < 4 {
					t.Errorf("4 requests failed, and weir_upstream_failed_total is %v", failed)
				}
			case failed > 0:
				t.Errorf("weir_upstream_failed_total is %v", failed)
			}
			if s.status == 200 || s.status == 500 {
				class := fmt.Sprintf(`code="%dxx"`, s.status/100)
				if n := g.Series("weir_upstream_requests_total", label, class); n != 4 {
					t.Errorf("4 requests, and weir_upstream_requests_total has %v of %s", n, class)
				}
			}
		})
	}
}

// ask sends one request of a version on a connection of its own.
func (s *sickness) ask(t *testing.T, addr, path, version string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/%s\r\nHost: a\r\n\r\n", path, version); err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	r := bufio.NewReader(io.TeeReader(c, &raw))
	res, err := http.ReadResponse(r, nil)
	for err == nil && res.StatusCode < 200 {
		res, err = http.ReadResponse(r, nil)
	}
	if err != nil {
		if s.status != isCut || !errors.Is(err, syscall.ECONNRESET) { // which may take the head away
			t.Errorf("HTTP/%s: no answer, but %v after %q", version, err, raw.String())
		}
		return
	}
	body, err := io.ReadAll(res.Body)
	switch {
	case s.status == isCut && err == nil:
		t.Errorf("HTTP/%s: a body that was cut is treated as whole: %q", version, raw.String())
	case s.status == isCut && res.StatusCode == 200:
	case err != nil:
		t.Errorf("HTTP/%s: %d and %v", version, res.StatusCode, err)
	case res.StatusCode != s.status || s.body != "" && string(body) != s.body:
		t.Errorf("HTTP/%s: %d %q, want %d %q", version, res.StatusCode, body, s.status, s.body)
	}
}
