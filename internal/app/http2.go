package app

import (
	"time"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// alpn is what ALPN may agree on, the preferred one first.
func (a *App) alpn() []string {
	list := []string{"http/1.1", "http/1.0"} // both are answered, and who offers the old one alone would be refused
	if a.cfg.Downstream.HTTP2.On() {
		return append([]string{"h2"}, list...)
	}
	return list
}

// buildHTTP2 returns what makes connections speak HTTP/2, nil if none may. Its streams are
// for the front like connections of HTTP/1.1.
func (a *App) buildHTTP2() downstream.ServeHTTP2 {
	if !a.cfg.Downstream.HTTP2.On() {
		return nil
	}
	d := a.cfg.Downstream
	accept := a.admission.joined(func(c *eventloop.Conn) eventloop.Handler { return a.front.AcceptStream(c) })
	a.http2 = h2.New(h2.Config{
		HeadTimeout: time.Duration(d.HeadTimeout), KeepAlive: time.Duration(d.KeepAlive),
		Head: http1.Limits{MaxLine: d.MaxLine, MaxHead: d.MaxHead, MaxFields: d.MaxFields},
	}, accept, len(a.loops.Loops()), a.log)
	return a.http2.ServeConn
}
