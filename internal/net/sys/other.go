//go:build !linux

package sys

import (
	"errors"
	"net/netip"
	"syscall"
)

// On systems other than Linux a loop carries connections without sockets alone
// (eventloop.Carried), so that what needs no more of a loop works there, too. Whatever opens
// a socket or sets something of one fails.

// EAGAIN reports that a call would block.
const EAGAIN = syscall.EAGAIN

// An Address is what a socket connects to.
type Address struct{}

// TCPAddress fails.
func (*Address) TCPAddress(netip.AddrPort) error { return errors.ErrUnsupported }

// UnixAddress fails.
func (*Address) UnixAddress(string) error { return errors.ErrUnsupported }

// Unix returns false.
func (*Address) Unix() bool { return false }

// Listen fails.
func Listen(netip.AddrPort, ListenOptions) (int, netip.AddrPort, error) {
	return -1, netip.AddrPort{}, errors.ErrUnsupported
}

// ListenerAddr fails.
func ListenerAddr(int) (netip.AddrPort, error) { return netip.AddrPort{}, errors.ErrUnsupported }

// Adopt fails.
func Adopt(int, ListenOptions) error { return errors.ErrUnsupported }

// OpenStream fails.
func OpenStream(*Address, netip.Addr, []Setting) (int, error) { return -1, errors.ErrUnsupported }

// AppendDSCP returns oob as it is.
func AppendDSCP(oob []byte, _ uint8, _ bool) []byte { return oob }

// Dup fails.
func Dup(int) (int, error) { return -1, errors.ErrUnsupported }

// SetNonblock fails.
func SetNonblock(int) error { return errors.ErrUnsupported }

// ReserveDescriptors has nothing to reserve.
func ReserveDescriptors(int) {}

// Close does nothing: there is nothing to be closed.
func Close(int) {}

// ReadTCPInfo fails.
func ReadTCPInfo(int) (TCPInfo, syscall.Errno) { return TCPInfo{}, syscall.ENOTSUP }

// MaxFiles returns more than there will be connections: they take no descriptors.
func MaxFiles() uint64 { return 1 << 20 }

// String is empty.
func (SocketOption) String() string { return "" }

// Apply fails.
func (s Setting) Apply(int) error { return &SettingError{s, errors.ErrUnsupported} }

// Read fails.
func (s Setting) Read(int) (Setting, error) { return s, errors.ErrUnsupported }

// Error is the cause's.
func (e *SettingError) Error() string { return e.Err.Error() }

// Sysctl returns "".
func Sysctl(string) string { return "" }

// SteerByCPU fails.
func SteerByCPU(int) error { return errors.ErrUnsupported }

// CPUs fails.
func CPUs() ([]int, error) { return nil, errors.ErrUnsupported }

// BindProcess fails.
func BindProcess([]int) error { return errors.ErrUnsupported }

// StartOn calls start: processes are not bound.
func StartOn(_ []int, start func() error) error { return start() }

// BindThread fails.
func BindThread(int) error { return errors.ErrUnsupported }
