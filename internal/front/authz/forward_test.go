package authz

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server counts the subrequests that it answers with answer.
func server(t testing.TB, cfg ForwardConfig, answer http.HandlerFunc) (*Forward, *atomic.Int64) {
	t.Helper()
	n := &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		answer(w, r)
	}))
	cfg.URL = s.URL + "/verify"
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	f := NewForward(cfg)
	t.Cleanup(func() { f.Close(); s.Close() })
	return f, n
}

func request(path string, fields ...string) *Request {
	r := &Request{Method: []byte("POST"), Host: []byte("a.example"), Path: []byte(path), Query: []byte("q=1"), Scheme: "https", Client: netip.MustParseAddr("192.0.2.7")}
	for i := 0; i+1 < len(fields); i += 2 {
		r.Fields = append(r.Fields, http1.Field{Name: []byte(fields[i]), Value: []byte(fields[i+1])})
	}
	return r
}

// decide obtains the decision on r.
func decide(t testing.TB, f *Forward, r *Request) *Decision {
	d, q := f.Decide(r, time.Now())
	if q != nil {
		d = q.Do(t.Context())
	}
	return d
}

func TestServerGetsTheRequestAndDecides(t *testing.T) {
	f, _ := server(t, ForwardConfig{ResponseHeaders: []string{"X-User", "X-None"}}, func(w http.ResponseWriter, r *http.Request) {
		got := fmt.Sprintf("%s %s %s %s %s %s auth %q cookie %q other %q", r.Method, r.Header.Get("X-Forwarded-Method"), r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-Host"),
			r.Header.Get("X-Forwarded-Uri"), r.Header.Get("X-Forwarded-For"), r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.Header.Get("X-Other"))
		if want := `GET POST https a.example /p?q=1 192.0.2.7 auth "Bearer x" cookie "a=1" other ""`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		w.Header().Set("X-User", "ann")
		w.Header().Set("X-Secret", "s")
	})
	d := decide(t, f, request("/p", "Authorization", "Bearer x", "cookie", "a=1; weir_admin=secret", "X-Other", "o"))
	if !d.Admit || string(d.Lines) != "X-User: ann\r\n" {
		t.Errorf("%+v", d)
	}
}

func TestRefusalIsTheClientsAnswer(t *testing.T) {
	f, _ := server(t, ForwardConfig{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "https://login.example/")
		w.Header().Set("X-Internal", "i")
		w.WriteHeader(http.StatusFound)
		fmt.Fprint(w, "log in")
	})
	d := decide(t, f, request("/p"))
	if d.Admit || d.Status != http.StatusFound || string(d.Body) != "log in" || string(d.Fields) != "Location: https://login.example/\r\n" {
		t.Errorf("%+v %s %s", d, d.Fields, d.Body)
	}
}

func TestNoDecisionFailsClosedOrOpen(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"5xx":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"too large": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", maxBody+1)) },
		"silent":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"cut":       func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		for _, open := range []bool{false, true} {
			f, _ := server(t, ForwardConfig{FailOpen: open, Timeout: hub.Duration(100 * time.Millisecond)}, answer)
			if d := decide(t, f, request("/p")); d.Admit != open || !d.Unavailable || len(d.Lines) > 0 {
				t.Errorf("%s: %+v with fail_open %v", name, d, open)
			}
			if s := f.Stats(); s.Failed != 1 || s.Pending != 0 {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
}

func TestDecisionsAreCachedByWhatTheyDependOn(t *testing.T) {
	const long = hub.Duration(time.Hour)
	f := func(cfg ForwardConfig, status int, first, second *Request, subrequests int64) {
		t.Helper()
		fw, n := server(t, cfg, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		decide(t, fw, first)
		d := decide(t, fw, second)
		if n.Load() != subrequests || d.Admit != (status < 300) {
			t.Errorf("%d subrequests (%+v), want %d", n.Load(), d, subrequests)
		}
	}
	a, b := request("/a", "Authorization", "x"), request("/b", "Authorization", "x")
	f(ForwardConfig{}, 200, a, a, 2)                                                                                             // not cached
	f(ForwardConfig{CacheTTL: long}, 200, a, a, 1)                                                                               // the same request
	f(ForwardConfig{CacheTTL: long}, 200, a, b, 2)                                                                               // another path
	f(ForwardConfig{CacheTTL: long, CacheBy: "credential"}, 200, a, b, 1)                                                        // the same credential
	f(ForwardConfig{CacheTTL: long, CacheBy: "credential"}, 200, a, request("/a", "Authorization", "y"), 2)                      // another
	f(ForwardConfig{CacheTTL: long, CacheBy: "credential"}, 200, a, request("/a", "Authorization", "x", "Authorization", ""), 2) // two fields are not one
	f(ForwardConfig{CacheTTL: long, CacheBy: "credential"}, 200, request("/a", "Authorization", "xy"), request("/a", "Authorization", "x", "Cookie", "y"), 2)
	f(ForwardConfig{CacheTTL: long, CacheBy: "credential"}, 200, request("/a"), request("/a"), 2) // none
	f(ForwardConfig{CacheTTL: long}, 403, a, a, 2)                                                // refusals only with negative_ttl
	f(ForwardConfig{NegativeTTL: long}, 403, a, a, 1)
	f(ForwardConfig{NegativeTTL: long}, 200, a, a, 2)
	f(ForwardConfig{NegativeTTL: long}, 429, a, a, 2)
	f(ForwardConfig{CacheTTL: 1}, 200, a, a, 2) // expired
}

func TestCacheIsBounded(t *testing.T) {
	c := NewCache[*Decision](8)
	now := time.Now()
	for i := range 100 {
		c.Put(Key{byte(i)}, failedOpen, now.Add(time.Hour))
		if c.Len() > 8 {
			t.Fatalf("%d entries, want at most 8", c.Len())
		}
	}
	_, newest := c.Get(Key{99}, now)
	if _, oldest := c.Get(Key{0}, now); !newest || oldest {
		t.Error("the newest are to stay")
	}
}

func TestRequestsAtOnceShareASubrequest(t *testing.T) {
	release := make(chan struct{})
	f, n := server(t, ForwardConfig{CacheTTL: hub.Duration(time.Hour), MaxPending: 10}, func(http.ResponseWriter, *http.Request) { <-release })
	r := request("/a", "Authorization", "x")
	var queries []Query
	for range 10 {
		_, q := f.Decide(r, time.Now())
		queries = append(queries, q)
	}
	if d, q := f.Decide(r, time.Now()); q != nil || d.Admit || f.Stats().Overloaded != 1 {
		t.Errorf("%+v beyond max_pending", d)
	}
	var done sync.WaitGroup
	for _, q := range queries {
		done.Go(func() {
			if !q.Do(t.Context()).Admit {
				t.Error("not admitted")
			}
		})
	}
	trial.Eventually(t, "nine wait for the tenth's subrequest", func() bool { return f.Stats().Shared >= 9 })
	close(release)
	done.Wait()
	if n.Load() != 1 {
		t.Errorf("%d subrequests, want 1", n.Load())
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(want string, c ForwardConfig) {
		t.Helper()
		if c.URL == "" {
			c.URL = "http://127.0.0.1:9000/verify"
		}
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("", ForwardConfig{})
	f("url", ForwardConfig{URL: "ftp://a"})
	f("request_headers[0]", ForwardConfig{RequestHeaders: []string{"a b"}})
	f("response_headers[0]", ForwardConfig{ResponseHeaders: []string{"X-Forwarded-For"}})
	f("timeout", ForwardConfig{Timeout: hub.Duration(time.Hour)})
	f("cache_ttl", ForwardConfig{CacheTTL: -1})
	f("cache_by", ForwardConfig{CacheBy: "path"})
	f("cache_size", ForwardConfig{CacheSize: 1})
	f("max_pending", ForwardConfig{MaxPending: -1})
}

// A look-up costs about what hashing its key costs, found or not: a Bloom filter before the cache
// would need the hash as well, and what it excludes is asked of the server all the same.
func BenchmarkDecide(b *testing.B) {
	f := NewForward(ForwardConfig{URL: "http://127.0.0.1:1/", CacheTTL: hub.Duration(time.Hour), CacheBy: "credential"})
	known, unknown := request("/a", "Authorization", "Bearer "+strings.Repeat("x", 400)), request("/a", "Authorization", "Bearer "+strings.Repeat("y", 400))
	now := time.Now()
	k, _ := f.keyOf(known)
	f.cache.Put(k, failedOpen, now.Add(time.Hour))
	b.Run("hash", func(b *testing.B) {
		for b.Loop() {
			f.keyOf(known)
		}
	})
	for name, r := range map[string]*Request{"hit": known, "miss": unknown} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				k, _ := f.keyOf(r)
				f.cache.Get(k, now)
			}
		})
	}
}
