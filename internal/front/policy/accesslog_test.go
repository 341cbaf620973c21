package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
)

// logged plays requests through a set with an access log and returns the lines.
func logged(t *testing.T, play func(s *Set, d Deps), routes ...string) (lines []map[string]any, text string) {
	t.Helper()
	var out bytes.Buffer
	d := deps(t)
	d.AccessLog = NewAccessLog(&out, 0, nil)
	play(set(t, d, routes...), d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.AccessLog.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines, out.String()
}

func TestAnAccessLogGoesToAnotherWriter(t *testing.T) {
	var first, second bytes.Buffer
	a := NewAccessLog(&first, 0, nil)
	flush := func() {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	a.add([]byte("one\n"))
	flush()
	a.Redirect(&second)
	a.add([]byte("two\n"))
	flush()
	a.Redirect(nil)
	a.add([]byte("three\n"))
	flush()
	if first.String() != "one\n" || second.String() != "two\n" {
		t.Errorf("%q and %q", first.String(), second.String())
	}
}

func TestAnAccessLogLine(t *testing.T) {
	lines, text := logged(t, func(s *Set, d Deps) {
		x := exchange(t, "POST /%61/b?q=1&token=s3cret&a%50i_key=s3cret&mine=s3cret&x=%zz\nHost: H.example\nX-API-Key: a-key-of-sixteen-bytes\n"+
			"Authorization: Basic s3cret\nCookie: s3cret=s3cret\nUser-Agent: \"cu\trl\"\xff\nX-Forwarded-For: 9.9.9.9\ntraceparent: "+parent)
		if v := admit(s, x, 0); v.Action != Forward {
			t.Fatalf("%+v", v)
		}
		x.Route.AppendRequestHead(nil, x, Framing{})
		x.Retain()
		x.Done(Outcome{Status: 201, BytesIn: 3, BytesOut: 1 << 40, DurationNS: 1_234_567, Upstream: "10.0.0.1:80", Retries: 2})
		x.Done(Outcome{Status: 500}) // a second time is nothing
	}, `{"name": "n", "cluster": "c", "auth": {"required": true, "api_keys": true},
		"access_log": {"redact": ["mine"], "headers": ["User-Agent", "Authorization", "cookie", "Absent"]}}`)
	if len(lines) != 1 {
		t.Fatalf("%d lines: %s", len(lines), text)
	}
	f := func(key string, want any) {
		t.Helper()
		if lines[0][key] != want {
			t.Errorf("%s is %v, want %v", key, lines[0][key], want)
		}
	}
	f("route", "n")
	f("method", "POST")
	f("host", "H.example")
	f("path", "/a/b")
	f("query", "q=1&token=[redacted]&a%50i_key=[redacted]&mine=[redacted]&[redacted]")
	f("status", 201.0)
	f("duration_ms", 1.235)
	f("bytes_in", 3.0)
	f("bytes_out", float64(1<<40))
	f("upstream", "10.0.0.1:80")
	f("retries", 2.0)
	f("trace_id", parent[3:35])
	f("client", "203.0.113.7")
	f("sub", "backend")
	f("auth", "api_key")
	h := lines[0]["headers"].(map[string]any)
	if h["user-agent"] != "\"cu\trl\"\ufffd" || h["authorization"] != "[redacted]" || h["cookie"] != "[redacted]" || len(h) != 3 {
		t.Errorf("headers %q", h)
	}
	if strings.Contains(text, "s3cret") || strings.Contains(text, "a-key-of") {
		t.Errorf("a secret is in %s", text)
	}
}

func TestWhatIsLogged(t *testing.T) {
	lines, _ := logged(t, func(s *Set, d Deps) {
		f := func(request string, status int) {
			x := exchange(t, request)
			admit(s, x, 0)
			x.Done(Outcome{Status: status})
		}
		f("GET /all", 200)
		f("GET /never", 200)
		f("GET /never", 502) // but this
		f("GET /off", 500)
		f("GET /nothing?secret=x", 404)
		f("GET /../x", 400)
		new(Exchange).Done(Outcome{Status: 400}) // nothing was matched
	}, `{"path": "/all", "cluster": "c"}`, `{"path": "/never", "cluster": "c", "access_log": {"sample": -1}}`, `{"path": "/off", "cluster": "c", "access_log": {"enabled": false}}`)
	var got []string
	for _, l := range lines {
		got = append(got, l["route"].(string)+l["path"].(string))
	}
	if want := "/all/all /never/never /nothing /../x"; strings.Join(got, " ") != want {
		t.Errorf("logged %q", got)
	}
	if lines[2]["query"] != "[redacted]" {
		t.Errorf("the query of an unknown path is %v", lines[2]["query"])
	}
}

func TestASampleOfTheRequestsIsLogged(t *testing.T) {
	lines, _ := logged(t, func(s *Set, d Deps) {
		x := &Exchange{}
		for range 4000 {
			fill(t, x, "GET /")
			admit(s, x, 0)
			x.Done(Outcome{Status: 200})
		}
	}, `{"cluster": "c", "access_log": {"sample": 0.25}}`)
	if n := len(lines); n < 800 || n > 1200 { // over seven standard deviations
		t.Errorf("%d of 4000", n)
	}
}

// A slowWriter waits in Write for leave.
type slowWriter struct {
	entered, leave chan struct{}
	mu             sync.Mutex
	out            []byte
	err            error
}

func (w *slowWriter) Write(b []byte) (int, error) {
	w.entered <- struct{}{}
	<-w.leave
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, b...)
	return len(b), w.err
}

func TestASlowWriterLosesLinesAndIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &slowWriter{entered: make(chan struct{}), leave: make(chan struct{})}
		a := NewAccessLog(w, 10, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.Run(ctx) }()
		a.add([]byte("first\n"))
		<-w.entered
		a.add([]byte("12345\n"))
		a.add([]byte("6789\n")) // over ten bytes
		a.add([]byte("678\n"))
		cancel()
		w.leave <- struct{}{}
		<-w.entered
		w.leave <- struct{}{}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := string(w.out); got != "first\n12345\n678\n" {
			t.Errorf("wrote %q", got)
		}
		if st := a.Stats(); st != (AccessLogStats{Lines: 3, Dropped: 1}) {
			t.Errorf("%+v", st)
		}
	})
}

// A pipe that is not read blocks neither a reload nor the end of the process.
func TestABlockedWriterIsNotWaitedForLongerThanASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &slowWriter{entered: make(chan struct{}), leave: make(chan struct{})}
		a := NewAccessLog(w, 0, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.Run(ctx) }()
		a.add([]byte("first\n"))
		<-w.entered
		f := func(what string, call func()) {
			t.Helper()
			began := time.Now()
			if call(); time.Since(began) != time.Second {
				t.Errorf("%s after %v", what, time.Since(began))
			}
		}
		var second bytes.Buffer
		f("redirected", func() { a.Redirect(&second) })
		a.add([]byte("second\n"))
		f("ended", func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		w.leave <- struct{}{} // the pipe is read after all
		synctest.Wait()
		if string(w.out) != "first\n" || second.String() != "second\n" {
			t.Errorf("%q and %q", w.out, second.String())
		}
	})
}

func TestAFailingWriterIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported bytes.Buffer
		w := &slowWriter{entered: make(chan struct{}), leave: make(chan struct{}), err: errors.New("disk full")}
		a := NewAccessLog(w, 0, slog.New(slog.NewTextHandler(&reported, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.Run(ctx) }()
		for range 3 {
			a.add([]byte("x\n"))
			<-w.entered
			w.leave <- struct{}{}
			synctest.Wait()
		}
		cancel()
		<-ended
		if n := strings.Count(reported.String(), "disk full"); n != 1 || a.Stats().Failed != 3 {
			t.Errorf("notified %d times, %+v", n, a.Stats())
		}
	})
}

func TestALineAllocatesNothing(t *testing.T) {
	d := deps(t)
	d.AccessLog = NewAccessLog(&bytes.Buffer{}, 4096, nil)
	s := set(t, d, `{"cluster": "c"}`)
	x := exchange(t, "GET /a?b=c&token=x\nUser-Agent: é")
	req := *x
	for range 20 { // the buffer of the log grows to its bound
		admit(s, x, 0)
		x.Done(Outcome{Status: 200})
	}
	if n := testing.AllocsPerRun(100, func() {
		x.Reset()
		x.Method, x.Path, x.Query, x.Host, x.Fields, x.Peer = req.Method, req.Path, req.Query, req.Host, req.Fields, req.Peer
		admit(s, x, 0)
		x.Retain()
		x.Done(Outcome{Status: 200, Upstream: "10.0.0.1:80"})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestJSONStringsOfAnyBytes(t *testing.T) {
	for _, s := range []string{"", "plain", "\"\\\x00\x1f\x7f\n", "é\u2028", "\xff\xc3", "a\xed\xa0\x80b", "\U0001F600"} {
		var got string
		if err := json.Unmarshal(jsontext.AppendString(nil, s), &got); err != nil || got != strings.ToValidUTF8(got, "!") {
			t.Errorf("%q: %q, %v", s, got, err)
		}
		if strings.ToValidUTF8(s, "") == s && got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}
