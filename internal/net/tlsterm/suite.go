package tlsterm

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"hash"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

const tagLen = 16

// A suite is what the record layer needs to know of a cipher suite.
type suite struct {
	v13      bool
	chacha   bool
	keyLen   int
	explicit int // bytes of the nonce that travel in each record
	hash     func() hash.Hash
	hashLen  int
	gm       *gm.Suite // nil: it is none of the national suites
}

// suites are those of crypto/tls, before TLS 1.3 and since, shared by all connections. Immutable.
var suites = [2][3]suite{
	{
		{keyLen: 16, explicit: 8, hash: sha256.New, hashLen: sha256.Size},
		{keyLen: 32, explicit: 8, hash: sha512.New384, hashLen: sha512.Size384},
		{chacha: true, keyLen: 32, hash: sha256.New, hashLen: sha256.Size},
	},
	{
		{v13: true, keyLen: 16, hash: sha256.New, hashLen: sha256.Size},
		{v13: true, keyLen: 32, hash: sha512.New384, hashLen: sha512.Size384},
		{v13: true, chacha: true, keyLen: 32, hash: sha256.New, hashLen: sha256.Size},
	},
}

// suiteOf returns the suite of a finished handshake, or nil for one that
// newConfig does not allow.
func suiteOf(version, id uint16) *suite {
	if g := gm.SuiteOf(version, id); g != nil {
		return &suite{v13: version == tls.VersionTLS13, keyLen: gm.KeyLen, explicit: g.Explicit(), hash: gm.Hash, hashLen: gm.HashLen, gm: g}
	}
	of := &suites[0]
	if version == tls.VersionTLS13 {
		of = &suites[1]
	}
	switch id {
	case tls.TLS_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256:
		return &of[0]
	case tls.TLS_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384:
		return &of[1]
	case tls.TLS_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:
		return &of[2]
	}
	return nil
}

// tlcp reports whether records are those of TLCP.
func (s *suite) tlcp() bool { return s.gm != nil && !s.v13 }

// version is the protocol's.
func (s *suite) version() uint16 {
	if s.v13 {
		return tls.VersionTLS13
	}
	return s.recordVersion()
}

// recordVersion is the version in the head of records.
func (s *suite) recordVersion() uint16 {
	if s.tlcp() {
		return gm.VersionTLCP
	}
	return tls.VersionTLS12
}

// secretLen is how much of half.secret is in use: in TLS 1.3 the traffic secret, with a
// CBC suite of TLCP the key of the MAC.
func (s *suite) secretLen() int {
	if s.v13 || s.gm != nil && s.gm.CBC() {
		return s.hashLen
	}
	return 0
}

// sealedLen is the length of n bytes under the cipher.
func (s *suite) sealedLen(n int) int {
	if s.gm != nil {
		return s.gm.SealedLen(n)
	}
	return n + tagLen
}

// aead makes the cipher of h's key.
func (s *suite) aead(h *half) cipher.AEAD {
	if s.gm != nil {
		return s.gm.AEAD(h.key[:s.keyLen], h.secret[:s.secretLen()])
	}
	key := &h.key
	var a cipher.AEAD
	var err error
	if s.chacha {
		a, err = chacha20poly1305.New(key[:])
	} else {
		var b cipher.Block
		if b, err = aes.NewCipher(key[:s.keyLen]); err == nil {
			a, err = cipher.NewGCM(b)
		}
	}
	if err != nil {
		panic("tls: " + err.Error()) // only for a key of a length no suite has
	}
	return a
}

// setSecret gives h the keys of a traffic secret (RFC 8446 §7.3).
func (s *suite) setSecret(h *half, secret []byte) {
	copy(h.secret[:], secret)
	copy(h.key[:], s.expandLabel(secret, "key", s.keyLen))
	copy(h.iv[:], s.expandLabel(secret, "iv", len(h.iv)))
	h.seq, h.aead = 0, nil
}

// nextKey gives h the keys that follow a key update (RFC 8446 §7.2).
func (s *suite) nextKey(h *half) {
	s.setSecret(h, s.expandLabel(h.secret[:s.hashLen], "traffic upd", s.hashLen))
}

// expandLabel is HKDF-Expand-Label without a context (RFC 8446 §7.1).
func (s *suite) expandLabel(secret []byte, label string, n int) []byte {
	info := make([]byte, 0, 32)
	info = binary.BigEndian.AppendUint16(info, uint16(n))
	info = append(info, byte(len("tls13 ")+len(label)))
	info = append(info, "tls13 "...)
	info = append(info, label...)
	info = append(info, 0)
	b, err := hkdf.Expand(s.hash, secret, string(info), n)
	if err != nil {
		panic("tls: " + err.Error()) // only for a length no hash can give
	}
	return b
}

// setMaster gives both directions the keys of a TLS 1.2 master secret
// (RFC 5246 §6.3). The Finished messages were record 0 of each.
func (s *suite) setMaster(in, out *half, master, clientRandom, serverRandom []byte) {
	ivLen := len(in.iv) - s.explicit // the salt, when the rest travels
	seed := append([]byte("key expansion"), serverRandom...)
	block := s.prf(master, append(seed, clientRandom...), 2*(s.keyLen+ivLen))
	take := func(dst []byte, n int) {
		copy(dst, block[:n])
		block = block[n:]
	}
	take(in.key[:], s.keyLen)
	take(out.key[:], s.keyLen)
	take(in.iv[:], ivLen)
	take(out.iv[:], ivLen)
	in.seq, out.seq = 1, 1
}

// prf is P_hash of RFC 5246 §5.
func (s *suite) prf(secret, seed []byte, n int) []byte {
	mac := hmac.New(s.hash, secret)
	sum := func(parts ...[]byte) []byte {
		mac.Reset()
		for _, p := range parts {
			mac.Write(p)
		}
		return mac.Sum(nil)
	}
	var out []byte
	for a := sum(seed); len(out) < n; a = sum(a) {
		out = append(out, sum(a, seed)...)
	}
	return out[:n]
}
