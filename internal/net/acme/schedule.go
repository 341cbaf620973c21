package acme

import (
	"crypto/x509"
	"math/rand/v2"
	"time"
)

const (
	// infoInterval is how often the CA is requested renewal information if it does not
	// say (RFC 9773 §4.3.1); minInfoInterval and maxInfoInterval bound what it says.
	infoInterval    = 6 * time.Hour
	minInfoInterval = time.Minute
	maxInfoInterval = 24 * time.Hour
)

// renewalTime returns when leaf is to be renewed without the CA's advice: before its expiry by
// renewBefore, or by a third of its lifetime if that is 0 or longer than the lifetime allows.
// Certificates that were issued together are renewed over a while: up to a tenth of that time
// earlier.
func renewalTime(leaf *x509.Certificate, renewBefore time.Duration) time.Time {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	if renewBefore <= 0 || renewBefore > life*9/10 {
		renewBefore = life / 3
	}
	return leaf.NotAfter.Add(-renewBefore - jitter(min(renewBefore, life-renewBefore)/10))
}

// retryAfter returns the pause after so many failures in a row: least, doubled with each further
// one up to most, less up to a half at random.
func retryAfter(failures int, least, most time.Duration) time.Duration {
	d := most
	if n := failures - 1; n < 32 && least<<n>>n == least {
		d = min(least<<n, most)
	}
	return d - jitter(d/2)
}

// jitter returns 0 to d, d excluded unless it is 0.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
