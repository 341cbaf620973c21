package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
)

// ClientCertificate admits requests by the certificate that the client showed in the TLS
// handshake, and passes its identity on. It needs tls.client_auth.
type ClientCertificate struct {
	// Required refuses requests of clients without a certificate with 403. False: they pass.
	Required bool `json:"required"`
	// Allow are the identities that are let in, others get 403: "cn:NAME" (the common
	// name), "dns:NAME", "dns:*.example.com" (one label), "uri:spiffe://domain/path",
	// "uri:spiffe://domain/*" (every path below), "email:ADDRESS", "subject:DN" (as in
	// RFC 2253) or "sha256:HEX" (the certificate's fingerprint). It implies required.
	// Empty: any certificate that an authority of tls.client_ca_files has issued.
	Allow []string `json:"allow"`
	// Forward says in which fields backends get the identity: "x-forwarded-client-cert"
	// (Hash, Subject, URI and DNS as Envoy writes them), "client-cert" (the certificate,
	// RFC 9440), "both" or "none". What clients send under these names is never passed on.
	// Empty means none.
	Forward string `json:"forward"`
}

func (c *ClientCertificate) validate() error {
	var errs []error
	for _, a := range c.Allow {
		if _, err := parseCertRule(a); err != nil {
			errs = append(errs, fmt.Errorf("client_certificate.allow: %w", err))
		}
	}
	if !slices.Contains([]string{"", "none", "x-forwarded-client-cert", "client-cert", "both"}, c.Forward) {
		errs = append(errs, fmt.Errorf("client_certificate.forward: invalid value %q: want x-forwarded-client-cert, client-cert, both or none", c.Forward))
	}
	return errors.Join(errs...)
}

// A certRule is one entry of Allow.
type certRule struct{ kind, value string }

func parseCertRule(s string) (certRule, error) {
	kind, value, ok := strings.Cut(s, ":")
	r := certRule{kind, value}
	bad := func(want string) (certRule, error) {
		return r, fmt.Errorf("invalid identity %q: want %s", s, want)
	}
	if !ok || value == "" {
		return bad("cn:, dns:, uri:, email:, subject: or sha256: and a value")
	}
	switch kind {
	case "cn", "email", "subject":
		if kind == "email" {
			r.value = strings.ToLower(value)
		}
	case "dns":
		if strings.Contains(strings.TrimPrefix(value, "*."), "*") {
			return bad("a name such as dns:a.example.com or dns:*.example.com")
		}
		r.value = strings.ToLower(value)
	case "uri":
		u, err := url.Parse(strings.TrimSuffix(value, "/*"))
		if err != nil || u.Scheme == "" || u.Host == "" || strings.Contains(strings.TrimSuffix(value, "/*"), "*") {
			return bad("a URI such as uri:spiffe://example.org/service or uri:spiffe://example.org/*")
		}
	case "sha256":
		r.value = strings.ToLower(strings.ReplaceAll(value, ":", ""))
		if len(r.value) != 64 || strings.Trim(r.value, "0123456789abcdef") != "" {
			return bad("64 hexadecimal digits, with or without colons")
		}
	default:
		return bad("cn:, dns:, uri:, email:, subject: or sha256: and a value")
	}
	return r, nil
}

func (r *certRule) matches(c *auth.Certificate) bool {
	switch r.kind {
	case "cn":
		return c.CommonName == r.value
	case "subject":
		return c.Subject == r.value
	case "sha256":
		return c.Fingerprint == r.value
	case "email":
		return slices.ContainsFunc(c.Emails, func(e string) bool { return strings.ToLower(e) == r.value })
	case "dns":
		return slices.ContainsFunc(c.DNSNames, func(name string) bool { return matchesName(r.value, strings.ToLower(name)) })
	case "uri":
		return slices.ContainsFunc(c.URIs, func(u string) bool {
			if below, ok := strings.CutSuffix(r.value, "*"); ok {
				return strings.HasPrefix(u, below) && len(u) > len(below) && !strings.Contains(u, "/../") && !strings.HasSuffix(u, "/..")
			}
			return u == r.value
		})
	}
	return false
}

// matchesName compares a DNS name with a pattern whose first label may be "*".
func matchesName(pattern, name string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	if !wild {
		return pattern == name
	}
	label, ok := strings.CutSuffix(name, suffix)
	return ok && label != "" && label != "*" && !strings.Contains(label, ".")
}

// certified reports whether x may come by its certificate.
func (r *admission) certified(x *Exchange) (v Verdict, refused bool) {
	cfg := &r.cfg.ClientCertificate
	switch {
	case !cfg.Required && len(cfg.Allow) == 0:
		return v, false
	case x.Certificate == nil:
		return r.refuse(x, 403, "a client certificate is required", "connect with TLS and a certificate of an authority that tls.client_ca_files has"), true
	case len(cfg.Allow) == 0:
		return v, false
	}
	for i := range r.certificates {
		if r.certificates[i].matches(x.Certificate) {
			return v, false
		}
	}
	return r.refuse(x, 403, "the client certificate is not allowed", ""), true
}

// appendCertificate appends what backends get of a client's certificate.
func (r *heads) appendCertificate(dst []byte, c *auth.Certificate) []byte {
	if f := r.cfg.ClientCertificate.Forward; f == "x-forwarded-client-cert" || f == "both" {
		dst = append(append(dst, "X-Forwarded-Client-Cert: Hash="...), c.Fingerprint...)
		dst = appendQuoted(append(dst, ";Subject="...), c.Subject)
		for _, u := range c.URIs {
			dst = appendQuoted(append(dst, ";URI="...), u)
		}
		for _, name := range c.DNSNames {
			dst = appendQuoted(append(dst, ";DNS="...), name)
		}
		dst = append(dst, "\r\n"...)
	}
	if f := r.cfg.ClientCertificate.Forward; f == "client-cert" || f == "both" {
		dst = append(dst, "Client-Cert: :"...)
		dst = base64.StdEncoding.AppendEncode(dst, c.DER)
		dst = append(dst, ":\r\n"...)
	}
	return dst
}

// appendQuoted appends s as a quoted string. What no field may hold becomes a space.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ' || c == 0x7f:
			dst = append(dst, ' ')
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
