//go:build linux

package sys

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors that requests end with.
const (
	EBUSY     = unix.EBUSY
	ECANCELED = unix.ECANCELED
	ETIME     = unix.ETIME
)

// Operations, for Supports.
const (
	OpPollAdd     = 6
	OpAccept      = 13
	OpAsyncCancel = 14
	OpConnect     = 16
	OpClose       = 19
	OpFilesUpdate = 20
	OpSend        = 26
	OpRecv        = 27
	OpShutdown    = 34
	OpSocketCmd   = 46
	// OpSendZC came with Linux 6.0 together with the multishot receive, which
	// is not an operation of its own.
	OpSendZC = 47
	// OpReadMultishot came with Linux 6.7.
	OpReadMultishot = 49
	// OpFixedInstall came with Linux 6.8.
	OpFixedInstall = 54
)

// Numbers of include/uapi/linux/io_uring.h.
const (
	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupDisabled     = 1 << 6
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13
	setupNoSQArray    = 1 << 16
	setupBase         = setupCQSize | setupClamp | setupDisabled | setupSubmitAll

	featSingleMmap   = 1 << 0
	featNoDrop       = 1 << 1
	featSubmitStable = 1 << 2
	featExtArg       = 1 << 8
	featCQESkip      = 1 << 11

	offSQRing = 0
	offSQEs   = 0x10000000

	sqCQOverflow = 1 << 1
	sqTaskrun    = 1 << 2

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	cqeBuffer      = 1 << 0
	cqeMore        = 1 << 1
	cqeBufferShift = 16

	sqeFixedFile    = 1 << 0
	sqeBufferSelect = 1 << 5
	sqeSkipSuccess  = 1 << 6

	recvPollFirst = 1 << 0
	recvMultishot = 1 << 1
	pollMultishot = 1 << 0
	fileIndexAny  = 1<<32 - 1

	cancelAll = 1 << 0
	cancelAny = 1 << 2

	socketUnsent     = 1 // SOCKET_URING_OP_SIOCOUTQ
	socketSetOption  = 3 // SOCKET_URING_OP_SETSOCKOPT
	registerSparse   = 1
	probeSupported   = 1
	unregisterFiles  = 3
	registerProbe    = 8
	registerFiles2   = 13
	registerWorkers  = 19
	registerNAPI     = 27
	registerPbufRing = 22

	registerEnableRings = 12
	registerSyncCancel  = 24
)

// A PeerAddress is room for the kernel to write an address into. It must not
// move while a request that names it is in flight.
type PeerAddress struct {
	addr unix.RawSockaddrAny
	size uint32
}

// AddrPort returns the address.
func (p *PeerAddress) AddrPort() netip.AddrPort {
	switch p.addr.Addr.Family {
	case unix.AF_INET:
		s := (*unix.RawSockaddrInet4)(unsafe.Pointer(&p.addr))
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), swap16(s.Port))
	case unix.AF_INET6:
		s := (*unix.RawSockaddrInet6)(unsafe.Pointer(&p.addr))
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), swap16(s.Port))
	}
	return netip.AddrPort{}
}

// PrepAccept takes one connection from a listening descriptor into a free
// direct descriptor, which is the result, and its address into peer.
func (s *SQE) PrepAccept(listener int, peer *PeerAddress) {
	peer.size = unix.SizeofSockaddrAny
	s.Opcode, s.FD, s.FileIndex = OpAccept, int32(listener), fileIndexAny
	s.Addr = uint64(uintptr(unsafe.Pointer(&peer.addr)))
	s.Off = uint64(uintptr(unsafe.Pointer(&peer.size)))
}

// PrepInstall puts a copy of each descriptor in fds into a free direct descriptor, whose
// number replaces it. fds must not move until the result comes, which is how many were.
func (s *SQE) PrepInstall(fds []int32) {
	s.Opcode, s.FD, s.Len, s.Off = OpFilesUpdate, -1, uint32(len(fds)), fileIndexAny
	s.Addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(fds))))
}

// PrepLend makes a descriptor of the process, close-on-exec, for a direct one; it is the
// result (Linux 6.8).
func (s *SQE) PrepLend(file uint32) {
	s.Opcode, s.Flags, s.FD = OpFixedInstall, sqeFixedFile, int32(file)
}

// PrepConnect connects a direct descriptor.
func (s *SQE) PrepConnect(file uint32, to *Address) {
	s.Opcode, s.Flags, s.FD = OpConnect, sqeFixedFile, int32(file)
	s.Addr, s.Off = uint64(uintptr(unsafe.Pointer(&to.raw))), uint64(to.size)
}

// PrepRecv receives from a direct descriptor into buffers of a group, again and
// again, until a result comes without More.
func (s *SQE) PrepRecv(file uint32, b *Buffers) {
	s.Opcode, s.Flags, s.FD = OpRecv, sqeFixedFile|sqeBufferSelect, int32(file)
	s.IoPrio, s.BufGroup = recvMultishot, b.group
}

// PrepRead is PrepRecv by OpReadMultishot. While it waits it takes 256 bytes less
// of the kernel's memory, which keeps no message header for it.
func (s *SQE) PrepRead(file uint32, b *Buffers) {
	s.Opcode, s.Flags, s.FD = OpReadMultishot, sqeFixedFile|sqeBufferSelect, int32(file)
	s.Off, s.BufGroup = 1<<64-1, b.group // no offset: it is a stream
}

// PrepRecvOnce is PrepRecv for one result, of one buffer at most.
func (s *SQE) PrepRecvOnce(file uint32, b *Buffers) {
	s.Opcode, s.Flags, s.FD = OpRecv, sqeFixedFile|sqeBufferSelect, int32(file)
	s.BufGroup = b.group
}

// ExpectNothing has a receive look whether there is something before it tries: for less, when there mostly is not (Linux 5.19).
func (s *SQE) ExpectNothing() { s.IoPrio |= recvPollFirst }

// PrepSend sends as much of b as there is room for, after waiting for some. b
// must stay as it is until the result comes.
func (s *SQE) PrepSend(file uint32, b []byte) {
	s.Opcode, s.Flags, s.FD = OpSend, sqeFixedFile, int32(file)
	s.Addr, s.Len = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint32(len(b))
	s.OpFlags = unix.MSG_NOSIGNAL
}

// PrepHangup has a result, with poll bits, each time something happens to a
// direct descriptor other than input and room: EpollErr when it broke, EpollHup
// when both sides have closed, EpollRdHup when the peer has.
func (s *SQE) PrepHangup(file uint32) {
	s.Opcode, s.Flags, s.FD = OpPollAdd, sqeFixedFile, int32(file)
	s.Len, s.OpFlags = pollMultishot, pollBits(EpollErr|EpollHup)
}

// PrepWatch has a result each time fd becomes readable.
func (s *SQE) PrepWatch(fd int) {
	s.Opcode, s.FD, s.Len, s.OpFlags = OpPollAdd, int32(fd), pollMultishot, pollBits(EpollIn)
}

// pollBits puts poll bits into the order that the kernel reads: its halves are
// swapped on big-endian machines.
func pollBits(bits uint32) uint32 {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return bits<<16 | bits>>16
	}
	return bits
}

// PrepCancel cancels the request that has the given user data. A result comes
// only when there is none to cancel.
func (s *SQE) PrepCancel(userData uint64) {
	s.Opcode, s.Flags, s.FD, s.Addr = OpAsyncCancel, sqeSkipSuccess, -1, userData
}

// A Side is what of a connection PrepShutdown ends.
type Side uint32

// The sides.
const (
	SendingSide Side = unix.SHUT_WR
	BothSides   Side = unix.SHUT_RDWR
)

// PrepShutdown ends a side of a direct descriptor.
func (s *SQE) PrepShutdown(file uint32, side Side) {
	s.Opcode, s.Flags, s.FD, s.Len = OpShutdown, sqeFixedFile, int32(file), uint32(side)
}

// PrepClose closes a direct descriptor. A result comes only when that failed.
func (s *SQE) PrepClose(file uint32) {
	s.Opcode, s.Flags, s.FileIndex = OpClose, sqeSkipSuccess, file+1
}

// PrepUnsent queries how many bytes wait unsent or unacknowledged in a direct
// descriptor (Linux 6.7).
func (s *SQE) PrepUnsent(file uint32) {
	s.Opcode, s.Flags, s.FD, s.Off = OpSocketCmd, sqeFixedFile, int32(file), socketUnsent
}

// lingerZero is the value of SO_LINGER that makes a close reset.
var lingerZero = unix.Linger{Onoff: 1}

// PrepReset makes the close of a direct descriptor reset the connection (Linux
// 6.7; before that the close is an ordinary one).
func (s *SQE) PrepReset(file uint32) {
	s.Opcode, s.Flags, s.FD, s.Off = OpSocketCmd, sqeFixedFile, int32(file), socketSetOption
	s.Addr = optionName(unix.SOL_SOCKET, unix.SO_LINGER)
	s.Addr3, s.FileIndex = uint64(uintptr(unsafe.Pointer(&lingerZero))), uint32(unsafe.Sizeof(lingerZero))
}

// PrepSetOption sets an option that is a number on a direct descriptor (Linux 6.7). value, the
// setting's, must not move until the result comes.
func (s *SQE) PrepSetOption(file uint32, option SocketOption, value *int32) {
	o := socketOptions[option]
	s.Opcode, s.Flags, s.FD, s.Off = OpSocketCmd, sqeFixedFile, int32(file), socketSetOption
	s.Addr = optionName(uint32(o.level), uint32(o.opt))
	s.Addr3, s.FileIndex = uint64(uintptr(unsafe.Pointer(value))), uint32(unsafe.Sizeof(*value))
}

// optionName lays two 32-bit fields over the 64-bit one they share in the SQE.
func optionName(level, name uint32) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint32(b[:4], level)
	binary.NativeEndian.PutUint32(b[4:], name)
	return binary.NativeEndian.Uint64(b[:])
}
