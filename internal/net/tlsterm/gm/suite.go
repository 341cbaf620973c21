package gm

import (
	"crypto/cipher"
	"hash"
	"slices"

	"github.com/emmansun/gmsm/sm3"
	"github.com/emmansun/gmsm/sm4"
)

// A Suite is one cipher suite.
type Suite struct {
	ID      uint16
	Name    string // IANA's for TLS 1.3, the standard's for TLCP
	Version uint16 // VersionTLCP or VersionTLS13
	mode    mode
	ecdhe   bool
}

type mode uint8

const (
	modeGCM mode = iota
	modeCCM
	modeCBC
)

// Cipher suite numbers (GB/T 38636 table 2, RFC 8998 §2).
const (
	ECDHE_SM4_CBC_SM3 = 0xe011
	ECC_SM4_CBC_SM3   = 0xe013
	ECDHE_SM4_GCM_SM3 = 0xe051
	ECC_SM4_GCM_SM3   = 0xe053
	TLS_SM4_GCM_SM3   = 0x00c6
	TLS_SM4_CCM_SM3   = 0x00c7
)

// Suites are all that exist here, in order of preference: GCM before CBC, and ECDHE,
// which is forward secret, before ECC.
var Suites = []*Suite{
	{TLS_SM4_GCM_SM3, "TLS_SM4_GCM_SM3", VersionTLS13, modeGCM, false},
	{TLS_SM4_CCM_SM3, "TLS_SM4_CCM_SM3", VersionTLS13, modeCCM, false},
	{ECDHE_SM4_GCM_SM3, "ECDHE_SM4_GCM_SM3", VersionTLCP, modeGCM, true},
	{ECC_SM4_GCM_SM3, "ECC_SM4_GCM_SM3", VersionTLCP, modeGCM, false},
	{ECDHE_SM4_CBC_SM3, "ECDHE_SM4_CBC_SM3", VersionTLCP, modeCBC, true},
	{ECC_SM4_CBC_SM3, "ECC_SM4_CBC_SM3", VersionTLCP, modeCBC, false},
}

// SuiteOf returns the suite with a number, or nil.
func SuiteOf(version, id uint16) *Suite {
	for _, s := range Suites {
		if s.ID == id && s.Version == version {
			return s
		}
	}
	return nil
}

// Lengths of keys and hashes, in bytes.
const (
	KeyLen  = 16
	HashLen = sm3.Size
	tagLen  = 16
)

// CBC reports whether records are MAC-then-encrypt: they carry an IV of one block in
// front and are padded.
func (s *Suite) CBC() bool { return s.mode == modeCBC }

// Group names the key exchange for metrics; empty: a session of TLCP resumes without one.
func (s *Suite) Group(resumed bool) string {
	switch {
	case s.Version == VersionTLS13, s.ecdhe && !resumed:
		return "curveSM2"
	case resumed:
		return ""
	}
	return "SM2 encryption"
}

// Explicit is how many bytes of the nonce travel in each record.
func (s *Suite) Explicit() int {
	if s.Version == VersionTLCP && s.mode == modeGCM {
		return 8 // RFC 5288 §3
	}
	return 0
}

// SealedLen is the length of what Seal returns for n bytes.
func (s *Suite) SealedLen(n int) int {
	if s.mode == modeCBC {
		return sm4.BlockSize + (n+HashLen)/sm4.BlockSize*sm4.BlockSize + sm4.BlockSize
	}
	return n + tagLen
}

// AEAD returns the cipher of a key of KeyLen bytes. mac is the MAC key of a CBC suite,
// of HashLen bytes, and ignored otherwise.
func (s *Suite) AEAD(key, mac []byte) cipher.AEAD {
	b, err := sm4.NewCipher(key)
	if err != nil {
		panic("gm: " + err.Error()) // only for a key of another length
	}
	var a cipher.AEAD
	switch s.mode {
	case modeCBC:
		return newCBC(b, mac)
	case modeCCM:
		a, err = newCCM(b)
	default:
		a, err = cipher.NewGCM(b)
	}
	if err != nil {
		panic("gm: " + err.Error()) // only for a block of another size
	}
	return a
}

// Hash is that of all suites.
func Hash() hash.Hash { return sm3.New() }

// pickSuite returns the first suite of a version, in this side's order, that is among
// offered and that allow accepts.
func pickSuite(version uint16, offered []uint16, allow func(*Suite) bool) *Suite {
	for _, s := range Suites {
		if s.Version == version && slices.Contains(offered, s.ID) && allow(s) {
			return s
		}
	}
	return nil
}
