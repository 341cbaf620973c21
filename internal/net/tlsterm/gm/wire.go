package gm

import (
	"slices"

	"golang.org/x/crypto/cryptobyte"
)

// Messages (RFC 8446 §4, GB/T 38636 §6.4.5).
const (
	msgClientHello         = 1
	msgServerHello         = 2
	msgNewSessionTicket    = 4
	msgEncryptedExtensions = 8
	msgCertificate         = 11
	msgServerKeyExchange   = 12
	msgCertificateRequest  = 13
	msgServerHelloDone     = 14
	msgCertificateVerify   = 15
	msgClientKeyExchange   = 16
	msgFinished            = 20
	msgMessageHash         = 254
)

// Extensions.
const (
	extServerName          = 0
	extStatusRequest       = 5
	extSupportedGroups     = 10
	extSignatureAlgorithms = 13
	extALPN                = 16
	extSessionTicket       = 35
	extPreSharedKey        = 41
	extSupportedVersions   = 43
	extPSKModes            = 45
	extKeyShare            = 51
)

const (
	randomLen    = 32
	maxSessionID = 32
	pskDHE       = 1 // psk_dhe_ke
)

// message builds one handshake message.
func message(typ uint8, body func(*cryptobyte.Builder)) []byte {
	var b cryptobyte.Builder
	b.AddUint8(typ)
	b.AddUint24LengthPrefixed(body)
	return b.BytesOrPanic() // the bodies are bounded
}

// bodyOf returns what follows the head of a message.
func bodyOf(msg []byte) cryptobyte.String { return cryptobyte.String(msg[4:]) }

type keyShare struct {
	group uint16
	key   []byte
}

// A clientHello is a ClientHello of TLS 1.3 or TLCP.
type clientHello struct {
	raw       []byte
	version   uint16
	random    []byte
	sessionID []byte
	suites    []uint16
	noNull    bool // the null compression is missing

	serverName string
	groups     []uint16
	schemes    []uint16
	protocols  []string
	versions   []uint16
	shares     []keyShare
	modes      []uint8
	ticket     []byte // of TLCP, as in RFC 5077
	hasTicket  bool
	hasStatus  bool
	hasShare   bool
	psk        []pskIdentity
	binders    [][]byte
	bindersLen int // bytes at the end of raw that the binders take
}

type pskIdentity struct {
	label []byte
	age   uint32
}

// parse reads a whole message. It reports whether it is one.
func (m *clientHello) parse(msg []byte) bool {
	*m = clientHello{raw: msg}
	if len(msg) < 4 || msg[0] != msgClientHello {
		return false
	}
	s := bodyOf(msg)
	var suites, compression cryptobyte.String
	if !s.ReadUint16(&m.version) || !s.ReadBytes(&m.random, randomLen) ||
		!readBytes8(&s, &m.sessionID) || len(m.sessionID) > maxSessionID ||
		!s.ReadUint16LengthPrefixed(&suites) || suites.Empty() || len(suites)%2 != 0 ||
		!s.ReadUint8LengthPrefixed(&compression) || compression.Empty() {
		return false
	}
	m.suites = readUint16s(suites)
	m.noNull = !slices.Contains([]byte(compression), 0)
	if s.Empty() { // TLCP knows hellos without extensions
		return true
	}
	return readExtensions(&s, func(typ uint16, ext cryptobyte.String) bool {
		return len(m.psk) == 0 && m.extension(typ, ext) // RFC 8446 §4.2.11: pre_shared_key is the last one
	})
}

// maxExtensions bounds what is compared for duplicates; clients send about 20.
const maxExtensions = 128

func (m *clientHello) extension(typ uint16, s cryptobyte.String) bool {
	switch typ {
	case extServerName:
		return m.readServerName(s)
	case extSupportedGroups:
		return readList16(s, &m.groups)
	case extSignatureAlgorithms:
		return readList16(s, &m.schemes)
	case extALPN:
		return readProtocols(s, &m.protocols)
	case extSupportedVersions:
		var list cryptobyte.String
		if !s.ReadUint8LengthPrefixed(&list) || !s.Empty() || list.Empty() || len(list)%2 != 0 {
			return false
		}
		m.versions = readUint16s(list)
	case extPSKModes:
		return readBytes8(&s, &m.modes) && s.Empty() && len(m.modes) > 0
	case extSessionTicket:
		m.hasTicket, m.ticket = true, s
	case extStatusRequest:
		m.hasStatus = true
	case extKeyShare:
		return m.readShares(s)
	case extPreSharedKey:
		return m.readPSK(s)
	}
	return true
}

func (m *clientHello) readServerName(s cryptobyte.String) bool {
	var list cryptobyte.String
	if !s.ReadUint16LengthPrefixed(&list) || !s.Empty() || list.Empty() {
		return false
	}
	for !list.Empty() {
		var typ uint8
		var name cryptobyte.String
		if !list.ReadUint8(&typ) || !list.ReadUint16LengthPrefixed(&name) || name.Empty() {
			return false
		}
		if typ != 0 {
			continue
		}
		if m.serverName != "" || len(name) > 255 {
			return false
		}
		m.serverName = string(name)
	}
	return true
}

func (m *clientHello) readShares(s cryptobyte.String) bool {
	var list cryptobyte.String
	if !s.ReadUint16LengthPrefixed(&list) || !s.Empty() {
		return false
	}
	m.hasShare = true
	for !list.Empty() {
		var share keyShare
		if !list.ReadUint16(&share.group) || !readBytes16(&list, &share.key) || len(share.key) == 0 || len(m.shares) >= maxExtensions {
			return false
		}
		m.shares = append(m.shares, share)
	}
	return true
}

// maxPSK bounds the identities that are looked at; a client of ours sends one.
const maxPSK = 16

func (m *clientHello) readPSK(s cryptobyte.String) bool {
	var ids, binders cryptobyte.String
	if !s.ReadUint16LengthPrefixed(&ids) || ids.Empty() {
		return false
	}
	for !ids.Empty() {
		var id pskIdentity
		if !readBytes16(&ids, &id.label) || !ids.ReadUint32(&id.age) || len(id.label) == 0 || len(m.psk) >= maxPSK {
			return false
		}
		m.psk = append(m.psk, id)
	}
	m.bindersLen = len(s)
	if !s.ReadUint16LengthPrefixed(&binders) || !s.Empty() || binders.Empty() {
		return false
	}
	for !binders.Empty() {
		var b []byte
		if !readBytes8(&binders, &b) || len(b) < HashLen {
			return false
		}
		m.binders = append(m.binders, b)
	}
	return len(m.binders) == len(m.psk)
}

// marshal builds the message. With psk the binders are zeros, and bindersLen is set.
func (m *clientHello) marshal() []byte {
	m.raw = message(msgClientHello, func(b *cryptobyte.Builder) {
		b.AddUint16(m.version)
		b.AddBytes(m.random)
		addBytes8(b, m.sessionID)
		addUint16s(b, m.suites)
		addBytes8(b, []byte{0})
		b.AddUint16LengthPrefixed(m.extensions)
	})
	return m.raw
}

func (m *clientHello) extensions(b *cryptobyte.Builder) {
	if m.serverName != "" {
		addExt(b, extServerName, func(b *cryptobyte.Builder) {
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
				b.AddUint8(0)
				addBytes16(b, []byte(m.serverName))
			})
		})
	}
	if len(m.groups) > 0 {
		addExt(b, extSupportedGroups, func(b *cryptobyte.Builder) { addUint16s(b, m.groups) })
	}
	if len(m.schemes) > 0 {
		addExt(b, extSignatureAlgorithms, func(b *cryptobyte.Builder) { addUint16s(b, m.schemes) })
	}
	if len(m.protocols) > 0 {
		addExt(b, extALPN, func(b *cryptobyte.Builder) { addProtocols(b, m.protocols) })
	}
	if m.hasTicket {
		addExt(b, extSessionTicket, func(b *cryptobyte.Builder) { b.AddBytes(m.ticket) })
	}
	if len(m.versions) > 0 {
		addExt(b, extSupportedVersions, func(b *cryptobyte.Builder) {
			b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) {
				for _, v := range m.versions {
					b.AddUint16(v)
				}
			})
		})
	}
	if len(m.modes) > 0 {
		addExt(b, extPSKModes, func(b *cryptobyte.Builder) { addBytes8(b, m.modes) })
	}
	if len(m.shares) > 0 {
		addExt(b, extKeyShare, func(b *cryptobyte.Builder) {
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
				for _, s := range m.shares {
					b.AddUint16(s.group)
					addBytes16(b, s.key)
				}
			})
		})
	}
	if len(m.psk) > 0 { // the last one
		addExt(b, extPreSharedKey, m.addPSK)
	}
}

func (m *clientHello) addPSK(b *cryptobyte.Builder) {
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		for _, id := range m.psk {
			addBytes16(b, id.label)
			b.AddUint32(id.age)
		}
	})
	m.bindersLen = 2 + len(m.psk)*(1+HashLen)
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		for range m.psk {
			addBytes8(b, make([]byte, HashLen))
		}
	})
}

// setBinder writes the binder of the only identity over its zeros.
func (m *clientHello) setBinder(binder []byte) { copy(m.raw[len(m.raw)-HashLen:], binder) }

// A serverHello is a ServerHello, or a HelloRetryRequest.
type serverHello struct {
	version   uint16
	random    []byte
	sessionID []byte
	suite     uint16
	selected  uint16 // of supported_versions
	share     keyShare
	retry     bool   // key_share names only a group
	psk       bool   // an identity was selected
	pskIndex  uint16 //
	protocol  string // of ALPN, in TLCP
	ticket    bool   // a ticket will follow, in TLCP
}

func (m *serverHello) parse(msg []byte) bool {
	*m = serverHello{}
	if len(msg) < 4 || msg[0] != msgServerHello {
		return false
	}
	s := bodyOf(msg)
	var compression uint8
	if !s.ReadUint16(&m.version) || !s.ReadBytes(&m.random, randomLen) || !readBytes8(&s, &m.sessionID) ||
		len(m.sessionID) > maxSessionID || !s.ReadUint16(&m.suite) || !s.ReadUint8(&compression) || compression != 0 {
		return false
	}
	if s.Empty() {
		return true
	}
	m.retry = string(m.random) == retryRandom
	return readExtensions(&s, func(typ uint16, s cryptobyte.String) bool {
		switch typ {
		case extSupportedVersions:
			return s.ReadUint16(&m.selected) && s.Empty()
		case extKeyShare:
			if !s.ReadUint16(&m.share.group) {
				return false
			}
			return (m.retry || readBytes16(&s, &m.share.key)) && s.Empty()
		case extPreSharedKey:
			m.psk = true
			return s.ReadUint16(&m.pskIndex) && s.Empty()
		case extALPN:
			return readProtocol(s, &m.protocol)
		case extSessionTicket:
			m.ticket = true
			return s.Empty()
		case extServerName:
			return s.Empty()
		}
		return true
	})
}

func (m *serverHello) marshal() []byte {
	return message(msgServerHello, func(b *cryptobyte.Builder) {
		b.AddUint16(m.version)
		b.AddBytes(m.random)
		addBytes8(b, m.sessionID)
		b.AddUint16(m.suite)
		b.AddUint8(0)
		if m.selected == 0 && m.protocol == "" && !m.ticket {
			return // TLCP: none
		}
		b.AddUint16LengthPrefixed(m.extensions)
	})
}

func (m *serverHello) extensions(b *cryptobyte.Builder) {
	if m.selected != 0 {
		addExt(b, extSupportedVersions, func(b *cryptobyte.Builder) { b.AddUint16(m.selected) })
		addExt(b, extKeyShare, func(b *cryptobyte.Builder) {
			b.AddUint16(m.share.group)
			if !m.retry {
				addBytes16(b, m.share.key)
			}
		})
	}
	if m.psk {
		addExt(b, extPreSharedKey, func(b *cryptobyte.Builder) { b.AddUint16(m.pskIndex) })
	}
	if m.protocol != "" {
		addExt(b, extALPN, func(b *cryptobyte.Builder) { addProtocols(b, []string{m.protocol}) })
	}
	if m.ticket {
		addExt(b, extSessionTicket, func(*cryptobyte.Builder) {})
	}
}

// retryRandom is the random of a HelloRetryRequest (RFC 8446 §4.1.3).
const retryRandom = "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c"

// readExtensions reads a block of extensions that ends s; none may come twice.
func readExtensions(s *cryptobyte.String, each func(uint16, cryptobyte.String) bool) bool {
	var exts cryptobyte.String
	if !s.ReadUint16LengthPrefixed(&exts) || !s.Empty() {
		return false
	}
	var seen []uint16
	for !exts.Empty() {
		var typ uint16
		var ext cryptobyte.String
		if !exts.ReadUint16(&typ) || !exts.ReadUint16LengthPrefixed(&ext) || slices.Contains(seen, typ) || len(seen) >= maxExtensions {
			return false
		}
		seen = append(seen, typ)
		if !each(typ, ext) {
			return false
		}
	}
	return true
}

func addExt(b *cryptobyte.Builder, typ uint16, body func(*cryptobyte.Builder)) {
	b.AddUint16(typ)
	b.AddUint16LengthPrefixed(body)
}

func readProtocols(s cryptobyte.String, out *[]string) bool {
	var list cryptobyte.String
	if !s.ReadUint16LengthPrefixed(&list) || !s.Empty() || list.Empty() {
		return false
	}
	for !list.Empty() {
		var name []byte
		if !readBytes8(&list, &name) || len(name) == 0 {
			return false
		}
		*out = append(*out, string(name))
	}
	return true
}

// readProtocol reads the one protocol that a server selects.
func readProtocol(s cryptobyte.String, out *string) bool {
	var list []string
	if !readProtocols(s, &list) || len(list) != 1 {
		return false
	}
	*out = list[0]
	return true
}

func addProtocols(b *cryptobyte.Builder, names []string) {
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		for _, n := range names {
			addBytes8(b, []byte(n))
		}
	})
}

func readList16(s cryptobyte.String, out *[]uint16) bool {
	var list cryptobyte.String
	if !s.ReadUint16LengthPrefixed(&list) || !s.Empty() || list.Empty() || len(list)%2 != 0 {
		return false
	}
	*out = readUint16s(list)
	return true
}

func readUint16s(s cryptobyte.String) []uint16 {
	list := make([]uint16, 0, len(s)/2)
	for v := uint16(0); s.ReadUint16(&v); {
		list = append(list, v)
	}
	return list
}

func readBytes8(s *cryptobyte.String, out *[]byte) bool {
	return s.ReadUint8LengthPrefixed((*cryptobyte.String)(out))
}

func readBytes16(s *cryptobyte.String, out *[]byte) bool {
	return s.ReadUint16LengthPrefixed((*cryptobyte.String)(out))
}

func readBytes24(s *cryptobyte.String, out *[]byte) bool {
	return s.ReadUint24LengthPrefixed((*cryptobyte.String)(out))
}

func addBytes8(b *cryptobyte.Builder, v []byte) {
	b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(v) })
}

func addBytes16(b *cryptobyte.Builder, v []byte) {
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(v) })
}

func addBytes24(b *cryptobyte.Builder, v []byte) {
	b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(v) })
}

func addUint16s(b *cryptobyte.Builder, list []uint16) {
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		for _, v := range list {
			b.AddUint16(v)
		}
	})
}
