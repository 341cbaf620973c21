package limit

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// AppendProxyV1 appends a PROXY protocol header in the form of text (proxy-protocol.txt
// §2.1). Addresses that are not of one family are UNKNOWN.
func AppendProxyV1(b []byte, client, local netip.AddrPort) []byte {
	from, to, family := oneFamily(client, local)
	if family == 0 {
		return append(b, "PROXY UNKNOWN\r\n"...)
	}
	b = append(b, "PROXY TCP"...)
	b = append(b, family, ' ')
	b = from.AppendTo(b)
	b = append(b, ' ')
	b = to.AppendTo(b)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(client.Port()), 10)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(local.Port()), 10)
	return append(b, "\r\n"...)
}

const v2Signature = "\r\n\r\n\x00\r\nQUIT\n"

// AppendProxyV2 appends the binary form (§2.2): PROXY over TCP, or LOCAL without
// addresses.
func AppendProxyV2(b []byte, client, local netip.AddrPort) []byte {
	from, to, family := oneFamily(client, local)
	b = append(b, v2Signature...)
	switch family {
	case '4':
		b = append(b, 0x21, 0x11, 0, 12)
	case '6':
		b = append(b, 0x21, 0x21, 0, 36)
	default:
		return append(b, 0x20, 0x00, 0, 0)
	}
	b = append(b, from.AsSlice()...)
	b = append(b, to.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, client.Port())
	return binary.BigEndian.AppendUint16(b, local.Port())
}

// oneFamily returns both addresses in one family: '4', or '6' where only one of them is
// IPv4; 0 if one is missing.
func oneFamily(client, local netip.AddrPort) (from, to netip.Addr, family byte) {
	from, to = client.Addr().Unmap().WithZone(""), local.Addr().Unmap().WithZone("")
	switch {
	case !from.IsValid() || !to.IsValid():
		return from, to, 0
	case from.Is4() && to.Is4():
		return from, to, '4'
	}
	return netip.AddrFrom16(from.As16()), netip.AddrFrom16(to.As16()), '6'
}
