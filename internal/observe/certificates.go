package observe

import (
	"crypto/x509"

	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// The sources of certificates.
const (
	fromFile = "file"
	fromACME = "acme"
)

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
