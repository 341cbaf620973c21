package loadgen_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// counting is a server of HTTP/1.1 and cleartext HTTP/2 that counts its requests.
func counting(t *testing.T, answer func(n int64, w http.ResponseWriter)) (url string, seen *atomic.Int64) {
	t.Helper()
	seen = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(seen.Add(1), w) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, seen
}

// The server sees exactly as many requests as were asked for.
func TestARunMayHaveANumberOfRequests(t *testing.T) {
	f := func(name string, n int, s loadgen.Spec) {
		t.Run(name, func(t *testing.T) {
			url, seen := counting(t, func(_ int64, w http.ResponseWriter) { hello(w, nil) })
			s.Kind, s.Target, s.Requests = loadgen.HTTP, url, n
			r, err := generator(t, s).Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			w := &r.Total
			if r.Partial || seen.Load() != int64(n) || w.Offered != uint64(n) || w.Sent != uint64(n) || w.Completed+w.Drained != uint64(n) {
				t.Errorf("the server saw %d of %d; offered %d, sent %d, completed %d, drained %d, partial %v", seen.Load(), n, w.Offered, w.Sent, w.Completed, w.Drained, r.Partial)
			}
			addsUp(t, w)
		})
	}
	for _, version := range []string{"1.1", "2"} {
		f("closed over "+version, 1234, loadgen.Spec{Version: version, Closed: true, Conns: 7})
		f("closed, fewer than connections, over "+version, 3, loadgen.Spec{Version: version, Closed: true, Conns: 7})
		f("closed, several loops, over "+version, 2001, loadgen.Spec{Version: version, Closed: true, Conns: 8, Concurrency: 32, Pipeline: 4, Loops: 3})
		f("closed, one, over "+version, 1, loadgen.Spec{Version: version, Closed: true, Conns: 1})
		f("open over "+version, 501, loadgen.Spec{Version: version, Conns: 5, Rate: 2000})
		f("open, several loops, over "+version, 501, loadgen.Spec{Version: version, Conns: 6, Rate: 5000, Loops: 3, Arrival: loadgen.Burst})
	}
}

// A request that fails is one of the number, and nothing is sent in its place.
func TestFailedRequestsAreOfTheNumber(t *testing.T) {
	url, seen := counting(t, func(n int64, w http.ResponseWriter) {
		if n%3 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	r, err := generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Requests: 300, Closed: true, Conns: 4}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if w := &r.Total; seen.Load() != 300 || w.Offered != 300 || w.Errors["status 503"] != 100 {
		t.Errorf("the server saw %d, offered %d, %v", seen.Load(), w.Offered, w.Errors)
	}
}

// The duration ends a run before its number does.
func TestTheDurationMayComeFirst(t *testing.T) {
	for _, s := range []loadgen.Spec{{Closed: true, Conns: 2}, {Rate: 100, Conns: 2, Arrival: loadgen.Uniform}} {
		url, seen := counting(t, func(_ int64, w http.ResponseWriter) { hello(w, nil) })
		s.Kind, s.Target, s.Requests, s.Duration = loadgen.HTTP, url, 1e9, 300*time.Millisecond
		r, err := generator(t, s).Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if n := uint64(seen.Load()); r.Partial || n == 0 || n != r.Total.Offered || s.Rate > 0 && n != 30 {
			t.Errorf("the server saw %d, offered %d, partial %v", n, r.Total.Offered, r.Partial)
		}
	}
}

// With pubsub and echo the number is of messages.
func TestANumberOfMessages(t *testing.T) {
	w := newWorld(t, nil)
	for _, closed := range []bool{false, true} {
		s := plain(w, "sse", 3)
		s.Requests, s.Closed, s.Warmup, s.Duration = 120, closed, 0, 0
		s.Rate = 1000
		if closed {
			s.Rate = 0
		}
		r, err := generator(t, s).Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if d := r.Total.Delivery; d.Published != 120 || d.Received != 360 || d.Lost != 0 {
			t.Errorf("closed %v: %+v", closed, d)
		}
	}
}

func TestNumbersThatCannotBeMeant(t *testing.T) {
	f := func(s loadgen.Spec, want string) {
		t.Helper()
		s.Target = "http://127.0.0.1:1/"
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(loadgen.Spec{Kind: loadgen.HTTP, Requests: -1}, "requests must not be -1")
	f(loadgen.Spec{Kind: loadgen.HTTP, Requests: 10, Warmup: time.Second}, "10 requests and a warm-up of 1s")
	f(loadgen.Spec{Kind: loadgen.SSE, Requests: 10}, "only holds streams open")
	if _, err := (loadgen.Spec{Kind: loadgen.HTTP, Target: "http://127.0.0.1:1/", Requests: 2, Conns: 3}).Split(3); err == nil {
		t.Error("2 requests were shared out to 3 processes")
	}
	parts, err := (loadgen.Spec{Kind: loadgen.HTTP, Target: "http://127.0.0.1:1/", Requests: 10, Conns: 3}).Split(3)
	if err != nil || parts[0].Requests+parts[1].Requests+parts[2].Requests != 10 {
		t.Errorf("%+v, %v", parts, err)
	}
}
