package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/front/redact"
)

// An Address is where a peer is reached.
type Address struct {
	IP   netip.AddrPort // valid unless Unix is set
	Unix string         // path of a Unix socket; empty: TCP
	// TLS reports that it is spoken to over TLS, for the name Server.
	TLS    bool
	Server string
}

// IsUnix reports whether a is a Unix socket.
func (a Address) IsUnix() bool { return a.Unix != "" }

// String is "ip:port" or "unix:/path"; over TLS "https://ip:port" or
// "tls+unix:/path", and the name that is verified unless that is the address.
func (a Address) String() string {
	text := "unix:" + a.Unix
	switch {
	case a.Unix == "" && !a.TLS:
		return a.IP.String()
	case a.Unix == "":
		text = "https://" + a.IP.String()
	case a.TLS:
		text = "tls+" + text
	}
	if a.Server != "" && a.Server != a.IP.Addr().String() {
		text += " (" + a.Server + ")"
	}
	return text
}

// host is what a request's Host says where no name is known.
func (a Address) host() string {
	switch {
	case a.IsUnix():
		return "localhost"
	case a.TLS && a.IP.Port() == 443:
		return strings.TrimSuffix(a.IP.String(), ":443")
	}
	return a.IP.String()
}

// A target is a configured address: a host that must be resolved, or an Address.
type target struct {
	host string // empty: address holds
	port uint16
	addr Address
	tls  bool
	// name is what a Host field says.
	name string
}

// maxUnixPath is what sun_path holds with its terminating zero.
const maxUnixPath = 107

func parseTarget(s string) (target, error) {
	if at, ok := strings.CutPrefix(s, "https://"); ok {
		return parseHTTPS(s, at)
	}
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		switch {
		case !strings.HasPrefix(path, "/"):
			return target{}, fmt.Errorf("address %q: the path of a Unix socket is absolute, like unix:/run/app.sock", s)
		case len(path) > maxUnixPath:
			return target{}, fmt.Errorf("address %q: the path of a Unix socket has at most %d bytes", s, maxUnixPath)
		case strings.ContainsRune(path, 0):
			return target{}, fmt.Errorf("address %q: a path has no zero byte", s)
		}
		return target{addr: Address{Unix: path}, name: s}, nil
	}
	if strings.Contains(s, "://") {
		return target{}, fmt.Errorf("address %q: write host:port without a scheme, or https:// before it", redact.Text(s))
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
		return target{addr: Address{IP: netip.AddrPortFrom(ip.Unmap(), uint16(n))}, name: s}, nil
	}
	if err := checkHost(host); err != nil {
		return target{}, fmt.Errorf("address %q: %w", s, err)
	}
	return target{host: strings.ToLower(strings.TrimSuffix(host, ".")), port: uint16(n), name: s}, nil
}

// parseHTTPS reads what follows https:// in s: a host, and a port that is 443
// when it is left out.
func parseHTTPS(s, at string) (target, error) {
	full := at
	if strings.LastIndexByte(at, ':') <= strings.LastIndexByte(at, ']') {
		full += ":443"
	}
	if strings.ContainsAny(at, "/?#@") || strings.HasPrefix(at, "unix:") {
		return target{}, fmt.Errorf("address %q: write https://host or https://host:port, and nothing behind", s)
	}
	t, err := parseTarget(full)
	if err != nil {
		return target{}, fmt.Errorf("address %q: write https://host or https://host:port: %w", s, err)
	}
	t.tls = true
	// The usual port is left out (RFC 9110 §4.2.2, §7.2).
	t.name = strings.TrimSuffix(full, ":443")
	return t, nil
}

// at is where t is reached, at ip if it has a host.
func (t *target) at(ip netip.Addr, cfg *TLSConfig) Address {
	a := t.addr
	if t.host != "" {
		a.IP = netip.AddrPortFrom(ip, t.port)
	}
	if !t.tls && !cfg.Enabled {
		return a
	}
	a.TLS = true
	switch {
	case cfg.ServerName != "" && cfg.ServerName != fromTarget:
		a.Server = cfg.ServerName
	case t.host != "":
		a.Server = t.host
	case a.Unix == "":
		a.Server = a.IP.Addr().WithZone("").String()
	}
	return a
}

// checkHost holds host to what a resolver can be requested (RFC 1123 §2.1, and
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
			return fmt.Errorf("%q is not a host name", host)
		}
		for _, c := range []byte(label) {
			switch {
			case '0' <= c && c <= '9':
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '-', c == '_':
				digits = false
			default:
				return fmt.Errorf("%q is not a host name", host)
			}
		}
	}
	if digits {
		return fmt.Errorf("%q is not an IP address", host)
	}
	return nil
}
