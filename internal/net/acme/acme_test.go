package acme

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(want string, change func(*Config)) {
		t.Helper()
		c := Config{Names: []string{"a.example.com"}, AcceptTerms: true}
		change(&c)
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("", func(*Config) {})
	f("", func(c *Config) { *c = Config{Directory: "no matter without names"} })
	f("", func(c *Config) { c.Names = append(c.Names, "192.0.2.1", "2001:db8::1", "xn--bcher-kva.example") })
	f("", func(c *Config) { c.HTTPListen, c.Challenges = ":80", []string{"http-01"} })
	f("DNS-01", func(c *Config) { c.Names = []string{"*.example.com"} })
	f(`names[0]: invalid name "A.example"`, func(c *Config) { c.Names = []string{"A.example"} })
	f("names[0]: invalid name", func(c *Config) { c.Names = []string{"a..example"} })
	f("names[0]: invalid name", func(c *Config) { c.Names = []string{"../x"} })
	f("names[1]: duplicate", func(c *Config) { c.Names = append(c.Names, c.Names[0]) })
	f("names: 101 names", func(c *Config) { c.Names = make([]string, 101) })
	f("accept_terms", func(c *Config) { c.AcceptTerms = false })
	f("directory", func(c *Config) { c.Directory = "http://ca.example/dir" })
	f("directory", func(c *Config) { c.Directory = "staging" })
	f("email", func(c *Config) { c.Email = "ops" })
	f("external_account", func(c *Config) { c.ExternalAccount.KeyID = "k" })
	f("key_type", func(c *Config) { c.KeyType = "dsa" })
	f("http_listen", func(c *Config) { c.Challenges = []string{"http-01"} })
	f("dns-01", func(c *Config) { c.Challenges = []string{"dns-01"} })
	f("retry_max", func(c *Config) { c.RetryMin, c.RetryMax = hub.Duration(time.Hour), hub.Duration(time.Minute) })
}

func TestRenewalComesBeforeTheExpiry(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f := func(life, before, earliest, latest time.Duration) {
		t.Helper()
		leaf := &x509.Certificate{NotBefore: now, NotAfter: now.Add(life)}
		for range 1000 {
			if at := renewalTime(leaf, before).Sub(now); at < earliest || at > latest {
				t.Fatalf("renewed after %v, want %v to %v", at, earliest, latest)
			}
		}
	}
	const day = 24 * time.Hour
	f(90*day, 0, 57*day, 60*day)         // a third is left, and up to a tenth of it more
	f(90*day, 10*day, 79*day, 80*day)    // as configured
	f(6*day, 30*day, 4*day-day/5, 4*day) // longer than the certificate lives
	f(time.Second, 0, 0, time.Second)
}

func TestBackOffDoublesUpToItsBound(t *testing.T) {
	f := func(failures int, most time.Duration) {
		t.Helper()
		for range 100 {
			if d := retryAfter(failures, time.Minute, time.Hour); d > most || d < most/2 {
				t.Fatalf("after %d failures %v, want %v to %v", failures, d, most/2, most)
			}
		}
	}
	f(1, time.Minute)
	f(2, 2*time.Minute)
	f(6, 32*time.Minute)
	f(7, time.Hour)
	f(1000, time.Hour)
}

func TestServerNameOfAddresses(t *testing.T) { // RFC 8738 §6
	f := func(identifier, want string) {
		t.Helper()
		if got := sniOf(identifier); got != want {
			t.Errorf("sniOf(%q) = %q, want %q", identifier, got, want)
		}
	}
	f("a.example", "a.example")
	f("192.0.2.1", "1.2.0.192.in-addr.arpa")
	f("2001:db8::1", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa")
}

func TestDirectoryStore(t *testing.T) {
	s, ctx := newDirStore(t.TempDir()), t.Context()
	if _, err := s.Load(ctx, "a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	for _, v := range []string{"one", "two"} {
		if err := s.Save(ctx, "a/b", []byte(v)); err != nil {
			t.Fatal(err)
		}
		if b, err := s.Load(ctx, "a/b"); string(b) != v || err != nil {
			t.Errorf("%q, %v, want %q", b, err, v)
		}
	}
	_, unlock, err := s.Lock(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Lock(ctx, "x"); !errors.Is(err, ErrLocked) {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	if _, unlock, err = s.Lock(ctx, "x"); err != nil {
		t.Errorf("after unlock: %v", err)
	}
	unlock()
	for range 2 {
		if err := s.Delete(ctx, "a/b"); err != nil {
			t.Error(err)
		}
	}
}

// brokenCA answers every request with an error.
type brokenCA struct{ requests atomic.Int64 }

func (c *brokenCA) RoundTrip(*http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("no"))}, nil
}

// memoryStore is a Store that two managers share.
type memoryStore struct {
	*dirStore
	mu     sync.Mutex
	values map[string][]byte
}

func (s *memoryStore) Load(_ context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.values[key]; ok {
		return v, nil
	}
	return nil, fs.ErrNotExist
}

func (s *memoryStore) Save(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	return nil
}

// Failures count for all nodes, and over restarts: a CA that refuses is not asked more often.
func TestFailuresAreSharedAndOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca, shared := &brokenCA{}, &memoryStore{dirStore: newDirStore(""), values: map[string][]byte{}}
		cfg := Config{Names: []string{"a.example"}, AcceptTerms: true, RetryMin: hub.Duration(time.Minute), RetryMax: hub.Duration(time.Hour)}
		run := func(nodes int, d time.Duration) {
			ctx, cancel := context.WithCancel(t.Context())
			var done sync.WaitGroup
			for range nodes {
				m, err := New(cfg, dir, nil)
				if err != nil {
					t.Fatal(err)
				}
				m.ca.client.HTTPClient = &http.Client{Transport: ca}
				done.Go(func() {
					if err := m.Run(ctx, shared); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(d)
			cancel()
			done.Wait()
		}
		run(1, time.Second)
		one := ca.requests.Load()
		if one == 0 {
			t.Fatal("the CA got no request")
		}
		run(3, 29*time.Second) // a restart, as three nodes: too early for another order
		if n := ca.requests.Load(); n != one {
			t.Errorf("%d requests before the pause was over, want %d", n, one)
		}
		run(3, 24*time.Hour)
		if n := ca.requests.Load() / one; n < 24 || n > 60 {
			t.Errorf("three nodes sent %d orders in a day, want about one an hour", n)
		}
	})
}

// pairOf makes a stored certificate.
func pairOf(t *testing.T, name string, from, to time.Time) *record {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to, DNSNames: []string{name}, AuthorityKeyId: []byte{1, 2, 3}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	r := &record{Name: name, Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}
	if err := r.parse(); err != nil {
		t.Fatal(err)
	}
	return r
}

// infoCA has nothing but renewal information.
type infoCA struct{ window string }

func (c *infoCA) RoundTrip(r *http.Request) (*http.Response, error) {
	body := `{"newNonce":"https://ca/n","newOrder":"https://ca/o","newAccount":"https://ca/a","renewalInfo":"https://ca/info"}`
	if strings.HasPrefix(r.URL.Path, "/info/") {
		body = c.window
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"3600"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// The CA's window moves the renewal; a renewal that is within it stays where it is.
func TestRenewalIsWhenTheCASuggests(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) string { return now.Add(d).UTC().Format(time.RFC3339) }
	f := func(start, end time.Duration, moved bool) {
		t.Helper()
		cfg := Config{Names: []string{"a.example"}, AcceptTerms: true, Directory: "https://ca/" + t.Name()}
		m, err := New(cfg, t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.ca.client.HTTPClient = &http.Client{Transport: &infoCA{`{"suggestedWindow":{"start":"` + at(start) + `","end":"` + at(end) + `"},"explanationURL":"https://ca/why"}`}}
		r := pairOf(t, "a.example", now, now.Add(90*24*time.Hour))
		planned := now.Add(60 * 24 * time.Hour)
		r.RenewAt = planned
		m.ca.advise(t.Context(), r)
		in := r.RenewAt.After(now.Add(start-time.Second)) && r.RenewAt.Before(now.Add(end+time.Second))
		if !in || r.RenewAt.Equal(planned) == moved || r.Explanation != "https://ca/why" {
			t.Errorf("renewal at %v (%q) with a window from %v to %v", r.RenewAt, r.Explanation, start, end)
		}
		if d := r.InfoAt.Sub(now); d < 50*time.Minute || d > 61*time.Minute {
			t.Errorf("the CA is queried again after %v, want about an hour", d)
		}
	}
	f(-time.Hour, -time.Minute, true) // revoked soon: at once
	f(59*24*time.Hour, 61*24*time.Hour, false)
	f(70*24*time.Hour, 71*24*time.Hour, true)
}

func TestChallengesOfOthersAreNotSearchedAlone(t *testing.T) {
	m, err := New(Config{Names: []string{"a.example"}, AcceptTerms: true}, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", "../x", "a/b", strings.Repeat("a", 1000), "abc"} {
		if v, ok := m.FindKeyAuthorization(t.Context(), token); ok {
			t.Errorf("%q: %q", token, v)
		}
	}
	if _, err := m.ChallengeCertificate(t.Context(), "a.example"); err == nil {
		t.Error("a challenge that is not pending has a certificate")
	}
}
