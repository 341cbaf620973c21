package acme

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	lib "github.com/mholt/acmez/v3/acme"
)

// orderTimeout bounds one order, from the account to the certificate.
const orderTimeout = 5 * time.Minute

// An authority is a CA, with the account of all nodes there.
type authority struct {
	cfg    *Config
	log    *slog.Logger
	client *acmez.Client
	stores *stores

	registering sync.Mutex // one registration at a time
}

// order obtains a certificate for name in place of old, which may be nil.
func (a *authority) order(ctx context.Context, name string, old *record) (*record, error) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	account, err := a.account(ctx)
	if err != nil {
		return nil, err
	}
	key, keyPEM, err := newKey(a.cfg.KeyType)
	if err != nil {
		return nil, err
	}
	csr, err := newRequest(key, name, a.cfg.MustStaple)
	if err != nil {
		return nil, err
	}
	params, err := acmez.OrderParametersFromCSR(account, csr)
	if err != nil {
		return nil, err
	}
	params.Profile = a.cfg.Profile
	if old != nil && a.cfg.RenewalInfo.On() && a.hasInfo(ctx) {
		params.Replaces = old.pair.Leaf // RFC 9773 §5
	}
	chains, err := a.client.ObtainCertificate(ctx, params)
	if err != nil {
		return nil, a.forget(ctx, err)
	}
	if len(chains) == 0 {
		return nil, errors.New("the CA returned no certificate")
	}
	r := &record{Name: name, Chain: string(chains[0].ChainPEM), Key: string(keyPEM)}
	if err := r.parse(); err != nil {
		return nil, err
	}
	if err := r.pair.Leaf.VerifyHostname(hostOf(name)); err != nil {
		return nil, fmt.Errorf("the CA returned another certificate: %w", err)
	}
	r.RenewAt = renewalTime(r.pair.Leaf, time.Duration(a.cfg.RenewBefore))
	a.advise(ctx, r)
	return r, nil
}

// hasInfo reports whether the CA has renewal information.
func (a *authority) hasInfo(ctx context.Context) bool {
	d, err := a.client.GetDirectory(ctx)
	return err == nil && d.RenewalInfo != ""
}

// advise sets the time of r's renewal to what the CA suggests, if it does.
func (a *authority) advise(ctx context.Context, r *record) {
	if !a.cfg.RenewalInfo.On() {
		r.InfoAt = time.Time{}
		return
	}
	info, err := a.client.GetRenewalInfo(ctx, r.pair.Leaf)
	now := time.Now()
	if errors.Is(err, lib.ErrUnsupported) {
		r.InfoAt = time.Time{}
		return
	}
	next := infoInterval
	if err == nil && info.RetryAfter != nil {
		next = min(max(info.RetryAfter.Sub(now), minInfoInterval), maxInfoInterval)
	}
	r.InfoAt = now.Add(next - jitter(next/10))
	if err != nil {
		a.log.Warn("renewal information", "name", r.Name, "err", err)
		return
	}
	// The time is drawn once for each window (RFC 9773 §4.2).
	if w := info.SuggestedWindow; r.RenewAt.Before(w.Start) || r.RenewAt.After(w.End) {
		r.RenewAt = info.SelectedTime
	}
	r.Explanation = info.ExplanationURL
}

// A storedAccount is the account at the CA.
type storedAccount struct {
	Account lib.Account `json:"account"`
	Key     string      `json:"key"` // PEM
}

const accountKey = "account"

// account returns the account at the CA, which it registers if there is none yet.
func (a *authority) account(ctx context.Context) (account lib.Account, err error) {
	a.registering.Lock()
	defer a.registering.Unlock()
	var unlock func()
	for {
		if account, ok, err := a.loadAccount(ctx); ok || err != nil {
			return account, err
		}
		var held context.Context
		if held, unlock, err = a.stores.current().Lock(ctx, a.stores.prefix+accountKey); err == nil {
			ctx = held
			break
		}
		if !errors.Is(err, ErrLocked) {
			return account, fmt.Errorf("lock the account: %w", err)
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return account, ctx.Err()
		}
	}
	defer unlock()
	if account, ok, err := a.loadAccount(ctx); ok || err != nil {
		return account, err
	}
	key, keyPEM, err := newKey("p256")
	if err != nil {
		return account, err
	}
	account = lib.Account{TermsOfServiceAgreed: a.cfg.AcceptTerms, PrivateKey: key}
	if a.cfg.Email != "" {
		account.Contact = []string{"mailto:" + a.cfg.Email}
	}
	if e := a.cfg.ExternalAccount; e.KeyID != "" {
		if err := account.SetExternalAccountBinding(ctx, a.client.Client, lib.EAB{KeyID: e.KeyID, MACKey: string(e.HMACKey)}); err != nil {
			return account, fmt.Errorf("external_account: %w", err)
		}
	}
	if account, err = a.client.NewAccount(ctx, account); err != nil {
		return account, fmt.Errorf("register an account at %s: %w", a.client.Directory, err)
	}
	a.log.Info("registered an ACME account", "directory", a.client.Directory, "account", account.Location)
	return account, save(ctx, a.stores.current(), a.stores.prefix+accountKey, storedAccount{account, string(keyPEM)})
}

func (a *authority) loadAccount(ctx context.Context) (account lib.Account, ok bool, err error) {
	var stored storedAccount
	if ok, err = load(ctx, a.stores.current(), a.stores.prefix+accountKey, &stored); !ok || err != nil {
		return account, false, err
	}
	block, _ := pem.Decode([]byte(stored.Key))
	if block == nil {
		return account, false, errors.New("stored ACME account: its key is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return account, false, fmt.Errorf("stored ACME account: %w", err)
	}
	stored.Account.PrivateKey = key.(crypto.Signer) // all private keys of PKCS #8 are
	return stored.Account, true, nil
}

// forget removes an account that the CA does not have any more, so that the next order registers
// another. It returns err.
func (a *authority) forget(ctx context.Context, err error) error {
	var p lib.Problem
	if !errors.As(err, &p) || p.Type != lib.ProblemTypeAccountDoesNotExist {
		return err
	}
	a.log.Warn("the CA does not know the account: another is registered with the next order", "directory", a.client.Directory)
	return errors.Join(err, a.stores.current().Delete(context.WithoutCancel(ctx), a.stores.prefix+accountKey))
}

// newKey makes a private key and its PEM (PKCS #8).
func newKey(kind string) (key crypto.Signer, text []byte, err error) {
	switch kind {
	case "p384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "rsa2048":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// newRequest makes a certificate signing request for one name.
func newRequest(key crypto.Signer, name string, mustStaple bool) (*x509.CertificateRequest, error) {
	template := &x509.CertificateRequest{}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	if mustStaple { // TLS feature status_request (RFC 7633 §4)
		template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}, Value: []byte{0x30, 0x03, 0x02, 0x01, 0x05}}}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return x509.ParseCertificateRequest(der)
}

// hostOf is name as VerifyHostname expects it.
func hostOf(name string) string {
	if net.ParseIP(name) != nil {
		return "[" + name + "]"
	}
	return name
}
