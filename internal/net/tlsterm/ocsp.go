package tlsterm

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"golang.org/x/crypto/ocsp"
)

const (
	ocspTimeout  = 10 * time.Second
	maxOCSP      = 64 << 10
	ocspSkew     = 5 * time.Minute // how far a responder's clock may be ahead
	ocspRetryMin = 10 * time.Second
	minRefresh   = 100 * time.Millisecond
	ocspRetryMax = time.Hour
)

// canStaple reports whether there is a responder to request c's state.
func (c *cert) canStaple() bool { return c.issuer != nil && len(c.bare.Leaf.OCSPServer) > 0 }

// staple requests c's state from the responder and puts a good answer in service.
func (c *cert) staple(ctx context.Context, client *http.Client, now func() time.Time) (*ocsp.Response, error) {
	raw, err := c.fetch(ctx, client)
	if err != nil {
		return nil, err
	}
	res, err := checkStaple(raw, c.bare.Leaf, c.issuer, now())
	if err != nil {
		if errors.Is(err, errRevoked) {
			c.stapled.Store(nil) // the last good answer is not true any more
		}
		return nil, err
	}
	with := *c.bare
	with.OCSPStaple = raw
	c.stapled.Store(&stapled{cert: &with, until: res.NextUpdate})
	return res, nil
}

// fetch tries the responders one by one (RFC 6960 appendix A).
func (c *cert) fetch(ctx context.Context, client *http.Client) (raw []byte, err error) {
	query, err := ocsp.CreateRequest(c.bare.Leaf, c.issuer, nil)
	if err != nil {
		return nil, fmt.Errorf("ocsp request: %w", err)
	}
	for _, url := range c.bare.Leaf.OCSPServer {
		if raw, err = queryOCSP(ctx, client, url, query); err == nil {
			return raw, nil
		}
	}
	return nil, err
}

func queryOCSP(ctx context.Context, client *http.Client, url string, query []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, ocspTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(query))
	if err != nil {
		return nil, fmt.Errorf("ocsp: %w", err)
	}
	req.Header.Set("Content-Type", "application/ocsp-request")
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ocsp: %w", err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxOCSP+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("ocsp: %s: %w", url, err)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("ocsp: %s: %s", url, res.Status)
	case len(raw) > maxOCSP:
		return nil, fmt.Errorf("ocsp: %s: an answer of more than %d bytes", url, maxOCSP)
	}
	return raw, nil
}

var errRevoked = errors.New("the certificate is revoked")

// checkStaple returns an answer that may be shown to clients, or why not.
func checkStaple(raw []byte, leaf, issuer *x509.Certificate, now time.Time) (*ocsp.Response, error) {
	res, err := ocsp.ParseResponseForCert(raw, leaf, issuer) // checks signature and serial number
	if err != nil {
		return nil, fmt.Errorf("ocsp answer: %w", err)
	}
	switch {
	case res.Certificate != nil && !mayAnswer(res.Certificate, issuer, now):
		return nil, errors.New("ocsp answer: signed by a certificate that is not for that (RFC 6960 §4.2.2.2)")
	case res.Status == ocsp.Revoked:
		return nil, fmt.Errorf("ocsp answer: %w since %s", errRevoked, res.RevokedAt.Format(time.RFC3339))
	case res.Status != ocsp.Good:
		return nil, errors.New("ocsp answer: the responder does not know the certificate")
	case res.ThisUpdate.After(now.Add(ocspSkew)):
		return nil, fmt.Errorf("ocsp answer: from the future, %s", res.ThisUpdate.Format(time.RFC3339))
	case res.NextUpdate.IsZero():
		return nil, errors.New("ocsp answer: without nextUpdate it cannot be cached")
	case !res.NextUpdate.After(now):
		return nil, fmt.Errorf("ocsp answer: stale since %s", res.NextUpdate.Format(time.RFC3339))
	}
	return res, nil
}

// mayAnswer reports whether signer may speak for issuer: it is the issuer, or was
// made by it for that purpose.
func mayAnswer(signer, issuer *x509.Certificate, now time.Time) bool {
	if signer.Equal(issuer) {
		return true
	}
	return signer.CheckSignatureFrom(issuer) == nil && slices.Contains(signer.ExtKeyUsage, x509.ExtKeyUsageOCSPSigning) &&
		!now.Before(signer.NotBefore) && !now.After(signer.NotAfter)
}

// refreshAfter is when to ask again: in the middle of the answer's life, or a
// little earlier, so that nodes do not ask all at once and there is time for
// retries before it ends.
func refreshAfter(res *ocsp.Response, now time.Time) time.Duration {
	left := max(res.NextUpdate.Sub(now), 0)
	return max(left/2-rand.N(left/8+1), minRefresh)
}

// retryAfter grows with the failures in a row, with jitter, but leaves time for
// several attempts while there is still an answer to show.
func (c *cert) retryAfter(failures int, least time.Duration, now time.Time) time.Duration {
	d := min(least<<min(failures-1, 16), ocspRetryMax)
	if s := c.stapled.Load(); s != nil && s.until.After(now) {
		d = min(d, max(s.until.Sub(now)/4, least))
	}
	return d/2 + rand.N(d/2+1)
}

// keep requests c's state for as long as c is in service.
func (k *keepers) keep(ctx context.Context, c *cert, first time.Duration) {
	failures := 0
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		res, err := c.staple(ctx, k.t.client, time.Now)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failures++
			k.t.counters.ocspFailures.Add(1)
			wait := c.retryAfter(failures, k.t.retryMin, time.Now())
			k.logFailure(c, err, wait)
			timer.Reset(wait)
			continue
		}
		failures = 0
		k.t.counters.ocspFetches.Add(1)
		k.t.log.Debug("ocsp answer", "file", c.file, "next_update", res.NextUpdate)
		timer.Reset(refreshAfter(res, time.Now()))
	}
}

func (k *keepers) logFailure(c *cert, err error, wait time.Duration) {
	if errors.Is(err, errRevoked) || !c.complete(time.Now()) {
		k.t.log.Error("staple", "file", c.file, "must_staple", c.mustStaple, "err", err, "retry", wait)
		return
	}
	k.t.log.Warn("staple", "file", c.file, "err", err, "retry", wait)
}
