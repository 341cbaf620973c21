package observe

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// The sources of certificates.
const (
	fromFile = "file"
	fromACME = "acme"
)

// certificates adds what is known of the certificates in service.
func (m *coreMetrics) certificates(c *catalog, family func(name, help, label string, kind prometheus.ValueType, read func(emit func(float64, ...string)))) {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	each := func(value func(tlsterm.CertificateInfo, time.Time) float64) func(emit func(float64, ...string)) {
		return func(emit func(float64, ...string)) {
			now, seen := time.Now(), map[string]float64{}
			for _, c := range m.node.TLS.Certificates() { // of several for a name the one that ends first
				v := value(c, now)
				if was, ok := seen[c.Name()]; !ok || v < was {
					seen[c.Name()] = v
				}
			}
			for name, v := range seen {
				emit(v, name)
			}
		}
	}
	family("weir_tls_certificate_expires_seconds", "When a certificate in service expires, in Unix time, by its first name.", "name", gauge,
		each(func(c tlsterm.CertificateInfo, _ time.Time) float64 { return float64(c.Leaf.NotAfter.Unix()) }))
	family("weir_tls_certificate_lifetime_left_ratio", "Part of a certificate's lifetime that is left, 0 to 1, by its first name.", "name", gauge,
		each(func(c tlsterm.CertificateInfo, now time.Time) float64 { return c.LifetimeLeft(now) }))
	if m.node.ACME == nil && m.node.Hub != nil {
		return
	}
	was := c.when
	c.when = "With tls.acme."
	family("weir_acme_orders_total", "Orders of certificates by this node, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := m.node.ACME.Stats()
		emit(float64(s.Ordered), "ok")
		emit(float64(s.Failed), "error")
	})
	c.when = was
}

// certificates are those of the public listener, for the admin listener.
func (a *operatorCalls) certificates() []admin.Certificate {
	list := []admin.Certificate{}
	if a.TLS == nil {
		return list
	}
	obtained := map[string]tlsterm.CertificateInfo{} // by serial number
	for _, c := range a.TLS.Certificates() {
		if c.File == "" {
			obtained[c.Leaf.SerialNumber.String()] = c
			continue
		}
		list = append(list, certificate(c.Leaf, fromFile))
		v := &list[len(list)-1]
		v.File, v.StapledUntil, v.MustStaple = c.File, c.StapledUntil, c.MustStaple
	}
	if a.ACME == nil {
		return list
	}
	for _, s := range a.ACME.Status() {
		v := admin.Certificate{Name: s.Name, Names: []string{s.Name}, Source: fromACME}
		if s.Leaf != nil {
			v = certificate(s.Leaf, fromACME)
			c, served := obtained[s.Leaf.SerialNumber.String()]
			v.Served, v.StapledUntil, v.MustStaple = served, c.StapledUntil, c.MustStaple
		}
		v.RenewAt, v.Explanation, v.Failures, v.Error, v.RetryAt = s.RenewAt, s.Explanation, s.Failures, s.Error, s.RetryAt
		list = append(list, v)
	}
	return list
}

func certificate(leaf *x509.Certificate, source string) admin.Certificate {
	v := admin.Certificate{
		Name: tlsterm.CertificateInfo{Leaf: leaf}.Name(), Names: append([]string{}, leaf.DNSNames...), Source: source, Served: true,
		Issuer: leaf.Issuer.String(), Serial: leaf.SerialNumber.Text(16), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	}
	for _, ip := range leaf.IPAddresses {
		v.Names = append(v.Names, ip.String())
	}
	return v
}
