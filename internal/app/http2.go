package app

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/wire"
)

// http2 is the front on net/http, for connections whose clients speak HTTP/2: the
// loops accept them, end TLS, and pass on what they say.
type http2 struct {
	front *stdhttp.Front // nil: HTTP/1 only
	push  *pushhttp.Server
	set   *policy.Set
}

// speaksHTTP2 reports whether HTTP/2 is served.
func (a *App) speaksHTTP2() bool {
	return a.cfg.Downstream.HTTP2.On()
}

// protocols are what ALPN may agree on, the preferred one first.
func (a *App) protocols() []string {
	list := []string{"http/1.1", "http/1.0"} // both are answered, and who offers the old one alone would be refused
	if a.speaksHTTP2() {
		return append([]string{"h2"}, list...)
	}
	return list
}

// buildHTTP2 makes the second front beside the first.
func (a *App) buildHTTP2(f *wire.Formats) {
	if !a.speaksHTTP2() {
		return
	}
	cfg, h := a.cfg, &a.http2
	files := map[string]stdhttp.Static{}
	for path, file := range a.opt.Files {
		files[path] = stdhttp.Static{ContentType: file.ContentType, Body: file.Body}
	}
	h.push = pushhttp.New(pushhttp.Config{
		Heartbeat: time.Duration(cfg.Push.Heartbeat), Retry: time.Duration(cfg.Push.Retry), WriteStall: time.Duration(cfg.EventLoop.WriteStall),
		Shards: len(a.loops.Loops()),
	}, f, a.hub, a.log)
	h.push.UseAccess(a.access)
	var traces func(*wire.Call, []byte)
	if a.telemetry.Traces() {
		traces = a.tracePublish
	}
	h.front = stdhttp.New(stdhttp.Config{
		HeadTimeout: time.Duration(cfg.Downstream.HeadTimeout), KeepAlive: time.Duration(cfg.Downstream.KeepAlive), MaxHead: cfg.Downstream.MaxHead,
		BuiltinHosts: cfg.Downstream.BuiltinHosts, MaxChannels: cfg.Push.MaxChannels, WriteStall: time.Duration(cfg.EventLoop.WriteStall),
		Reply: http1.Limits{MaxHead: cfg.Proxy.MaxHead, MaxFields: cfg.Proxy.MaxFields},
	}, stdhttp.Deps{
		Traces: traces, Limits: a.admission.front, Hub: a.hub, Push: h.push, Auth: a.auth, Upstreams: a.wing.upstreams, Now: a.wing.clock, Ready: a.push.Ready, Files: files, Log: a.log,
	})
	h.front.SetRoutes(h.set)
	h.front.UseTurns(a.push)
	a.front.UseHTTP2(h.front.TakeFromLoop)
}

// routes gives the second front its routes.
func (h *http2) routes(set *policy.Set) {
	h.set = set
	if h.front != nil {
		h.front.SetRoutes(set)
	}
}

// runHTTP2 serves until ctx is done.
func (a *App) runHTTP2(parts *group, ctx context.Context) { //nolint:revive // the context is the parts', not this call's
	h := &a.http2
	if h.front == nil {
		return
	}
	parts.run(func() error { h.push.Run(ctx); return nil })
	parts.run(func() error {
		if err := h.front.ServeTaken(); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	parts.run(func() error {
		<-ctx.Done()
		h.end()
		return nil
	})
}

// end closes the connections over HTTP/2. What they were sent last goes through the loops,
// which therefore end later.
func (h *http2) end() {
	if h.front == nil {
		return
	}
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = h.front.Close(last) // what is left then is cut
}

func (a *App) drainHTTP2(plan wire.DrainPlan) {
	if a.http2.push != nil {
		a.http2.push.Drain(plan)
		a.http2.front.Drain(plan)
	}
}

// stats are the streams over HTTP/2.
func (h *http2) stats() pushhttp.Stats {
	if h.push == nil {
		return pushhttp.Stats{}
	}
	return h.push.Stats()
}
