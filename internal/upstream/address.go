package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// An Address is where a peer is reached.
type Address struct {
	IP   netip.AddrPort // valid unless Unix is set
	Unix string         // path of a Unix socket; empty: TCP
}

// IsUnix reports whether a is a Unix socket.
func (a Address) IsUnix() bool { return a.Unix != "" }

// String is "ip:port" or "unix:/path".
func (a Address) String() string {
	if a.Unix != "" {
		return "unix:" + a.Unix
	}
	return a.IP.String()
}

// A target is a configured address: a host that must be resolved, or an Address.
type target struct {
	host string // empty: address holds
	port uint16
	addr Address
}

// maxUnixPath is what sun_path holds with its terminating zero.
const maxUnixPath = 107

func parseTarget(s string) (target, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		switch {
		case !strings.HasPrefix(path, "/"):
			return target{}, fmt.Errorf("address %q: the path of a Unix socket is absolute, like unix:/run/app.sock", s)
		case len(path) > maxUnixPath:
			return target{}, fmt.Errorf("address %q: the path of a Unix socket has at most %d bytes", s, maxUnixPath)
		case strings.ContainsRune(path, 0):
			return target{}, fmt.Errorf("address %q: a path has no zero byte", s)
		}
		return target{addr: Address{Unix: path}}, nil
	}
	if strings.Contains(s, "://") {
		return target{}, fmt.Errorf("address %q: write host:port, without a scheme", s)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return target{}, fmt.Errorf("address %q: write host:port, [ip6]:port or unix:/path", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return target{}, fmt.Errorf("address %q: the port is a number from 1 to 65535", s)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return target{addr: Address{IP: netip.AddrPortFrom(ip.Unmap(), uint16(n))}}, nil
	}
	if err := checkHost(host); err != nil {
		return target{}, fmt.Errorf("address %q: %w", s, err)
	}
	return target{host: strings.ToLower(strings.TrimSuffix(host, ".")), port: uint16(n)}, nil
}

// checkHost holds host to what a resolver can be asked for (RFC 1123 §2.1, and
// the underscore that container networks use). Four numbers with dots that are no
// address, like 10.0.0.256, are a typing error and no name.
func checkHost(host string) error {
	host = strings.TrimSuffix(host, ".")
	if host == "" {
		return errors.New("no host before the port")
	}
	if len(host) > 253 {
		return errors.New("a host name has at most 253 bytes")
	}
	digits := true
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("%q is no host name", host)
		}
		for _, c := range []byte(label) {
			switch {
			case '0' <= c && c <= '9':
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '-', c == '_':
				digits = false
			default:
				return fmt.Errorf("%q is no host name", host)
			}
		}
	}
	if digits {
		return fmt.Errorf("%q is no IP address", host)
	}
	return nil
}
