package sys

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAppendDSCPKeepsTheOtherMessages(t *testing.T) {
	f := func(network string, ecn []byte, ipv6 bool) {
		t.Helper()
		in, err := net.ListenUDP(network, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		raw, err := in.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			if ipv6 {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
			}
		}); err != nil {
			t.Fatal(err)
		}
		ip := net.IPv4(127, 0, 0, 1)
		if ipv6 {
			ip = net.IPv6loopback
		}
		out, err := net.ListenUDP(network, &net.UDPAddr{IP: ip})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		oob := AppendDSCP(ecn, 46, ipv6)
		if _, _, err := out.WriteMsgUDP([]byte("x"), oob, &net.UDPAddr{IP: ip, Port: in.LocalAddr().(*net.UDPAddr).Port}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 128)
		_, n, _, _, err := in.ReadMsgUDP(make([]byte, 8), got)
		if err != nil {
			t.Fatal(err)
		}
		_, value, _, err := unix.ParseOneSocketControlMessage(got[:n])
		want := byte(46 << 2)
		if len(ecn) > 0 {
			want |= 1
		}
		if err != nil || len(value) == 0 || value[0] != want { // little-endian, or one byte
			t.Errorf("%s: the packet came with %v (%v), want %d", network, value, err, want)
		}
	}
	one := func(ipv6 bool, size int) []byte {
		b := AppendDSCP(nil, 0, ipv6)
		b[unix.CmsgLen(0)] = 1 // the bit of congestion notification
		if size == 1 {         // as quic-go has it for IPv4
			b[0] = byte(unix.CmsgLen(1))
		}
		return b
	}
	f("udp4", nil, false)
	f("udp4", one(false, 4), false)
	f("udp4", one(false, 1), false)
	f("udp6", nil, true)
	f("udp6", one(true, 4), true)
}
