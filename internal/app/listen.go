package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/net/systemd"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// Names under which the service manager keeps the sockets that this process opened. Its own
// sockets have the name of their unit: weir.socket.
const (
	keptPrefix = "kept-by-weir-"
	keptPublic = keptPrefix + "public-" // and a loop's number
	keptAdmin  = keptPrefix + "admin"
)

// A passedSocket is a listening socket from the service manager.
type passedSocket struct {
	file *os.File
	addr netip.AddrPort
}

// ours reports whether an earlier process of this service opened the socket, as opposed to
// the manager (a .socket unit).
func (p *passedSocket) ours() bool { return strings.HasPrefix(p.file.Name(), keptPrefix) }

// serves reports whether the socket is one of a listener on addr. "::" is 0.0.0.0 where
// there is no IPv6.
func (p *passedSocket) serves(addr netip.AddrPort) bool {
	return p.addr == addr || p.addr.Port() == addr.Port() && addr.Addr() == netip.IPv6Unspecified() && p.addr.Addr() == netip.IPv4Unspecified()
}

// listeners are the sockets that clients and operators connect to.
type listeners struct {
	addr  netip.AddrPort
	plain netip.AddrPort // of the plaintext listener beside it; invalid: none
	kept  int            // listening sockets of addr that the service manager keeps while no process has them
	admin *admin.Server  // nil: none
	runs  bool           // the admin listener does

	loops   *eventloop.Group
	service *systemd.Service
	from    *takeover.Parent // the process that this one takes over from; nil: none
	log     *slog.Logger
}

// open opens the listeners. Sockets that the service manager passes are used where they
// are on the configured address, and the manager is given those that are opened here, so
// that connections wait in them while this service has no process.
func (l *listeners) open(a *App) error {
	addr, err := resolve(a.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if a.cfg.Pushes() && !a.auth.HasKeys() && !addr.Addr().IsLoopback() {
		return config.WithHint(fmt.Errorf("listen %s: without keys only loopback addresses are served", a.cfg.Listen),
			"set auth.hmac_secret, auth.public_keys, auth.jwks_url or auth.api_keys, or listen on 127.0.0.1:"+strconv.Itoa(int(addr.Port())))
	}
	adminAddr := netip.AddrPort{}
	if a.cfg.Admin.Enabled() {
		if adminAddr, err = resolve(a.cfg.Admin.WithDefaults().Listen); err != nil {
			return fmt.Errorf("admin: listen: %w", err)
		}
	}
	plainAddr := netip.AddrPort{}
	if a.certificates.plain != nil {
		if plainAddr, err = resolve(a.cfg.TLS.ACME.HTTPListen); err != nil {
			return fmt.Errorf("tls.acme.http_listen: %w", err)
		}
	}
	l.loops, l.service, l.from, l.log = a.loops, a.opt.Service, a.opt.Takeover, a.log
	passed, err := l.passed()
	defer closePassed(passed)
	if err != nil {
		return err
	}
	if err := l.unused(passed, addr, plainAddr, adminAddr, a.cfg.Admin.WithDefaults().Listen); err != nil {
		return err
	}
	if err := l.listenPublic(addr, a.cfg.Listen, passed); err != nil {
		return err
	}
	if err := l.listenPlain(a, plainAddr, passed); err != nil {
		return err
	}
	if l.from != nil {
		a.loops.PauseAccepting()
	}
	a.front.Listening(l.addr)
	if a.cfg.Admin.Enabled() {
		return l.listenAdmin(adminAddr, a.cfg.Admin, a.watching.watch.Sources(), passed)
	}
	return nil
}

// run serves the admin listener, once.
func (l *listeners) run(parts *group, ctx context.Context) { //nolint:revive // the context is the parts', not this call's
	if l.admin != nil && !l.runs {
		l.runs = true
		parts.run(func() error { return l.admin.Run(ctx) })
	}
}

// passed are what the service manager passed, in the order in which they were
// opened. The caller closes them.
func (l *listeners) passed() (list []*passedSocket, err error) {
	files := l.service.Files()
	if l.from != nil {
		files = append(files, l.from.Sockets...)
	}
	for _, f := range files {
		p := &passedSocket{file: f}
		list = append(list, p)
		raw, e := f.SyscallConn()
		if e == nil {
			if e2 := raw.Control(func(fd uintptr) { p.addr, e = sys.ListenerAddr(int(fd)) }); e2 != nil {
				e = e2
			}
		}
		if e != nil && err == nil {
			err = config.WithHint(fmt.Errorf("descriptor %q from the service manager: %w", f.Name(), e), "pass sockets of ListenStream= alone")
		}
	}
	// The manager passes what it keeps in no certain order.
	slices.SortStableFunc(list, func(p, q *passedSocket) int { return p.loop() - q.loop() })
	return list, err
}

// loop is the number of the loop that opened the socket, or -1.
func (p *passedSocket) loop() int {
	if n, err := strconv.Atoi(strings.TrimPrefix(p.file.Name(), keptPublic)); err == nil {
		return n
	}
	return -1
}

func closePassed(list []*passedSocket) {
	for _, p := range list {
		_ = p.file.Close()
	}
}

// duplicates of those in list that listen on addr.
func duplicates(list []*passedSocket, addr netip.AddrPort) (fds []int, err error) {
	for _, p := range list {
		if !p.serves(addr) {
			continue
		}
		raw, err := p.file.SyscallConn()
		if err != nil {
			return fds, err
		}
		var fd int
		if e := raw.Control(func(from uintptr) { fd, err = sys.Dup(int(from)) }); e != nil || err != nil {
			return fds, fmt.Errorf("duplicate the listening socket %s: %w", p.file.Name(), errors.Join(e, err))
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func (l *listeners) listenPublic(addr netip.AddrPort, configured string, passed []*passedSocket) error {
	fds, err := duplicates(passed, addr)
	if err != nil {
		return err
	}
	if len(fds) > 0 {
		if l.addr, err = l.loops.ListenOn(fds); err != nil {
			return fmt.Errorf("listen %s on the sockets of the service manager: %w", configured, err)
		}
		if l.kept = len(fds); l.from != nil {
			l.kept = l.from.Kept
		}
		l.log.Info("listening on sockets that were passed", "listen", l.addr, "sockets", len(fds), "loops", len(l.loops.Loops()))
		return nil
	}
	if l.addr, err = l.loops.Listen(addr); err != nil {
		return err
	}
	return l.keepPublic()
}

// keepPublic gives the service manager duplicates of the public listener's sockets.
func (l *listeners) keepPublic() error {
	n := len(l.loops.Loops())
	room, known := l.service.Room()
	switch {
	case known && room == 0:
		return nil
	case known && room <= n:
		l.log.Warn("the service manager does not keep the listening sockets: no room for all of them", "FileDescriptorStoreMax", room, "needed", n+1)
		return nil
	}
	fds, err := l.loops.Listeners()
	if err != nil {
		return err
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), keptPublic+strconv.Itoa(i))
		err = errors.Join(err, l.service.Keep(f.Name(), f), f.Close())
	}
	if err != nil {
		l.log.Warn("the service manager does not keep the listening sockets", "err", err)
		return nil
	}
	if known {
		l.kept = n
	}
	return nil
}

func (l *listeners) listenAdmin(addr netip.AddrPort, cfg admin.Config, sources admin.Sources, passed []*passedSocket) error {
	fds, err := duplicates(passed, addr)
	if err != nil {
		return err
	}
	var open net.Listener
	for _, fd := range fds {
		if open != nil {
			_ = open.Close()
		}
		if open, err = listenerOf(fd); err != nil {
			return fmt.Errorf("admin listener: %w", err)
		}
	}
	if open == nil {
		if open, err = admin.Open(cfg); err != nil {
			return err
		}
		l.keepAdmin(open)
	}
	if l.admin, err = admin.New(cfg, open, sources, l.log); err != nil {
		_ = open.Close()
	}
	return err
}

func (l *listeners) keepAdmin(open net.Listener) {
	room, known := l.service.Room()
	tcp, ok := open.(*net.TCPListener)
	if !ok || known && room <= len(l.loops.Loops()) {
		return
	}
	f, err := tcp.File()
	if err == nil {
		err = errors.Join(l.service.Keep(keptAdmin, f), f.Close())
	}
	if err != nil {
		l.log.Warn("the service manager does not keep the admin listener's socket", "err", err)
	}
}

// unused has the manager close those that an earlier process opened on an address
// that is not configured any more, before others are kept by the same name. Clients that
// other sockets accept would not be served: then it returns an error.
func (l *listeners) unused(passed []*passedSocket, public, plain, adminAddr netip.AddrPort, adminListen string) error {
	for _, p := range passed {
		switch {
		case p.serves(public), plain.IsValid() && p.serves(plain), adminAddr.IsValid() && p.serves(adminAddr):
		case p.ours():
			l.log.Info("the service manager closes a socket whose address is not configured any more", "listen", p.addr)
			if err := l.service.Forget(p.file.Name()); err != nil {
				l.log.Warn("a socket whose address is not configured any more stays open", "listen", p.addr, "err", err)
			}
		default:
			return config.WithHint(fmt.Errorf("socket %q from the service manager listens on %s, which is neither listen (%s) nor admin.listen (%s)",
				p.file.Name(), p.addr, public, adminListen), "use the address of ListenStream= in the configuration")
		}
	}
	return nil
}

// resolve turns "host:port" into an address; an empty host means all of them.
func resolve(s string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(n)), nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(ip, uint16(n)), nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(ips[0].Unmap(), uint16(n)), nil
}
