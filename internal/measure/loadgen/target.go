package loadgen

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// A target is a server's address and what is asked of it.
type target struct {
	address string // host:port as written
	host    string // for the Host field
	name    string // for TLS
	addr    netip.AddrPort
	tls     *tls.Config      // nil: plain
	gm      *gm.ClientConfig // instead of tls for the handshake; nil: no national cryptography
	// path is the request target, with "{n}" and "{channel}" to be replaced.
	path string
	// socket: the scheme is ws or wss.
	socket bool
}

// useGM makes t be dialled with national cryptography; kind is Spec.GM.
func (t *target) useGM(kind string) {
	if kind == "" || t.tls == nil {
		return
	}
	t.gm = &gm.ClientConfig{
		Version: gm.VersionTLCP, ServerName: t.name, InsecureSkipVerify: t.tls.InsecureSkipVerify, Protocols: []string{"http/1.1"},
	}
	if kind == "tls13" {
		t.gm.Version = gm.VersionTLS13
	}
}

// newTarget reads a URL and looks its host up.
func newTarget(ctx context.Context, text string, insecure bool) (*target, error) {
	// Braces are not for the URL parser, which would encode them.
	const n, ch = "--n--", "--channel--"
	u, err := url.Parse(strings.NewReplacer("{n}", n, "{channel}", ch, "%7Bn%7D", n, "%7Bchannel%7D", ch).Replace(text))
	if err != nil {
		return nil, err
	}
	t := &target{host: u.Host, name: u.Hostname(), socket: strings.HasPrefix(u.Scheme, "ws")}
	port := u.Port()
	secure := u.Scheme == "https" || u.Scheme == "wss"
	if port == "" {
		port = "80"
		if secure {
			port = "443"
		}
	}
	if secure {
		t.tls = &tls.Config{ServerName: t.name, InsecureSkipVerify: insecure, MinVersion: tls.VersionTLS12}
	}
	t.address = net.JoinHostPort(t.name, port)
	t.path = strings.NewReplacer(n, "{n}", ch, "{channel}").Replace(u.RequestURI())
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", port, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", t.name)
	if err != nil {
		return nil, hinted(err, "look whether the host's name is right")
	}
	t.addr = netip.AddrPortFrom(preferred(ips).Unmap(), uint16(number))
	return t, nil
}

// preferred is the first IPv4 address, which a name like localhost has for every
// server, or else the first.
func preferred(ips []netip.Addr) netip.Addr {
	for _, ip := range ips {
		if ip.Unmap().Is4() {
			return ip
		}
	}
	return ips[0]
}

// fill replaces the numbers in a template.
func fill(template string, n int, channel string) string {
	if !strings.Contains(template, "{") {
		return template
	}
	return strings.NewReplacer("{n}", strconv.Itoa(n), "{channel}", channel).Replace(template)
}

// appendHead appends a request's head up to what the caller adds: fields of
// headers that are named without are left out.
func (g *traffic) appendHead(dst []byte, method, path, host string, without ...string) []byte {
	dst = http1.AppendRequestLine(dst, method, path)
	hasHost := false
	fields := make([]byte, 0, 256)
next:
	for _, h := range g.spec.Headers {
		name, value, _ := strings.Cut(h, ":")
		for _, w := range without {
			if http1.EqualFold([]byte(name), w) {
				continue next
			}
		}
		hasHost = hasHost || http1.EqualFold([]byte(name), "host")
		fields = http1.AppendField(fields, name, strings.TrimSpace(value))
	}
	if !hasHost {
		dst = http1.AppendField(dst, "Host", host)
	}
	return append(dst, fields...)
}

// appendRequest appends a whole request.
func (g *traffic) appendRequest(dst []byte, method, path, host, contentType, body string) []byte {
	dst = g.appendHead(dst, method, path, host, "Content-Length", "Transfer-Encoding")
	if body != "" || method == "POST" || method == "PUT" || method == "PATCH" {
		if contentType != "" && !g.hasHeader("Content-Type") {
			dst = http1.AppendField(dst, "Content-Type", contentType)
		}
		dst = http1.AppendIntField(dst, "Content-Length", int64(len(body)))
	}
	return append(http1.AppendEnd(dst), body...)
}

func (g *traffic) hasHeader(want string) bool {
	for _, h := range g.spec.Headers {
		name, _, _ := strings.Cut(h, ":")
		if http1.EqualFold([]byte(strings.TrimSpace(name)), want) {
			return true
		}
	}
	return false
}
