package tlsterm

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// A responder is an OCSP responder whose answers a test chooses.
type responder struct {
	*httptest.Server
	mu        sync.Mutex
	answer    func(serial *big.Int) []byte
	requested int
}

func newResponder(t testing.TB, answer func(*big.Int) []byte) *responder {
	r := &responder{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		q, err := ocsp.ParseRequest(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		r.requested++
		b := r.answer(q.SerialNumber)
		r.mu.Unlock()
		if b == nil {
			http.Error(w, "out of order", http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(b)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *responder) set(answer func(*big.Int) []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *responder) questions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requested
}

// saysOCSP makes an answer, good for an hour unless changed.
func saysOCSP(change func(*ocsp.Response)) func(*big.Int) []byte {
	return signedBy(ca().cert, ca().key, change)
}

func signedBy(cert *x509.Certificate, key crypto.Signer, change func(*ocsp.Response)) func(*big.Int) []byte {
	return func(serial *big.Int) []byte {
		now := time.Now()
		res := ocsp.Response{Status: ocsp.Good, SerialNumber: serial, ThisUpdate: now.Add(-time.Minute), NextUpdate: now.Add(time.Hour)}
		if change != nil {
			change(&res)
		}
		return must(ocsp.CreateResponse(ca().cert, cert, res, key))
	}
}

func good(serial *big.Int) []byte { return saysOCSP(nil)(serial) }

func revoked(serial *big.Int) []byte {
	return saysOCSP(func(r *ocsp.Response) { r.Status, r.RevokedAt = ocsp.Revoked, time.Now().Add(-time.Minute) })(serial)
}

func withOCSP(url string, must bool) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.OCSPServer = []string{url}
		if must {
			c.ExtraExtensions = []pkix.Extension{{Id: oidTLSFeature, Value: mustMarshal([]int{statusRequest})}}
		}
	}
}

func mustMarshal(v any) []byte { return must(asn1.Marshal(v)) }

// stapledTo returns the staple that a new client gets.
func stapledTo(t testing.TB, s *server) []byte {
	t.Helper()
	c := dial(t, s, nil)
	defer c.Close()
	return c.OCSPResponse()
}

func TestAGoodAnswerIsStapledAndRefreshed(t *testing.T) {
	t.Parallel()
	r := newResponder(t, saysOCSP(func(r *ocsp.Response) { r.NextUpdate = time.Now().Add(2 * time.Second) }))
	dir := t.TempDir()
	leaf := ca().leaf(t, withOCSP(r.URL, false), "localhost")
	s := serve(t, Config{Certificates: []Certificate{save(t, dir, "a", leaf)}}, echoes)
	eventually(t, "a staple", func() bool { return len(stapledTo(t, s)) > 0 })
	res, err := ocsp.ParseResponseForCert(stapledTo(t, s), leaf.Leaf, ca().cert)
	if err != nil || res.Status != ocsp.Good {
		t.Fatalf("the staple is %v and %v", res, err)
	}
	eventually(t, "refreshed answers", func() bool { return s.Stats().OCSPFetches > 2 })
	if st := s.Stats(); st.OCSPFailures != 0 {
		t.Errorf("%+v", st)
	}
	// A responder that stops answering: the staple goes when it ends, not before.
	r.set(func(*big.Int) []byte { return nil })
	eventually(t, "the end of the last staple", func() bool { return len(stapledTo(t, s)) == 0 })
	eventually(t, "a counted failure", func() bool { return s.Stats().OCSPFailures > 0 })
	if st := s.Stats(); st.Failed != 0 {
		t.Errorf("%+v", st)
	}
}

func TestARevokedCertificateLosesItsStapleAtOnce(t *testing.T) {
	t.Parallel()
	r := newResponder(t, saysOCSP(func(r *ocsp.Response) { r.NextUpdate = time.Now().Add(2 * time.Second) }))
	s := serve(t, Config{Certificates: []Certificate{save(t, t.TempDir(), "a", ca().leaf(t, withOCSP(r.URL, false), "localhost"))}}, echoes)
	eventually(t, "a staple", func() bool { return len(stapledTo(t, s)) > 0 })
	r.set(revoked)
	eventually(t, "no staple", func() bool { return len(stapledTo(t, s)) == 0 })
}

func TestBadAnswersAreNeverStapled(t *testing.T) {
	t.Parallel()
	unknown := newAuthority("unknown")
	plain := ca().leaf(t, nil, "not a responder")
	delegate := ca().leaf(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning} })
	past := ca().leaf(t, func(c *x509.Certificate) {
		c.ExtKeyUsage, c.NotAfter = []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning}, time.Now().Add(-time.Second)
	})
	by := func(c tls.Certificate) func(*big.Int) []byte {
		return signedBy(c.Leaf, c.PrivateKey.(crypto.Signer), func(r *ocsp.Response) { r.Certificate = c.Leaf })
	}
	issuer := ca().cert
	leaf := ca().leaf(t, withOCSP("http://unused", false), "localhost").Leaf
	f := func(want string, answer []byte) {
		t.Helper()
		_, err := checkStaple(answer, leaf, issuer, time.Now())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	n := leaf.SerialNumber
	with := func(change func(*ocsp.Response)) []byte { return saysOCSP(change)(n) }
	f("", good(n))
	f("", by(delegate)(n))
	f("not for that", by(plain)(n))
	f("not for that", by(past)(n))
	f("ocsp answer:", signedBy(unknown.cert, unknown.key, nil)(n))
	f("ocsp answer:", good(big.NewInt(7)))
	f("ocsp answer:", []byte("garbage"))
	f("ocsp answer:", nil)
	f("ocsp answer:", ocsp.TryLaterErrorResponse)
	f("revoked", revoked(n))
	f("does not know", with(func(r *ocsp.Response) { r.Status = ocsp.Unknown }))
	f("from the future", with(func(r *ocsp.Response) {
		r.ThisUpdate = time.Now().Add(time.Hour)
		r.NextUpdate = time.Now().Add(2 * time.Hour)
	}))
	f("stale since", with(func(r *ocsp.Response) { r.NextUpdate = time.Now().Add(-time.Minute) }))
	f("without nextUpdate", with(func(r *ocsp.Response) { r.NextUpdate = time.Time{} }))

	for _, answer := range []func(*big.Int) []byte{revoked, func(*big.Int) []byte { return []byte("garbage") }, func(*big.Int) []byte { return nil },
		func(*big.Int) []byte { return make([]byte, maxOCSP+1) }} {
		r := newResponder(t, answer)
		s := serve(t, Config{Certificates: []Certificate{save(t, t.TempDir(), "a", ca().leaf(t, withOCSP(r.URL, false), "localhost"))}}, echoes)
		eventually(t, "a counted failure", func() bool { return s.Stats().OCSPFailures > 0 })
		if b := stapledTo(t, s); len(b) > 0 {
			t.Errorf("%d bytes were stapled", len(b))
		}
	}
}

func TestMustStapleIsNotPutInServiceWithout(t *testing.T) {
	r := newResponder(t, func(*big.Int) []byte { return nil })
	dir := t.TempDir()
	first := ca().leaf(t, nil, "localhost")
	s := serve(t, Config{Certificates: []Certificate{save(t, dir, "a", first)}, ReloadInterval: seconds(0.02)}, echoes)
	strict := ca().leaf(t, withOCSP(r.URL, true), "localhost")
	save(t, dir, "a", strict)
	eventually(t, "refused reloads", func() bool { return s.Stats().ReloadFailures >= 2 })
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), "must-staple") {
		t.Errorf("Reload said %v", err)
	}
	if got := serialOf(dial(t, s, nil)); got != first.Leaf.SerialNumber.String() {
		t.Fatalf("it is in service: %s", got)
	}
	r.set(good)
	eventually(t, "the strict certificate", func() bool {
		c := dial(t, s, nil)
		if serialOf(c) != strict.Leaf.SerialNumber.String() {
			return false
		}
		if len(c.OCSPResponse()) == 0 {
			t.Error("it was shown without a staple")
		}
		return true
	})
	if st := s.Stats(); st.Unstapled != 0 {
		t.Errorf("%+v", st)
	}
	requested := r.questions()
	if err := s.Reload(); err != nil || len(stapledTo(t, s)) == 0 {
		t.Errorf("after a reload of the same certificate: %v, or the staple is lost (%d questions)", err, requested)
	}
}

func TestDisabledOCSPSendsNoRequest(t *testing.T) {
	r := newResponder(t, good)
	s := serve(t, Config{OCSPStapling: setting.Off, Certificates: []Certificate{save(t, t.TempDir(), "a", ca().leaf(t, withOCSP(r.URL, false), "localhost"))}}, echoes)
	if b := stapledTo(t, s); len(b) > 0 || r.questions() > 0 {
		t.Errorf("%d bytes stapled, %d questions", len(b), r.questions())
	}
}

func TestRetriesGrowAndStayWithinTheStaple(t *testing.T) {
	c := &cert{}
	now := time.Now()
	f := func(failures int, low, high time.Duration) {
		t.Helper()
		for range 50 {
			if d := c.retryAfter(failures, 10*time.Second, now); d < low || d > high {
				t.Fatalf("after %d failures: %v, want %v to %v", failures, d, low, high)
			}
		}
	}
	f(1, 5*time.Second, 10*time.Second)
	f(3, 20*time.Second, 40*time.Second)
	f(1000, 30*time.Minute, time.Hour)
	c.stapled.Store(&stapled{until: now.Add(4 * time.Minute)})
	f(1000, 30*time.Second, time.Minute)
	for range 50 {
		if d := refreshAfter(&ocsp.Response{NextUpdate: now.Add(8 * time.Hour)}, now); d < 3*time.Hour || d > 4*time.Hour {
			t.Fatalf("refresh after %v", d)
		}
	}
}
