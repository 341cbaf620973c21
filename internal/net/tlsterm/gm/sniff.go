package gm

import "slices"

// Sniff returns which handshake a whole ClientHello message is for: VersionTLCP,
// VersionTLS13, or 0 for TLS that is not this package's. A hello of TLS 1.3 is this
// package's if the client can do all of RFC 8998 and prefers an SM4 suite to the other
// suites of TLS 1.3: the client's order decides.
func Sniff(hello []byte) uint16 {
	var m clientHello
	if len(hello) < 6 || hello[0] != msgClientHello {
		return 0
	}
	if hello[4] == VersionTLCP>>8 && hello[5] == VersionTLCP&0xff {
		return VersionTLCP
	}
	if !m.parse(hello) || !slices.Contains(m.versions, VersionTLS13) || !slices.Contains(m.groups, groupSM2) ||
		!slices.Contains(m.schemes, schemeSM2SM3) {
		return 0
	}
	for _, id := range m.suites {
		switch {
		case SuiteOf(VersionTLS13, id) != nil:
			return VersionTLS13
		case id>>8 == 0x13: // the suites of RFC 8446
			return 0
		}
	}
	return 0
}
