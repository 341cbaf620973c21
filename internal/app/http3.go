package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/h3"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// buildHTTP3 makes a server of HTTP/3, if one is configured. Its streams are for the front
// like connections of HTTP/1.1, and its connections count as others do.
func (a *App) buildHTTP3() {
	d := a.cfg.Downstream
	if !d.HTTP3 || a.tls == nil {
		return
	}
	admit := a.admission.fenced(func(c *eventloop.Conn) eventloop.Handler { return c.Handler() })
	a.http3 = h3.New(h3.Config{
		HeadTimeout: time.Duration(d.HeadTimeout), KeepAlive: time.Duration(d.KeepAlive), WriteStall: time.Duration(a.cfg.EventLoop.WriteStall),
		HandshakeTimeout: time.Duration(a.cfg.TLS.HandshakeTimeout), MaxHandshakes: a.cfg.TLS.MaxHandshakes,
		Head: http1.Limits{MaxLine: d.MaxLine, MaxHead: d.MaxHead, MaxFields: d.MaxFields},
		Key:  a.tls.SharedKey,
	}, h3.Front{
		Busy:        a.admission.refuses,
		Admit:       func(c *eventloop.Conn) bool { return admit(c) != nil },
		Established: func(c *eventloop.Conn, state *tls.ConnectionState) { a.tls.Established(c, state) },
		Accept:      a.admission.joined(func(c *eventloop.Conn) eventloop.Handler { return a.front.AcceptStream(c) }),
		Failed:      a.tls.FailedElsewhere,
	}, a.loops.Loops(), a.log)
}

// altSvcAge is how long a client may remember that there is HTTP/3.
const altSvcAge = 24 * time.Hour

// listenHTTP3 opens the UDP socket of the listener's port. Comes after listenPublic.
func (a *App) listenHTTP3() error {
	if a.http3 == nil {
		return nil
	}
	// In a takeover the old process has the UDP port until its end: its clients come back.
	if a.opt.Takeover == nil {
		if err := a.http3.Listen(a.listeners.addr, a.tls.QUICConfig(h3.Protocol)); err != nil {
			return config.WithHint(fmt.Errorf("listen for HTTP/3: %w", err), "free the UDP port "+strconv.Itoa(int(a.listeners.addr.Port()))+", or set downstream.http3 to false")
		}
	}
	altSvc := a.cfg.Downstream.AltSvc
	if altSvc == "" {
		altSvc = fmt.Sprintf(`h3=":%d"; ma=%d`, a.listeners.addr.Port(), int(altSvcAge.Seconds()))
	}
	a.front.Advertise(altSvc)
	a.log.Info("serving HTTP/3", "listen", a.listeners.addr, "alt_svc", altSvc)
	return nil
}

// runHTTP3 takes connections of HTTP/3 until ctx is done.
func (a *App) runHTTP3(parts *group, ctx context.Context) { //nolint:revive // the context is the parts', not this call's
	if a.http3 == nil {
		return
	}
	parts.run(func() error {
		if a.opt.Takeover != nil && !a.succeedHTTP3(ctx) {
			return nil
		}
		return a.http3.Run(ctx)
	})
}

// http3Again is how often a UDP port is tried that the old process has still.
const http3Again = 20 * time.Millisecond

// succeedHTTP3 opens the UDP socket as soon as the old process has closed its own. It reports
// false when ctx is done first.
func (a *App) succeedHTTP3(ctx context.Context) bool {
	for began := time.Now(); ; {
		err := a.http3.Listen(a.listeners.addr, a.tls.QUICConfig(h3.Protocol))
		if err == nil {
			return true
		}
		select {
		case <-time.After(http3Again):
		case <-ctx.Done():
			a.log.Warn("HTTP/3 was not served", "err", err, "for", time.Since(began))
			return false
		}
	}
}

func (a *App) closeHTTP3() error {
	if a.http3 == nil {
		return nil
	}
	return a.http3.Close()
}
