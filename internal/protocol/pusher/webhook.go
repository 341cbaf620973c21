package pusher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
)

// hookEvent is an event of a webhook.
type hookEvent struct {
	Name              string `json:"name"`
	Channel           string `json:"channel"`
	UserID            string `json:"user_id,omitempty"`
	Event             string `json:"event,omitempty"`
	Data              string `json:"data,omitempty"`
	SocketID          string `json:"socket_id,omitempty"`
	SubscriptionCount *int   `json:"subscription_count,omitempty"`
}

// hookBody is the body of a request.
type hookBody struct {
	TimeMS int64       `json:"time_ms"`
	Events []hookEvent `json:"events"`
}

// hook is a webhook at work.
type hook struct {
	Webhook
	app   atomic.Pointer[app] // the newest
	s     *Server
	queue chan hookEvent
	bytes atomic.Int64       // of the data of what is queued
	stop  context.CancelFunc // ends run; nil before it; guarded by hookRunner.mu
}

const (
	hookBatch      = 100              // events of one request
	firstHookRetry = time.Second / 2  // doubled each time
	lastHookRetry  = 30 * time.Second // and no more than that
	maxHookBytes   = 16 << 20         // of data that waits: what is in there is up to clients
)

// hook queues e for the webhooks that want it. It does not block. Any goroutine.
func (a *app) hook(e hookEvent) {
	if !a.hooked[e.Name] {
		return
	}
	for _, h := range a.hooks {
		if !h.matches(e.Name, e.Channel) {
			continue
		}
		if !h.offer(e) && h.s.counts.hooksD.Add(1) == 1 {
			h.s.log.Warn("webhook events are dropped: more wait than webhook_queue, or 16 MiB", "app", a.ID, "url", redact.Endpoint(h.URL))
		}
	}
}

// offer queues e, if there is room.
func (h *hook) offer(e hookEvent) bool {
	n := int64(len(e.Data))
	if h.bytes.Add(n) <= maxHookBytes {
		select {
		case h.queue <- e:
			return true
		default:
		}
	}
	h.bytes.Add(-n)
	return false
}

// dequeued notes that e was removed from the queue.
func (h *hook) dequeued(e hookEvent) hookEvent {
	h.bytes.Add(-int64(len(e.Data)))
	return e
}

// lastWords is how long the end of ctx leaves for what is queued then.
const lastWords = 5 * time.Second

// run sends what is queued, in order, until ctx ends, and then what is there, within a
// bound on time.
func (h *hook) run(ctx context.Context) {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(lastWords):
			cancel()
		case <-last.Done():
		}
	})()
	for {
		events := h.gather(ctx)
		if len(events) == 0 {
			return
		}
		if last.Err() != nil {
			h.lose(len(events) + h.discard())
			return
		}
		if !h.send(last, events) && last.Err() != nil {
			h.lose(len(events) + h.discard())
			return
		}
	}
}

// discard empties the queue and returns how many there were.
func (h *hook) discard() (n int) {
	for {
		select {
		case e := <-h.queue:
			h.dequeued(e)
			n++
		default:
			return n
		}
	}
}

// lose counts events that the end has no time for.
func (h *hook) lose(n int) {
	h.s.counts.hooksD.Add(uint64(n))
	h.s.log.Warn("webhook events are lost: they were not taken before the end", "app", h.app.Load().ID, "url", redact.Endpoint(h.URL), "events", n)
}

// gather waits for an event, and briefly for more. When ctx has ended it waits for
// nothing; nil says then that nothing is left.
func (h *hook) gather(ctx context.Context) []hookEvent {
	var events []hookEvent
	select {
	case e := <-h.queue:
		events = append(events, h.dequeued(e))
	case <-ctx.Done():
		return h.more(events)
	}
	window := time.NewTimer(time.Duration(h.s.conf().cfg.WebhookWindow))
	defer window.Stop()
	for len(events) < hookBatch {
		select {
		case e := <-h.queue:
			events = append(events, h.dequeued(e))
		case <-window.C:
			return events
		case <-ctx.Done():
			return h.more(events)
		}
	}
	return events
}

// more appends what is queued now, up to a request of them.
func (h *hook) more(events []hookEvent) []hookEvent {
	for len(events) < hookBatch {
		select {
		case e := <-h.queue:
			events = append(events, h.dequeued(e))
		default:
			return events
		}
	}
	return events
}

// send posts events until they are taken, or the time for that is over: then it reports
// false.
func (h *hook) send(ctx context.Context, events []hookEvent) bool {
	body, err := json.Marshal(hookBody{time.Now().UnixMilli(), events})
	if err != nil {
		h.s.log.Error("encode a webhook", "app", h.app.Load().ID, "err", err)
		return false
	}
	end := time.Now().Add(time.Duration(h.s.conf().cfg.WebhookRetry))
	for wait := firstHookRetry; ; wait = min(2*wait, lastHookRetry) {
		if err = h.post(ctx, body); err == nil {
			h.s.counts.hooksSent.Add(1)
			return true
		}
		pause := wait/2 + rand.N(wait/2)
		if ctx.Err() != nil || time.Now().Add(pause).After(end) {
			break
		}
		h.s.counts.hooksRetried.Add(1)
		h.s.log.Debug("webhook", "app", h.app.Load().ID, "url", redact.Endpoint(h.URL), "again_in", pause, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	h.s.counts.hooksFailed.Add(1)
	h.s.log.Warn("webhook given up", "app", h.app.Load().ID, "url", redact.Endpoint(h.URL), "events", len(events), "err", err)
	return false
}

// post sends one request.
func (h *hook) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.s.conf().cfg.WebhookTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, v := range h.Headers {
		req.Header.Set(name, v)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "weir")
	req.Header.Set("X-Pusher-Key", h.app.Load().Key)
	req.Header.Set("X-Pusher-Signature", protocol.Sign(h.app.Load().secret, string(body)))
	res, err := h.s.deps.Client.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err // without the URL, whose path may be a secret
	}
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("answered %s", res.Status)
	}
	return nil
}
