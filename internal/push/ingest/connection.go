package ingest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
)

// A Credential is a password that is in the configuration or in a file.
type Credential struct {
	// User is the name to log in with. Empty means that of the url, if it has one.
	User string `json:"user"`
	// Password is the user's.
	Password auth.Secret `json:"password"`
	// PasswordFile holds the password instead; a newline at its end is not part of it. It
	// is read at every connect.
	PasswordFile string `json:"password_file"`
}

// Validate returns what is wrong with c.
func (c Credential) Validate() error {
	if c.Password != "" && c.PasswordFile != "" {
		return errors.New("password_file: there is a password as well: keep one of them")
	}
	return nil
}

// Read returns the password.
func (c Credential) Read() (string, error) {
	if c.PasswordFile == "" {
		return string(c.Password), nil
	}
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// A TLS is how the connection to a source is encrypted.
type TLS struct {
	// Enabled uses TLS where the scheme of the url does not require it already.
	Enabled bool `json:"enabled"`
	// CAFile has the certificates, PEM, that sign the server's. Empty means the system's.
	CAFile string `json:"ca_file"`
	// CertFile and KeyFile are this client's certificate and key, PEM. Empty means none.
	CertFile string `json:"cert_file"`
	KeyFile  string `json:"key_file"`
	// ServerName is the name in the server's certificate. Empty means the host of the url.
	ServerName string `json:"server_name"`
}

// Used reports whether anything is set.
func (t TLS) Used() bool { return t != TLS{} }

// Load reads the files. nil means no TLS.
func (t TLS) Load() (*tls.Config, error) {
	if !t.Used() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls: ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: ca_file: %s has no certificate in PEM", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("tls: cert_file and key_file are needed together")
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls: cert_file: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// CheckURL wants an absolute URL with one of the schemes. It does not repeat the URL, which
// may have a password in it.
func CheckURL(key, text string, schemes ...string) error {
	want := "want " + strings.Join(schemes, ":// or ") + "://host:port"
	if text == "" {
		return fmt.Errorf("%s: it is empty: %s", key, want)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%s: invalid URL: %s", key, want)
	}
	for _, s := range schemes {
		if u.Scheme == s {
			return nil
		}
	}
	return fmt.Errorf("%s: invalid scheme %.20q: %s", key, u.Scheme, want)
}
