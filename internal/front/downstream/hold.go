package downstream

import (
	"fmt"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// holdHead accepts a reply that requests that the connection be held: its head goes out
// as that of a stream.
func (r *reply) holdHead(e *proxy.Exchange, res *http1.Response) {
	h, loopState := r.h, r.h.loopState
	held, err := parseHold(res)
	if err == nil {
		held.reply = r
		err = held.allowed()
	}
	if err != nil {
		loopState.counters.holdsRefused.Add(1)
		loopState.srv.log.Warn("backend may not hold connections", "route", r.policy.Route.Name(), "upstream", r.upstream, "err", err)
		h.x = nil
		e.Cancel()
		r.fail(&push.APIError{Status: http.StatusBadGateway, Message: "the backend's answer is not what it should be"})
		return
	}
	loopState.counters.held.Add(1)
	r.stream, r.keepAlive = held, false
	r.chunkedOut = r.chunks()
	r.untilClose = !r.chunkedOut
	f := policy.Framing{Length: -1, Chunked: r.chunkedOut, Close: true, Date: loopState.dateLine(r.c.Loop())}
	head := *res
	head.Status = held.answered
	for _, own := range [...][2]string{
		{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache, no-transform"}, {"X-Accel-Buffering", "no"}, {"X-Content-Type-Options", "nosniff"},
	} {
		if res.Get(own[0]) == nil {
			f.Extra = http1.AppendField(f.Extra, own[0], own[1])
		}
	}
	if r.cookie != "" {
		f.Extra = append(f.Extra, r.stickyCookie()...)
		r.cookie = ""
	}
	r.writeHead(&head, f)
	r.began, r.status = true, held.answered
}

// allowed checks the channels that a backend names.
func (h *hold) allowed() error {
	srv, route := h.h.loopState.srv, h.policy.Route
	if limit := srv.push.Config().MaxChannels; len(h.channels) > limit {
		return fmt.Errorf("%d channels, push.max_channels is %d", len(h.channels), limit)
	}
	for _, ch := range h.channels {
		if _, err := srv.push.Hub().Namespace(ch); err != nil {
			return err
		}
		if srv.push.Access().Decide(access.Hold, access.Read, ch, access.Caller{Proof: route.MayHoldOn(ch)}) == access.Refused {
			return fmt.Errorf("channel %q is not among the route's hold.channels", ch)
		}
	}
	if n := srv.push.Hub().Logs(h.channels); n > hub.MaxPositions {
		return fmt.Errorf("channels of %d logs, at most %d in one stream", n, hub.MaxPositions)
	}
	return nil
}

// tooLong reports whether the reply is longer than what may come before a
// subscription.
func (h *hold) tooLong() bool {
	return h.sent > h.policy.Route.Config().Hold.MaxBody
}

// cut ends a held connection whose beginning is too long.
func (h *hold) cut() {
	loopState := h.h.loopState
	loopState.counters.holdsRefused.Add(1)
	loopState.srv.log.Warn("a backend sends more than hold.max_body before a stream", "route", h.policy.Route.Name(), "upstream", h.upstream)
	h.h.abandon()
	h.reply.cut()
}

// begin makes the client a subscriber, after the upstream's reply is complete. The
// upstream's connection is free already.
func (h *hold) begin() {
	conn, c := h.h, h.c
	if conn.ended {
		c.Close(nil)
		return
	}
	if h.sent > 0 {
		h.writeBody(blankLines)
	}
	sub := &push.Subscription{Subscription: wire.Subscription{Channels: h.channels, MaxBackoff: h.patience}, Identity: h.policy.Identity, Chunked: h.chunkedOut}
	if len(h.since) > 0 {
		sub.Since = string(h.since.AppendTo(nil))
	} else if _, err := hub.ParsePositions(h.resume); err == nil {
		sub.Since = h.resume
	}
	conn.unwait()
	conn.pending = nil
	h.release()
	conn.loopState.srv.push.ServeHeld(c, sub, h.alive)
	resumeInput(c)
}

// blankLines end whatever event the beginning has left open, so that none of ours
// becomes a part of it.
var blankLines = []byte("\n\n")
