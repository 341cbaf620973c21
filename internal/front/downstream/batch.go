package downstream

import (
	"bytes"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/batch"
	"github.com/weir-gateway/weir/internal/push"
)

// batchTarget is what a target has whose requests are batched.
type batchTarget struct {
	cfg    policy.Batch // with its defaults
	format *batch.Format
	queue  *batch.Queue // set when the table is in force
}

// A batching is what a request has besides that may share a call with others.
type batching struct {
	*forwarding
	by      *batchTarget
	head    []byte        // of a call that is shared
	body    []byte        // of this request
	trailer []byte        // the fields behind it
	member  *batch.Member // nil: it has not joined yet
}

var _ batch.Client = (*batching)(nil)

// mayBatch prepares for a request that may be joined with others.
func (r *forwarding) mayBatch(tg *target) {
	req := r.head
	if tg.batch == nil || r.method != "POST" || !r.unread || req.Upgrade != nil || r.grpc || req.ContentLength > tg.batch.cfg.MaxBytes {
		return
	}
	r.batching = &batching{forwarding: r, by: tg.batch}
}

// compose writes the head of a call that is shared, if the request may share one.
func (b *batching) compose(e *proxy.Exchange) {
	if b == nil || e.Client.IsValid() { // a connection that announces one client's address
		return
	}
	b.head = b.policy.Route.AppendSharedHead(nil, &b.policy, "upstream")
}

// join queues the request, whose body is there.
func (b *batching) join(body []byte) {
	r, h := b.forwarding, b.h
	r.body, b.body, b.trailer = nil, body, bytes.Clone(r.trailers())
	h.pending = r.request
	h.wait(r.c)
	e := r.ready
	if r.mirrorTo != nil {
		r.startMirror(r.mirrorTo, e)
		r.mirror.body(body)
		r.mirror.end(b.trailer)
	}
	b.member = b.by.queue.Join(batch.Request{Config: &b.by.cfg, Format: b.by.format, Body: batch.Parse(b.by.format, body), Head: b.head, Call: e.Call,
		Loop: r.c.Loop(), Client: b})
	if b.member == nil {
		h.unwait()
		r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "too many requests wait for the backend, try again later"})
	}
}

// Alone implements batch.Client.
func (b *batching) Alone() {
	r, c, e := b.forwarding, b.c, b.ready
	seq, body, trailer := r.seq, b.body, b.trailer
	b.body, r.ready, r.h.x = nil, nil, e
	e.Start()
	if r.seq == seq && !c.Closing() && len(body) > 0 {
		e.Body(body)
	}
	if r.seq == seq && !c.Closing() {
		e.End(trailer)
	}
}

// Head implements batch.Client.
func (b *batching) Head(res *http1.Response, peer string, retries int) {
	r := &b.forwarding.reply
	b.body, r.ready = nil, nil
	r.upstream, r.retries = peer, retries
	r.firstByte = r.c.Loop().Now() - r.start
	if !extends(r, res) {
		sendHead(r, res)
	}
}

// Body implements batch.Client.
func (b *batching) Body(piece []byte) bool {
	r, seq := &b.forwarding.reply, b.seq
	r.Body(nil, piece)
	if r.seq != seq {
		return true
	}
	waits := int64(r.c.Unsent())
	if r.extended != nil {
		waits += int64(len(r.extended.body))
	}
	return waits <= b.by.cfg.MaxReply
}

// End implements batch.Client.
func (b *batching) End() { b.forwarding.reply.End(nil, nil) }

// Fail implements batch.Client.
func (b *batching) Fail(err *proxy.Error, peer string, retries int) {
	r := &b.forwarding.reply
	r.upstream, r.retries, r.extended = peer, retries, nil
	r.stop(func() { r.fail(&push.APIError{Status: err.Status, Message: err.Message}) })
}

// leave takes the request out of its call; b may be nil.
func (b *batching) leave() {
	if b != nil {
		b.member.Leave()
	}
}

// Batches are the counters of the routes of s that batch. Any goroutine.
func Batches(s *Server) []batch.Stats {
	if s.batcher == nil {
		return nil
	}
	return s.batcher.Stats()
}
