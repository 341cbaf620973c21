// Package gm implements the handshakes of the Chinese national standards for
// transport security: TLCP (GB/T 38636-2020), which uses one certificate to sign and
// another to encrypt, and TLS 1.3 with the suites of RFC 8998.
//
// Server and Client run one handshake each, over anything that reads and writes. They
// return a State: the keys from which the caller's record layer continues. Nothing is
// read beyond the end of the handshake. Each of the four state machines is a list of
// steps in the order of its standard: tlcp_server.go, tlcp_client.go, tls13_server.go
// and tls13_client.go.
//
// SM2, SM3 and SM4 are github.com/emmansun/gmsm, and so is what keeps them free of
// branches and memory accesses that depend on secrets. What this package adds to that
// is in cbc.go.
package gm

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/emmansun/gmsm/smx509"
)

// Protocol versions on the wire.
const (
	VersionTLCP  = 0x0101
	VersionTLS12 = 0x0303 // legacy_version of TLS 1.3
	VersionTLS13 = 0x0304
)

// Code points (RFC 8998 §2, IANA).
const (
	groupSM2     = 41
	schemeSM2SM3 = 0x0708
)

// defaultID is the signer's identity in certificates and in TLCP (GB/T 35276);
// tls13ID is the one in CertificateVerify of TLS 1.3 (RFC 8998 §3.2.1).
var (
	defaultID = []byte("1234567812345678")
	tls13ID   = []byte("TLSv1.3+GM+Cipher+Suite")
)

// Alerts (RFC 8446 §6, GB/T 38636 table 2).
const (
	alertCloseNotify            = 0
	alertUnexpectedMessage      = 10
	alertBadRecordMAC           = 20
	alertRecordOverflow         = 22
	alertHandshakeFailure       = 40
	alertBadCertificate         = 42
	alertUnsupportedCertificate = 43
	alertCertificateExpired     = 45
	alertCertificateUnknown     = 46
	alertIllegalParameter       = 47
	alertUnknownCA              = 48
	alertDecodeError            = 50
	alertDecryptError           = 51
	alertProtocolVersion        = 70
	alertInternalError          = 80
	alertUserCanceled           = 90
	alertMissingExtension       = 109
	alertUnsupportedExtension   = 110
	alertCertificateRequired    = 116
	alertNoApplicationProtocol  = 120
)

// An Error is why a handshake failed on this side, with the alert that was sent.
type Error struct {
	Alert  uint8
	Reason string
	Err    error // may be nil
}

func (e *Error) Error() string {
	if e.Err != nil {
		return "gm: " + e.Reason + ": " + e.Err.Error()
	}
	return "gm: " + e.Reason
}

func (e *Error) Unwrap() error { return e.Err }

func fail(alert uint8, format string, args ...any) error {
	return &Error{Alert: alert, Reason: fmt.Sprintf(format, args...)}
}

func failWith(alert uint8, err error, reason string) error {
	return &Error{Alert: alert, Reason: reason, Err: err}
}

// IsCertificateError reports whether err is about the peer's certificates.
func IsCertificateError(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Alert >= alertBadCertificate && e.Alert <= alertCertificateUnknown || e.Alert == alertUnknownCA)
}

// A PeerAlert is the alert with which the peer ended the handshake.
type PeerAlert uint8

func (a PeerAlert) Error() string { return fmt.Sprintf("gm: the peer sent alert %d", uint8(a)) }

// ClientAuth is what a server demands of its clients.
type ClientAuth uint8

// The values of ClientAuth.
const (
	NoClientCert ClientAuth = iota
	RequestClientCert
	RequireClientCert
)

// A ServerConfig is what a server presents and accepts. Immutable once used.
type ServerConfig struct {
	// Pick returns the certificates for a server name, which may be empty. Required.
	Pick func(serverName string) *Pair
	// ClientAuth demands a client certificate. ECDHE suites of TLCP are selected only
	// with a demand, since they need the client's encryption certificate.
	ClientAuth ClientAuth
	// ClientCAs issue client certificates. Required with ClientAuth.
	ClientCAs *smx509.CertPool
	// VerifyClient may refuse a client whose chains are valid, also when it resumes. In TLCP it
	// is called for the signing and for the encryption certificate. Nil: none.
	VerifyClient func(chains [][]*smx509.Certificate) error
	// Protocols are those of ALPN, the preferred one first. Empty: ALPN is ignored.
	Protocols []string
	// TicketKeys returns the ticket keys: the first encrypts, all decrypt. Nil: no tickets.
	TicketKeys func() [][32]byte
	// TicketLifetime is announced to clients and enforced. 0 means one hour.
	TicketLifetime time.Duration
	// Sessions keeps TLCP sessions for clients without tickets. Nil: none.
	Sessions *SessionCache
	// NoCBC omits the CBC suites of TLCP.
	NoCBC bool
	// Time returns the current time. Nil means time.Now.
	Time func() time.Time
}

// A ClientConfig is what a client demands and presents. Immutable once used.
type ClientConfig struct {
	// Version is VersionTLCP or VersionTLS13. There is no fallback from one to the other.
	Version uint16
	// ServerName is sent (SNI, unless it is an address) and verified.
	ServerName string
	// RootCAs issue server certificates. Nil: the system's, which have no SM2 root as a rule.
	RootCAs *smx509.CertPool
	// InsecureSkipVerify accepts any chain and name. Signatures of the handshake are
	// verified all the same.
	InsecureSkipVerify bool
	// Pair is presented to servers that demand a certificate. Nil: none is.
	Pair *Pair
	// Protocols are offered by ALPN. Empty: none.
	Protocols []string
	// Suites are offered, the preferred one first. Empty: all of Version but CBC.
	Suites []uint16
	// Sessions keeps sessions under SessionKey. Nil: every handshake is a full one.
	Sessions   *ClientSessions
	SessionKey string
	// Time returns the current time. Nil means time.Now.
	Time func() time.Time
}

func now(f func() time.Time) time.Time {
	if f == nil {
		return time.Now()
	}
	return f()
}

// Keys are those of one direction.
type Keys struct {
	Key    []byte // of SM4
	IV     []byte // 12 bytes; of TLCP with GCM the first 4 count
	MAC    []byte // CBC only
	Secret []byte // TLS 1.3: the traffic secret
	Seq    uint64 // number of the next record
}

func (k *Keys) wipe() {
	clear(k.Key)
	clear(k.IV)
	clear(k.MAC)
	clear(k.Secret)
}

// A State is a finished handshake.
type State struct {
	Version    uint16
	Suite      *Suite
	In, Out    Keys
	Resumed    bool
	Protocol   string // of ALPN; empty: none was selected
	ServerName string // that the client sent
	// Peer are the peer's certificates as it sent them, the signing one first.
	Peer []*smx509.Certificate
	// Chains are the verified chains of the peer's signing certificate.
	Chains [][]*smx509.Certificate
	// Tickets takes the session tickets of a TLS 1.3 server in. Nil: there are none to expect.
	Tickets *Tickets
}

// Wipe overwrites the keys.
func (s *State) Wipe() {
	s.In.wipe()
	s.Out.wipe()
}

var errNoPair = errors.New("gm: no certificates")

// Server runs one handshake as a server. hello is the ClientHello's version as Sniff
// found it: VersionTLCP or VersionTLS13.
func Server(rw io.ReadWriter, cfg *ServerConfig, version uint16) (*State, error) {
	c := newConn(rw, version)
	defer c.wipe()
	var s *State
	var err error
	if version == VersionTLCP {
		s, err = (&tlcpServer{tlcpParty: tlcpParty{party: party{conn: c}}, cfg: cfg}).handshake()
	} else {
		s, err = (&tls13Server{tls13Party: tls13Party{party: party{conn: c}}, cfg: cfg}).handshake()
	}
	if err != nil {
		c.sendAlert(err)
		return nil, err
	}
	return s, nil
}

// Client runs one handshake as a client.
func Client(rw io.ReadWriter, cfg *ClientConfig) (*State, error) {
	c := newConn(rw, cfg.Version)
	defer c.wipe()
	var s *State
	var err error
	if cfg.Version == VersionTLCP {
		s, err = (&tlcpClient{tlcpParty: tlcpParty{party: party{conn: c}}, cfg: cfg}).handshake()
	} else {
		s, err = (&tls13Client{tls13Party: tls13Party{party: party{conn: c}}, cfg: cfg}).handshake()
	}
	if err != nil {
		c.sendAlert(err)
		return nil, err
	}
	return s, nil
}
