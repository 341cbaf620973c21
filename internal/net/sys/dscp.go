//go:build linux

package sys

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AppendDSCP returns the control messages in oob with the DSCP of a packet: in the one of its type
// of service, whose ECN bits stay, or in one more. ipv6 says which kind the packet is. oob is
// changed in place.
func AppendDSCP(oob []byte, dscp uint8, ipv6 bool) []byte {
	level, kind := int32(unix.IPPROTO_IP), int32(unix.IP_TOS)
	if ipv6 {
		level, kind = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	for rest := oob; len(rest) >= unix.SizeofCmsghdr; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(rest)))
		size := int(h.Len)
		if size < unix.CmsgLen(1) || size > len(rest) {
			break
		}
		if h.Level == level && h.Type == kind {
			value := rest[unix.CmsgLen(0):size]
			if len(value) >= 4 {
				binary.NativeEndian.PutUint32(value, binary.NativeEndian.Uint32(value)&3|uint32(dscp)<<2)
			} else {
				value[0] = value[0]&3 | dscp<<2
			}
			return oob
		}
		rest = rest[min(unix.CmsgSpace(size-unix.CmsgLen(0)), len(rest)):]
	}
	at := len(oob)
	oob = append(oob, make([]byte, unix.CmsgSpace(4))...)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(oob[at+unix.CmsgLen(0):], uint32(dscp)<<2)
	return oob
}
